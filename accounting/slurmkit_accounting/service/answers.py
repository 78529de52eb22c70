"""Answer queries: the functions of the read API, within what the asker may see."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import msgspec
from msgspec.structs import replace

from slurmkit.errors import ServiceError, SlurmkitError
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.reports.model import Report
from slurmkit_accounting.served import find_served
from slurmkit_accounting.service.log import Log
from slurmkit_accounting.service.sight import Sights
from slurmkit_accounting.service.wire import Answer, Fault, Query

_AT_ONCE = 2  # of one uid


class Answers:
    """Answers a query of a uid.

    Args:
        books: opens the ledger for reading.
        sights: decides what a uid may see; whatever a query says of that is not asked.
        log: told of what fails.
    """

    def __init__(
        self, books: Callable[[], AbstractContextManager[Ledger]], sights: Sights, log: Log
    ) -> None:
        self._books = books
        self._sights = sights
        self._log = log
        self._lock = threading.Lock()
        self._busy: Counter[int] = Counter()

    def __call__(self, uid: int, query: Query) -> Answer:
        """Answer it, or say why not; never raises."""
        try:
            with self._turn(uid):
                return self._answer(uid, query)
        except SlurmkitError as error:
            return Answer(fault=Fault(type(error).__name__, str(error)))
        except Exception as error:  # noqa: BLE001 - the asker must not see our inside
            self._log("failed", uid=uid, ask=query.ask, why=f"{type(error).__name__}: {error}")
            words = "the ledger's service failed to answer; its log says why"
            return Answer(fault=Fault("ServiceError", words))

    @contextmanager
    def _turn(self, uid: int) -> Iterator[None]:
        """Nobody may keep everybody else waiting."""
        with self._lock:
            if self._busy[uid] >= _AT_ONCE:
                raise ServiceError(
                    f"{_AT_ONCE} queries of yours are still being answered; wait for one of them"
                )
            self._busy[uid] += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy[uid] -= 1

    def _answer(self, uid: int, query: Query) -> Answer:
        import slurmkit_accounting.read  # noqa: F401, PLC0415 - what it marks is what is served

        function = find_served(query.ask)
        with self._books() as ledger:
            with ledger.transaction() as connection:
                sight = self._sights.of(connection, uid)
            value = function.answer(ledger, query.arguments, sight.scope)
        if isinstance(value, Report):  # a reader must know what was left out
            notes = (*value.meta.notes, f"seen as {sight.words}")
            value = replace(value, meta=replace(value.meta, notes=notes))
        return Answer(msgspec.Raw(msgspec.json.encode(value)), sight.words)
