"""Select runs that match a question and that its reader may see.

Runs come one by one, or summed by the database in as few groups as the report needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
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

from slurmkit_accounting.calendar import UNITS
from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.database import once
from slurmkit_accounting.ledger.schema.runs import DOUBTFUL, LONG, OPEN, runs
from slurmkit_accounting.ledger.schema.usage import DAY
from slurmkit_accounting.reports.counted import CountedUsage, Question
from slurmkit_accounting.reports.dimensions import Dimensions
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.usage.bins import NO_GPU, UNKNOWN_UID, Eras, UsageKey, parse_alloc_tres
from slurmkit_accounting.usage.partial import is_of_job
from slurmkit_accounting.usage.tables import load_eras

Where: TypeAlias = "ColumnElement[bool] | TextClause"
_KEY_COLUMNS = (
    "cluster_id", "user", "uid", "account", "partition", "qos", "state", "redone", "submit",
    "alloc_tres",
)  # fmt: skip
# Columns of `runs` from which dimensions are worked out; every other dimension is a column itself.
_OWNER_COLUMNS = ("cluster_id", "user", "uid", "account", "era")
_PEOPLE_DIMENSIONS = frozenset(("pi", "group", "department"))
_COLUMNS_OF_DIMENSION = {
    **dict.fromkeys(_PEOPLE_DIMENSIONS, _OWNER_COLUMNS),
    "cluster": ("cluster_id",),
    "gpu_type": ("alloc_tres", "partition"),
}
# Without bound values: so the database sees that SELECT and GROUP BY hold the same expression.
_ERA: ColumnElement[int] = literal_column(
    "coalesce((SELECT max(eras.at) FROM eras WHERE eras.at <= runs.submit), 0)"
)


# Columns that are NULL in a run of whose use nothing was measured.
MEASURED_COLUMNS = ("cpu_used_ms", "mem_peak_mib", "gpu_used_permille")


class RunSelection:
    """Queries for the runs of a question, as `CountedUsage` does for usage.

    Args:
        connection: of the ledger.
        question: window, filters and scope.
        dimensions: who owns which usage key; loaded from the ledger if None.
    """

    def __init__(
        self, connection: Connection, question: Question, dimensions: Dimensions | None = None
    ) -> None:
        self.question = question
        self.rates = Rates()
        self.dimensions = dimensions or Dimensions(connection, self.rates)
        self._connection = connection
        self._eras = load_eras(connection)
        self._matching: dict[UsageKey, bool] = {}
        self._users: list[str] | None = None

    def rows(
        self,
        columns: Sequence[str],
        *where: Where,
        retracted: bool = False,
        by_user: bool = True,
        in_order: bool = False,
    ) -> Iterator[tuple[Any, tuple[UsageKey, ...]]]:
        """Yield rows of `runs` with their usage keys, one key for each GPU type.

        Args:
            columns: columns to read, in addition to the columns of the keys.
            *where: conditions on `runs`.
            retracted: include runs that were taken out of the ledger.
            by_user: whether the index of users may serve; not where another one finds fewer runs.
            in_order: whether the runs come in the order in which they entered the ledger.
        """
        selected = [runs.c[name] for name in dict.fromkeys((*_KEY_COLUMNS, *columns))]
        not_retracted = () if retracted else (runs.c.retracted.is_(None),)
        user = runs.c.user if by_user else func.coalesce(runs.c.user, "")
        query = select(*selected).where(*not_retracted, *where, *self.where(user))
        if in_order:
            query = query.order_by(runs.c.id)
        with self._connection.execute(query.execution_options(yield_per=10_000)) as found:
            for row in found:
                keys = tuple(filter(self.keeps, usage_keys_of(row, self._eras)))
                if keys:
                    yield row, keys

    def sums_by(
        self,
        by: Sequence[str],
        shape: Sequence[ColumnElement[Any]],
        sums: Sequence[ColumnElement[Any]],
        *where: Where,
    ) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...]]]:
        """Yield sums over groups of runs; the same dimension values may come several times.

        Args:
            by: dimensions to group by.
            shape: further columns or expressions to group by.
            sums: aggregates.
            *where: conditions on `runs`.

        Yields:
            The values of `by`, and the values of `shape` and `sums`.
        """
        names = self._columns_for(by)
        keys = [_ERA.label("era") if name == "era" else runs.c[name] for name in names]
        # Each column once: SQLite sorts all runs by them, which is half of the query's time.
        groups = dict.fromkeys((*(_ERA if n == "era" else runs.c[n] for n in names), *shape))
        query = select(*keys, *shape, *sums).where(runs.c.retracted.is_(None), *where)
        query = query.where(*self.where()).group_by(*groups)
        labels_of: dict[tuple[Any, ...], tuple[str, ...] | None] = {}
        with self._connection.execute(query.execution_options(yield_per=10_000)) as found:
            for row in found:
                values = tuple(row)
                group = values[: len(names)]
                if group not in labels_of:
                    labels_of[group] = self._labels(by, dict(zip(names, group, strict=True)))
                if (labels := labels_of[group]) is not None:
                    yield labels, values[len(names) :]

    def _columns_for(self, by: Sequence[str]) -> list[str]:
        """Return the columns needed for dimensions, filters and permissions."""
        names = [*by, *(name for name in self.question.filters if name not in UNITS)]
        for_scope = () if self.question.scope.is_everything else _OWNER_COLUMNS
        of_dimension = dict(_COLUMNS_OF_DIMENSION)
        if not self.rates.partitions_have_types:
            of_dimension["gpu_type"] = ("alloc_tres",)
        columns = (column for name in names for column in of_dimension.get(name, (name,)))
        return list(dict.fromkeys((*for_scope, *columns)))

    def _labels(self, by: Sequence[str], columns: dict[str, Any]) -> tuple[str, ...] | None:
        """Return the dimension values of a group; None if its runs are hidden or filtered out."""
        gpus = parse_alloc_tres(columns.pop("alloc_tres", "")).gpus or ((NO_GPU, 0),)
        if "uid" in columns and columns["uid"] is None:
            columns["uid"] = UNKNOWN_UID
        # As in the usage tables: everything but GPU time is under the first of several types.
        key = _ANY_KEY._replace(**columns, gpu_type=gpus[0][0])
        return tuple(self.dimensions.of(name, key) for name in by) if self.keeps(key) else None

    def keeps(self, key: UsageKey) -> bool:
        """Return whether runs of a key match the question and may be seen."""
        if key not in self._matching:
            question = self.question
            shown = self.dimensions.shown(key, question.scope)
            self._matching[key] = shown and self.dimensions.matches(key, question.filters)
        return self._matching[key]

    def where(self, user: ColumnElement[str] = runs.c.user) -> Iterable[ColumnElement[bool]]:
        """Yield the conditions on `runs` that the database can check itself.

        Args:
            user: the column; as an expression, so that its index is not used.
        """
        filters = self.question.filters
        if not self.question.scope.is_everything or filters.keys() & _PEOPLE_DIMENSIONS:
            yield in_values(self._connection, user, self._shown_users())
        for name in ("user", "account", "partition", "qos", "state"):
            if name in filters:
                column = user if name == "user" else runs.c[name]
                yield column.in_(filters[name])
        if self.question.job is not None:
            yield is_of_job(self.question.job)

    def unknown_names(self) -> tuple[str, ...]:
        """Return a note on each name in the filters that no run has; see `unknown_names`."""
        return unknown_names(self._connection, self.question, self.dimensions)

    def _shown_users(self) -> list[str]:
        """Return the user names that may have runs to show, so that no other runs are read."""
        if self._users is None:
            question = self.question
            people = {
                name: question.filters[name]
                for name in sorted(_PEOPLE_DIMENSIONS & question.filters.keys())
            }
            name = ("shown users", question.scope, tuple(people.items()))
            self._users = once(self._connection, name, lambda: self._load_shown_users(people))
        return self._users

    def _load_shown_users(self, people: Mapping[str, tuple[str, ...]]) -> list[str]:
        """Load the users; those with open runs by these: the usage tables lack them."""
        shown = _shown_keys(self._connection, self.question, self.dimensions)
        return sorted({key.user for key in shown if self.dimensions.matches(key, people)})


def unknown_names(
    connection: Connection, question: Question, dimensions: Dimensions
) -> tuple[str, ...]:
    """Return a note on each name in the filters that no run has which the reader may see.

    Runs of any time count, so a name without a note is a name of another window.
    """
    asked = {name: values for name, values in question.filters.items() if name not in UNITS}
    if not asked:
        return ()
    keys = _shown_keys(connection, question, dimensions)
    notes = []
    for name, values in asked.items():
        known = sorted({dimensions.of(name, key) for key in keys})
        what = name.replace("_", " ")
        limit = "" if question.scope.is_everything else " that you may see"
        notes += [
            f"the ledger has no {what} {value!r}{limit}{_nearest(value, known)}"
            for value in values
            if value not in known
        ]
    return tuple(notes)


def _shown_keys(
    connection: Connection, question: Question, dimensions: Dimensions
) -> Collection[UsageKey]:
    """Return the usage keys of all runs, also of those without an end, that a reader may see."""
    scope = question.scope
    return once(
        connection,
        ("shown keys of all runs", scope),
        lambda: {
            *(key for _, key in dimensions.shown_keys(connection, scope)),
            *(key for key in _keys_of_open_runs(connection) if dimensions.shown(key, scope)),
        },
    )


def _keys_of_open_runs(connection: Connection) -> Iterator[UsageKey]:
    known_eras = load_eras(connection)
    for row in connection.execute(select(*(runs.c[n] for n in _KEY_COLUMNS)).where(text(OPEN))):
        yield from usage_keys_of(row, known_eras)


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def count_doubtful_runs(connection: Connection, counted: CountedUsage) -> int:
    """Count the runs of a report whose GPU count cannot be trusted."""
    # Functions of the columns: SQLite then uses the index of doubtful runs, not the index of all.
    first, last = counted.question.window
    begin, end = func.coalesce(runs.c.start, last), func.coalesce(runs.c.end, last)
    selection = RunSelection(connection, counted.question, counted.dimensions)
    where = (text(DOUBTFUL), begin < last, end > first)
    return sum(1 for _ in selection.rows((), *where, by_user=False))


_ANY_KEY = UsageKey(0, "", UNKNOWN_UID, "", "", "", "", False, NO_GPU, 0)  # noqa: FBT003


def usage_keys_of(row: Any, known: Eras) -> Iterator[UsageKey]:
    """Yield the usage keys of a row of `runs`, one for each GPU type."""
    uid = UNKNOWN_UID if row.uid is None else row.uid
    columns = (row.cluster_id, row.user, uid, row.account, row.partition, row.qos, row.state)
    for gpu_type, _ in parse_alloc_tres(row.alloc_tres).gpus or ((NO_GPU, 0),):
        yield UsageKey(*columns, bool(row.redone), gpu_type, known.of(row.submit))


def overlapping_runs(window: tuple[int, int]) -> list[ColumnElement[bool]]:
    """Return the conditions of runs that overlap a window."""
    begin, end = window
    return [
        runs.c.start < end,
        or_(runs.c.end > begin, runs.c.end.is_(None), runs.c.start >= begin),
    ]


def runs_overlapping(window: tuple[int, int]) -> Iterator[list[Where]]:
    """Yield the conditions of runs that overlap a window: of ended runs, then of open ones.

    An index finds each of the two sets, but not both together.
    """
    begin, end = window
    within = or_(runs.c.end > begin, runs.c.start >= begin)
    yield [runs.c.end >= begin, within, runs.c.start < end]
    yield [text(OPEN), runs.c.start < end]


def runs_ended_within(window: tuple[int, int]) -> list[ColumnElement[bool]]:
    """Return the conditions of runs that ended within a window."""
    return [runs.c.end > window[0], runs.c.end <= window[1], runs.c.start.is_not(None)]


def runs_measured_within(window: tuple[int, int]) -> list[ColumnElement[bool]]:
    """Return the conditions of runs that ended within a window and whose use was measured."""
    measured = (runs.c[name].is_not(None) for name in MEASURED_COLUMNS)
    return [*runs_ended_within(window), or_(*measured)]


def runs_started_within(window: tuple[int, int]) -> Iterator[list[Where]]:
    """Yield the conditions of runs that started within a window.

    There are three disjoint sets, each of which an index finds: runs of at most a day (by their
    end), longer runs, and open runs.
    """
    begin, end = window
    started = [runs.c.start >= begin, runs.c.start < end]
    soon = [runs.c.end >= begin, runs.c.end < end + DAY, runs.c.end - runs.c.start <= DAY]
    yield [*started, *soon]
    yield [*started, text(LONG), runs.c.end >= begin]
    yield [*started, text(OPEN)]
