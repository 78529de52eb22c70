"""The cache of what a cluster answered: one file for each cluster, readable by its owner alone.

`$XDG_CACHE_HOME/slurmkit/` (~/.cache) can be deleted at any time. A file that is damaged, of
another user or of another version is ignored. A file from before slurm.conf was edited is old.
"""

from __future__ import annotations

import math
import os
import re
import time
import zlib
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from slurmkit.config.paths import cache_folder, read_private_file, write_private_file
from slurmkit.slurm.commands import LocalSlurmCommands, SlurmCommands
from slurmkit.slurm.machine import machine_of
from slurmkit.state.model import Capabilities

SCHEMA = 2
"""Version of the cached types; raise it with every change of them."""

_CONFS = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    "/usr/local/etc/slurm.conf",
)
_NAMED = re.compile(
    r"^[ \t]*(ClusterName|SlurmctldHost)[ \t]*=[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE
)
_TAKEN_OVER = 60  # seconds after which slurmctld uses an edited slurm.conf
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")

CachedT = TypeVar("CachedT", bound=msgspec.Struct)


class _CacheFile(msgspec.Struct, Generic[CachedT]):
    schema: int
    key: str
    body: CachedT


def load_capabilities(
    slurm: SlurmCommands,
    *,
    max_age: float = 600,
    refresh: bool = False,
    key: str | None = None,
) -> Capabilities:
    """Load a cluster's capabilities from the cache, or read them from Slurm and cache them.

    Args:
        slurm: runs Slurm commands.
        max_age: seconds that a copy counts, unless Slurm's configuration was edited since;
            infinite for any copy. `taken` tells its age.
        refresh: ask Slurm, however young the copy is.
        key: key of the cluster; by default that of this machine's commands. Without a key, as
            for a stand-in, nothing is cached.

    Raises:
        SlurmError: when slurmctld does not answer and no copy can be used.
    """
    key = key or cluster_key(slurm)
    copy = load_cached("capabilities", key, Capabilities)
    edited = _edited() if machine_of(slurm).is_here else 0.0
    if copy is not None and not refresh and _is_good(copy, max_age, edited):
        return copy
    from slurmkit.state.capabilities import read_capabilities  # noqa: PLC0415 - rarely needed

    fresh = read_capabilities(slurm)
    save_cached("capabilities", key, fresh)
    return fresh


def cluster_key(slurm: SlurmCommands) -> str | None:
    """Return the key of the cluster behind `slurm`; None for a stand-in."""
    named: str | None = getattr(slurm, "key", None)  # set for a cluster over SSH
    return local_cluster_key() if isinstance(slurm, LocalSlurmCommands) else named


def local_cluster_key() -> str:
    """Return the key of the cluster that this machine's commands reach.

    Clusters may share a home. So the key has the cluster's name and slurmctld's host from
    slurm.conf; the machine's name if that file cannot be read.
    """
    named = os.environ.get("SLURM_CONF_SERVER") or os.environ.get("SLURM_CONF")
    conf = conf_path()
    settings = [(key.lower(), value) for key, value in _NAMED.findall(_text(conf))]
    name = next((value for key, value in settings if key == "clustername"), os.uname().nodename)
    hosts = (value for key, value in settings if key == "slurmctldhost")
    return f"{name}-{zlib.crc32(os.fsencode(' '.join([named or conf, *hosts]))):08x}"


def conf_path() -> str:
    """Return the path of slurm.conf on this machine; empty if it is in no usual place."""
    return os.environ.get("SLURM_CONF") or next(filter(os.path.exists, _CONFS), "")


def _text(conf: str) -> str:
    try:
        return Path(conf).read_text("utf-8", "replace") if conf else ""
    except (OSError, ValueError):
        return ""


def _is_good(copy: Capabilities, max_age: float, edited: float) -> bool:
    if max_age == math.inf:
        return True
    return -60 < time.time() - copy.taken < max_age and copy.taken > edited + _TAKEN_OVER


def _edited() -> float:
    """Return when the newest file next to slurm.conf was written; 0 if that is unknown."""
    try:
        with os.scandir(os.path.dirname(conf_path())) as entries:  # noqa: PTH120 - of "" it is ""
            return max((e.stat().st_mtime for e in entries if e.name.endswith(".conf")), default=0)
    except OSError:
        return 0


def load_cached(name: str, key: str | None, kind: type[CachedT]) -> CachedT | None:
    """Load a value from the cache; None if there is none that can be used.

    Args:
        name: name of the value.
        key: key of its cluster or user; None where nothing is cached.
        kind: type of the value.
    """
    path = _path(name, key)
    if path is None or key is None:
        return None
    try:
        copy = msgspec.json.decode(read_private_file(path), type=_CacheFile[kind])  # type: ignore[valid-type]
    except (OSError, ValueError):
        return None
    return copy.body if (copy.schema, copy.key) == (SCHEMA, key) else None


def save_cached(name: str, key: str | None, value: msgspec.Struct) -> None:
    """Save a value in the cache, whole or not at all; an OSError is ignored."""
    path = _path(name, key)
    if path is None or key is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private_file(path, msgspec.json.encode(_CacheFile(SCHEMA, key, value)))
    except OSError:
        return


def _path(name: str, key: str | None) -> Path | None:
    folder = cache_folder()
    file = f"{name}-{_UNSAFE.sub('_', key or '')}.json"
    return folder / file if key and folder.is_absolute() else None
