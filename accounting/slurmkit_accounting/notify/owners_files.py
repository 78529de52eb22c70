"""The files of a job's owner, as far as the service may read them: its log above all.

A process of its own reads each file. On a file system that hangs, a read never ends, and perhaps
the process cannot even be killed. Then nobody waits for it, and the mail goes out without it.
"""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from slurmkit.config.paths import mount_point
from slurmkit.errors import BadInput
from slurmkit.slurm.machine import LocalMachine

NO_ANSWER = "its file system does not answer"
_SECONDS = 10.0  # for one file
_PIECE = 4 << 20  # bytes from the start of a file, and as many from its end: what `why` reads
_AVOID_SECONDS = 300  # in which a file system that hung is left alone
_MOST_HANGING = 4  # processes that could not be killed
# It opens what belongs to the user and is a regular file: a pipe would wait for its writer, and the
# user may put a link to somebody else's file in the place of the log.
_READ = """
import errno, json, os, stat, sys
path, uid, piece = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
out = sys.stdout.buffer
try:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if found.st_uid != uid:
        raise OSError(errno.EACCES, "it does not belong to the job's owner")
    begin = os.pread(file, piece, 0)
    at = max(len(begin), found.st_size - piece)
    end = os.pread(file, piece, at)
    head = {"size": at + len(end), "begin": len(begin)}
    out.write(json.dumps(head).encode() + b"\\n" + begin + end)
except OSError as error:
    out.write(json.dumps({"errno": error.errno, "why": error.strerror}).encode() + b"\\n")
"""


class _Answer(msgspec.Struct):
    size: int = 0
    begin: int = 0
    errno: int = 0
    why: str = ""


class FileReader:
    """Reads files of other users, each within a deadline.

    Args:
        seconds: for one file.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._avoided: dict[str, float] = {}  # until when, by file system
        self._hanging: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def open(self, path: str, uid: int) -> BinaryIO:
        """Open a copy of a user's regular file; of a large one only its two ends, at their place.

        Raises:
            OSError: when it is somebody else's, cannot be read, or nothing answers in time.
        """
        where = _filesystem_of(path)
        with self._lock:
            self._hanging = [each for each in self._hanging if each.poll() is None]
            avoided = self._avoided.get(where, 0.0) > time.monotonic()
            if avoided or len(self._hanging) >= _MOST_HANGING:
                raise TimeoutError(errno.ETIMEDOUT, f"{NO_ANSWER}, or did not lately", path)
        argv = [sys.executable, "-IS", "-c", _READ, path, str(uid), str(_PIECE)]
        process = subprocess.Popen(
            argv,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=self._seconds)[0]
        except subprocess.TimeoutExpired:
            self._abandon(process, where)
            why = f"{NO_ANSWER} within {self._seconds:g} s"
            raise TimeoutError(errno.ETIMEDOUT, why, path) from None
        return _as_file(output, path)

    def _abandon(self, process: subprocess.Popen[bytes], where: str) -> None:
        """Kill a process, and wait for its end no longer."""
        process.kill()
        if process.stdout is not None:
            with suppress(OSError):
                process.stdout.close()
        with self._lock:
            self._hanging.append(process)
            self._avoided[where] = time.monotonic() + _AVOID_SECONDS


def _as_file(output: bytes, path: str) -> BinaryIO:
    head, _, content = output.partition(b"\n")
    try:
        answer = msgspec.json.decode(head, type=_Answer)
    except msgspec.MsgspecError:
        raise OSError(errno.EIO, "reading it ended without an answer", path) from None
    if answer.why:
        raise OSError(answer.errno, answer.why, path)
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    end = content[answer.begin :]
    file.write(content[: answer.begin])
    file.seek(answer.size - len(end))
    file.write(end)
    file.seek(0)
    return file


def _filesystem_of(path: str) -> str:
    """Return where the file system of a path is mounted, by its name: nothing of it is asked."""
    found = mount_point(Path(path))
    # A link may lead elsewhere from there: then not everything below `/` is left alone.
    return str(found if found != Path("/") else Path(*Path(path).parts[:3]))


class OwnersFiles(LocalMachine):
    """This machine as one user has it: only files of that user can be opened."""

    is_here = False  # whether *the user* could read or write something is not known here

    def __init__(self, user: str, uid: int | None, reader: FileReader) -> None:
        self._user = user
        self._uid = uid
        self._reader = reader

    @property
    def user(self) -> str:
        return self._user

    @property
    def folder(self) -> str:
        """Raise BadInput: the folder of the user is not known here."""
        raise BadInput("the folder of another user is not known")

    def exists(self, path: str) -> bool:
        """Raise PermissionError: the file is not looked at, since that could hang."""
        raise PermissionError(errno.EACCES, "it is another user's", path)

    def modified(self, path: str) -> float:
        """Raise PermissionError: the file is not looked at, since that could hang."""
        raise PermissionError(errno.EACCES, "it is another user's", path)

    def open(self, path: str) -> BinaryIO:
        """Open a regular file that belongs to the user.

        Raises:
            OSError: when it is somebody else's, no regular file, cannot be opened, or its file
                system does not answer in time.
        """
        if self._uid is None:
            raise PermissionError(errno.EACCES, "its owner is not known", path)
        return self._reader.open(path, self._uid)
