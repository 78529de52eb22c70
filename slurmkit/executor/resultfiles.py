"""Files with what came of calls: written whole or not at all, and believed only if ours alone.

As `worker.py` it lies in the shared folder too, and is read from Python 3.6 on.
"""

import errno
import os
import pickle
import stat
import time
from typing import Any, BinaryIO, Iterator, NamedTuple  # noqa: UP035 - 3.6 cannot index others

PROTOCOL = 4  # of what is only carried: any Python reads it
VALUE, ERROR, DIED, UNFIT, LEFT_OUT = "value", "error", "died", "unfit", "left out"
SIZE = 8  # bytes that say how long a result is
_TOGETHER = 0.1  # seconds in which results go into one file
_LONGEST = 0.5  # seconds between two looks at whether something is to be written


class Result(NamedTuple):
    """What came of a call.

    Attributes:
        call: its index in its run.
        kind: VALUE, ERROR, DIED, UNFIT or LEFT_OUT.
        payload: the pickled value or exception; empty where there is none.
        facts: `words` in place of a value, `trace`, `node`, `python`, and `differ`: versions of
            libraries there and here, by name.
    """

    call: int
    kind: str
    payload: bytes = b""
    facts: "dict[str, Any]" = {}  # noqa: RUF012 - nobody changes it


class Outbox:
    """Results on their way into files: those of short calls together.

    Args:
        folder: where they go.
        run: how the names of the files begin: the task, and how often it was started anew.
    """

    def __init__(self, folder: str, run: str) -> None:
        self._folder = folder
        self._run = run
        self._waiting: list[bytes] = []
        self._written = 0.0
        self._number = 0

    def put(self, result: bytes) -> None:
        """Keep a result, and write all there are if the last were written a while ago."""
        self._waiting.append(result)
        if self.due() <= 0:
            self.flush()

    def due(self) -> float:
        """Seconds until what is kept is to be written."""
        if not self._waiting:
            return _LONGEST
        return self._written + _TOGETHER - time.monotonic()

    def flush(self) -> None:
        """Write what is kept."""
        if self._waiting:
            self.write(str(self._number), self._waiting)
            self._number += 1
            self._waiting, self._written = [], time.monotonic()

    def write(self, name: str, results: "list[bytes]") -> None:
        """Write results to a file, whole or not at all."""
        path = os.path.join(self._folder, f"{self._run}-{name}")
        write_whole(path, b"".join(map(sized, results)))

    def done(self, task: int) -> "dict[int, str]":
        """The calls that the task has left results of, and their kinds."""
        own = [name for name in os.listdir(self._folder) if name.startswith(f"{task}-")]
        read = (read_private(os.path.join(self._folder, name)) for name in own)
        return {each.call: each.kind for data in read for each in results_in(data)}


def results_in(data: bytes) -> "Iterator[Result]":
    """The results in what `read_private` gave."""
    at = 0
    while at < len(data):
        end = at + SIZE + int.from_bytes(data[at : at + SIZE], "big")
        yield Result(*pickle.loads(data[at + SIZE : end]))  # noqa: S301 - see read_private
        at = end


def read_private(path: str) -> bytes:
    """Read a file that is ours, and that nobody else may even read.

    Raises:
        PermissionError: when it is not, saying so.
        OSError: when it cannot be read.
    """
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        check_private(os.fstat(number), path, os.geteuid())
        return file.read()


def check_private(found: Any, path: str, user: int) -> None:
    """Refuse a file that is not one user's alone.

    Raises:
        PermissionError: saying why.
    """
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError(errno.EPERM, "not a regular file", path)
    if found.st_uid != user:
        words = f"it belongs to user id {found.st_uid}, not to you ({user})"
        raise PermissionError(errno.EPERM, words, path)
    if found.st_mode & 0o077:
        words = f"others may use it (mode {stat.S_IMODE(found.st_mode):o})"
        raise PermissionError(errno.EPERM, words, path)


def write_whole(path: str, data: bytes) -> None:
    """Write a file that we alone can read, whole or not at all, and onto the disk.

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
    """Write a file that we alone can read, where there is none.

    Raises:
        OSError: when it cannot be written.
    """
    with _new(path) as file:
        file.write(data)


def _new(path: str) -> "BinaryIO":
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def dumped(result: Result) -> bytes:
    """A result as bytes."""
    return pickle.dumps(tuple(result), PROTOCOL)


def sized(data: bytes) -> bytes:
    """Data behind its length."""
    return len(data).to_bytes(SIZE, "big") + data


def _sync(folder: str) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
