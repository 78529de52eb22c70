"""One kept connection to a login node; commands, files and tunnels are channels of it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import paramiko

from slurmkit.errors import SshError, Unreachable
from slurmkit.ssh.asking import Ask
from slurmkit.ssh.auth import log_in
from slurmkit.ssh.hosts import Host
from slurmkit.ssh.known import Known, check, known_keys
from slurmkit.ssh.shells import Shell, lost

_SESSIONS = 8  # sshd allows ten at once unless told otherwise (sshd_config(5), MaxSessions)
_KEPT = 2  # shells that wait for the next command
_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
_WINDOW = 1 << 24  # bytes under way that are not yet read
# The library writes to its log what is raised as well.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Connection:
    """A connection that is made when it is first used, and anew once it has broken.

    Args:
        host: finds out where to, when that is needed.
        ask: for passphrases, passwords and one-time codes.
    """

    def __init__(self, host: Callable[[], Host], ask: Ask) -> None:
        self._host = host
        self.ask = ask
        self._lock = threading.RLock()
        # paramiko keeps why a channel was refused in one place for all threads.
        self._opening = threading.Lock()
        self._sessions = threading.BoundedSemaphore(_SESSIONS)
        self._line: list[Any] = []  # transports, the last leads to the login node
        self._shells: list[Shell] = []

    @property
    def is_up(self) -> bool:
        """Whether it stands, as far as is known."""
        return bool(self._line) and self._line[-1].is_active()

    def transport(self) -> Any:
        """The connection, made anew where it is none or broken.

        Raises:
            SshError: when it cannot be made.
        """
        with self._lock:
            if not self.is_up:
                self._drop()
                self._line = connect(self._host(), self.ask)
            return self._line[-1]

    def close(self) -> None:
        """Hang up; the next use connects anew."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        for transport in reversed(self._line):
            transport.close()
        self._line, self._shells = [], []

    @contextmanager
    def shell(self) -> Iterator[Shell]:
        """A shell for one command, one that is kept where there is any.

        Raises:
            SshError: as `session`.
        """
        with self._sessions:
            shell = self._kept() or Shell(self.opened())
            try:
                yield shell
            finally:
                self._keep(shell)

    def _kept(self) -> Shell | None:
        with self._lock:
            while self._shells:
                shell = self._shells.pop()
                if shell.is_there:
                    return shell
        return None

    def _keep(self, shell: Shell) -> None:
        with self._lock:
            if shell.is_at_rest and shell.is_there and len(self._shells) < _KEPT:
                self._shells.append(shell)
                return
        shell.close()

    @contextmanager
    def session(self) -> Iterator[Any]:
        """A channel for one command, closed at the end.

        Raises:
            SshError: when there is no connection; `ConnectionLost` when it broke just now.
        """
        with self._sessions:
            channel = self.opened()
            try:
                yield channel
            finally:
                channel.close()

    def opened(self) -> Any:
        """A new session; one that has just ended may still count at the server for a moment.

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
                        f"the login node opens no further session ({error.text}); is MaxSessions of"
                        f" its sshd below {_SESSIONS + 2}?"
                    ) from error
                time.sleep(pause)
            except (paramiko.SSHException, EOFError, OSError) as error:
                raise lost(error) from error
        raise AssertionError("the last pause is None")

    def _end_shells(self) -> None:
        with self._lock:
            shells, self._shells = self._shells, []
        for shell in shells:
            shell.close()

    def dial(self, name: str, port: int) -> Any:
        """A channel to a port that the login node can reach.

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
            raise OSError(None, f"the login node cannot reach it: {error.text}") from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise lost(error) from error


def connect(host: Host, ask: Ask) -> list[Any]:
    """Log in, over the hosts on the way; the last transport leads to the host itself.

    Raises:
        SshError: naming the host that cannot be reached or does not let us in.
        HostKeyRefused: when one of them is not who it should be.
    """
    line: list[Any] = []
    try:
        for each in (*host.jumps, host):
            line.append(_started(each, line[-1] if line else None))
            log_in(line[-1], each, ask)
            line[-1].set_keepalive(each.alive)
    except BaseException as error:
        for transport in reversed(line):
            transport.close()
        if isinstance(error, (paramiko.SSHException, EOFError, OSError)):
            raise SshError(f"cannot log in to {host.alias}: {_words(error)}") from error
        raise
    return line


def host_key(host: Host, ask: Ask) -> tuple[str, bytes]:
    """Kind and key that a host shows, whatever is known of it; those on the way are checked.

    Raises:
        SshError: as `connect`.
    """
    line = connect(host.jumps[-1], ask) if host.jumps else []
    try:
        transport = _negotiated(host, line[-1] if line else None, [])
        line.append(transport)
        key = transport.get_remote_server_key()
        return key.get_name(), key.asbytes()
    finally:
        for transport in reversed(line):
            transport.close()


def _started(host: Host, via: Any) -> Any:
    known = known_keys(host.known_as, host.known_hosts)
    transport = _negotiated(host, via, known)
    key = transport.get_remote_server_key()
    try:
        check(host.known_as, key.get_name(), key.asbytes(), known)
    except BaseException:
        transport.close()
        raise
    return transport


def _negotiated(host: Host, via: Any, known: list[Known]) -> Any:
    """A transport whose keys are exchanged, the host's of a kind that is known if it can be."""
    line = _way(host, via)
    try:
        transport = paramiko.Transport(line)
        transport.banner_timeout = transport.auth_timeout = max(host.timeout, 120)
        options = transport.get_security_options()
        kinds = {each.kind for each in known if not each.revoked}
        options.key_types = sorted(options.key_types, key=lambda kind: _plain(kind) not in kinds)
        transport.start_client(timeout=host.timeout)
    except BaseException as error:
        with suppress(Exception):
            line.close()
        if isinstance(error, (paramiko.SSHException, EOFError, OSError)):
            words = f"{_place(host)} does not speak SSH: {_words(error)}"
            raise Unreachable(words) from error
        raise
    return transport


def _plain(kind: str) -> str:
    """The kind of key of a kind of signature."""
    return "ssh-rsa" if kind.startswith("rsa-sha2-") else kind


def _way(host: Host, via: Any) -> Any:
    try:
        if via is not None:
            return via.open_channel("direct-tcpip", (host.name, host.port), ("127.0.0.1", 0))
        if host.proxy_command:
            return paramiko.ProxyCommand(host.proxy_command)
        line = socket.create_connection((host.name, host.port), timeout=host.timeout)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, paramiko.SSHException, EOFError) as error:
        raise Unreachable(f"cannot reach {_place(host)}: {_words(error)}") from error
    else:
        return line


def _place(host: Host) -> str:
    port = "" if host.port == 22 else f" port {host.port}"
    return (
        host.alias if host.alias == host.name and not port else f"{host.alias} ({host.name}{port})"
    )


def _words(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or "it hung up"
