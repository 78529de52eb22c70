"""Keep the usage tables true: they change in the transaction that changes a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, delete, func, select

from slurmkit_accounting.bins import Eras, Held, Key, summed
from slurmkit_accounting.bulk import add_rows, among, insert_missing
from slurmkit_accounting.redone import mark_redone
from slurmkit_accounting.schema import DAY, HOUR, SUMS, runs, usage_days, usage_hours, usage_keys
from slurmkit_accounting.schema import eras as eras_table

if TYPE_CHECKING:
    from slurmkit_accounting.bins_bulk import Numbers

BINS = ((usage_hours, HOUR), (usage_days, DAY))
HELD = tuple(runs.c[name] for name in Held._fields[:-1])
COUNTED = runs.c.end.is_not(None) & runs.c.retracted.is_(None)
_MANY = 50_000
_SOME_HOURS = 6 * HOUR
_KEY = [usage_keys.c[name] for name in Key._fields]


def eras(connection: Connection) -> Eras:
    """The times at which anything about people changed, as stored."""
    return Eras(connection.scalars(select(eras_table.c.at)))


def change(
    connection: Connection,
    old: Sequence[Held],
    new: Sequence[Held],
    numbers: dict[Key, int] | None = None,
) -> None:
    """Take what runs were out of usage, and put in what they are.

    Args:
        connection: inside the transaction that changes the runs.
        old: as they were, with the era they were counted under; none of new runs.
        new: as they are; of both, runs without an end are left out.
        numbers: of keys that were looked up before, by whoever ends when a transaction fails;
            more are put in.
    """
    taken, put = ([run for run in some if run.end is not None] for some in (old, new))
    if not (taken or put):
        return
    signs = [-1] * len(taken) + [1] * len(put)
    keys, tables = summed([*taken, *put], signs, [width for _, width in BINS])
    numbers = {} if numbers is None else numbers
    if missing := [key for key in keys if key not in numbers]:
        numbers |= key_numbers(connection, missing)
    places = [numbers[key] for key in keys]
    for (table, _), rows in zip(BINS, tables, strict=True):
        values = _in_order(rows, places)
        add_rows(connection, table, ("bin", "key_id", *SUMS), values)
        if taken:
            empty = and_(*(table.c[name] == 0 for name in SUMS))
            bins = among(connection, table.c.bin, sorted(set(rows[:, 0].tolist())))
            connection.execute(delete(table).where(bins, empty))


def _in_order(rows: Numbers, places: Sequence[int]) -> list[tuple[int, ...]]:
    """As the table has them: neighbours are written together."""
    import numpy as np  # noqa: PLC0415  as in `summed`

    rows[:, 1] = np.array(places, np.int64)[rows[:, 1]]
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    return list(zip(*(column.tolist() for column in rows.T), strict=True))


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


def _known(connection: Connection, keys: Sequence[Key]) -> dict[Key, int]:
    where = (
        usage_keys.c.cluster_id.in_({key.cluster_id for key in keys}),
        among(connection, usage_keys.c.user, sorted({key.user for key in keys})),
    )
    found = connection.execute(select(usage_keys.c.id, *_KEY).where(*where))
    return {Key(*key): number for number, *key in found}


def key_numbers(connection: Connection, keys: Sequence[Key]) -> dict[Key, int]:
    """The number of each key; new ones are made."""
    found = _known(connection, keys)
    missing = [key for key in keys if key not in found]
    if missing:
        insert_missing(connection, usage_keys, Key._fields, missing)
        found |= _known(connection, missing)
    return found
