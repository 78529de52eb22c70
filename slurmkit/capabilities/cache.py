"""Keep what a cluster said on disk, one file for each cluster, readable by its owner alone.

`$XDG_CACHE_HOME/slurmkit/` (~/.cache) can be deleted at any time. A copy that is damaged, foreign
or of another version is as good as none, and one from before slurm.conf was edited is old.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
import zlib
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from slurmkit.capabilities.model import Capabilities
from slurmkit.machine import machine_of
from slurmkit.slurm import LocalSlurm, Slurm

SCHEMA = 2
"""To be raised with every change of the types that are kept."""

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
_TAKEN_OVER = 60  # seconds in which slurmctld has taken over an edited slurm.conf
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")

KeptT = TypeVar("KeptT", bound=msgspec.Struct)


class _Copy(msgspec.Struct, Generic[KeptT]):
    schema: int
    key: str
    body: KeptT


def load_capabilities(
    slurm: Slurm,
    *,
    max_age: float = 600,
    refresh: bool = False,
    key: str | None = None,
) -> Capabilities:
    """Give the kept copy, or ask the cluster and keep what it said.

    Args:
        slurm: the border to Slurm.
        max_age: seconds that a copy is good for, unless Slurm's configuration was edited since;
            infinite for any copy. `taken` tells its age.
        refresh: ask, however young the copy is.
        key: names the cluster; that of this machine's commands by default. Without one, as with
            a stand-in for Slurm, nothing is kept.

    Raises:
        SlurmError: when slurmctld does not answer and no copy may be given.
    """
    key = key or cluster_key(slurm)
    copy = kept("capabilities", key, Capabilities)
    edited = _edited() if machine_of(slurm).is_here else 0.0
    if copy is not None and not refresh and _is_good(copy, max_age, edited):
        return copy
    from slurmkit.capabilities.read import read_capabilities  # noqa: PLC0415 - rarely needed

    fresh = read_capabilities(slurm)
    keep("capabilities", key, fresh)
    return fresh


def cluster_key(slurm: Slurm) -> str | None:
    """The key of the cluster behind `slurm`; None for a stand-in."""
    named: str | None = getattr(slurm, "key", None)  # that of a border over SSH
    return local_key() if isinstance(slurm, LocalSlurm) else named


def local_key() -> str:
    """Name the cluster that this machine's commands speak to.

    A home may be shared between clusters, so the name is that in slurm.conf, with slurmctld's host;
    where that cannot be read, the machine's.
    """
    named = os.environ.get("SLURM_CONF_SERVER") or os.environ.get("SLURM_CONF")
    conf = conf_path()
    said = [(key.lower(), value) for key, value in _NAMED.findall(_text(conf))]
    name = next((value for key, value in said if key == "clustername"), os.uname().nodename)
    hosts = (value for key, value in said if key == "slurmctldhost")
    return f"{name}-{zlib.crc32(os.fsencode(' '.join([named or conf, *hosts]))):08x}"


def conf_path() -> str:
    """Where slurm.conf is on this machine; empty where there is none in a usual place."""
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
    """When one of the files beside slurm.conf was written last; a copy may be from before."""
    try:
        with os.scandir(os.path.dirname(conf_path())) as found:  # noqa: PTH120 - of "" it is ""
            return max((e.stat().st_mtime for e in found if e.name.endswith(".conf")), default=0)
    except OSError:
        return 0


def kept(name: str, key: str | None, kind: type[KeptT]) -> KeptT | None:
    """Read a copy, or None when there is none that can be used.

    Args:
        name: of what is kept.
        key: of what it was kept for; None where nothing is kept.
        kind: the type it must have.
    """
    path = _path(name, key)
    if path is None or key is None:
        return None
    try:
        copy = msgspec.json.decode(read_own(path), type=_Copy[kind])  # type: ignore[valid-type]
    except (OSError, ValueError):
        return None
    return copy.body if (copy.schema, copy.key) == (SCHEMA, key) else None


def keep(name: str, key: str | None, value: msgspec.Struct) -> None:
    """Write a copy, whole or not at all; where that cannot be done, it is not kept."""
    path = _path(name, key)
    if path is None or key is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_aside(path, msgspec.json.encode(_Copy(SCHEMA, key, value)))
    except OSError:
        return


def _path(name: str, key: str | None) -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    folder = Path(base) if base.startswith("/") else Path(home) / ".cache"
    file = f"{name}-{_UNSAFE.sub('_', key or '')}.json"
    return folder / "slurmkit" / file if key and folder.is_absolute() else None


def read_own(path: Path) -> bytes:
    """Read a file that is ours: what another user put there is not believed.

    Raises:
        OSError: when it is not, or cannot be read.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # which a pipe would need
    with os.fdopen(os.open(path, flags), "rb") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to somebody else")
        return file.read()


def write_aside(path: Path, data: bytes) -> None:
    """Write a file that its owner alone can read, whole or not at all.

    Raises:
        OSError: when it cannot be written; what was there before is left.
    """
    aside = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(aside, flags, 0o600), "wb") as file:
            file.write(data)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
