"""Result files of calls: written whole or not at all, and read only if no one else can access them.

Like `worker.py` this file is copied into the shared folder and must run on Python 3.6 and later.
"""

import errno
import os
import pickle
import stat
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

PROTOCOL = 4  # pickle protocol of the envelopes: every Python in use reads it
VALUE, ERROR, DIED, UNFIT, LEFT_OUT = "value", "error", "died", "unfit", "left out"
SIZE = 8  # bytes of the length before each result
_TOGETHER = 0.1  # results within this many seconds go into one file
_LONGEST = 0.5  # most seconds between two checks whether results are to be written


class StoredResult(NamedTuple):
    """The result of one call.

    Attributes:
        call: index of the call in its run.
        kind: VALUE, ERROR, DIED (its process), UNFIT (the Python version), LEFT_OUT (cancelled).
        payload: the pickled value or exception; empty if there is none.
        facts: `words` (the error message), `trace`, `node`, `python`, `missing`, and `differ`:
            (version in the job, version of the caller) by library.
    """

    call: int
    kind: str
    payload: bytes = b""
    facts: "dict[str, Any]" = {}  # noqa: RUF012 - nobody changes it


class Outbox:
    """A buffer of results, so that results of short calls share a file.

    Args:
        folder: folder of the result files.
        run: prefix of the file names: task number and restart count, e.g. `3-0`.
    """

    def __init__(self, folder: str, run: str) -> None:
        self._folder = folder
        self._run = run
        self._waiting: list[bytes] = []
        self._written = 0.0
        self._number = 0

    def put(self, result: bytes) -> None:
        """Add a result; write all if the last write was a while ago."""
        self._waiting.append(result)
        if self.due() <= 0:
            self.flush()

    def due(self) -> float:
        """Return the seconds until the buffer is to be written."""
        if not self._waiting:
            return _LONGEST
        return self._written + _TOGETHER - time.monotonic()

    def flush(self) -> None:
        """Write the buffer to a file."""
        if self._waiting:
            self.write(str(self._number), self._waiting)
            self._number += 1
            self._waiting, self._written = [], time.monotonic()

    def write(self, name: str, results: "list[bytes]") -> None:
        """Write results to a file, whole or not at all."""
        path = os.path.join(self._folder, f"{self._run}-{name}")
        write_whole(path, b"".join(map(sized, results)))

    def done(self, task: int) -> "dict[int, str]":
        """Return the kind of result by call, for the calls of a task that have a result."""
        own = [name for name in os.listdir(self._folder) if name.startswith(f"{task}-")]
        read = (read_private(os.path.join(self._folder, name)) for name in own)
        return {each.call: each.kind for data in read for each in results_in(data)}


def results_in(data: bytes) -> "Iterator[StoredResult]":
    """Yield the results in the contents of a result file."""
    at = 0
    while at < len(data):
        end = at + SIZE + int.from_bytes(data[at : at + SIZE], "big")
        yield StoredResult(*pickle.loads(data[at + SIZE : end]))  # noqa: S301 - see read_private
        at = end


def read_private(path: str) -> bytes:
    """Read a file that we own and that nobody else can access.

    Raises:
        PermissionError: when others own it or can access it.
        OSError: when it cannot be read.
    """
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        check_private(os.fstat(number), path, os.geteuid())
        return file.read()


def check_private(found: Any, path: str, user: int) -> None:
    """Refuse a file that is not regular, not the user's, or accessible to others.

    Raises:
        PermissionError: with the reason.
    """
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError(errno.EPERM, "not a regular file", path)
    if found.st_uid != user:
        words = f"it belongs to user id {found.st_uid}, not to you ({user})"
        raise PermissionError(errno.EPERM, words, path)
    if found.st_mode & 0o077:
        words = f"others may read or change it (mode {stat.S_IMODE(found.st_mode):o})"
        raise PermissionError(errno.EPERM, words, path)


def write_whole(path: str, data: bytes) -> None:
    """Write a file that only we can read, whole or not at all, and fsync it.

    Raises:
        OSError: when it cannot be written.
    """
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name}-{os.uname().nodename}-{os.getpid()}")
    try:
        with _new(aside) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(aside, path)
    except BaseException:
        if os.path.exists(aside):
            os.unlink(aside)
        raise
    _sync(folder)


def write_new(path: str, data: bytes) -> None:
    """Write a new file that only we can read; without fsync.

    Raises:
        OSError: when it cannot be written.
    """
    with _new(path) as file:
        file.write(data)


def _new(path: str) -> "BinaryIO":
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def dumped(result: StoredResult) -> bytes:
    """Pickle a result."""
    return pickle.dumps(tuple(result), PROTOCOL)


def sized(data: bytes) -> bytes:
    """Prefix data with its length."""
    return len(data).to_bytes(SIZE, "big") + data


def _sync(folder: str) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
