"""Runs of a window that a reader may see and asked for, each under its first usage key.

Single ones, or summed up by the database by no more than a report must tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    TextClause,
    func,
    literal_column,
    or_,
    select,
    text,
)

from slurmkit_accounting.bins import NO_GPU, UNKNOWN_UID, Eras, Key, read_tres
from slurmkit_accounting.bulk import among
from slurmkit_accounting.held import of
from slurmkit_accounting.reports.counted import Counted, Question
from slurmkit_accounting.reports.dimensions import Dimensions
from slurmkit_accounting.reports.periods import UNITS
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.schema import DAY, DOUBTFUL, LONG, OPEN, runs, usage_keys
from slurmkit_accounting.upkeep import eras

Where: TypeAlias = "ColumnElement[bool] | TextClause"
_NEEDED = (
    "cluster_id", "user", "uid", "account", "partition", "qos", "state", "redone", "submit",
    "alloc_tres",
)  # fmt: skip
# What must be known of a run to say whose and of what it is; other dimensions are columns.
_PERSON = ("cluster_id", "user", "uid", "account", "era")
_OF_PEOPLE = frozenset(("pi", "group", "department"))
_TOLD_BY = {
    **dict.fromkeys(_OF_PEOPLE, _PERSON),
    "cluster": ("cluster_id",),
    "gpu-type": ("alloc_tres", "partition"),
}
# No bound values, so that a database sees that it is the same where it groups.
_ERA: ColumnElement[int] = literal_column(
    "coalesce((SELECT max(eras.at) FROM eras WHERE eras.at <= runs.submit), 0)"
)


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
        *where: Where,
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

    def grouped(
        self,
        by: Sequence[str],
        shape: Sequence[ColumnElement[Any]],
        sums: Sequence[ColumnElement[Any]],
        *where: Where,
    ) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...]]]:
        """Sums over runs, with the values of dimensions; the same values may come several times.

        Args:
            by: the dimensions.
            shape: what else runs are told apart by.
            sums: aggregates.
            *where: which runs.

        Yields:
            The values of `by`; and those of `shape` and `sums`.
        """
        names = self._needed(by)
        keys = [_ERA.label("era") if name == "era" else runs.c[name] for name in names]
        groups = [*(_ERA if name == "era" else runs.c[name] for name in names), *shape]
        query = select(*keys, *shape, *sums).where(runs.c.retracted.is_(None), *where)
        query = query.where(*self.where()).group_by(*groups)
        known: dict[tuple[Any, ...], tuple[str, ...] | None] = {}
        for row in self._connection.execute(query.execution_options(yield_per=10_000)):
            values = tuple(row)
            told = values[: len(names)]
            if told not in known:
                known[told] = self._labels(by, dict(zip(names, told, strict=True)))
            if (labels := known[told]) is not None:
                yield labels, values[len(names) :]

    def _needed(self, by: Sequence[str]) -> list[str]:
        """Columns that tell dimensions, filters, and who may see a run."""
        names = [*by, *(name for name in self.question.filters if name not in UNITS)]
        hidden = () if self.question.scope.is_everything else _PERSON
        told = (column for name in names for column in _TOLD_BY.get(name, (name,)))
        return list(dict.fromkeys((*hidden, *told)))

    def _labels(self, by: Sequence[str], told: dict[str, Any]) -> tuple[str, ...] | None:
        """Values of dimensions; None for runs that are not to be seen or were not asked for."""
        kinds = read_tres(told.pop("alloc_tres", "")).gpus or ((NO_GPU, 0),)
        if "uid" in told and told["uid"] is None:
            told["uid"] = UNKNOWN_UID
        # As usage has it: what is not of GPUs is under the first of several types.
        key = _ANY._replace(**told, gpu_type=kinds[0][0])
        return tuple(self.dimensions.of(name, key) for name in by) if self.keeps(key) else None

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
        if not self.question.scope.is_everything or filters.keys() & _OF_PEOPLE:
            yield among(self._connection, runs.c.user, self._shown_users())
        for name in ("user", "account", "partition", "qos", "state"):
            if name in filters:
                yield runs.c[name].in_(filters[name])
        if self.question.job is not None:
            yield of(self.question.job)

    def _shown_users(self) -> list[str]:
        """Names under which there are runs that may be seen: others' runs are not even read."""
        if self._users is None:
            open_ones = select(runs.c.user).where(text(OPEN))
            query = select(*(usage_keys.c[name] for name in Key._fields))
            keys = (Key(*row) for row in self._connection.execute(query))
            users = {key.user for key in keys if self._may_keep(key)}
            self._users = sorted(users.union(self._connection.scalars(open_ones.distinct())))
        return self._users

    def _may_keep(self, key: Key) -> bool:
        """Whether runs of such a person may be seen and were asked for."""
        asked = self.question
        people = {name: asked.filters[name] for name in _OF_PEOPLE & asked.filters.keys()}
        return self.dimensions.shown(key, asked.scope) and self.dimensions.matches(key, people)


def doubtful(connection: Connection, counted: Counted) -> int:
    """Runs of a report whose GPU count cannot be trusted."""
    # Functions of columns, lest SQLite take an index of all runs for the one of doubtful ones.
    first, last = counted.question.window
    begin, end = func.coalesce(runs.c.start, last), func.coalesce(runs.c.end, last)
    chosen = Selection(connection, counted.question, counted.dimensions)
    found = chosen.rows((), text(DOUBTFUL), begin < last, end > first)
    return sum(1 for _ in found)


_ANY = Key(0, "", UNKNOWN_UID, "", "", "", "", False, NO_GPU, 0)  # noqa: FBT003


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


def started_within(window: tuple[int, int]) -> Iterator[list[Where]]:
    """Runs that started within a window, in three ways to find them."""
    begin, end = window
    started = [runs.c.start >= begin, runs.c.start < end]
    # Those that took no more than a day are found by when they ended.
    soon = [runs.c.end >= begin, runs.c.end < end + DAY, runs.c.end - runs.c.start <= DAY]
    yield [*started, *soon]
    yield [*started, text(LONG)]
    yield [*started, text(OPEN)]
