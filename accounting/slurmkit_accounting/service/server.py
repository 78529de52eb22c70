"""The server process of the ledger's service: schedule, two HTTP servers, shutdown."""

from __future__ import annotations

import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FrameType
from typing import NamedTuple, NoReturn, TypeAlias

from slurmkit.config.files import load_section
from slurmkit.errors import BadConfig, ServiceError
from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit_accounting.calendar import Zone, find_zone
from slurmkit_accounting.config import ScheduleSection, ServiceSection
from slurmkit_accounting.ledger.database import Ledger, open_for_reading, open_for_writing
from slurmkit_accounting.remote.protocol import UNIX
from slurmkit_accounting.service import monitoring
from slurmkit_accounting.service.left_metrics import LeftMetrics
from slurmkit_accounting.service.listening import Door, Doors, serving_all
from slurmkit_accounting.service.log import LibraryMessages, Log, make_log
from slurmkit_accounting.service.metrics import LedgerMetrics, MonthGpuHours
from slurmkit_accounting.service.monitoring import read_state
from slurmkit_accounting.service.permissions import Permissions
from slurmkit_accounting.service.queries import QueryAnswerer, QueryTurns
from slurmkit_accounting.service.schedule import Schedule
from slurmkit_accounting.service.systemd import announced_to_systemd
from slurmkit_accounting.service.tasks import ServiceTasks
from slurmkit_accounting.service.trusted_files import check_configuration_files
from slurmkit_accounting.service.vouchers import check_vouchers, token_voucher
from slurmkit_accounting.service.wsgi import page_application, query_application

OpenLedger = Callable[[], AbstractContextManager[Ledger]]
_QUERY_THREADS, _MONITOR_THREADS = 8, 1


class ServiceParts(NamedTuple):
    """What each process of the service has."""

    open_ledger: OpenLedger
    open_to_change: OpenLedger
    permissions: Permissions
    zone: Zone
    log: Log


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
    check_vouchers(section)
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
        "serving", ledger=source, queries=section.listen, tokens=section.jwt_socket or None,
        monitor=section.monitor, also=also,
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


def _applications(
    section: ServiceSection, schedule: Schedule, parts: ServiceParts, pages: Neighbour | None
) -> Doors:
    """Return the two applications by address, each with its number of threads."""
    voucher = token_voucher(section) if section.jwt_socket else None

    def look() -> monitoring.ServiceHealth:
        with parts.open_ledger() as ledger, ledger.transaction() as connection:
            state = read_state(connection)
        return monitoring.judge_health(
            state, schedule.tasks, section, running=schedule.running, broken=broken()
        )

    def broken() -> Iterator[str]:
        if pages is not None and not pages.is_serving():
            yield "the pages of [ledger.portal] are not served; the log says why"
        if voucher is not None:
            try:
                voucher.known_keys()
            except ServiceError as error:
                yield f"no query with a token of Slurm is answered: {error}"

    answers = QueryAnswerer(parts.open_ledger, parts.permissions, parts.log, parts.open_to_change)
    hours = MonthGpuHours(parts.zone, by_user=section.metrics_by_user)
    left = LeftMetrics(parts.zone, parts.log, by_user=section.metrics_by_user)
    are_pages_served = pages.is_serving if pages else None
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
    tokens: Doors = {}
    if voucher:
        behind_proxy = query_application(answers, parts.log, turns, proxied=voucher)
        tokens = {f"{UNIX}{section.jwt_socket}": Door(behind_proxy, _QUERY_THREADS)}
    listeners = Counter([*queries, *tokens, section.monitor, *([pages.address] if pages else [])])
    ((address, number),) = listeners.most_common(1)
    if number > 1:
        raise BadConfig(
            f"two listeners have the address {address}; give each its own port in"
            " [ledger.service] listen, jwt_socket and monitor, and [ledger.portal] listen"
        )
    return queries | tokens | {section.monitor: Door(monitor, _MONITOR_THREADS)}


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
