"""One persistent SSH connection to a login node, with channels for commands, files and tunnels."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import paramiko

from slurmkit.errors import SshError, Unreachable
from slurmkit.formats.display import printable
from slurmkit.slurm.ssh.authentication import AskUser, log_in
from slurmkit.slurm.ssh.hosts import SshHost
from slurmkit.slurm.ssh.known_hosts import (
    KnownHostKey,
    check_host_key,
    check_not_revoked,
    load_host_keys,
)
from slurmkit.slurm.ssh.shell import Shell, connection_lost

_SESSIONS = 8  # sshd's default allows ten at once (sshd_config(5), MaxSessions)
_IDLE_SHELLS = 2  # shells that stay open for the next command
_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)  # seconds between tries for a session
_WINDOW = 1 << 24  # bytes that may be sent before they are read
# paramiko also logs the errors that it raises.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Connection:
    """A connection that is made at its first use, and again after it has broken.

    Args:
        host: returns the host; called only when it is needed.
        ask: asks for passphrases, passwords and one-time codes.

    Attributes:
        made: how many times it has been made so far.
    """

    def __init__(self, host: Callable[[], SshHost], ask: AskUser) -> None:
        self._host = host
        self.ask = ask
        self.made = 0
        self._lock = threading.RLock()
        # paramiko stores the reason of a refused channel once for all threads.
        self._opening = threading.Lock()
        self._sessions = threading.BoundedSemaphore(_SESSIONS)
        self._line: list[Any] = []  # transports, the last leads to the login node
        self._shells: list[Shell] = []

    @property
    def is_up(self) -> bool:
        """Whether the connection stands, as far as is known."""
        line = self._line  # another thread may replace it
        return bool(line) and line[-1].is_active()

    def transport(self) -> Any:
        """Return the transport; connect if there is none or it is broken.

        Raises:
            SshError: when it cannot be made.
        """
        with self._lock:
            if not self.is_up:
                self._drop()
                self._line = connect(self._host(), self.ask)
                self.made += 1
            return self._line[-1]

    def check(self, patience: float) -> None:
        """Ask the login node for an answer, and close the connection if none comes.

        A connection whose other side is gone without a word, e.g. after a laptop slept, looks as
        if it stood until then. Only one thread may call it.

        Args:
            patience: seconds to wait for the answer.
        """
        with self._lock:
            transport = self._line[-1] if self._line else None
        if transport is None:
            return
        answered = threading.Event()

        def ask() -> None:
            # It returns when any answer comes, a refusal too, and when the connection is closed.
            with suppress(paramiko.SSHException, EOFError, OSError):
                transport.global_request("keepalive@openssh.com", wait=True)
            answered.set()

        threading.Thread(target=ask, name="slurmkit-ssh-check", daemon=True).start()
        if not answered.wait(patience):
            transport.close()

    def close(self) -> None:
        """Close the connection; the next use connects again."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        for transport in reversed(self._line):
            transport.close()
        self._line, self._shells = [], []

    @contextmanager
    def shell(self) -> Iterator[Shell]:
        """Give a shell for one command, an idle one if there is any.

        Raises:
            SshError: as `session`.
        """
        with self._sessions:
            shell = self._idle_shell() or Shell(self.opened())
            try:
                yield shell
            finally:
                self._keep(shell)

    def _idle_shell(self) -> Shell | None:
        with self._lock:
            while self._shells:
                shell = self._shells.pop()
                if shell.is_there:
                    return shell
        return None

    def _keep(self, shell: Shell) -> None:
        with self._lock:
            if shell.is_at_rest and shell.is_there and len(self._shells) < _IDLE_SHELLS:
                self._shells.append(shell)
                return
        shell.close()

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Give a channel for one command, and close it at the end.

        Raises:
            SshError: when there is no connection; `ConnectionLost` when it has just broken.
        """
        with self._sessions:
            channel = self.opened()
            try:
                yield channel
            finally:
                channel.close()

    def opened(self) -> Any:
        """Open a new session. Tries again: the server may still count one that has just ended.

        Raises:
            SshError: as `session`.
        """
        transport = self.transport()
        for pause in (*_PAUSES, None):
            try:
                with self._opening:
                    return transport.open_channel("session", window_size=_WINDOW, timeout=60)
            except paramiko.ChannelException as error:
                self._end_shells()
                if pause is None:
                    raise SshError(
                        f"the login node opens no further session ({error.text}); ask your"
                        f" administrator whether MaxSessions of its sshd is below {_SESSIONS + 2}"
                    ) from error
                time.sleep(pause)
            except (paramiko.SSHException, EOFError, OSError) as error:
                raise connection_lost(error) from error
        raise AssertionError("the last pause is None")

    def _end_shells(self) -> None:
        with self._lock:
            shells, self._shells = self._shells, []
        for shell in shells:
            shell.close()

    def dial(self, name: str, port: int) -> Any:
        """Open a channel to a port that the login node can reach.

        Raises:
            OSError: when nothing answers there.
            SshError: when there is no connection.
        """
        transport = self.transport()
        try:
            there, here = (name, port), ("127.0.0.1", 0)
            with self._opening:
                return transport.open_channel("direct-tcpip", there, here, timeout=30)
        except paramiko.ChannelException as error:
            raise OSError(None, f"the login node cannot reach that port: {error.text}") from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise connection_lost(error) from error


def connect(host: SshHost, ask: AskUser) -> list[Any]:
    """Log in through the jump hosts; the last transport leads to the host itself.

    Raises:
        SshError: naming the host that cannot be reached or refuses the login.
        HostKeyRefused: when the key of one of them is not the known one.
    """
    line: list[Any] = []
    try:
        for each in (*host.jumps, host):
            line.append(_verified_transport(each, line[-1] if line else None))
            log_in(line[-1], each, ask)
            line[-1].set_keepalive(each.alive)
    except BaseException as error:
        for transport in reversed(line):
            transport.close()
        if isinstance(error, (paramiko.SSHException, EOFError, OSError)):
            raise SshError(f"cannot log in to {host.alias}: {_error_text(error)}") from error
        raise
    return line


def read_host_key(host: SshHost, ask: AskUser) -> tuple[str, bytes]:
    """Return kind and data of the key that a host shows, unchecked; jump hosts are checked.

    Raises:
        SshError: as `connect`.
    """
    line = connect(host.jumps[-1], ask) if host.jumps else []
    try:
        transport = _negotiate(host, line[-1] if line else None, [])
        line.append(transport)
        key = transport.get_remote_server_key()
        return key.get_name(), key.asbytes()
    finally:
        for transport in reversed(line):
            transport.close()


def _verified_transport(host: SshHost, via: Any) -> Any:
    """Return a transport whose host key has been checked."""
    known = load_host_keys(host.known_as, host.known_hosts)
    transport = _negotiate(host, via, known)
    key = transport.get_remote_server_key()
    try:
        check_host_key(host.known_as, key.get_name(), key.asbytes(), known, host.accept)
        check_not_revoked(host.known_as, key.get_name(), key.asbytes(), host.revoked)
    except BaseException:
        transport.close()
        raise
    return transport


def _negotiate(host: SshHost, via: Any, known: list[KnownHostKey]) -> Any:
    """Return a transport after the key exchange; known kinds of host key are preferred."""
    line = _open_socket(host, via)
    try:
        transport = paramiko.Transport(line)
        transport.banner_timeout = transport.auth_timeout = max(host.timeout, 120)
        options = transport.get_security_options()
        _allow_algorithms(options, host)
        kinds = {each.kind for each in known if not each.revoked}
        options.key_types = sorted(options.key_types, key=lambda kind: _key_kind(kind) not in kinds)
        transport.start_client(timeout=host.timeout)
    except BaseException as error:
        with suppress(Exception):
            line.close()
        if isinstance(error, (paramiko.SSHException, EOFError, OSError)):
            words = f"{_host_words(host)} does not speak SSH: {_error_text(error)}"
            if isinstance(line, _ProxySocket):
                words += f"; its ProxyCommand reported: {line.complaint or 'nothing'}"
            raise Unreachable(words) from error
        raise
    return transport


# paramiko's name of each list of algorithms.
_OPTIONS = {"ciphers": "ciphers", "macs": "digests", "kexalgorithms": "kex",
            "hostkeyalgorithms": "key_types"}  # fmt: skip


def _allow_algorithms(options: Any, host: SshHost) -> None:
    """Offer no algorithm that OpenSSH would not, in OpenSSH's order."""
    for keyword, name in _OPTIONS.items():
        known = getattr(options, name)
        # paramiko has only the first name of curve25519-sha256.
        allowed = [f"{each}@libssh.org" if each == "curve25519-sha256" else each
                   for each in host.algorithms.get(keyword, known)]  # fmt: skip
        both = [each for each in dict.fromkeys(allowed) if each in known]
        if not both:
            raise SshError(
                f"OpenSSH's configuration allows for {host.alias} only {keyword}"
                f" {', '.join(allowed)}; slurmkit has {', '.join(known)}: allow one of these"
            )
        setattr(options, name, tuple(both))


def _key_kind(algorithm: str) -> str:
    """Return the kind of key of a signature algorithm."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


class _ProxySocket(socket.socket):
    """A socket whose other end is a ProxyCommand, run by the user's shell as ssh does.

    paramiko's own ProxyCommand knows no shell and does not notice that the command has ended.
    """

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(fileno=ours.detach())
        shell = os.environ.get("SHELL") or "/bin/sh"
        self.complaint = ""
        self._closing = threading.Lock()  # paramiko closes from two threads
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the socket
        with theirs:
            self._process = subprocess.Popen(
                [shell, "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
            )

    def close(self) -> None:
        """End the command, and keep the last line that it wrote to its standard error."""
        with self._closing:
            self._end()

    def _end(self) -> None:
        super().close()
        if self._errors.closed:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        self.complaint = next((printable(line) for line in reversed(lines) if line.strip()), "")
        self._errors.close()


def _open_socket(host: SshHost, via: Any) -> Any:
    """Connect through a jump host, a ProxyCommand, or directly."""
    try:
        if via is not None:
            return via.open_channel("direct-tcpip", (host.name, host.port), ("127.0.0.1", 0))
        if host.proxy_command:
            return _ProxySocket(host.proxy_command)
        line = socket.create_connection((host.name, host.port), timeout=host.timeout)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, paramiko.SSHException, EOFError) as error:
        raise Unreachable(f"cannot reach {_host_words(host)}: {_error_text(error)}") from error
    else:
        return line


def _host_words(host: SshHost) -> str:
    port = "" if host.port == 22 else f" port {host.port}"
    if host.alias == host.name and not port:
        return host.alias
    return f"{host.alias} ({host.name}{port})"


def _error_text(error: BaseException) -> str:
    return (
        (error.strerror if isinstance(error, OSError) else "")
        or str(error)
        or "it closed the connection"
    )
