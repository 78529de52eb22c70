"""Commands on the login node: a shell that runs one after another, or one with this terminal."""

from __future__ import annotations

import os
import re
import secrets
import select
import shlex
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import paramiko

from slurmkit.errors import ConnectionLost, SlurmTimeout, SshError
from slurmkit.slurm.commands import timeout_error

_PIECE = 1 << 18  # bytes of one read
_TERMINAL_PIECE = 1 << 15  # bytes of one read with a terminal
_NOISE = 1 << 20  # most bytes that a login shell may print before our command
SHELL_COMMAND = "exec /bin/sh"
"""The only command that the login shell runs."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Deadline:
    """The time at which to give up a command; `seconds` is None for never."""

    def __init__(self, argv: Sequence[str], seconds: float | None) -> None:
        self._argv = argv
        self._seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """Seconds that are left."""
        return None if self._end is None else max(0.01, self._end - time.monotonic())

    def to_error(self) -> SlurmTimeout:
        """Return the error to raise when the time is over."""
        return timeout_error(self._argv, self._seconds or 0)


class Shell:
    """A shell on the login node, used by one thread at a time.

    Args:
        channel: a new session of a connection.

    Attributes:
        is_at_rest: whether the last command has ended and all its output was read.

    Raises:
        ConnectionLost: when the connection breaks.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._begin = random_mark()
        self._greeted = self._quiet = False
        self._rest = {"recv": b"", "recv_stderr": b""}
        self.is_at_rest = False
        self._send(lambda: channel.exec_command(SHELL_COMMAND))

    @property
    def is_there(self) -> bool:
        """Whether the shell can take another command, as far as is known."""
        channel = self._channel
        ended = channel.closed or channel.eof_received or channel.exit_status_ready()
        return not ended and channel.get_transport().is_active()

    def close(self) -> None:
        """End the shell."""
        with suppress(EOFError, OSError, paramiko.SSHException):  # the connection may have broken
            self._channel.close()

    def send_text(self, text: bytes, deadline: Deadline) -> None:
        """Send a text to the shell's input.

        Raises:
            ConnectionLost: when the connection broke.
            SlurmTimeout: when the shell does not take the text in time.
        """
        self.is_at_rest = False
        text = text if self._greeted else greeting_line(self._begin) + text
        self._greeted = True
        self._channel.settimeout(deadline.left)
        try:
            self._send(lambda: self._channel.sendall(text))
        except TimeoutError:
            raise deadline.to_error() from None

    def output(self, sign: str, deadline: Deadline) -> Iterator[bytes]:
        """Yield the shell's output up to a mark, in pieces.

        Raises:
            ConnectionLost: when the connection broke before the mark.
            SlurmTimeout: when the mark does not come in time.
            SshError: when the login shell cannot run our command.
        """
        if not self._quiet:
            self._skip_greeting(deadline)
        return self._read_to("recv", sign, deadline)

    def errors(self, sign: str, deadline: Deadline) -> Iterator[bytes]:
        """Yield the shell's standard error up to a mark, like `output`."""
        return self._read_to("recv_stderr", sign, deadline)

    def _skip_greeting(self, deadline: Deadline) -> None:
        """Read and drop what the login shell prints before our command."""
        noise, sign = b"", f"{self._begin}\n"
        try:
            for piece in self._read_to("recv", sign, deadline):
                noise += piece
                if len(noise) > _NOISE:
                    raise SshError(
                        f"the login shell printed more than {_NOISE >> 20} MiB before it ran a"
                        " command; check its startup files, e.g. ~/.bashrc"
                    )
            for _ in self._read_to("recv_stderr", sign, deadline):
                pass
        except ConnectionLost:
            if self._channel.get_transport().is_active():
                raise self._no_shell(noise, deadline) from None
            raise
        self._quiet = True

    def _no_shell(self, noise: bytes, deadline: Deadline) -> SshError:
        self._channel.status_event.wait(deadline.left)
        noise += self._rest["recv"] + self._rest["recv_stderr"]
        words = " ".join(noise.decode("utf-8", "replace").split())[:300]
        code = self._channel.exit_status
        return SshError(f"the login shell runs no command (exit code {code}): {words}")

    def _read_to(self, read: str, text: str, deadline: Deadline) -> Iterator[bytes]:
        """Yield the bytes before a mark; `read` is the channel's method to call."""
        sign = text.encode()
        while True:
            before, found, after = self._rest[read].partition(sign)
            if found:
                self._rest[read] = after
                yield before
                return
            held = _partial_match(before, sign)
            self._rest[read] = before[len(before) - held :]
            yield before[: len(before) - held]
            self._rest[read] += self._piece(read, deadline)

    def _piece(self, read: str, deadline: Deadline) -> bytes:
        self._channel.settimeout(deadline.left)
        try:
            piece: bytes = getattr(self._channel, read)(_PIECE)
        except TimeoutError:
            raise deadline.to_error() from None
        if not piece:
            raise connection_lost()
        return piece

    def _send(self, act: Callable[[], object]) -> None:
        try:
            act()
        except TimeoutError:
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise connection_lost(error) from error


def connection_lost(error: BaseException | None = None) -> ConnectionLost:
    """Return the error of a broken connection."""
    why = f" ({error})" if error is not None and str(error) else ""
    return ConnectionLost(f"the connection to the login node broke{why}")


def _partial_match(text: bytes, sign: bytes) -> int:
    """Return how many of the last bytes of a text may be the beginning of a mark."""
    most = min(len(sign) - 1, len(text))
    return next(many for many in range(most, -1, -1) if text.endswith(sign[:many]))


class ShellEnvironment(msgspec.Struct, frozen=True):
    """The environment of commands on a login node.

    Attributes:
        path: folders to put before PATH, separated by colons.
        folder: working directory; the home if empty.
        refusal: printed before the command fails where `folder` cannot be entered; if empty, the
            command runs in the home instead.
        variables: further variables.
    """

    path: str = ""
    folder: str = ""
    refusal: str = ""
    variables: dict[str, str] = {}


def random_mark() -> str:
    """Return a random line, to mark the end of an output."""
    return f"slurmkit-{secrets.token_hex(8)}"


def greeting_line(begin: str) -> bytes:
    """Return the first line for a new shell: output before `begin` is the login shell's own."""
    return f"echo {begin}; echo {begin} >&2\n".encode()


def command_group(lines: Iterable[str], end: str) -> bytes:
    """Return lines as a subshell that prints `end` to both outputs, then the exit code."""
    body = "\n".join(lines)
    ending = f"printf '\\n{end}\\n' >&2; printf '\\n{end} %s\\n' \"$slurmkit_code\""
    return f"(\n{body}\n) </dev/null\nslurmkit_code=$?; {ending}\n".encode()


def environment_lines(
    setting: ShellEnvironment, unset: Iterable[str], given: Mapping[str, str]
) -> list[str]:
    """Return the lines that set up the environment of a command."""
    names = [name for name in unset if _NAME.fullmatch(name)]
    lines = [f"unset {' '.join(names)}"] if names else []
    if setting.path:
        lines.append(f"PATH={shlex.quote(setting.path)}:$PATH; export PATH")
    pairs = {**setting.variables, **given}.items()
    lines += [f"{name}={shlex.quote(value)}; export {name}" for name, value in pairs]
    if setting.folder:
        fails = f"{{ echo {shlex.quote(setting.refusal)} >&2; exit 1; }}"
        instead = fails if setting.refusal else ":"
        lines.append(f"cd -- {shlex.quote(setting.folder)} 2>/dev/null || {instead}")
    return lines


def command_line(argv: Sequence[str], stdin: str | None = None) -> str:
    """Return the line that runs one command, with a text or nothing as its input."""
    words = shlex.join(argv)
    if stdin is None:
        return f"exec {words} </dev/null"
    if not stdin.endswith("\n"):
        return f"printf %s {shlex.quote(stdin)} | {words}"
    end = random_mark()  # a here document saves one process
    return f"exec {words} <<'{end}'\n{stdin}{end}"


def attach_terminal(channel: Any, script: str) -> int:
    """Run a shell script of the login node in this terminal until it ends; return its exit code.

    Args:
        channel: a new session of the connection.
        script: quoted path of the script, there.

    Raises:
        ConnectionLost: when the connection breaks.
    """
    try:
        size = shutil.get_terminal_size()
        channel.get_pty(os.environ.get("TERM", "vt100"), size.columns, size.lines)
        channel.exec_command(f"exec /bin/sh {script}")
        with _raw_terminal(), _forward_resizes(channel):
            _forward(channel)
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise connection_lost(error) from error
    channel.status_event.wait(30)
    if channel.exit_status < 0 and not channel.get_transport().is_active():
        raise connection_lost()
    return int(channel.exit_status) if channel.exit_status >= 0 else 255


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Put the terminal into raw mode, so that every key is sent; do nothing without a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def _forward_resizes(channel: Any) -> Iterator[None]:
    def resize(*_: object) -> None:
        size = shutil.get_terminal_size()
        with suppress(Exception):
            channel.resize_pty(size.columns, size.lines)

    before = signal.signal(signal.SIGWINCH, resize)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def _forward(channel: Any) -> None:
    """Forward keys and output until the command ends."""
    keys, screen, sources = sys.stdin.fileno(), sys.stdout.fileno(), [channel, sys.stdin.fileno()]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if channel in ready:
            printed = channel.recv(_TERMINAL_PIECE)
            if not printed:
                return
            while printed:
                printed = printed[os.write(screen, printed) :]
        if keys in ready:
            typed = os.read(keys, _TERMINAL_PIECE)
            if typed:
                channel.sendall(typed)
            else:
                sources.remove(keys)
                channel.shutdown_write()
