"""A shell on the login node that runs one text after another: each takes one way there and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paramiko

from slurmkit.errors import ConnectionLost, SlurmTimeout, SshError
from slurmkit.slurm import too_late_for
from slurmkit.ssh.remoteshell import COMMAND, greeting, mark

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


class Shell:
    """Used by one thread at a time.

    Args:
        channel: a new session of a connection.

    Attributes:
        is_at_rest: whether all that was asked of it is done and read.

    Raises:
        ConnectionLost: when the line breaks.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._begin = mark()
        self._greeted = self._quiet = False
        self._rest = {"recv": b"", "recv_stderr": b""}
        self.is_at_rest = False
        self._sent(lambda: channel.exec_command(COMMAND))

    @property
    def is_there(self) -> bool:
        """Whether it can be asked for more, as far as is known."""
        channel = self._channel
        ended = channel.closed or channel.eof_received or channel.exit_status_ready()
        return not ended and channel.get_transport().is_active()

    def close(self) -> None:
        """End it."""
        self._channel.close()

    def give(self, text: bytes, deadline: Deadline) -> None:
        """Send it a text.

        Raises:
            ConnectionLost: when the line broke.
            SlurmTimeout: when it does not take it in time.
        """
        self.is_at_rest = False
        text = text if self._greeted else greeting(self._begin) + text
        self._greeted = True
        self._channel.settimeout(deadline.left)
        try:
            self._sent(lambda: self._channel.sendall(text))
        except TimeoutError:
            raise deadline.missed() from None

    def output(self, sign: str, deadline: Deadline) -> Iterator[bytes]:
        """What it prints before a sign, in pieces.

        Raises:
            ConnectionLost: when the line broke before the sign.
            SlurmTimeout: when it does not come in time.
            SshError: when the login shell runs no command.
        """
        if not self._quiet:
            self._hear_greeting(deadline)
        return self._upto("recv", sign, deadline)

    def errors(self, sign: str, deadline: Deadline) -> Iterator[bytes]:
        """The same of its standard error."""
        return self._upto("recv_stderr", sign, deadline)

    def _hear_greeting(self, deadline: Deadline) -> None:
        said, sign = b"", f"{self._begin}\n"
        try:
            for piece in self._upto("recv", sign, deadline):
                said += piece
                if len(said) > _NOISE:
                    raise SshError("the login shell prints without end before it runs a command")
            for _ in self._upto("recv_stderr", sign, deadline):
                pass
        except ConnectionLost:
            if self._channel.get_transport().is_active():
                raise self._no_shell(said, deadline) from None
            raise
        self._quiet = True

    def _no_shell(self, said: bytes, deadline: Deadline) -> SshError:
        self._channel.status_event.wait(deadline.left)
        said += self._rest["recv"] + self._rest["recv_stderr"]
        words = " ".join(said.decode("utf-8", "replace").split())[:300]
        code = self._channel.exit_status
        return SshError(f"the login shell runs no command (exit code {code}): {words}")

    def _upto(self, read: str, text: str, deadline: Deadline) -> Iterator[bytes]:
        sign = text.encode()
        while True:
            before, found, after = self._rest[read].partition(sign)
            if found:
                self._rest[read] = after
                yield before
                return
            held = _begun(before, sign)
            self._rest[read] = before[len(before) - held :]
            yield before[: len(before) - held]
            self._rest[read] += self._piece(read, deadline)

    def _piece(self, read: str, deadline: Deadline) -> bytes:
        self._channel.settimeout(deadline.left)
        try:
            piece: bytes = getattr(self._channel, read)(_PIECE)
        except TimeoutError:
            raise deadline.missed() from None
        if not piece:
            raise lost()
        return piece

    def _sent(self, act: Callable[[], object]) -> None:
        try:
            act()
        except TimeoutError:
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise lost(error) from error


def lost(error: BaseException | None = None) -> ConnectionLost:
    """The error of a connection that broke."""
    why = f" ({error})" if error is not None and str(error) else ""
    return ConnectionLost(f"the connection to the login node broke{why}")


def _begun(text: bytes, sign: bytes) -> int:
    """How many of the last bytes may be the first of a sign."""
    most = min(len(sign) - 1, len(text))
    return next(many for many in range(most, -1, -1) if text.endswith(sign[:many]))
