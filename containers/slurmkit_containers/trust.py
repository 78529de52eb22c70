"""Whether a file may be used as it lies there: whose it is, who can write it, what is in it.

This guards against other users and against damage. Who can write as the owner can change file and
record together, and root everything.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from slurmkit.errors import ImageError

Report = Callable[[str, int, int | None], None]
"""Told how far something is: in words, how many bytes are done, and of how many, if known."""

STAYS = -1
"""In place of the bytes that are done: these words are to stay, also where there is no terminal."""

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_PIECE = 1 << 20


def silent(words: str, done: int, total: int | None) -> None:
    """A report that nobody reads."""
    del words, done, total


def opened(path: Path, owners: Collection[int]) -> int:
    """Open a file to read that nobody but its owner, one of `owners`, can have written.

    Raises:
        ImageError: when it is not there, a link or no file, foreign, or others may write it.
    """
    try:
        # Without O_NONBLOCK a named pipe in its place would be waited for.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ImageError(f"{path} is a symbolic link, which is not used; remove it") from error
        raise _unread(path, error) from error
    try:
        _check(path, os.fstat(handle), owners, stat.S_ISREG)
    except ImageError:
        os.close(handle)
        raise
    return handle


def check_folder(folder: Path, owners: Collection[int]) -> None:
    """Refuse a folder that others may put files into.

    Raises:
        FileNotFoundError: when it is not there.
        ImageError: when it is a link or no folder, foreign, or others may write into it.
    """
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unread(folder, error) from error
    _check(folder, found, owners, stat.S_ISDIR)


def _unread(path: Path, error: OSError) -> ImageError:
    return ImageError(f"{path} cannot be read: {error.strerror}")


def _check(
    path: Path, found: os.stat_result, owners: Collection[int], right: Callable[[int], bool]
) -> None:
    if not right(found.st_mode):
        what = "folder" if right is stat.S_ISDIR else "plain file"
        raise ImageError(f"{path} is no {what} (a link is none), and is not used; remove it")
    if found.st_uid not in owners:
        whose = ", ".join(map(str, sorted(owners)))
        raise ImageError(
            f"{path} belongs to user {found.st_uid}, and is not used: it must belong to {whose};"
            " remove it, or have it removed"
        )
    if found.st_mode & _OTHERS:
        raise ImageError(
            f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}), and is not"
            f" used; look at who did, then: chmod go-w {path}"
        )


def sha256_of(handle: int, report: Report = silent) -> str:
    """SHA-256 of an open file, from its begin, in hexadecimal digits."""
    total, done = os.fstat(handle).st_size, 0
    made = hashlib.sha256()
    while piece := os.pread(handle, _PIECE, done):
        made.update(piece)
        done += len(piece)
        report("checking", done, total)
    return made.hexdigest()
