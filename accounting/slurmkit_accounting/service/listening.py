"""Serve applications on addresses, with limits that hold before anybody is known."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, UnixWSGIServer
from waitress.task import ThreadedTaskDispatcher
from waitress.wasyncore import close_all

from slurmkit.errors import ServiceError
from slurmkit_accounting.remote.protocol import (
    MAX_PAYLOAD,
    MAX_PIECES,
    MAX_QUERY,
    UNIX,
    connect_to_socket,
    peer_uid,
)
from slurmkit_accounting.service.wsgi import PEER

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

# A client is unknown until its query is opened, so until then it must not cost much. Nor may a
# client that does not read its answer. waitress would by default read a gigabyte, and keep a thread
# busy for each such client.
_WAITRESS_LIMITS: dict[str, Any] = {
    "max_request_body_size": MAX_QUERY + 1,
    "outbuf_high_watermark": 2 * MAX_PIECES * MAX_PAYLOAD,
    "connection_limit": 400,
    "channel_timeout": 30,  # seconds in which nothing was sent or read
    "cleanup_interval": 1,  # seconds between two looks at the deadlines
    "asyncore_use_poll": True,
    # The portal reads X-Forwarded-For of the proxies that it trusts. Without it, all people behind
    # a proxy have one address, and one of them could lock out all others.
    "clear_untrusted_proxy_headers": False,
}
# Without these, one host could hold all connections and send a byte now and then.
_CONNECTIONS_PER_ADDRESS = 100
_REQUEST_SECONDS = 10.0  # in which a whole request must have arrived
_ANSWER_SECONDS = 600.0  # in which a request must be answered, and the answer read
# Bytes of all answers that nobody has read yet: twice the largest one, sealed.
_MOST_UNREAD = 4 * MAX_PIECES * MAX_PAYLOAD
# A client that takes less than so many bytes in so many seconds has stopped to read.
_PROGRESS, _STALLED_SECONDS = 2**16, 10.0


class Door(NamedTuple):
    """An application to be served.

    Attributes:
        threads: its number of threads.
        for_all: on a Unix socket, whether everybody may connect, and REMOTE_ADDR is `uid:NUMBER`
            of who did; else its group may, and REMOTE_ADDR is `localhost`.
    """

    app: WSGIApplication
    threads: int
    for_all: bool = False


Doors: TypeAlias = dict[str, Door]
"""Applications by the address they are served on."""


@contextmanager
def serving_all(doors: Doors) -> Iterator[None]:
    """Serve on every address until the end of the `with` block.

    Raises:
        ServiceError: when an address is taken or does not belong to this host.
    """
    with ExitStack() as opened:
        for address, door in doors.items():
            opened.enter_context(serving_on(address, door.app, door.threads, for_all=door.for_all))
        yield


@contextmanager
def serving_on(
    address: str, app: WSGIApplication, threads: int, *, for_all: bool = False
) -> Iterator[int]:
    """Serve on one address until the end of the `with` block; yields the port.

    The arguments after the address are the fields of a `Door`.

    Raises:
        ServiceError: when the address is taken or does not belong to this host.
    """
    with (
        listening_on(address, for_all=for_all) as listener,
        serving(listener, app, threads, for_all=for_all) as port,
    ):
        yield port


@contextmanager
def listening_on(address: str, *, for_all: bool = False) -> Iterator[socket.socket]:
    """Listen on one address until the end of the `with` block.

    Raises:
        ServiceError: when the address is taken or does not belong to this host.
    """
    listener = _listen(address, mode=0o666 if for_all else 0o660)
    path = Path(address.removeprefix(UNIX)) if address.startswith(UNIX) else None
    own = path.stat().st_ino if path else None
    try:
        yield listener
    finally:
        listener.close()
        if path and own is not None:
            _remove_own_socket(path, own)


@contextmanager
def serving(
    listener: socket.socket, app: WSGIApplication, threads: int, *, for_all: bool = False
) -> Iterator[int]:
    """Serve on a socket that listens until the end of the `with` block; yields the port.

    The arguments after the socket are the fields of a `Door`. The socket is closed at the end.
    """
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # waiting queries are normal
    sockets: dict[int, Any] = {}
    settings = Adjustments(sockets=[listener], ident="slurmkit", **_WAITRESS_LIMITS)
    dispatcher = ThreadedTaskDispatcher()
    dispatcher.set_thread_count(threads)
    on_socket = listener.family == socket.AF_UNIX
    unix_server = _PeerServer if for_all else _LimitedUnixServer
    server: Any = (unix_server if on_socket else _LimitedServer)(
        app,
        map=sockets,
        _sock=listener,
        dispatcher=dispatcher,
        adj=settings,
        sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
        bind_socket=False,
    )
    loop = threading.Thread(target=server.run, daemon=True)
    loop.start()
    try:
        yield 0 if on_socket else server.effective_port
    finally:
        server.task_dispatcher.shutdown(timeout=5)  # first: threads still use the server's loop
        # Closed by the thread that polls the sockets. If another thread closed them, their file
        # descriptors could be reused meanwhile.
        with server.trigger.lock:  # else a pull by another thread closes the pipe before this one
            server.trigger.thunks.append(partial(close_all, sockets))
            server.trigger.pull_trigger()
        loop.join(5)


class _Connection(HTTPChannel):
    """A connection that knows when its last whole request arrived, and how its answer is read."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.since = self._progress = time.monotonic()
        self._taken = 0
        super().__init__(*args, **named)

    def received(self, data: bytes) -> bool:
        """Take bytes of a request."""
        taken = bool(super().received(data))
        if self.requests:  # empty lines are no request
            self.since = self._progress = time.monotonic()
        return taken

    def write_soon(self, data: Any) -> int:
        """Put data of an answer where the client takes it from."""
        if not self.total_outbufs_len:  # the client had nothing to read until now
            self._progress = time.monotonic()
        return int(super().write_soon(data))

    def send(self, data: bytes, do_close: bool = True) -> int:  # noqa: FBT001, FBT002
        """Send what the client takes of an answer; note when it has taken some more."""
        sent = int(super().send(data, do_close))
        self._taken += sent
        if self._taken >= _PROGRESS:
            self._taken, self._progress = 0, time.monotonic()
        return sent

    @property
    def backlog(self) -> tuple[bool, int]:
        """Whether its client has stopped to read, and the unread bytes of its answer."""
        return time.monotonic() - self._progress > _STALLED_SECONDS, self.total_outbufs_len

    @property
    def is_late(self) -> bool:
        """Whether the client has taken too long to send a request, or to read an answer."""
        if self.requests:
            return False
        allowed = _ANSWER_SECONDS if self.total_outbufs_len else _REQUEST_SECONDS
        return time.monotonic() - self.since > allowed


class _Closing:
    """What closes slow connections of a server of waitress."""

    active_channels: Any  # its type in the stubs is wrong

    def maintenance(self, now: int) -> None:
        """Close connections that are idle or late, also those that are never ready to write.

        Close also those with unread answers until the other answers fit into memory: first those
        whose clients have stopped reading, then the largest.
        """
        super().maintenance(now)  # type: ignore[misc]
        unread = sum(one.total_outbufs_len for one in self._connections())
        for connection in sorted(self._connections(), key=lambda one: one.backlog, reverse=True):
            waiting = connection.total_outbufs_len
            too_much = waiting > 0 and unread > _MOST_UNREAD
            if connection.will_close or connection.is_late or too_much:
                connection.handle_close()
                unread -= waiting

    def _has_room(self, connection: socket.socket, sender: str) -> bool:
        """Return whether a sender may have a connection more; else close it."""
        open_now = [one for one in self._connections() if one.addr[0] == sender]
        has_room = len(open_now) < _CONNECTIONS_PER_ADDRESS
        if not has_room:
            connection.close()
        return has_room

    def _connections(self) -> list[_Connection]:
        return list(self.active_channels.values())


class _LimitedServer(_Closing, TcpWSGIServer):
    """A server that closes slow connections, and accepts only so many of one address."""

    channel_class = _Connection

    def accept(self) -> tuple[socket.socket, Any] | None:
        """Accept a connection; close it at once if its address has too many."""
        accepted: tuple[socket.socket, Any] | None = super().accept()
        if accepted is None:
            return None
        connection, (host, *_) = accepted
        return accepted if self._has_room(connection, host) else None


class _LimitedUnixServer(_Closing, UnixWSGIServer):
    """A server on a Unix socket that closes slow connections."""

    channel_class = _Connection


class _PeerServer(_LimitedUnixServer):
    """One that names the user at the other end, and accepts only so many connections of each."""

    def accept(self) -> tuple[socket.socket, Any] | None:
        """Accept a connection; close it at once if its user has too many."""
        accepted: tuple[socket.socket, Any] | None = super().accept()
        if accepted is None:
            return None
        connection, _ = accepted
        sender = f"{PEER}{peer_uid(connection)}"
        return (connection, (sender, None)) if self._has_room(connection, sender) else None

    def fix_addr(self, addr: Any) -> Any:
        """Return the address of `accept`."""
        return addr


def _listen(address: str, mode: int) -> socket.socket:
    if address.startswith(UNIX):
        return _listen_on_socket(Path(address.removeprefix(UNIX)), mode)
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family)
    except (OSError, ValueError, OverflowError) as error:
        raise ServiceError(
            f"cannot listen on {address}: {error}; set [ledger.service] listen and"
            " monitor, or [ledger.portal] listen, to HOST:PORT with an address of this host and a"
            " free port, or to unix:/PATH"
        ) from error


def _listen_on_socket(path: Path, mode: int) -> socket.socket:
    """Listen on a Unix socket; its mode says who can open it."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        _remove_dead_socket(path)
        opened.bind(str(path))
        path.chmod(mode)
        opened.listen(1024)
    except OSError as error:
        opened.close()
        raise ServiceError(
            f"cannot listen on {UNIX}{path}: {error}; the service's account must be able to write"
            " to the folder of the socket"
        ) from error
    finally:
        os.umask(before)
    return opened


def _remove_own_socket(path: Path, number: int) -> None:
    """Remove our socket (by its inode), not one that took its place."""
    with suppress(FileNotFoundError):
        if path.stat().st_ino == number:
            path.unlink()


def _remove_dead_socket(path: Path) -> None:
    """Remove the socket of a service that was killed; that of one that runs stays.

    Raises:
        OSError: when somebody listens on it.
    """
    if not path.is_socket():
        return
    try:
        connect_to_socket(str(path), 5).close()
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
        return
    raise OSError(errno.EADDRINUSE, "another service listens there")
