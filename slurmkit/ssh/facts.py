"""What a login node is: found out once for each connection."""

from __future__ import annotations

import re

import msgspec

from slurmkit.errors import SlurmMissing, SshError
from slurmkit.slurm import leaks
from slurmkit.ssh.connection import Connection
from slurmkit.ssh.running import started
from slurmkit.ssh.shells import Deadline

_VARIABLE = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=", re.MULTILINE)
_ASKED = ("uname -n", "id -un", "id -u", "id -Gn", 'echo "$HOME"', "command -v squeue")
_SECONDS = 60.0


class LoginNode(msgspec.Struct, frozen=True):
    """A login node, as the person who logs in finds it.

    Attributes:
        name: as `uname -n` has it.
        user: login name; `uid` its number, `groups` all of its groups.
        home: absolute.
        path: folder of Slurm's commands, empty where they are on the PATH.
        conf: SLURM_CONF of a login shell, where only that has Slurm's commands.
        leaks: variables there that would silently change a Slurm command.
    """

    name: str
    user: str
    uid: int
    groups: tuple[str, ...]
    home: str
    path: str = ""
    conf: str = ""
    leaks: tuple[str, ...] = ()


def find_out(connection: Connection, path: str) -> LoginNode:
    """Ask a login node.

    Args:
        connection: to it.
        path: where Slurm's commands are, empty to look for them.

    Raises:
        SlurmMissing: when they are not to be found.
        SshError: when its answer cannot be read.
    """
    asks = [f"{ask} || echo" for ask in _ASKED]
    said = _asked(connection, [*asks, "echo", "env"]).split("\n", len(_ASKED) + 1)
    if len(said) < len(_ASKED) + 2 or not said[2].isdecimal():
        raise SshError(f"the login node's answer cannot be read: {said!r}")
    name, user, uid, groups, home, squeue, _, env = said
    variables = [found for found in _VARIABLE.findall(env) if leaks(found, ("squeue",))]
    node = LoginNode(
        name, user, int(uid), tuple(groups.split()), home, path, leaks=tuple(variables)
    )
    return node if path or squeue.startswith("/") else _with_login_shell(connection, node)


def _with_login_shell(connection: Connection, node: LoginNode) -> LoginNode:
    """Where the site puts Slurm on the PATH of login shells alone."""
    ask = 'command -v squeue && echo "$SLURM_CONF"'
    said = _asked(connection, [f"bash -lc '{ask}' </dev/null 2>/dev/null || :"]).split("\n")
    at = next((n for n, line in enumerate(said) if line.startswith("/")), None)
    if at is None:
        raise SlurmMissing(
            f"Slurm's commands are not on the PATH at {node.name}, not even in a login shell; say"
            ' where they are: path = "/opt/slurm/bin" in [clusters.NAME]'
        )
    folder, conf = said[at].rpartition("/")[0], (said[at + 1 :] or [""])[0]
    return msgspec.structs.replace(node, path=folder, conf=conf)


def _asked(connection: Connection, lines: list[str]) -> str:
    with started(connection, lines, Deadline(["the login node"], _SECONDS)) as running:
        said, _ = running.output(), running.errors()
    return said.decode("utf-8", "replace")
