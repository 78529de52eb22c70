"""Keep what a cluster said on disk, one file for each cluster, readable by its owner alone.

`$XDG_CACHE_HOME/slurmkit/` (~/.cache) can be deleted at any time. A copy that is damaged, foreign
or of another version is as good as none.
"""

from __future__ import annotations

import os
import re
import threading
import time
import zlib
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from slurmkit.capabilities.model import Capabilities
from slurmkit.errors import ControllerDown, SlurmTimeout
from slurmkit.slurm import LocalSlurm, Slurm

SCHEMA = 1
"""To be raised with every change of the types that are kept."""

_CONFS = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    "/usr/local/etc/slurm.conf",
)
_CLUSTER_NAME = re.compile(r"^[ \t]*ClusterName[ \t]*=[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
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
    offline: bool = False,
    key: str | None = None,
) -> Capabilities:
    """Give the kept copy, or ask the cluster and keep what it said.

    Args:
        slurm: the border to Slurm.
        max_age: seconds that a copy is good for; `taken` tells its age.
        refresh: ask, however young the copy is.
        offline: take a copy of any age while slurmctld does not answer.
        key: names the cluster; that of this machine's commands by default. Without one, as with
            a stand-in for Slurm, nothing is kept.

    Raises:
        SlurmError: when slurmctld does not answer and no copy may be given.
    """
    key = key or cluster_key(slurm)
    copy = kept("capabilities", key, Capabilities)
    if copy is not None and not refresh and -60 < time.time() - copy.taken < max_age:
        return copy
    from slurmkit.capabilities.read import read_capabilities  # noqa: PLC0415 - rarely needed

    try:
        fresh = read_capabilities(slurm)
    except (ControllerDown, SlurmTimeout):
        if copy is None or not offline:
            raise
        return copy
    keep("capabilities", key, fresh)
    return fresh


def cluster_key(slurm: Slurm) -> str | None:
    """The key of the cluster behind `slurm`; None for a stand-in."""
    return local_key() if isinstance(slurm, LocalSlurm) else None


def local_key() -> str:
    """Name the cluster that this machine's commands speak to.

    A home may be shared between clusters, so the name is that in slurm.conf; where that cannot
    be read, the machine's.
    """
    named = os.environ.get("SLURM_CONF_SERVER") or os.environ.get("SLURM_CONF")
    conf = os.environ.get("SLURM_CONF") or next(filter(os.path.exists, _CONFS), "")
    name = _cluster_name(conf) or os.uname().nodename
    return f"{name}-{zlib.crc32(os.fsencode(named or conf)):08x}"


def _cluster_name(conf: str) -> str | None:
    try:
        match = _CLUSTER_NAME.search(Path(conf).read_text("utf-8", "replace")) if conf else None
    except (OSError, ValueError):
        return None
    return match[1] if match else None


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
        copy = msgspec.json.decode(_read_own(path), type=_Copy[kind])  # type: ignore[valid-type]
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
        _write_aside(path, msgspec.json.encode(_Copy(SCHEMA, key, value)))
    except OSError:
        return


def _path(name: str, key: str | None) -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    folder = Path(base) if base.startswith("/") else Path(home) / ".cache"
    file = f"{name}-{_UNSAFE.sub('_', key or '')}.json"
    return folder / "slurmkit" / file if key and folder.is_absolute() else None


def _read_own(path: Path) -> bytes:
    """Read a file that is ours: what another user put there is not believed."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to somebody else")
        return file.read()


def _write_aside(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(aside, flags, 0o600), "wb") as file:
            file.write(data)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
