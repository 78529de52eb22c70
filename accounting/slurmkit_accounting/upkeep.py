"""Keep the usage tables true: they change in the transaction that changes a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, select

from slurmkit_accounting.bins import Eras, Held, Key
from slurmkit_accounting.bulk import add_numbers, among, insert_missing
from slurmkit_accounting.redone import mark_redone
from slurmkit_accounting.schema import DAY, HOUR, SUMS, runs, usage_days, usage_hours, usage_keys
from slurmkit_accounting.schema import eras as eras_table

if TYPE_CHECKING:
    from slurmkit_accounting.bins_bulk import Columns, Sums

BINS = ((usage_hours, HOUR), (usage_days, DAY))
HELD = tuple(runs.c[name] for name in Held._fields[:-1])
COUNTED = runs.c.end.is_not(None) & runs.c.retracted.is_(None)
_MANY = 50_000
_SOME_HOURS = 6 * HOUR
_KEY = [usage_keys.c[name] for name in Key._fields]


def eras(connection: Connection) -> Eras:
    """The times at which anything about people changed, as stored."""
    return Eras(connection.scalars(select(eras_table.c.at)))


class Change:
    """What is taken out of usage and put into it, until it is written."""

    def __init__(self) -> None:
        self._sums: Sums | None = None
        self._taken = False

    def take(self, runs: Sequence[Held]) -> None:
        """Runs that usage counts, as they were, with the era they were counted under."""
        self._taken = self._taken or bool(runs)
        self._add(list(zip(*runs, strict=True)), -1)

    def put(self, runs: Sequence[Held]) -> None:
        """Runs as they are; those without an end are left out."""
        self._add(list(zip(*runs, strict=True)), 1)

    def put_columns(self, columns: Columns) -> None:
        """The same, by the fields of `Held`."""
        self._add(columns, 1)

    def use(self, columns: Columns, before: Columns) -> None:
        """Runs that usage counts and of which only what they used is another; see `add_uses`."""
        if columns and columns[0]:
            self._made().add_uses(columns, before)

    def _add(self, columns: Columns, sign: int) -> None:
        if columns and columns[0]:
            self._made().add(columns, sign)

    def _made(self) -> Sums:
        from slurmkit_accounting.bins_bulk import Sums  # noqa: PLC0415  numpy takes 0.1 s

        self._sums = self._sums or Sums()
        return self._sums

    def write(self, connection: Connection, numbers: dict[Key, int]) -> None:
        """Change the usage tables.

        Args:
            connection: inside the transaction that changes the runs.
            numbers: of keys that were looked up before, by whoever ends when a transaction fails;
                more are put in.
        """
        if self._sums is None:
            return
        keys = self._sums.keys()
        if missing := [key for key in keys if key not in numbers]:
            numbers |= key_numbers(connection, missing)
        ours = [numbers[key] for key in keys]
        for table, width in BINS:
            rows = self._sums.by_bin(ours, width)
            add_numbers(connection, table, ("bin", "key_id", *SUMS), rows)
            if self._taken:
                empty = and_(*(table.c[name] == 0 for name in SUMS))
                bins = among(connection, table.c.bin, sorted(set(rows[:, 0].tolist())))
                connection.execute(delete(table).where(bins, empty))


def change(
    connection: Connection,
    old: Sequence[Held],
    new: Sequence[Held],
    numbers: dict[Key, int] | None = None,
) -> None:
    """Take what runs were out of usage, and put in what they are; see `Change`."""
    made = Change()
    made.take(old)
    made.put(new)
    made.write(connection, {} if numbers is None else numbers)


def rebuild(connection: Connection) -> None:
    """Work out usage, and which runs were redone, from nothing but the runs."""
    for table, _ in BINS:
        connection.execute(delete(table))
    mark_redone(connection)
    known = eras(connection)
    for batch in stored(connection):
        change(connection, (), [run._replace(era=known.of(run.submit)) for run in batch])


def rekey(connection: Connection, since: int) -> None:
    """Count runs under their new eras, after eras from `since` on were added.

    Args:
        connection: inside the transaction that added them.
        since: epoch seconds; runs submitted before keep their era.
    """
    before = Eras(connection.scalars(select(usage_keys.c.era).distinct()))
    after = eras(connection)
    for batch in _submitted(connection, since):
        moved = [run for run in batch if before.of(run.submit) != after.of(run.submit)]
        change(
            connection,
            [run._replace(era=before.of(run.submit)) for run in moved],
            [run._replace(era=after.of(run.submit)) for run in moved],
        )


def stored(connection: Connection, *where: Any) -> Iterator[list[Held]]:
    """The runs that usage is made of, some at a time, without their eras."""
    last = 0
    while True:
        query = select(runs.c.id, *HELD).where(COUNTED, runs.c.id > last, *where)
        found = connection.execute(query.order_by(runs.c.id).limit(_MANY)).all()
        if not found:
            return
        last = found[-1][0]
        yield [Held(*row[1:]) for row in found]


def _submitted(connection: Connection, since: int) -> Iterator[list[Held]]:
    """Runs that usage is made of, submitted from a time on, some hours of ends at a time."""
    # Not by submit, which no index has: a run ends after it is submitted.
    following, ends = since, select(func.min(runs.c.end))
    while (end := connection.scalar(ends.where(runs.c.end >= following))) is not None:
        following = end + _SOME_HOURS
        within = (runs.c.end >= end, runs.c.end < following, runs.c.submit >= since)
        found = connection.execute(select(*HELD).where(COUNTED, *within))
        yield [Held(*row) for row in found]


def key_numbers(connection: Connection, keys: Sequence[Key]) -> dict[Key, int]:
    """The number of each key; new ones are made."""
    last = connection.scalar(select(func.max(usage_keys.c.id))) or 0
    insert_missing(connection, usage_keys, Key._fields, keys)
    # Those just made first: of the same users there may be many more.
    found = _numbers(connection, usage_keys.c.id > last)
    others = [key for key in keys if key not in found]
    if others:
        theirs = usage_keys.c.cluster_id.in_({key.cluster_id for key in others})
        users = among(connection, usage_keys.c.user, sorted({key.user for key in others}))
        found |= _numbers(connection, theirs, users)
    return found


def _numbers(connection: Connection, *where: ColumnElement[bool]) -> dict[Key, int]:
    found = connection.execute(select(usage_keys.c.id, *_KEY).where(*where))
    return {row[1:]: row[0] for row in found}  # type: ignore[misc]  # tuples equal their keys
