"""Lend this terminal to a command on the login node."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import paramiko

from slurmkit.ssh.shells import lost

if TYPE_CHECKING:
    from slurmkit.ssh.border import SshSlurm

_PIECE = 1 << 15


def attach(slurm: SshSlurm, argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command with this terminal until it ends; returns its exit code.

    What is run stands in a file there that is one's own and removes itself, so nothing of it shows
    in the list of processes.

    Raises:
        SshError: when there is no connection, or it breaks.
    """
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    script = slurm.script(["sbatch"], [*exports, 'rm -f -- "$0"', f"exec {shlex.join(argv)}"])
    with slurm.connection.session() as channel:
        try:
            size = shutil.get_terminal_size()
            channel.get_pty(os.environ.get("TERM", "vt100"), size.columns, size.lines)
            channel.exec_command(f"exec /bin/sh {script}")
            with _raw(), _resized(channel):
                _carry(channel)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise lost(error) from error
        channel.status_event.wait(30)
        if channel.exit_status < 0 and not channel.get_transport().is_active():
            raise lost()
        return int(channel.exit_status) if channel.exit_status >= 0 else 255


@contextmanager
def _raw() -> Iterator[None]:
    """Keys go there as they are; what is no terminal needs nothing."""
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
def _resized(channel: Any) -> Iterator[None]:
    def tell(*_: object) -> None:
        size = shutil.get_terminal_size()
        with suppress(Exception):
            channel.resize_pty(size.columns, size.lines)

    before = signal.signal(signal.SIGWINCH, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def _carry(channel: Any) -> None:
    """Hand on what is typed and what is printed, until the command is through."""
    keys, screen, sources = sys.stdin.fileno(), sys.stdout.fileno(), [channel, sys.stdin.fileno()]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if channel in ready:
            printed = channel.recv(_PIECE)
            if not printed:
                return
            while printed:
                printed = printed[os.write(screen, printed) :]
        if keys in ready:
            typed = os.read(keys, _PIECE)
            if typed:
                channel.sendall(typed)
            else:
                sources.remove(keys)
                channel.shutdown_write()
