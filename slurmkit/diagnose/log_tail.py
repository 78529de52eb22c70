"""Read the end of a running job's log, within a deadline.

The log may be on the file system that has stopped answering, and that may be why somebody asks. A
read of it blocks in the kernel and no signal ends it. So a process of its own reads it, and is left
behind if it does not answer.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import NamedTuple

from slurmkit.slurm.machine import Machine

SECONDS = 5.0
"""After which a log counts as not readable."""
_left_behind: list[subprocess.Popen[bytes]] = []
_READ = """
import json, os, stat, sys
path, most = sys.argv[1], int(sys.argv[2])
piece = b""
try:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(22, "not a regular file")
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    found = os.fstat(file)
    piece = os.pread(file, most, max(0, found.st_size - most))
    facts = {"size": found.st_size, "modified": found.st_mtime}
except OSError as error:
    facts = {"errno": error.errno or 5, "why": error.strerror or str(error)}
sys.stdout.buffer.write(json.dumps(facts).encode() + b"\\n" + piece)
"""


class LogTail(NamedTuple):
    """The end of a log.

    Attributes:
        text: its last bytes.
        size: bytes of the whole log.
        modified: epoch seconds of its last change.
    """

    text: str
    size: int
    modified: float


def read_tail(machine: Machine, path: str, most: int, seconds: float = SECONDS) -> LogTail:
    """Read the end of a file.

    Args:
        machine: where it is; a login node over SSH has deadlines of its own.
        path: of the file.
        most: bytes that are read at most.
        seconds: the deadline on this machine.

    Raises:
        OSError: when it is no regular file, cannot be read, or nothing answers in time.
        SshError: when the login node does not answer.
    """
    if not machine.is_here:
        modified = machine.modified(path)
        with machine.open(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            return LogTail(file.read(most).decode("utf-8", "replace"), size, modified)
    head, _, piece = _read_in_time(path, most, seconds).partition(b"\n")
    try:
        facts = json.loads(head)
    except ValueError:
        raise OSError("reading it ended without an answer") from None
    if "why" in facts:
        raise OSError(facts["errno"], facts["why"], path)
    return LogTail(piece.decode("utf-8", "replace"), facts["size"], facts["modified"])


def _read_in_time(path: str, most: int, seconds: float) -> bytes:
    """Return what the process that reads says.

    Raises:
        TimeoutError: when it says nothing in time; it is left behind.
    """
    _left_behind[:] = [each for each in _left_behind if each.poll() is None]
    process = subprocess.Popen(
        [sys.executable, "-IS", "-c", _READ, path, str(most)],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()  # and no wait for its end, which may never come
        _left_behind.append(process)
        if process.stdout is not None:
            with suppress(OSError):
                process.stdout.close()
        why = f"its file system gives no answer within {seconds:g} s"
        raise TimeoutError(errno.ETIMEDOUT, why, path) from None
