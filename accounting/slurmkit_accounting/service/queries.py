"""Answer queries: call functions of the read API, limited to what the asker may see."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import msgspec
from msgspec.structs import replace

import slurmkit_accounting.allocations.apply
import slurmkit_accounting.allocations.balance
import slurmkit_accounting.allocations.changes
import slurmkit_accounting.allocations.coldfront
import slurmkit_accounting.benchmarks.store
import slurmkit_accounting.notify.mail_settings
import slurmkit_accounting.read
import slurmkit_accounting.reclaim.keep  # noqa: F401 - they register served functions
from slurmkit.errors import BadConfig, BadInput, ServiceError
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.remote.protocol import ServiceAnswer, ServiceFault, ServiceQuery
from slurmkit_accounting.remote.served import find_remote_function
from slurmkit_accounting.reports.model import Report
from slurmkit_accounting.service.log import Log, error_facts, request_id
from slurmkit_accounting.service.permissions import Permissions
from slurmkit_accounting.service.wsgi import TooManyQueries

_FOR_ALL = frozenset(("benchmark",))  # reports that are the same for everybody
_QUERIES_PER_UID = 2  # queries of one uid that are answered at a time


def _is_about_the_query(error: Exception) -> bool:
    """Return whether an error says what is wrong with a query, not what the service has where."""
    return isinstance(error, (BadInput, ServiceError)) and not isinstance(error, BadConfig)


class QueryTurns:
    """A limit of the queries that one uid has answered at a time, so that others need not wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: Counter[int] = Counter()

    @contextmanager
    def __call__(self, uid: int) -> Iterator[None]:
        """Hold one of the uid's turns until the end of the `with` block.

        Raises:
            TooManyQueries: when the uid has too many queries under way.
        """
        with self._lock:
            if self._busy[uid] >= _QUERIES_PER_UID:
                raise TooManyQueries(
                    f"the service is still answering {_QUERIES_PER_UID} of your queries;"
                    " wait until one of them is done"
                )
            self._busy[uid] += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy[uid] -= 1


class QueryAnswerer:
    """Answers the queries of users, identified by uid.

    Args:
        open_ledger: opens the ledger for reading.
        sights: decides what a uid may see; a query cannot widen that.
        log: gets a line for each failure.
        open_to_change: opens the ledger for writing, for what users may change: their settings.
    """

    def __init__(
        self,
        open_ledger: Callable[[], AbstractContextManager[Ledger]],
        sights: Permissions,
        log: Log,
        open_to_change: Callable[[], AbstractContextManager[Ledger]] | None = None,
    ) -> None:
        self._open_ledger = open_ledger
        self._open_to_change = open_to_change or open_ledger
        self._sights = sights
        self._log = log

    def __call__(self, uid: int, query: ServiceQuery) -> ServiceAnswer:
        """Answer a query, with a fault if it cannot be answered; never raises."""
        try:
            return self._answer(uid, query)
        except Exception as error:  # noqa: BLE001 - internals must not reach the asker
            if _is_about_the_query(error):
                return ServiceAnswer(fault=ServiceFault(type(error).__name__, str(error)))
            self._log("failed", uid=uid, ask=query.ask, **error_facts(error))
            words = (
                "the ledger's service failed to answer; the reason is in its log, which your"
                f" administrator can read: request={request_id()}"
            )
            return ServiceAnswer(fault=ServiceFault("ServiceError", words))

    def _answer(self, uid: int, query: ServiceQuery) -> ServiceAnswer:
        function = find_remote_function(query.ask)
        with self._open_ledger() as ledger:
            # Slurm may be asked here, so it must not be in a transaction of a writer.
            with ledger.transaction() as connection:
                sight = self._sights.of(connection, uid)
            opened = self._open_to_change() if function.changes else nullcontext(ledger)
            with opened as own:
                value = function.answer(own, query.arguments, sight.scope, uid)
        if isinstance(value, Report):
            value = shown_to(value, sight.words)
        return ServiceAnswer(msgspec.Raw(msgspec.json.encode(value)), sight.words)


def shown_to(report: Report, words: str) -> Report:
    """Return a report that says whom it was made for: its reader must know what was counted."""
    if report.meta.report in _FOR_ALL:
        return report
    notes = (*report.meta.notes, f"shown to {words}")
    return replace(report, meta=replace(report.meta, notes=notes))
