"""A cluster's login node: its users, its files over SFTP, and Slurm's commands on it."""

from __future__ import annotations

import errno
import io
import secrets
import shlex
import stat
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar, cast

import paramiko

from slurmkit.errors import ConnectionLost, SlurmError, SshError
from slurmkit.slurm.commands import (
    added_variables,
    decode_output,
    has_failed,
    is_harmful_variable,
    slurm_error,
)
from slurmkit.slurm.machine import PortConnection, require_regular_file
from slurmkit.slurm.ssh.authentication import AskUser, ask_at_terminal, ask_nobody
from slurmkit.slurm.ssh.connection import Connection
from slurmkit.slurm.ssh.hosts import (
    ClusterSection,
    cluster_cache_key,
    cluster_record_name,
    load_cluster,
    read_ssh_host,
)
from slurmkit.slurm.ssh.login_node import LoginNode, read_login_node, run_remote
from slurmkit.slurm.ssh.shell import (
    Deadline,
    ShellEnvironment,
    attach_terminal,
    command_line,
    connection_lost,
    environment_lines,
)

_PIECE = 32768  # bytes of one read request
_AT_ONCE = 16  # read requests sent together
_SECONDS = 60.0  # timeout for the next byte of an answer
ResultT = TypeVar("ResultT")
# Commands that only read may be run again over a new connection.
_READS = frozenset("squeue sinfo sacct sprio sshare sreport sdiag sstat".split())
_STARTS_JOBS = frozenset("sbatch salloc srun".split())
_READING_WORDS = frozenset(("show", "list", "ping", "write"))
_OPEN_LOCK = threading.Lock()


class LoginMachine:
    """The login node of a cluster; see `slurmkit.slurm.machine.Machine`."""

    is_here = False

    def __init__(self, slurm: SshSlurmCommands) -> None:
        self._slurm = slurm
        self.files = SftpFiles(slurm)
        self._logins: dict[int, str | None] = {}

    @property
    def name(self) -> str:
        return self._slurm.node.name.partition(".")[0]

    @property
    def user(self) -> str:
        return self._slurm.node.user

    @property
    def folder(self) -> str:
        return self._slurm.folder

    def groups(self, user: str) -> tuple[str, ...]:
        if user == self.user:
            return self._slurm.node.groups
        try:
            return tuple(self._slurm.run(["id", "-Gn", "--", user]).split())
        except SlurmError:
            return ()

    def uid(self, user: str) -> int | None:
        return self._slurm.node.uid if user == self.user else None

    def login(self, uid: int) -> str | None:
        if uid not in self._logins:
            try:
                self._logins[uid] = self._slurm.run(["id", "-un", "--", str(uid)]).strip()
            except SlurmError:
                self._logins[uid] = None
        return self._logins[uid]

    def exists(self, path: str) -> bool:
        try:
            self.files.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def modified(self, path: str) -> float:
        return float(self.files.stat(path).st_mtime or 0)

    def open(self, path: str) -> BinaryIO:
        require_regular_file(self.files.stat(path).st_mode or 0, path)
        raw = _RemoteFile(self.files, self.files.call(lambda sftp: sftp.open(path, "rb")))
        return cast("BinaryIO", io.BufferedReader(raw, _PIECE * _AT_ONCE))

    def dial(self, node: str, port: int) -> PortConnection:
        return cast("PortConnection", self._slurm.connection.dial(node, port))


class SftpFiles:
    """One SFTP session of the open connection, used by one thread at a time."""

    def __init__(self, slurm: SshSlurmCommands) -> None:
        self._slurm = slurm
        self._lock = threading.RLock()
        self._sftp: Any = None

    def call(self, act: Callable[[Any], ResultT]) -> ResultT:
        """Call `act` with the SFTP session, once; a lost connection is not retried.

        Raises:
            OSError: as for a local file.
            SshError: when there is no connection; `ConnectionLost` when it breaks.
        """
        with self._lock:
            try:
                return act(self._session())
            except (paramiko.SSHException, EOFError, TimeoutError) as error:
                self._end()
                raise connection_lost(error) from error
            except paramiko.SFTPError as error:
                self._end()
                raise SshError(f"the login node's SFTP cannot be used: {error}") from error
            except OSError as error:
                if str(error) == "Socket is closed":
                    self._end()
                    raise connection_lost(error) from error
                raise _with_errno(error) from error
            except BaseException:  # nobody would read the answer that is still to come
                self._end()
                raise

    def stat(self, path: str) -> Any:
        """Return the status of a path, like os.stat; retried once over a new connection."""
        try:
            return self.call(lambda sftp: sftp.stat(path))
        except ConnectionLost:
            return self.call(lambda sftp: sftp.stat(path))

    def _end(self) -> None:
        """Close the session; the next use opens a new one."""
        sftp, self._sftp = self._sftp, None
        if sftp is not None:
            with suppress(Exception):
                sftp.close()

    def _session(self) -> Any:
        channel = self._sftp and self._sftp.get_channel()
        if channel is None or channel.closed or not channel.get_transport().is_active():
            channel = self._slurm.connection.opened()
            channel.settimeout(_SECONDS)
            channel.invoke_subsystem("sftp")
            self._sftp = paramiko.SFTPClient(channel)
        return self._sftp


def _with_errno(error: OSError) -> OSError:
    """Return an OSError with number and text: SFTP often has a text alone."""
    number = error.errno or errno.EIO
    return OSError(number, error.strerror or str(error) or "failed", error.filename)


class _RemoteFile(io.RawIOBase):
    """A file on the login node; a long read is sent as several requests at once."""

    def __init__(self, files: SftpFiles, file: Any) -> None:
        self._files = files
        self._file = file
        self._at = 0
        self._size = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            self._look()
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._at + _PIECE > self._size:
            self._look()
        length = max(1, min(len(view), self._size - self._at))
        at = range(self._at, self._at + length, _PIECE)
        asks = [(each, min(_PIECE, self._at + length - each)) for each in at]
        data = self._files.call(lambda _: self._read(asks))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _read(self, asks: list[tuple[int, int]]) -> bytes:
        if len(asks) > 1:
            return b"".join(self._file.readv(asks))
        self._file.seek(asks[0][0])
        return cast("bytes", self._file.read(asks[0][1]))

    def _look(self) -> None:
        self._size = self._files.call(lambda _: self._file.stat().st_size) or 0

    def close(self) -> None:
        if not self.closed:
            super().close()
            with suppress(OSError, SshError):
                self._files.call(lambda _: self._file.close())


def is_folder(found: Any) -> bool:
    """Return whether a status from `SftpFiles.stat` belongs to a folder."""
    return stat.S_ISDIR(found.st_mode or 0)


class SshSlurmCommands:
    """Slurm's commands on a cluster's login node, over one persistent connection.

    Args:
        name: name of the cluster in the configuration.
        section: its section there.
        ask: asks for passphrases, passwords and one-time codes; by default at the terminal.
    """

    def __init__(self, name: str, section: ClusterSection, ask: AskUser = ask_at_terminal) -> None:
        self.name = name
        self.section = section
        self.connection = Connection(lambda: read_ssh_host(name, section), ask)
        self.machine = LoginMachine(self)
        self._calls = 0
        self._node: LoginNode | None = None
        self._lock = threading.Lock()

    @property
    def calls(self) -> int:
        return self._calls

    @property
    def key(self) -> str:
        """Cache key of the cluster; it differs by host, port, user and any other setting."""
        return cluster_cache_key(self.name, self.section)

    @property
    def place(self) -> str:
        """Name of the cluster in records of jobs; it differs by host, port and user."""
        return cluster_record_name(self.name, self.section)

    @property
    def node(self) -> LoginNode:
        """The login node, read once.

        Raises:
            SshError: when it cannot be reached; `SlurmMissing` when it has no Slurm.
        """
        with self._lock:
            if self._node is None:
                self._node = read_login_node(self.connection, self.section.path)
            return self._node

    @property
    def folder(self) -> str:
        """Absolute path of the folder on the login node where jobs start."""
        return absolute(self.section.folder, self.node)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout: float = 60,
        errors: bool = False,
    ) -> str:
        """Run one command on the login node and return its standard output.

        Raises:
            ConnectionLost: when the connection broke; a command that only reads was run again.
            SshError: when the login node cannot be reached.
        """
        self.count()
        lines = [command_line(argv, stdin)]
        return self._retry(
            argv, lambda: self.run_lines(argv, lines, timeout=timeout, errors=errors)
        )

    def stream(
        self, argv: Sequence[str], *, timeout: float | None = None
    ) -> Generator[str, None, None]:
        self.count()
        lines = [*self._environment(argv), command_line(argv)]
        with run_remote(self.connection, lines, Deadline(argv, timeout)) as running:
            yield from map(decode_output, running.lines())
            errors, code = running.errors(), running.code()
        if has_failed(argv[0], code, errors):
            raise slurm_error(argv[0], decode_output(errors), code)

    def run_lines(
        self, argv: Sequence[str], lines: Iterable[str], *, timeout: float, errors: bool = False
    ) -> str:
        """Run lines of sh in the environment of a command, once, and return the output.

        See `run` for the errors.
        """
        lines = [*self._environment(argv), *lines]
        with run_remote(self.connection, lines, Deadline(argv, timeout)) as running:
            output, stderr, code = running.output(), running.errors(), running.code()
        if has_failed(argv[0], code, stderr):
            raise slurm_error(argv[0], decode_output(stderr or output), code)
        return decode_output(output + stderr if errors else output)

    def never_ask(self) -> None:
        """Ask nobody for a passphrase or a code from now on: a full-screen program runs."""
        self.connection.ask = ask_nobody

    def attach(self, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a command there with this terminal; see `slurmkit.slurm.commands.run_in_terminal`."""
        exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        # A file of one's own that removes itself: the list of processes shows nothing of it.
        lines = [*exports, 'rm -f -- "$0"', f"exec {shlex.join(argv)}"]
        with self.connection.session() as channel:
            return attach_terminal(channel, self.script(["sbatch"], lines))

    def script(self, argv: Sequence[str], lines: Iterable[str]) -> str:
        """Write lines of sh, with a command's environment, to a file there; return its path.

        The file removes itself when it is run. Files that a lost connection left are removed after
        a day: they hold a shell's environment.
        """
        folder = f"{self.node.home}/.local/state/slurmkit"
        path = f"{folder}/run-{secrets.token_hex(8)}"
        text = shlex.quote("\n".join([*self._environment(argv), *lines, ""]))
        at = shlex.quote(path)
        quoted = shlex.quote(folder)
        lines = [
            f"umask 077; mkdir -p {quoted}; printf %s {text} >{at} || exit",
            f"find {quoted} -maxdepth 1 -type f -name 'run-*' -mtime +0 -exec rm -f {{}} + || :",
        ]
        self.run_lines(["mkdir"], lines, timeout=60)
        return at

    def count(self) -> None:
        """Count one more command."""
        self._calls += 1

    def _environment(self, argv: Sequence[str]) -> list[str]:
        """Return the lines of sh that set up the environment of a command."""
        node = self._retry(["squeue"], lambda: self.node)
        conf = {"SLURM_CONF": node.conf} if node.conf else {}
        folder = self.section.folder and absolute(self.section.folder, node)
        refusal = self._folder_refusal() if argv[0] in _STARTS_JOBS else ""
        setting = ShellEnvironment(node.path, folder, refusal, conf)
        unset = [name for name in node.leaks if is_harmful_variable(name, argv)]
        return environment_lines(setting, unset, added_variables(argv))

    def _folder_refusal(self) -> str:
        """Return the error for a folder of the configuration that cannot be entered."""
        return (
            f'the folder "{self.section.folder}" of [clusters.{self.name}] does not exist on the'
            " login node, or you may not enter it; to make it, send your code there: slurmkit"
            f" --cluster {self.name} send FILE"
        )

    def _retry(self, argv: Sequence[str], act: Callable[[], ResultT]) -> ResultT:
        """Call `act`, and once more after a lost connection if the command only reads."""
        try:
            return act()
        except ConnectionLost:
            if not only_reads(argv):
                raise
        return act()


def only_reads(argv: Sequence[str]) -> bool:
    """Return whether a command changes nothing, so that it may run twice."""
    if argv[0] in ("scontrol", "sacctmgr"):
        words = [word for word in argv[1:] if not word.startswith("-")]
        return bool(words) and words[0] in _READING_WORDS
    return argv[0] in _READS


def absolute(path: str, node: LoginNode) -> str:
    """Return a path on a login node as absolute; it may begin with ~ or be relative to the home."""
    plain = path.removeprefix("~/") if path != "~" else ""
    joined = plain if plain.startswith("/") else f"{node.home}/{plain}"
    return joined.rstrip("/") or "/"


_OPEN: dict[str, SshSlurmCommands] = {}


def ssh_slurm_of(name: str) -> SshSlurmCommands:
    """Return the commands of a configured cluster; this process has one object for each.

    Raises:
        BadInput: when there is no such cluster.
    """
    with _OPEN_LOCK:
        if name not in _OPEN:
            _OPEN[name] = SshSlurmCommands(name, load_cluster(name))
        return _OPEN[name]
