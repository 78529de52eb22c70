"""The service as a whole: its schedule, its two doors, and how it ends."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from waitress.server import create_server
from waitress.wasyncore import close_all

from slurmkit.config import load_section
from slurmkit.errors import BadConfig, ServiceError
from slurmkit.slurm import LocalSlurm
from slurmkit_accounting.ledger import Ledger, open_for_reading, open_for_writing
from slurmkit_accounting.service import health
from slurmkit_accounting.service.answers import Answers
from slurmkit_accounting.service.app import pages, queries
from slurmkit_accounting.service.client import service_uid
from slurmkit_accounting.service.config import ScheduleSection, ServiceSection
from slurmkit_accounting.service.gpuhours import GpuHours
from slurmkit_accounting.service.log import log
from slurmkit_accounting.service.metrics import Metrics
from slurmkit_accounting.service.munge import MAX_PAYLOAD, seal, unseal
from slurmkit_accounting.service.schedule import Schedule
from slurmkit_accounting.service.sight import Sights
from slurmkit_accounting.service.state import read_state
from slurmkit_accounting.service.tasks import Work
from slurmkit_accounting.service.wire import MAX_PIECES, MAX_QUERY
from slurmkit_accounting.zones import Zone, zone

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

Books = Callable[[], AbstractContextManager[Ledger]]
_QUERY_THREADS, _MONITOR_THREADS = 8, 1
# Nobody is known before their query is opened, so nobody may cost much until then, or afterwards by
# not reading the answer: waitress would take in a gigabyte, and keep a thread for each such reader.
_LIMITS: dict[str, Any] = {
    "max_request_body_size": MAX_QUERY + 1,
    "outbuf_high_watermark": 2 * MAX_PIECES * MAX_PAYLOAD,
    "connection_limit": 400,
    "channel_timeout": 30,  # seconds in which nothing was sent or read
    "cleanup_interval": 10,
    "asyncore_use_poll": True,
}


def serve(db: str | None) -> None:
    """Keep the books and answer queries until a signal says stop.

    SIGTERM and SIGINT end it: what runs is finished, or stops at the edge of a batch.

    Raises:
        BadConfig: when a setting cannot be meant.
        LedgerError: when the ledger cannot be made or opened.
        ServiceError: when munge does not work, or an address is taken.
    """
    section = load_section("ledger.service", ServiceSection)
    plan = load_section("ledger.schedule", ScheduleSection)
    here = zone(plan.timezone or None)
    _vouch(section)
    with open_for_writing(db) as ledger:  # made, or brought forward, before anybody asks
        source = ledger.source
    schedule = _schedule(plan, here, lambda: open_for_writing(db))
    doors = _doors(section, schedule, here, lambda: open_for_reading(db))
    with _open(doors):
        schedule.start()
        log("serving", ledger=source, queries=section.listen, monitor=section.monitor)
        try:
            _until_told()
        finally:
            log("stopping", task=schedule.running)
            schedule.stop()
    log("stopped")


def _vouch(section: ServiceSection) -> None:
    """See that munged works, and that clients will take our answers."""
    if service_uid(section) != os.getuid():
        raise BadConfig(
            f"the service runs as uid {os.getuid()}, but [ledger.service] user is {section.user!r},"
            " whose answers alone clients take; set it here and for clients, or run as that account"
        )
    if unseal(seal(b"", reader=os.getuid())).uid != os.getuid():
        raise ServiceError("munged takes this account for another; is it of this host?")


def _schedule(plan: ScheduleSection, here: Zone, books: Books) -> Schedule:
    schedule = Schedule([], books, log)
    schedule.add(Work(books, LocalSlurm(), schedule.check, here).tasks(plan))
    return schedule


def _doors(
    section: ServiceSection, schedule: Schedule, here: Zone, books: Books
) -> dict[str, tuple[WSGIApplication, int]]:
    """Address to application and threads."""

    def look() -> health.Health:
        with books() as ledger, ledger.transaction() as connection:
            state = read_state(connection)
        return health.judge(state, schedule.tasks, section, running=schedule.running)

    answers = Answers(books, Sights(section, LocalSlurm(), log), log)
    hours = GpuHours(here, by_user=section.metrics_by_user)
    metrics = Metrics(books, schedule, hours, log)
    monitor = pages({"/health": lambda: health.page(look), "/metrics": metrics.page})
    return {
        section.listen: (queries(answers, log), _QUERY_THREADS),
        section.monitor: (monitor, _MONITOR_THREADS),
    }


@contextmanager
def _open(doors: dict[str, tuple[WSGIApplication, int]]) -> Iterator[None]:
    """Answer on every address until the end."""
    with ExitStack() as opened:
        for address, (app, threads) in doors.items():
            opened.enter_context(answering(address, app, threads))
        yield


@contextmanager
def answering(address: str, app: WSGIApplication, threads: int) -> Iterator[int]:
    """Answer on one address until the end; the port.

    Raises:
        ServiceError: when the address is taken, or none of this host.
    """
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # that some wait is usual
    sockets: dict[int, Any] = {}
    listening = [_listening(address)]
    server: Any = create_server(
        app, map=sockets, sockets=listening, threads=threads, ident="slurmkit", **_LIMITS
    )
    loop = threading.Thread(target=server.run, daemon=True)
    loop.start()
    try:
        yield server.effective_port
    finally:
        server.task_dispatcher.shutdown(timeout=5)  # who answers yet tells the server
        # By the thread that looks at them: closed by another, their numbers may be others' by then.
        server.trigger.pull_trigger(partial(close_all, sockets))
        loop.join(5)


def _listening(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family)
    except (OSError, ValueError, OverflowError) as error:
        raise ServiceError(
            f"cannot listen on {address}: {error}; write HOST:PORT of this host, free, as"
            " [ledger.service] listen and monitor"
        ) from error


def _until_told() -> None:
    """Wait for SIGTERM or SIGINT."""

    def told(number: int, _: FrameType | None) -> NoReturn:
        raise _Told(signal.Signals(number).name)

    before = {one: signal.signal(one, told) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        while True:
            signal.pause()
    except _Told as signalled:
        log("told", signal=signalled)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class _Told(Exception):
    pass
