"""Run one text in a shell on the login node, and read what it prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import paramiko

from slurmkit.errors import SlurmTimeout, SshError
from slurmkit.slurm import too_late_for
from slurmkit.ssh.connection import Connection, lost
from slurmkit.ssh.remoteshell import COMMAND

_PIECE = 1 << 18
_NOISE = 1 << 20  # bytes that a login shell may print before our command


class Deadline:
    """When a command is given up; `seconds` is None for never."""

    def __init__(self, argv: Sequence[str], seconds: float | None) -> None:
        self._argv = argv
        self._seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """Seconds that are left."""
        return None if self._end is None else max(0.01, self._end - time.monotonic())

    def missed(self) -> SlurmTimeout:
        """The error to raise."""
        return too_late_for(self._argv, self._seconds or 0)


class Running:
    """A command on the login node.

    Args:
        channel: on which a shell was given its text.
        begin: the mark before the command's own words.
        deadline: when it is given up.
    """

    def __init__(self, channel: Any, begin: str, deadline: Deadline) -> None:
        self._channel = channel
        self._begin = begin
        self._deadline = deadline

    def output(self) -> bytes:
        """All that it prints."""
        text = b"".join(self._pieces(self._channel.recv))
        mine = text.partition(f"{self._begin}\n".encode())
        return mine[2] if mine[1] else self._nothing_ran(text)

    def lines(self) -> Iterator[bytes]:
        """What it prints, line by line, line ends kept."""
        rest, noise = b"", True
        for piece in self._pieces(self._channel.recv):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                if not noise:
                    yield line + b"\n"
                noise = noise and line != self._begin.encode()
            if noise and len(rest) > _NOISE:
                raise SshError("the login shell prints without end before it runs a command")
        if noise:
            self._nothing_ran(rest)
        elif rest:
            yield rest

    def errors(self) -> bytes:
        """What it printed to its standard error; to be asked once its output is through."""
        text = b"".join(self._pieces(self._channel.recv_stderr))
        return text.partition(f"{self._begin}\n".encode())[2]

    def code(self) -> int:
        """Its exit code, once its output is through.

        Raises:
            ConnectionLost: when the line broke before that came.
            SlurmTimeout: when it does not come in time.
        """
        if not self._channel.status_event.wait(self._deadline.left):
            raise self._deadline.missed()
        code = int(self._channel.exit_status)
        if code < 0 and not self._channel.get_transport().is_active():
            raise lost()
        return code if code >= 0 else 255

    def _nothing_ran(self, text: bytes) -> bytes:
        code = self.code()
        said = text + b"".join(self._pieces(self._channel.recv_stderr))
        words = " ".join(said.decode("utf-8", "replace").split())[:300]
        raise SshError(f"the login shell runs no command (exit code {code}): {words}")

    def _pieces(self, read: Callable[[int], bytes]) -> Iterator[bytes]:
        while True:
            self._channel.settimeout(self._deadline.left)
            try:
                piece = read(_PIECE)
            except TimeoutError:
                raise self._deadline.missed() from None
            if not piece:
                return
            yield piece


@contextmanager
def started(
    connection: Connection, text: bytes, begin: str, deadline: Deadline
) -> Iterator[Running]:
    """Give a shell on the login node its text.

    Args:
        connection: where.
        text: as `remoteshell.function` makes it with `begin`.
        begin: the mark before its own words.
        deadline: when it is given up.

    Raises:
        SshError: when there is no connection or no session; `ConnectionLost` when it breaks.
    """
    with connection.session() as channel:
        try:
            channel.exec_command(COMMAND)
            channel.sendall(text)
            channel.shutdown_write()
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise lost(error) from error
        yield Running(channel, begin, deadline)
