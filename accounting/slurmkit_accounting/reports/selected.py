"""Single runs of a window that a reader may see and asked for, each under its first usage key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, TextClause, func, or_, select, text

from slurmkit_accounting.bins import NO_GPU, UNKNOWN_UID, Eras, Key, read_tres
from slurmkit_accounting.bulk import among
from slurmkit_accounting.held import of
from slurmkit_accounting.reports.counted import Counted, Question
from slurmkit_accounting.reports.dimensions import Dimensions
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.schema import DOUBTFUL, OPEN, runs, usage_keys
from slurmkit_accounting.upkeep import eras

_NEEDED = (
    "cluster_id", "user", "uid", "account", "partition", "qos", "state", "redone", "submit",
    "alloc_tres",
)  # fmt: skip


class Selection:
    """Finds runs, as `Counted` finds usage; whose they are is read unless it is given."""

    def __init__(
        self, connection: Connection, question: Question, dimensions: Dimensions | None = None
    ) -> None:
        self.question = question
        self.rates = Rates()
        self.dimensions = dimensions or Dimensions(connection, self.rates)
        self._connection = connection
        self._eras = eras(connection)
        self._kept: dict[Key, bool] = {}
        self._users: list[str] | None = None

    def rows(
        self,
        columns: Sequence[str],
        *where: ColumnElement[bool] | TextClause,
        retracted: bool = False,
    ) -> Iterator[tuple[Any, tuple[Key, ...]]]:
        """Rows of `runs` with some columns, and their keys: one for each type of GPU.

        Args:
            columns: beside those of the keys.
            *where: which.
            retracted: also those that were taken out of the books.
        """
        wanted = [runs.c[name] for name in dict.fromkeys((*_NEEDED, *columns))]
        counted = () if retracted else (runs.c.retracted.is_(None),)
        query = select(*wanted).where(*counted, *where, *self.where())
        for row in self._connection.execute(query.execution_options(yield_per=10_000)):
            keys = tuple(filter(self.keeps, keys_of(row, self._eras)))
            if keys:
                yield row, keys

    def keeps(self, key: Key) -> bool:
        """Whether runs of a key may be seen and were asked for."""
        if key not in self._kept:
            asked = self.question
            self._kept[key] = self.dimensions.shown(key, asked.scope) and self.dimensions.matches(
                key, asked.filters
            )
        return self._kept[key]

    def where(self) -> Iterable[ColumnElement[bool]]:
        """What the database itself can leave out."""
        filters = self.question.filters
        if not self.question.scope.is_everything:
            yield among(self._connection, runs.c.user, self._shown_users())
        for name in ("user", "account", "partition", "qos", "state"):
            if name in filters:
                yield runs.c[name].in_(filters[name])
        if self.question.job is not None:
            yield of(self.question.job)

    def _shown_users(self) -> list[str]:
        """Names under which there are runs that may be seen: others' runs are not even read."""
        if self._users is None:
            scope, open_ones = self.question.scope, select(runs.c.user).where(text(OPEN))
            query = select(*(usage_keys.c[name] for name in Key._fields))
            keys = (Key(*row) for row in self._connection.execute(query))
            users = {key.user for key in keys if self.dimensions.shown(key, scope)}
            self._users = sorted(users.union(self._connection.scalars(open_ones.distinct())))
        return self._users


def doubtful(connection: Connection, counted: Counted) -> int:
    """Runs of a report whose GPU count cannot be trusted."""
    # Functions of columns, lest SQLite take an index of all runs for the one of doubtful ones.
    first, last = counted.question.window
    begin, end = func.coalesce(runs.c.start, last), func.coalesce(runs.c.end, last)
    chosen = Selection(connection, counted.question, counted.dimensions)
    found = chosen.rows((), text(DOUBTFUL), begin < last, end > first)
    return sum(1 for _ in found)


def keys_of(row: Any, known: Eras) -> Iterator[Key]:
    """The usage keys of a row of `runs`."""
    uid = UNKNOWN_UID if row.uid is None else row.uid
    of = (row.cluster_id, row.user, uid, row.account, row.partition, row.qos, row.state)
    for kind, _ in read_tres(row.alloc_tres).gpus or ((NO_GPU, 0),):
        yield Key(*of, bool(row.redone), kind, known.of(row.submit))


def overlapping(window: tuple[int, int]) -> list[ColumnElement[bool]]:
    """Runs that ran within a window."""
    begin, end = window
    return [
        runs.c.start < end,
        or_(runs.c.end > begin, runs.c.end.is_(None), runs.c.start >= begin),
    ]


def ended_within(window: tuple[int, int]) -> list[ColumnElement[bool]]:
    """Runs that ended within a window."""
    return [runs.c.end > window[0], runs.c.end <= window[1], runs.c.start.is_not(None)]
