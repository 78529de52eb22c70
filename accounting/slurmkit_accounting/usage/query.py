"""Query usage over a window: the sums of every usage key in each part, exact to the second.

Whole UTC days come from `usage_days`. For an edge within a day, the hours between it and the nearer
midnight are added or subtracted. For an edge within an hour, so are the seconds of the runs around
it. Runs without an end count up to now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import add
from typing import TypeAlias, TypeVar

import msgspec
from sqlalchemy import BigInteger, Connection, Table, cast, func, literal, select

from slurmkit_accounting.ledger.schema.usage import (
    DAY,
    HOUR,
    SUMS,
    usage_days,
    usage_hours,
    usage_keys,
)
from slurmkit_accounting.usage import partial
from slurmkit_accounting.usage.bins import UsageKey, usage_in_window
from slurmkit_accounting.usage.partial import Edges, Sums

SUM_INDEX = {name: index for index, name in enumerate(SUMS)}
# At this index, a query returns the runs that began before a part and continued in it. The runs
# that began in the part are at `STARTED`. All runs of consecutive parts are therefore CARRIED of
# the first part plus STARTED of every part.
CARRIED = SUM_INDEX["runs"]
STARTED = SUM_INDEX["started"]

UsageCells: TypeAlias = dict[tuple[int, UsageKey], Sums]
SumsByKey: TypeAlias = dict[UsageKey, Sums]
AnyT = TypeVar("AnyT")


class UsageQuery(msgspec.Struct, frozen=True):
    """Which usage to query.

    Attributes:
        edges: epoch seconds at which the window begins, is divided, and ends; in order.
        now: epoch seconds up to which runs without an end are counted.
        skip_suspended: whether the time that a run was suspended is left out.
        job: only this job, `12` (with all its parts) or `12_3`; None for all jobs.
    """

    edges: Edges
    now: int
    skip_suspended: bool = False
    job: str | None = None


def query_usage(connection: Connection, asked: UsageQuery) -> UsageCells:
    """Return the sums by part (0 is from the first edge to the second) and usage key.

    The sums are in the order of `SUMS`; see `CARRIED` for the one that differs.
    """
    cells: UsageCells = {}
    single: Iterable[partial.PartialUsage]
    if asked.job is None:
        for part, ended in enumerate(_usage_of_ended_runs(connection, asked.edges)):
            cells.update({(part, key): sums for key, sums in ended.items() if any(sums)})
        single = partial.usage_of_open_runs(connection, asked.edges, asked.now)
    else:
        single = partial.usage_of_job(connection, asked.job, asked.edges, asked.now)
    for part, key, sums in single:
        carried = sums[CARRIED] - sums[STARTED]
        _add(cells, (part, key), (*sums[:CARRIED], carried, *sums[CARRIED + 1 :]))
    if asked.skip_suspended:
        for part, key, sums in partial.usage_while_suspended(connection, asked.edges, asked.job):
            _add(cells, (part, key), _negate(sums))
    return cells


def _usage_of_ended_runs(connection: Connection, edges: Edges) -> Iterator[SumsByKey]:
    """Return the usage of ended runs, part by part."""
    keys = _keys(connection, edges)
    at = [_Edge(connection, edge, keys) for edge in edges]
    for one, other in pairwise(at):
        sums = _sum_bins(connection, usage_days, one.midnight, other.midnight, keys)
        for each in (other.since_midnight, one.before_midnight, one.carried):
            for key, more in each.items():
                _add(sums, key, more)
        yield sums


class _Edge:
    """One edge of a part, and the usage between it and the nearer midnight of UTC.

    Attributes:
        midnight: the nearer midnight, before or after the edge; epoch seconds.
        since_midnight: usage from midnight to the edge; negative if midnight is after the edge.
        before_midnight: the same usage with the opposite sign.
        carried: runs that began before the edge and ended after it.
    """

    def __init__(self, connection: Connection, edge: int, keys: dict[int, UsageKey]) -> None:
        hour, day = edge - edge % HOUR, edge - edge % DAY
        later = edge - day > DAY // 2
        self.midnight = day + DAY if later else day
        begin, end = (hour, self.midnight) if later else (day, hour)
        hours = _sum_bins(connection, usage_hours, begin, end, keys)
        self.since_midnight = _negate_all(hours) if later else hours
        if edge == hour:
            self.carried = _runs_going_on(connection, edge, keys)
        else:
            self.carried = _within_the_hour(connection, edge, self.since_midnight)
        self.before_midnight = _negate_all(self.since_midnight)


def _within_the_hour(connection: Connection, edge: int, since_midnight: SumsByKey) -> SumsByKey:
    """Add the usage since the hour began; return the runs that continue after the edge."""
    carried: SumsByKey = {}
    hour = edge - edge % HOUR
    for run in partial.load_runs_around(connection, hour, edge):
        for index, (key, sums) in enumerate(usage_in_window(run, hour, edge)):
            _add(since_midnight, key, (*sums[:CARRIED], 0, *sums[CARRIED + 1 :]))
            if index == 0 and run.end is not None and run.end > edge:
                _add(carried, key, _carried_runs(1))
    return carried


def _runs_going_on(connection: Connection, edge: int, keys: dict[int, UsageKey]) -> SumsByKey:
    """Count the runs that began before a full hour and continued in it."""
    table = usage_hours if edge % DAY else usage_days
    query = select(table.c.key_id, table.c.runs - table.c.started).where(table.c.bin == edge)
    return {
        keys[number]: _carried_runs(count) for number, count in connection.execute(query) if count
    }


def _sum_bins(
    connection: Connection, table: Table, begin: int, end: int, keys: dict[int, UsageKey]
) -> SumsByKey:
    """Sum the bins that begin in [begin, end); their `runs` are set to 0."""
    if begin >= end:
        return {}
    # PostgreSQL sums into `numeric`, which Python would get as slow Decimals.
    wanted = [
        literal(0) if name == "runs" else cast(func.sum(table.c[name]), BigInteger) for name in SUMS
    ]
    begins = (table.c.bin >= begin, table.c.bin < end)
    query = select(table.c.key_id, *wanted).where(*begins).group_by(table.c.key_id)
    return {keys[number]: tuple(sums) for number, *sums in connection.execute(query)}


def _keys(connection: Connection, edges: Edges) -> dict[int, UsageKey]:
    """Load every key that has usage on a day of the window, by row id."""
    days = (usage_days.c.bin > edges[0] - DAY, usage_days.c.bin <= edges[-1])
    used = select(usage_days.c.key_id).where(*days).distinct()
    query = select(usage_keys.c.id, *(usage_keys.c[name] for name in UsageKey._fields))
    rows = connection.execute(query.where(usage_keys.c.id.in_(used)))
    return {number: UsageKey(*of) for number, *of in rows}


def _add(sums: dict[AnyT, Sums], at: AnyT, more: Sums) -> None:
    there = sums.get(at)
    sums[at] = more if there is None else tuple(map(add, there, more))


def _negate_all(sums: SumsByKey) -> SumsByKey:
    return {key: _negate(each) for key, each in sums.items()}


def _negate(sums: Sums) -> Sums:
    return tuple(-each for each in sums)


def _carried_runs(count: int) -> Sums:
    """Return sums of nothing but a number of carried runs."""
    return tuple(count if index == CARRIED else 0 for index in range(len(SUMS)))
