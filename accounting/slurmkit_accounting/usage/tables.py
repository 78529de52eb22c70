"""Keep the usage tables in step with the runs: both change in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, select

from slurmkit_accounting.ledger.bulk_write import add_numbers, in_values, insert_missing
from slurmkit_accounting.ledger.schema.people import eras as eras_table
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.ledger.schema.usage import (
    DAY,
    HOUR,
    SUMS,
    usage_days,
    usage_hours,
    usage_keys,
)
from slurmkit_accounting.usage.bins import Eras, UsageKey, UsageRun
from slurmkit_accounting.usage.redone import mark_redone

if TYPE_CHECKING:
    from slurmkit_accounting.usage.bins_numpy import UsageRunColumns, UsageSums

BIN_TABLES = ((usage_hours, HOUR), (usage_days, DAY))
USAGE_RUN_COLUMNS = tuple(runs.c[name] for name in UsageRun._fields[:-1])
IS_COUNTED = runs.c.end.is_not(None) & runs.c.retracted.is_(None)
_MANY = 50_000
_SOME_HOURS = 6 * HOUR
_KEY = [usage_keys.c[name] for name in UsageKey._fields]


def load_eras(connection: Connection) -> Eras:
    """Load the times at which anything about people changed."""
    return Eras(connection.scalars(select(eras_table.c.at)))


class UsageChange:
    """Changes of the usage tables, collected until `write`."""

    def __init__(self) -> None:
        self._sums: UsageSums | None = None
        self._taken = False

    def take(self, runs: Sequence[UsageRun]) -> None:
        """Subtract runs as they were counted, with the era that they were counted under."""
        self._taken = self._taken or bool(runs)
        self._add(list(zip(*runs, strict=True)), -1)

    def put(self, runs: Sequence[UsageRun]) -> None:
        """Add runs as they are now; runs without an end are left out."""
        self._add(list(zip(*runs, strict=True)), 1)

    def add_columns(self, columns: UsageRunColumns) -> None:
        """Add runs given as columns, in the order of the fields of `UsageRun`."""
        self._add(columns, 1)

    def use(self, columns: UsageRunColumns, before: UsageRunColumns) -> None:
        """Update the measured CPU, memory and GPU use of runs that are already counted."""
        if columns and columns[0]:
            self._made().replace_measured_use(columns, before)

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Drop what is collected in the `with` block if an exception leaves it."""
        before = self._sums
        mark = 0 if before is None else before.mark()
        try:
            yield
        except BaseException:
            if before is not None:
                before.undo(mark)
            self._sums = before
            raise

    def _add(self, columns: UsageRunColumns, sign: int) -> None:
        if columns and columns[0]:
            self._made().add(columns, sign)

    def _made(self) -> UsageSums:
        from slurmkit_accounting.usage.bins_numpy import UsageSums  # noqa: PLC0415  numpy takes 0.1 s

        self._sums = self._sums or UsageSums()
        return self._sums

    def write(self, connection: Connection, key_ids: dict[UsageKey, int]) -> None:
        """Write the changes to the usage tables.

        Args:
            connection: inside the transaction that changes the runs.
            key_ids: row ids of usage keys already looked up; new ones are added to it. Drop it when
                a transaction fails.
        """
        if self._sums is None:
            return
        keys = self._sums.keys()
        if missing := [key for key in keys if key not in key_ids]:
            key_ids |= find_or_add_keys(connection, missing)
        ours = [key_ids[key] for key in keys]
        for table, width in BIN_TABLES:
            rows = self._sums.by_bin(ours, width)
            add_numbers(connection, table, ("bin", "key_id", *SUMS), rows)
            if self._taken:
                empty = and_(*(table.c[name] == 0 for name in SUMS))
                bins = in_values(connection, table.c.bin, sorted(set(rows[:, 0].tolist())))
                connection.execute(delete(table).where(bins, empty))


def change_usage(
    connection: Connection,
    old: Sequence[UsageRun],
    new: Sequence[UsageRun],
    key_ids: dict[UsageKey, int] | None = None,
) -> None:
    """Subtract runs as they were from usage, and add them as they are now; see `UsageChange`."""
    usage = UsageChange()
    usage.take(old)
    usage.put(new)
    usage.write(connection, {} if key_ids is None else key_ids)


def rebuild_usage(connection: Connection) -> None:
    """Recompute the usage tables, and which runs were redone, from the runs alone."""
    for table, _ in BIN_TABLES:
        connection.execute(delete(table))
    mark_redone(connection)
    known = load_eras(connection)
    for batch in load_counted_runs(connection):
        change_usage(connection, (), [run._replace(era=known.of(run.submit)) for run in batch])


def rekey_usage(connection: Connection, since: int) -> None:
    """Move the usage of runs to their new eras, after eras from `since` on were added.

    Args:
        connection: inside the transaction that added them.
        since: epoch seconds; runs submitted before keep their era.
    """
    before = Eras(connection.scalars(select(usage_keys.c.era).distinct()))
    after = load_eras(connection)
    for batch in _submitted(connection, since):
        moved = [run for run in batch if before.of(run.submit) != after.of(run.submit)]
        change_usage(
            connection,
            [run._replace(era=before.of(run.submit)) for run in moved],
            [run._replace(era=after.of(run.submit)) for run in moved],
        )


def load_counted_runs(connection: Connection, *where: Any) -> Iterator[list[UsageRun]]:
    """Load the runs that usage counts, 50,000 at a time, without their eras."""
    last = 0
    while True:
        query = select(runs.c.id, *USAGE_RUN_COLUMNS).where(IS_COUNTED, runs.c.id > last, *where)
        found = connection.execute(query.order_by(runs.c.id).limit(_MANY)).all()
        if not found:
            return
        last = found[-1][0]
        yield [UsageRun(*row[1:]) for row in found]


def _submitted(connection: Connection, since: int) -> Iterator[list[UsageRun]]:
    """Load the counted runs submitted since a time, those that ended within six hours at a time."""
    # By end, since no index has submit: a run ends after it was submitted.
    following, ends = since, select(func.min(runs.c.end))
    while (end := connection.scalar(ends.where(runs.c.end >= following))) is not None:
        following = end + _SOME_HOURS
        within = (runs.c.end >= end, runs.c.end < following, runs.c.submit >= since)
        found = connection.execute(select(*USAGE_RUN_COLUMNS).where(IS_COUNTED, *within))
        yield [UsageRun(*row) for row in found]


def find_or_add_keys(connection: Connection, keys: Sequence[UsageKey]) -> dict[UsageKey, int]:
    """Return the row id of each usage key; insert the new ones."""
    last = connection.scalar(select(func.max(usage_keys.c.id))) or 0
    insert_missing(connection, usage_keys, UsageKey._fields, keys)
    # The new ones first: the same users may have many more keys.
    found = _numbers(connection, usage_keys.c.id > last)
    others = [key for key in keys if key not in found]
    if others:
        theirs = usage_keys.c.cluster_id.in_({key.cluster_id for key in others})
        users = in_values(connection, usage_keys.c.user, sorted({key.user for key in others}))
        found |= _numbers(connection, theirs, users)
    return found


def _numbers(connection: Connection, *where: ColumnElement[bool]) -> dict[UsageKey, int]:
    found = connection.execute(select(usage_keys.c.id, *_KEY).where(*where))
    return {row[1:]: row[0] for row in found}  # type: ignore[misc]  # tuples equal their keys
