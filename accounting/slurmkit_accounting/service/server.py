"""The server process of the ledger's service: schedule, two HTTP servers, shutdown."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, UnixWSGIServer
from waitress.task import ThreadedTaskDispatcher
from waitress.wasyncore import close_all

from slurmkit.config.files import load_section
from slurmkit.errors import BadConfig, ServiceError
from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit_accounting.calendar import Zone, find_zone
from slurmkit_accounting.config import ScheduleSection, ServiceSection
from slurmkit_accounting.ledger.database import Ledger, open_for_reading, open_for_writing
from slurmkit_accounting.remote.client import service_uid
from slurmkit_accounting.remote.protocol import (
    MAX_PAYLOAD,
    MAX_PIECES,
    MAX_QUERY,
    UNIX,
    connect_to_socket,
    peer_uid,
    seal,
    unseal,
)
from slurmkit_accounting.service import monitoring
from slurmkit_accounting.service.left_metrics import LeftMetrics
from slurmkit_accounting.service.log import LibraryMessages, Log, make_log
from slurmkit_accounting.service.metrics import LedgerMetrics, MonthGpuHours
from slurmkit_accounting.service.monitoring import read_state
from slurmkit_accounting.service.permissions import Permissions
from slurmkit_accounting.service.queries import QueryAnswerer, QueryTurns
from slurmkit_accounting.service.schedule import Schedule
from slurmkit_accounting.service.systemd import announced_to_systemd
from slurmkit_accounting.service.tasks import ServiceTasks
from slurmkit_accounting.service.trusted_files import check_configuration_files
from slurmkit_accounting.service.wsgi import PEER, page_application, query_application

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

OpenLedger = Callable[[], AbstractContextManager[Ledger]]
_QUERY_THREADS, _MONITOR_THREADS = 8, 1
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


class ServiceParts(NamedTuple):
    """What each process of the service has."""

    open_ledger: OpenLedger
    open_to_change: OpenLedger
    permissions: Permissions
    zone: Zone
    log: Log


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


class Neighbour(NamedTuple):
    """What another process of the service serves, and whether it does so now."""

    address: str
    is_serving: Callable[[], bool]


Beside: TypeAlias = Callable[[str | None, Log], AbstractContextManager[Neighbour | None]]


def serve(db: str | None, beside: Beside = lambda *_: nullcontext()) -> None:
    """Keep the ledger up to date and answer queries until SIGTERM or SIGINT.

    At the end, the running task is finished, or stops between two batches.

    Args:
        db: database URL of the ledger; None for the configured one.
        beside: lets another process serve pages of this ledger until the end of the `with` block;
            yields None if it has none.

    Raises:
        BadConfig: when a setting is not valid, or others can write a configuration file.
        LedgerError: when the ledger cannot be created or opened.
        ServiceError: when munge does not work, or an address is taken.
    """
    parts = service_parts(db)
    log = parts.log
    section = load_section("ledger.service", ServiceSection)
    plan = load_section("ledger.schedule", ScheduleSection)
    _check_voucher(section)
    with open_for_writing(db) as ledger:  # creates or migrates it before the first query
        source = ledger.source
    schedule = Schedule([], parts.open_to_change, log)
    tasks = ServiceTasks(parts.open_to_change, LocalSlurmCommands(), schedule.check, parts.zone)
    schedule.add(tasks.tasks(plan))
    with beside(db, log) as pages, serving_all(_applications(section, schedule, parts, pages)):
        also = pages.address if pages else None
        _run(schedule, section, source, also=also, log=log)
    log("stopped")


def service_parts(db: str | None) -> ServiceParts:
    """Make the parts of a process of the service, whose log also gets the messages of libraries.

    Args:
        db: database URL of the ledger; None for the configured one.

    Raises:
        BadConfig: when a setting is not valid, or others can write a configuration file.
    """
    check_configuration_files()
    section = load_section("ledger.service", ServiceSection)
    plan = load_section("ledger.schedule", ScheduleSection)
    log = make_log(section.log)
    logging.basicConfig(handlers=[LibraryMessages(log)], force=True)
    # The files are read again by each query and task, so who may write them is checked again, too.
    readable, writable = (
        partial(_open_if_trusted, partial(opening, db))
        for opening in (open_for_reading, open_for_writing)
    )
    permissions = Permissions(section, LocalSlurmCommands(), log)
    return ServiceParts(readable, writable, permissions, find_zone(plan.timezone or None), log)


def _run(
    schedule: Schedule, section: ServiceSection, source: str, *, also: str | None, log: Log
) -> None:
    """Run the tasks until a signal."""
    schedule.start()
    log(
        "serving", ledger=source, queries=section.listen, monitor=section.monitor,
        also=also,
    )  # fmt: skip
    with announced_to_systemd(lambda: schedule.is_alive) as announce_stop:
        try:
            log("received", signal=_wait_for_signal())
        finally:
            announce_stop()
            log("stopping", task=schedule.running)
            schedule.stop()


def _open_if_trusted(open_ledger: OpenLedger) -> AbstractContextManager[Ledger]:
    """Open the ledger, unless others can write the configuration by now."""
    check_configuration_files()
    return open_ledger()


def _check_voucher(section: ServiceSection) -> None:
    """Check that clients will accept our answers, and that munged works where it is needed."""
    if service_uid(section) != os.getuid():
        raise BadConfig(
            f"the service runs as uid {os.getuid()}, but [ledger.service] user is {section.user!r},"
            " and clients accept answers only from that account; set user here and for clients,"
            " or run the service as that account"
        )
    by_munge = [one for one in section.addresses if not one.startswith(UNIX)]
    if by_munge and unseal(seal(b"", reader=os.getuid())).uid != os.getuid():
        raise ServiceError(
            "munged reports another uid for this account; check that it runs on this host"
        )


def _applications(
    section: ServiceSection, schedule: Schedule, parts: ServiceParts, pages: Neighbour | None
) -> Doors:
    """Return the two applications by address, each with its number of threads."""
    are_pages_served = pages.is_serving if pages else None

    def look() -> monitoring.ServiceHealth:
        with parts.open_ledger() as ledger, ledger.transaction() as connection:
            state = read_state(connection)
        return monitoring.judge_health(
            state, schedule.tasks, section, running=schedule.running,
            lacks_pages=are_pages_served is not None and not are_pages_served(),
        )  # fmt: skip

    answers = QueryAnswerer(parts.open_ledger, parts.permissions, parts.log, parts.open_to_change)
    hours = MonthGpuHours(parts.zone, by_user=section.metrics_by_user)
    left = LeftMetrics(parts.zone, parts.log, by_user=section.metrics_by_user)
    metrics = LedgerMetrics(parts.open_ledger, schedule, hours, parts.log, left, are_pages_served)
    monitor = page_application(
        {
            "/health": lambda _: monitoring.health_page(look),
            "/livez": lambda _: monitoring.live_page(lambda: schedule.is_alive),
            "/readyz": lambda _: monitoring.ready_page(look),
            "/metrics": metrics.page,
        }
    )
    turns = QueryTurns()
    queries = {
        address: Door(
            query_application(answers, parts.log, turns, on_socket=address.startswith(UNIX)),
            _QUERY_THREADS,
            for_all=True,
        )
        for address in section.addresses
    }
    others = [section.monitor, *([pages.address] if pages else [])]
    for at, address in enumerate(others):
        if address in queries or address in others[:at]:
            raise BadConfig(
                f"two listeners have the address {address}; give each its own port in"
                " [ledger.service] listen and monitor, and [ledger.portal] listen"
            )
    return queries | {section.monitor: Door(monitor, _MONITOR_THREADS)}


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
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # waiting queries are normal
    sockets: dict[int, Any] = {}
    listening = _listen(address, mode=0o666 if for_all else 0o660)
    settings = Adjustments(sockets=[listening], ident="slurmkit", **_WAITRESS_LIMITS)
    dispatcher = ThreadedTaskDispatcher()
    dispatcher.set_thread_count(threads)
    on_socket = listening.family == socket.AF_UNIX
    own = Path(address.removeprefix(UNIX)).stat().st_ino if on_socket else None
    unix_server = _PeerServer if for_all else _LimitedUnixServer
    server: Any = (unix_server if on_socket else _LimitedServer)(
        app,
        map=sockets,
        _sock=listening,
        dispatcher=dispatcher,
        adj=settings,
        sockinfo=(listening.family, listening.type, listening.proto, listening.getsockname()),
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
        if own is not None:
            _remove_own_socket(Path(address.removeprefix(UNIX)), own)


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


def _wait_for_signal() -> str:
    """Wait for SIGTERM or SIGINT; return its name."""

    def handle(number: int, _: FrameType | None) -> NoReturn:
        raise _Signalled(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while True:
            signal.pause()
    except _Signalled as signalled:
        return str(signalled)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Signalled(Exception):
    pass
