"""Locks on files, which the kernel frees when their holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slurmkit.errors import ImageError


@contextmanager
def held(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock `path`, waiting for it; `waiting` is called once if it is not free.

    Over NFS other machines see it, over Lustre where it is mounted with `flock`.

    Raises:
        ImageError: where the file system has no locks.
    """
    handle = _open(path)
    try:
        if not _take(handle, path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            waiting()
            _take(handle, path, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def tried(path: Path) -> Iterator[bool]:
    """Hold the lock `path` if it is free, and say whether it was."""
    handle = _open(path)
    try:
        yield _take(handle, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _take(handle: int, path: Path, how: int) -> bool:
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        return False
    except OSError as error:
        raise ImageError(
            f"{path.parent} cannot hold locks ({error.strerror}); name another folder in"
            " [containers] cache"
        ) from error
    return True
