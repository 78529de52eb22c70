"""Usage over a window: the sums of every usage key in each part of it, exact to the second.

Whole UTC days come from `usage_days`. An edge within a day adds, or takes away, the hours between
it and the nearer midnight; an edge within an hour the seconds of the runs around it; and runs
without an end count up to now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import add
from typing import TypeAlias, TypeVar

import msgspec
from sqlalchemy import BigInteger, Connection, Table, cast, func, literal, select

from slurmkit_accounting import held
from slurmkit_accounting.bins import Key, within
from slurmkit_accounting.held import Edges, Sums
from slurmkit_accounting.schema import DAY, HOUR, SUMS, usage_days, usage_hours, usage_keys

AT = {name: place for place, name in enumerate(SUMS)}
# In what a query returns, this place holds the runs that had begun before a part and went on in
# it. Those that began in it are `started`, so all runs of some parts in a row are what the first
# of them was handed and what all of them started.
CARRIED = AT["runs"]
STARTED = AT["started"]

Cells: TypeAlias = dict[tuple[int, Key], Sums]
ByKey: TypeAlias = dict[Key, Sums]
AnyT = TypeVar("AnyT")


class Asked(msgspec.Struct, frozen=True):
    """What to count.

    Attributes:
        edges: epoch seconds at which the window begins, is parted, and ends; in order.
        now: epoch seconds up to which runs without an end are counted.
        skip_suspended: whether a run counts nothing while it was suspended.
        job: only this job, `12` (with all its parts) or `12_3`; all when None.
    """

    edges: Edges
    now: int
    skip_suspended: bool = False
    job: str | None = None


def usage(connection: Connection, asked: Asked) -> Cells:
    """Sums by part (0 is from the first edge to the second) and usage key.

    In the order of `SUMS`, but at `CARRIED`.
    """
    cells: Cells = {}
    found: Iterable[held.Found]
    if asked.job is None:
        for part, ended in enumerate(_ended(connection, asked.edges)):
            cells.update({(part, key): sums for key, sums in ended.items() if any(sums)})
        found = held.of_open_runs(connection, asked.edges, asked.now)
    else:
        found = held.of_job(connection, asked.job, asked.edges, asked.now)
    for part, key, sums in found:
        _add(cells, (part, key), _carried(sums))
    if asked.skip_suspended:
        for part, key, sums in held.while_suspended(connection, asked.edges, asked.job):
            _add(cells, (part, key), _negative(sums))
    return cells


def _ended(connection: Connection, edges: Edges) -> Iterator[ByKey]:
    """What runs that ended held, part by part."""
    keys = _keys(connection, edges)
    at = [_Edge(connection, edge, keys) for edge in edges]
    for one, other in pairwise(at):
        sums = _summed(connection, usage_days, (one.midnight, other.midnight), keys)
        for each in (other.since_midnight, one.before_midnight, one.carried):
            for key, more in each.items():
                _add(sums, key, more)
        yield sums


class _Edge:
    """One edge of a part: the nearer midnight of UTC, and what was held between the two.

    Attributes:
        midnight: may be before or after the edge.
        since_midnight: held from there to the edge; less than nothing where the midnight is later.
        before_midnight: the same, to be taken away.
        carried: runs that began before the edge and ended after it.
    """

    def __init__(self, connection: Connection, edge: int, keys: dict[int, Key]) -> None:
        hour, day = edge - edge % HOUR, edge - edge % DAY
        later = edge - day > DAY // 2
        self.midnight = day + DAY if later else day
        span = (hour, self.midnight) if later else (day, hour)
        hours = _summed(connection, usage_hours, span, keys)
        self.since_midnight = _turned(hours) if later else hours
        if edge == hour:
            self.carried = _going_on(connection, edge, keys)
        else:
            self.carried = _within_the_hour(connection, edge, self.since_midnight)
        self.before_midnight = _turned(self.since_midnight)


def _within_the_hour(connection: Connection, edge: int, since_midnight: ByKey) -> ByKey:
    """Add what runs held since the hour began; returns the runs that go on after the edge."""
    carried: ByKey = {}
    hour = edge - edge % HOUR
    for run in held.around(connection, hour, edge):
        for place, (key, sums) in enumerate(within(run, hour, edge)):
            _add(since_midnight, key, _without_runs(sums))
            if place == 0 and run.end is not None and run.end > edge:
                _add(carried, key, _runs(1))
    return carried


def _going_on(connection: Connection, edge: int, keys: dict[int, Key]) -> ByKey:
    """Runs that went on from before a full hour into it."""
    table = usage_hours if edge % DAY else usage_days
    query = select(table.c.key_id, table.c.runs - table.c.started).where(table.c.bin == edge)
    return {keys[number]: _runs(count) for number, count in connection.execute(query) if count}


def _summed(
    connection: Connection, table: Table, span: tuple[int, int], keys: dict[int, Key]
) -> ByKey:
    """Sums of the bins that begin within a span, without their `runs`."""
    if span[0] >= span[1]:
        return {}
    # PostgreSQL adds up into `numeric`, which Python would get as slow Decimals.
    wanted = [
        literal(0) if name == "runs" else cast(func.sum(table.c[name]), BigInteger) for name in SUMS
    ]
    begins = (table.c.bin >= span[0], table.c.bin < span[1])
    query = select(table.c.key_id, *wanted).where(*begins).group_by(table.c.key_id)
    return {keys[number]: tuple(sums) for number, *sums in connection.execute(query)}


def _keys(connection: Connection, edges: Edges) -> dict[int, Key]:
    """Every key that has usage on a day of the window."""
    days = (usage_days.c.bin > edges[0] - DAY, usage_days.c.bin <= edges[-1])
    used = select(usage_days.c.key_id).where(*days).distinct()
    query = select(usage_keys.c.id, *(usage_keys.c[name] for name in Key._fields))
    rows = connection.execute(query.where(usage_keys.c.id.in_(used)))
    return {number: Key(*of) for number, *of in rows}


def _add(sums: dict[AnyT, Sums], at: AnyT, more: Sums) -> None:
    there = sums.get(at)
    sums[at] = more if there is None else tuple(map(add, there, more))


def _turned(sums: ByKey) -> ByKey:
    return {key: _negative(each) for key, each in sums.items()}


def _negative(sums: Sums) -> Sums:
    return tuple(-each for each in sums)


def _carried(sums: Sums) -> Sums:
    """Of the sums of one run in a part."""
    return (*sums[:CARRIED], sums[CARRIED] - sums[STARTED], *sums[CARRIED + 1 :])


def _without_runs(sums: Sums) -> Sums:
    return (*sums[:CARRIED], 0, *sums[CARRIED + 1 :])


def _runs(count: int) -> Sums:
    return tuple(count if place == CARRIED else 0 for place in range(len(SUMS)))
