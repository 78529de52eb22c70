"""The border to Slurm on a login node; see `slurmkit.slurm.Slurm`."""

from __future__ import annotations

import secrets
import shlex
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TypeVar

from slurmkit.errors import ConnectionLost
from slurmkit.slurm import decoded, has_failed, leaks, settings_for, translate
from slurmkit.ssh.asking import Ask, at_terminal, nobody
from slurmkit.ssh.connection import Connection
from slurmkit.ssh.facts import LoginNode, find_out
from slurmkit.ssh.hosts import host_of
from slurmkit.ssh.machine import LoginMachine
from slurmkit.ssh.remoteshell import Setting, call, surroundings
from slurmkit.ssh.running import started
from slurmkit.ssh.section import ClusterSection, key_of, place_of, section_of
from slurmkit.ssh.shells import Deadline

# What only reads may be asked again over a new connection.
_READS = frozenset("squeue sinfo sacct sprio sshare sreport sdiag sstat".split())
_READING_WORDS = frozenset(("show", "list", "ping", "write"))

ResultT = TypeVar("ResultT")


class SshSlurm:
    """Slurm's commands on a cluster's login node, over one kept connection.

    Args:
        name: of the cluster in the configuration.
        section: its section.
        ask: for passphrases, passwords and one-time codes; at the terminal by default.
    """

    def __init__(self, name: str, section: ClusterSection, ask: Ask = at_terminal) -> None:
        self.name = name
        self.section = section
        self.connection = Connection(lambda: host_of(name, section), ask)
        self.machine = LoginMachine(self)
        self._calls = 0
        self._found: LoginNode | None = None
        self._lock = threading.Lock()

    @property
    def calls(self) -> int:
        """See `Slurm.calls`."""
        return self._calls

    @property
    def key(self) -> str:
        """Names the cluster where something is kept of it."""
        return key_of(self.name, self.section)

    @property
    def place(self) -> str:
        """Names the cluster where jobs that were sent to it are remembered."""
        return place_of(self.name, self.section)

    @property
    def node(self) -> LoginNode:
        """The login node.

        Raises:
            SshError: when it cannot be reached; `SlurmMissing` when it has no Slurm.
        """
        with self._lock:
            if self._found is None:
                self._found = find_out(self.connection, self.section.path)
            return self._found

    @property
    def folder(self) -> str:
        """Where jobs start there, absolute."""
        return absolute(self.section.folder, self.node)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout: float = 60,
        errors: bool = False,
    ) -> str:
        """See `Slurm.run`.

        Raises:
            ConnectionLost: when the line broke; what only reads was then asked once more.
            SshError: when the login node cannot be reached.
        """
        self.count()
        lines = [call(argv, stdin)]
        return self._again(argv, lambda: self.told(argv, lines, timeout=timeout, errors=errors))

    def stream(
        self, argv: Sequence[str], *, timeout: float | None = None
    ) -> Generator[str, None, None]:
        """See `Slurm.stream`."""
        self.count()
        lines = [*self._around(argv), call(argv)]
        with started(self.connection, lines, Deadline(argv, timeout)) as running:
            yield from map(decoded, running.lines())
            said, code = running.errors(), running.code()
        if has_failed(code, said):
            raise translate(argv[0], decoded(said), code)

    def told(
        self, argv: Sequence[str], lines: Iterable[str], *, timeout: float, errors: bool = False
    ) -> str:
        """Run lines of shell in the surroundings of a command, once; see `run`."""
        lines = [*self._around(argv), *lines]
        with started(self.connection, lines, Deadline(argv, timeout)) as running:
            output, said, code = running.output(), running.errors(), running.code()
        if has_failed(code, said):
            raise translate(argv[0], decoded(said or output), code)
        return decoded(output + said if errors else output)

    def never_ask(self) -> None:
        """From now on nobody is asked for a passphrase or a code: a screen is drawn."""
        self.connection.ask = nobody

    def attach(self, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Lend this terminal to a command there; see `slurmkit.slurm.attach`."""
        from slurmkit.ssh.terminal import attach  # noqa: PLC0415 - few need it

        return attach(self, argv, environment)

    def script(self, argv: Sequence[str], lines: Iterable[str]) -> str:
        """Put lines of shell, in the surroundings of a command, into a file there; its path."""
        folder = f"{self.node.home}/.local/state/slurmkit"
        path = f"{folder}/run-{secrets.token_hex(8)}"
        text = shlex.quote("\n".join([*self._around(argv), *lines, ""]))
        at = shlex.quote(path)
        writes = f"umask 077; mkdir -p {shlex.quote(folder)}; printf %s {text} >{at}"
        self.told(["mkdir"], [writes], timeout=60)
        return at

    def count(self) -> None:
        """Note that one more command is run."""
        self._calls += 1

    def _around(self, argv: Sequence[str]) -> list[str]:
        node = self._again(["squeue"], lambda: self.node)
        conf = {"SLURM_CONF": node.conf} if node.conf else {}
        setting = Setting(node.path, self.section.folder, conf)
        unset = [name for name in node.leaks if leaks(name, argv)]
        return surroundings(setting, unset, settings_for(argv))

    def _again(self, argv: Sequence[str], act: Callable[[], ResultT]) -> ResultT:
        try:
            return act()
        except ConnectionLost:
            if not only_reads(argv):
                raise
        return act()


def only_reads(argv: Sequence[str]) -> bool:
    """Whether a command changes nothing, so that it can be asked twice."""
    if argv[0] in ("scontrol", "sacctmgr"):
        words = [word for word in argv[1:] if not word.startswith("-")]
        return bool(words) and words[0] in _READING_WORDS
    return argv[0] in _READS


def absolute(path: str, node: LoginNode) -> str:
    """A path on a login node, which may be relative to the home or begin with ~."""
    plain = path.removeprefix("~/") if path != "~" else ""
    joined = plain if plain.startswith("/") else f"{node.home}/{plain}"
    return joined.rstrip("/") or "/"


_OPEN: dict[str, SshSlurm] = {}
_OPEN_LOCK = threading.Lock()


def border_of(name: str) -> SshSlurm:
    """The border of a cluster in the configuration, one for the whole process.

    Raises:
        BadInput: when there is no such cluster.
    """
    with _OPEN_LOCK:
        if name not in _OPEN:
            _OPEN[name] = SshSlurm(name, section_of(name))
        return _OPEN[name]
