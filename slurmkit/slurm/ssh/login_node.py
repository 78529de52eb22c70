"""Facts of a login node, read once for each connection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from slurmkit.errors import SlurmMissing, SshError
from slurmkit.slurm.commands import is_harmful_variable
from slurmkit.slurm.ssh.connection import Connection
from slurmkit.slurm.ssh.shell import Deadline, Shell, command_group, random_mark

_VARIABLE = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=", re.MULTILINE)
_ASKED = ("uname -n", "id -un", "id -u", "id -Gn", 'echo "$HOME"', "command -v squeue")
_SECONDS = 60.0


class LoginNode(msgspec.Struct, frozen=True):
    """A login node, and the user's account on it.

    Attributes:
        name: output of `uname -n`.
        user: login name.
        uid: numeric user id.
        groups: all groups of the user.
        home: absolute path of the home.
        path: folder of Slurm's commands; empty if they are on the PATH.
        conf: SLURM_CONF of a login shell, if only a login shell finds Slurm's commands.
        leaks: environment variables there that would silently change a Slurm command.
    """

    name: str
    user: str
    uid: int
    groups: tuple[str, ...]
    home: str
    path: str = ""
    conf: str = ""
    leaks: tuple[str, ...] = ()


def read_login_node(connection: Connection, path: str) -> LoginNode:
    """Read the facts of a login node.

    Args:
        connection: connection to the node.
        path: folder of Slurm's commands; empty to search for them.

    Raises:
        SlurmMissing: when Slurm's commands are not found.
        SshError: when the answer cannot be read.
    """
    asks = [f"{ask} || echo" for ask in _ASKED]
    answers = _run(connection, [*asks, "echo", "env"]).split("\n", len(_ASKED) + 1)
    if len(answers) < len(_ASKED) + 2 or not answers[2].isdecimal():
        raise SshError(f"the login node's answer cannot be read: {answers!r}")
    name, user, uid, groups, home, squeue, _, env = answers
    variables = [name for name in _VARIABLE.findall(env) if is_harmful_variable(name, ("squeue",))]
    node = LoginNode(
        name, user, int(uid), tuple(groups.split()), home, path, leaks=tuple(variables)
    )
    return node if path or squeue.startswith("/") else _with_login_shell(connection, node)


def _with_login_shell(connection: Connection, node: LoginNode) -> LoginNode:
    """Search for Slurm's commands with a login shell: some sites set PATH only there."""
    ask = 'command -v squeue && echo "$SLURM_CONF"'
    lines = _run(connection, [f"bash -lc '{ask}' </dev/null 2>/dev/null || :"]).split("\n")
    at = next((n for n, line in enumerate(lines) if line.startswith("/")), None)
    if at is None:
        raise SlurmMissing(
            f"Slurm's commands are not on the PATH of {node.name}, and a login shell does not find"
            ' them; set their folder, e.g. path = "/opt/slurm/bin", in [clusters.NAME]'
        )
    folder, conf = lines[at].rpartition("/")[0], (lines[at + 1 :] or [""])[0]
    return msgspec.structs.replace(node, path=folder, conf=conf)


def _run(connection: Connection, lines: list[str]) -> str:
    with run_remote(connection, lines, Deadline(["the login node"], _SECONDS)) as running:
        output, _ = running.output(), running.errors()
    return output.decode("utf-8", "replace")


class RemoteCommand:
    """A running command on the login node. Read its output first, then errors and exit code.

    Args:
        shell: runs the command.
        lines: lines of sh.
        deadline: when to give up.
    """

    def __init__(self, shell: Shell, lines: Iterable[str], deadline: Deadline) -> None:
        self._shell = shell
        self._deadline = deadline
        self._end = random_mark()
        self._code = ""
        shell.send_text(command_group(lines, self._end), deadline)

    def output(self) -> bytes:
        """Read all of its standard output."""
        return b"".join(self._pieces())

    def lines(self) -> Iterator[bytes]:
        """Yield its standard output by line, with line ends."""
        rest = b""
        for piece in self._pieces():
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line + b"\n" for line in whole)
        if rest:
            yield rest

    def errors(self) -> bytes:
        """Read all of its standard error."""
        errors = b"".join(self._shell.errors(f"\n{self._end}\n", self._deadline))
        self._shell.is_at_rest = True
        return errors

    def code(self) -> int:
        """Return its exit code."""
        return int(self._code)

    def _pieces(self) -> Iterator[bytes]:
        yield from self._shell.output(f"\n{self._end} ", self._deadline)
        self._code = b"".join(self._shell.output("\n", self._deadline)).decode()


@contextmanager
def run_remote(
    connection: Connection, lines: Iterable[str], deadline: Deadline
) -> Iterator[RemoteCommand]:
    """Start a command on the login node.

    Args:
        connection: connection to the login node.
        lines: lines of sh that do not read their standard input.
        deadline: when to give up.

    Raises:
        SshError: when there is no connection or no session; `ConnectionLost` when it breaks.
    """
    with connection.shell() as shell:
        yield RemoteCommand(shell, lines, deadline)
