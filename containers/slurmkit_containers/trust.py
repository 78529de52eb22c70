"""Check whether a file can be trusted: its owner, who can write it, and its SHA-256.

This protects against other users and against damage. It does not protect against the owner, who
can change a file and its record together, or against root.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from slurmkit.errors import ImageError

ReportProgress = Callable[[str, int, int | None], None]
"""A callback for progress: what is being done, bytes done, and bytes in all (None if unknown)."""

LINE_STAYS = -1
"""Passed as the bytes done: print the text as a line that stays, also without a terminal."""

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_PIECE = 1 << 20


def ignore_progress(words: str, done: int, total: int | None) -> None:
    """Report nothing."""
    del words, done, total


def open_trusted(path: Path, owners: Collection[int]) -> int:
    """Open a file for reading that belongs to one of `owners` and that nobody else can write.

    Raises:
        ImageError: when it does not exist, is a link or no plain file, has another owner, or is
            writable by others.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would block.
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
    """Check that only its owner, one of `owners`, can write into a folder.

    Raises:
        FileNotFoundError: when it does not exist.
        ImageError: when it is a link or no folder, has another owner, or is writable by others.
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
        raise ImageError(f"{path} is a link, or not a {what}, and is not used; remove it")
    if found.st_uid not in owners:
        whose = " or ".join(map(str, sorted(owners)))
        raise ImageError(
            f"{path} belongs to user id {found.st_uid}, and is not used: its owner must be {whose};"
            " remove it, or ask that user to remove it"
        )
    if found.st_mode & _OTHERS:
        raise ImageError(
            f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}), and is not"
            f" used; check whether they changed it, then run: chmod go-w {path}"
        )


def sha256_of(handle: int, report: ReportProgress = ignore_progress) -> str:
    """Return the SHA-256 of a whole open file, in hexadecimal digits."""
    total, done = os.fstat(handle).st_size, 0
    digest = hashlib.sha256()
    while piece := os.pread(handle, _PIECE, done):
        digest.update(piece)
        done += len(piece)
        report("checking", done, total)
    return digest.hexdigest()


def credentials_file() -> Path:
    """Return the path of enroot's credentials file (enroot's doc/configuration.md)."""
    given = os.environ.get("ENROOT_CONFIG_PATH")
    if given:
        return Path(given) / ".credentials"
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "enroot" / ".credentials"


def unsafe_credentials() -> str | None:
    """Return why enroot must not be started; None if it may be.

    enroot gives a password that begins with `$` to a shell: its manual has `$(aws ecr …)` for
    registries whose passwords last for hours. It does so for every line of the file, whichever
    registry is asked (enroot's src/common.sh, evalnetrc). So a file with such a line must be one
    that only the user or root can write. No password is ever printed.
    """
    file = credentials_file()
    try:
        commands = _command_lines(file)
        if not commands:
            return None
        owners = (os.getuid(), 0)
        os.close(open_trusted(file.resolve(), owners))
        check_folder(file.resolve().parent, owners)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot read {file}: {error.strerror}"
    except ImageError as error:
        return (
            f"{file}, line {commands[0][0]}: enroot would run the password as shell code; {error}"
        )
    return None


def find_password_command(registry: str) -> str | None:
    """Return where the password of a registry is a command, as `FILE, line N`; None if nowhere.

    Args:
        registry: host of the registry, with or without a port.

    Raises:
        OSError: when the file cannot be read.
    """
    file, host = credentials_file(), registry.partition(":")[0]
    try:
        lines = _command_lines(file)
    except FileNotFoundError:
        return None
    return next((f"{file}, line {number}" for number, machine in lines if machine == host), None)


def _command_lines(file: Path) -> list[tuple[int, str]]:
    """Return number and machine of each line whose password is more than one `$VARIABLE`."""
    found = []
    for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), 1):
        # Like enroot's common.sh: the password is the sixth word and all after it.
        words = line.split()
        value = " ".join(words[5:])
        name = value.removeprefix("$").removeprefix("{").removesuffix("}")
        if value.startswith("$") and not name.isidentifier():
            found.append((number, words[1]))
    return found
