"""Query usage over a window: the sums of every usage key in each part, exact to the second.

The usage of ended runs comes from the usage tables, see `slurmkit_accounting.usage.held`. Runs
without an end count up to now.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import add
from typing import TypeAlias

import msgspec
from sqlalchemy import Connection

from slurmkit_accounting.ledger.schema.usage import SUMS
from slurmkit_accounting.usage import partial
from slurmkit_accounting.usage.bins import UsageKey, UsageRun
from slurmkit_accounting.usage.partial import Edges, Sums

SUM_INDEX = {name: index for index, name in enumerate(SUMS)}
# At this index, a query returns the runs that began before a part and continued in it. The runs
# that began in the part are at `STARTED`. All runs of consecutive parts are therefore CARRIED of
# the first part plus STARTED of every part.
CARRIED = SUM_INDEX["runs"]
STARTED = SUM_INDEX["started"]

UsageCells: TypeAlias = dict[tuple[int, UsageKey], Sums]


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
    """Return the sums by part (0 is from the first edge to the second) and usage key."""
    cells: UsageCells = {}
    if asked.job is None:
        from slurmkit_accounting.usage import held  # noqa: PLC0415  numpy takes 0.1 s

        ended = held.EndedUsage(connection, asked.edges)
        for part, table in enumerate(ended.by_key()):
            for place, sums in held.rows_in_use(table):
                cells[part, ended.keys[place]] = sums
    for part, key, sums in query_single_runs(connection, asked):
        there = cells.get((part, key))
        cells[part, key] = sums if there is None else tuple(map(add, there, sums))
    return cells


def query_single_runs(
    connection: Connection, asked: UsageQuery, open_runs: list[UsageRun] | None = None
) -> Iterator[tuple[int, UsageKey, Sums]]:
    """Yield what the usage tables lack: runs without an end, or the runs of one job.

    With `skip_suspended`, the usage while suspended follows as amounts below 0.

    Args:
        connection: to the ledger.
        asked: which usage.
        open_runs: of these runs without an end alone; None for all of them.
    """
    if asked.job is None:
        if open_runs is None:
            open_runs = partial.load_open_runs(connection, asked.now)
        single = partial.split_usage(open_runs, asked.edges)
    else:
        single = partial.usage_of_job(connection, asked.job, asked.edges, asked.now)
    for part, key, sums in single:
        carried = sums[CARRIED] - sums[STARTED]
        yield part, key, (*sums[:CARRIED], carried, *sums[CARRIED + 1 :])
    if asked.skip_suspended:
        for part, key, sums in partial.usage_while_suspended(connection, asked.edges, asked.job):
            yield part, key, tuple(-each for each in sums)
