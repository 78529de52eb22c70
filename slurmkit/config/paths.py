"""Folders of a user (XDG Base Directory Specification), private files and locks, filesystems."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import time
from functools import lru_cache
from io import FileIO
from pathlib import Path

ARRAYS_FOLDER, NOTEBOOKS_FOLDER, CODE_SERVERS_FOLDER = "arrays", "jupyter", "code-server"
JOB_FOLDERS = (ARRAYS_FOLDER, NOTEBOOKS_FOLDER, CODE_SERVERS_FOLDER)
"""Folders of state whose files or folders have a job's id as their name."""


def read_private_file(path: Path) -> bytes:
    """Read a file of this user; a file that another user put there is refused.

    Raises:
        OSError: when it belongs to another user, or cannot be read.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # so that a pipe does not block
    with os.fdopen(os.open(path, flags), "rb") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        return file.read()


def write_private_file(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all.

    Raises:
        OSError: when it cannot be written; the old file stays.
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


def describe_write_error(error: OSError) -> str:
    """Return why a file could not be written, and what to do if the disk or a quota is full."""
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{why}; make room there"
    # SFTP has one code for many failures, a full disk among them.
    if error.errno is None or (error.errno, why) == (errno.EIO, "Failure"):
        return f"{why}; make room there, if the disk or your quota is full"
    return why


def open_lock_file(path: Path) -> FileIO:
    """Open a file for `lock_file`; closing it releases the lock, and so does the process's end.

    Raises:
        OSError: when it cannot be opened, or is a symbolic link.
    """
    return FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")


def lock_file(file: FileIO, patience: float | None = 0) -> bool:
    """Lock a file of `open_lock_file`, and return whether that worked.

    Other machines see the lock on NFS, and on Lustre if it is mounted with `flock`.

    Args:
        file: the open file.
        patience: seconds to wait while another process holds the lock; None to wait until it is
            free.

    Returns:
        False when another process still holds the lock after that time.

    Raises:
        OSError: when the filesystem has no locks.
    """
    if patience is None:
        fcntl.flock(file, fcntl.LOCK_EX)
        return True
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline or not patience:
                return False
            time.sleep(0.2)
        else:
            return True


def state_folder(name: str = "") -> Path:
    """Return `$XDG_STATE_HOME/slurmkit/NAME`, by default in ~/.local/state; it may not exist.

    The home directory is shared by nodes and login nodes, so a job finds its files there.
    """
    return _folder("XDG_STATE_HOME", ".local/state", name)


def recorded_job_ids(name: str) -> list[str]:
    """List the jobs on any cluster that a folder of state has a record of, newest first.

    Args:
        name: the folder, e.g. `ARRAYS_FOLDER`; in it is one for each cluster.
    """
    stems = {path.stem for path in state_folder(name).glob("*/*")}
    return sorted((stem for stem in stems if stem.isdecimal()), key=int, reverse=True)


def cache_folder(name: str = "") -> Path:
    """Return `$XDG_CACHE_HOME/slurmkit/NAME`, by default in ~/.cache; it may not exist."""
    return _folder("XDG_CACHE_HOME", ".cache", name)


def config_folder() -> Path:
    """Return `$XDG_CONFIG_HOME/slurmkit`, by default in ~/.config; it may not exist."""
    return _folder("XDG_CONFIG_HOME", ".config", "")


def shared_config_folders() -> list[Path]:
    """Return `slurmkit` in each of `$XDG_CONFIG_DIRS`, by default /etc/xdg; the first wins."""
    listed = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [Path(each) / "slurmkit" for each in listed.split(":") if each.startswith("/")]


def data_folder() -> Path:
    """Return `$XDG_DATA_HOME/slurmkit`, by default in ~/.local/share; it may not exist."""
    return _folder("XDG_DATA_HOME", ".local/share", "")


def _folder(variable: str, fallback: str, name: str) -> Path:
    """Return a folder of slurmkit; it begins with `~` for a user without a home directory."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    return _join(os.environ.get(variable, ""), f"{home}/{fallback}", name)


@lru_cache(maxsize=64)  # called at every submit
def _join(base: str, default: str, name: str) -> Path:
    """Build the path; `base` counts only if it is absolute, as XDG demands."""
    return Path(base if base.startswith("/") else default) / "slurmkit" / name


_OCTAL = re.compile(r"\\([0-7]{3})")


def filesystem_type(path: Path, mountinfo: str | None = None) -> str:
    """Return the filesystem type of an absolute, resolved path; empty when unknown.

    Args:
        path: it need not exist yet.
        mountinfo: text of /proc/self/mountinfo (proc_pid_mountinfo(5)); read when left out.
    """
    return _find_mount(path, mountinfo)[1]


def mount_point(path: Path, mountinfo: str | None = None) -> Path:
    """Return where the filesystem of an absolute path is mounted; `/` when unknown.

    Links are not followed, so nothing on that filesystem is asked.

    Args:
        path: it need not exist yet.
        mountinfo: see `filesystem_type`.
    """
    return _find_mount(path, mountinfo)[0]


def _find_mount(path: Path, mountinfo: str | None) -> tuple[Path, str]:
    best, point, kind = -1, Path("/"), ""
    for line in (_read_mountinfo() if mountinfo is None else mountinfo).splitlines():
        left, _, right = line.partition(" - ")
        mount = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), left.split()[4]))
        depth = len(mount.parts)
        # A later mount on the same directory hides the earlier one, e.g. NFS that of autofs.
        if depth >= best and path.is_relative_to(mount):
            best, point, kind = depth, mount, right.split()[0]
    return point, kind


def _read_mountinfo() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:  # not Linux
        return ""
