"""Which filesystem a path is on: SQLite's locks and shared memory need a local one."""

from __future__ import annotations

import re
from pathlib import Path

from slurmkit.errors import LedgerError

# As in the third field from the ` - ` of /proc/self/mountinfo, proc_pid_mountinfo(5).
_NETWORK = frozenset(
    "9p afs beegfs beegfs_nodev ceph cifs coda cvmfs gfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4"
    " ocfs2 orangefs panfs pvfs2 smb3 smbfs wekafs".split()
)
_LOCAL_FUSE = frozenset("fuse.fuse-overlayfs fuse.ntfs fuse.exfat fuseblk fuse.bindfs".split())
_OCTAL = re.compile(r"\\([0-7]{3})")


def refuse_network_filesystem(path: Path, mountinfo: str | None = None) -> None:
    """Raise LedgerError when `path` is, or would be, on a filesystem of another machine.

    Args:
        path: a file that need not exist yet.
        mountinfo: text of /proc/self/mountinfo; read when left out.
    """
    kind = filesystem_of(path.resolve(), mountinfo or _mountinfo())
    if is_network(kind):
        raise LedgerError(
            f"{path} is on a network filesystem ({kind}), where SQLite's locks cannot be trusted"
            " and the books could be damaged; name a file on a local disk with --db"
            " sqlite:////PATH or SLURMKIT_DB, or use PostgreSQL"
        )


def filesystem_of(path: Path, mountinfo: str) -> str:
    """Type of the filesystem that an absolute, resolved path is on; empty when unknown."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        mount = Path(_unescape(left.split()[4]))
        depth = len(mount.parts)
        # A later mount on the same directory hides the earlier one.
        if depth >= best and path.is_relative_to(mount):
            best, kind = depth, right.split()[0]
    return kind


def is_network(kind: str) -> bool:
    """Whether a filesystem type stores its files on another machine; unknown FUSE counts as one."""
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def _mountinfo() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:  # not Linux
        return ""


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
