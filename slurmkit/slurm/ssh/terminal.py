"""Run a command on the login node with this terminal."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import paramiko

from slurmkit.slurm.ssh.shell import connection_lost

if TYPE_CHECKING:
    from slurmkit.slurm.ssh.connection import Connection

_PIECE = 1 << 15


def attach(connection: Connection, script: str) -> int:
    """Run a shell script of the login node in this terminal until it ends; return its exit code.

    Args:
        connection: to the login node.
        script: quoted path of the script, there.

    Raises:
        SshError: when there is no connection, or it breaks.
    """
    with connection.session() as channel:
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
