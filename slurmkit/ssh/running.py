"""Run lines of shell on the login node, and read what they print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from slurmkit.ssh.connection import Connection
from slurmkit.ssh.remoteshell import group, mark
from slurmkit.ssh.shells import Deadline, Shell


class Running:
    """A command on the login node; its output is read first, then its errors and exit code.

    Args:
        shell: runs it.
        lines: of shell.
        deadline: when it is given up.
    """

    def __init__(self, shell: Shell, lines: Iterable[str], deadline: Deadline) -> None:
        self._shell = shell
        self._deadline = deadline
        self._end = mark()
        self._code = ""
        shell.give(group(lines, self._end), deadline)

    def output(self) -> bytes:
        """All that it prints."""
        return b"".join(self._pieces())

    def lines(self) -> Iterator[bytes]:
        """What it prints, line by line, line ends kept."""
        rest = b""
        for piece in self._pieces():
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line + b"\n" for line in whole)
        if rest:
            yield rest

    def errors(self) -> bytes:
        """What it printed to its standard error."""
        said = b"".join(self._shell.errors(f"\n{self._end}\n", self._deadline))
        self._shell.is_at_rest = True
        return said

    def code(self) -> int:
        """Its exit code."""
        return int(self._code)

    def _pieces(self) -> Iterator[bytes]:
        yield from self._shell.output(f"\n{self._end} ", self._deadline)
        self._code = b"".join(self._shell.output("\n", self._deadline)).decode()


@contextmanager
def started(connection: Connection, lines: Iterable[str], deadline: Deadline) -> Iterator[Running]:
    """Give a shell on the login node a command.

    Args:
        connection: where.
        lines: of shell, that read nothing from their input.
        deadline: when it is given up.

    Raises:
        SshError: when there is no connection or no session; `ConnectionLost` when it breaks.
    """
    with connection.shell() as shell:
        yield Running(shell, lines, deadline)
