"""Usage of single runs in parts of a window: without an end, of one job, while suspended.

The usage tables have the sums of ended runs. This module computes what they cannot give.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    TextClause,
    and_,
    func,
    or_,
    select,
    text,
    union_all,
)

from slurmkit.formats.sluid import parse_sluid
from slurmkit_accounting.ledger.database import once
from slurmkit_accounting.ledger.schema.runs import (
    LONG,
    OPEN,
    SUSPENDED,
    clusters,
    ingests,
    runs,
    suspensions,
)
from slurmkit_accounting.ledger.schema.types import begins_with
from slurmkit_accounting.ledger.schema.usage import DAY, SUMS
from slurmkit_accounting.usage.bins import (
    UsageKey,
    UsageRun,
    make_usage_key,
    measured_use,
    parse_alloc_tres,
    usage_in_window,
)
from slurmkit_accounting.usage.tables import load_eras as known_eras

Edges: TypeAlias = tuple[int, ...]
Sums: TypeAlias = tuple[int, ...]
_HELD = [runs.c[name] for name in UsageRun._fields[:-1]]
_COUNTED = runs.c.retracted.is_(None)
_PER_SECOND = SUMS[: SUMS.index("energy_millijoules")]


class PartialUsage(NamedTuple):
    """Usage of one run in one part of a window, under one of its keys."""

    part: int
    key: UsageKey
    sums: Sums


def load_runs_changing(connection: Connection, begin: int, end: int) -> Iterator[UsageRun]:
    """Load the ended runs that started or ended in a span of less than a day."""
    started = (runs.c.start >= begin, runs.c.start < end, runs.c.end > end)
    soon = (runs.c.end < end + DAY, runs.c.end - runs.c.start <= DAY)
    ended = (runs.c.end >= begin, runs.c.end <= end)
    known = known_eras(connection)
    for some in ((*started, *soon), (*started, text(LONG)), ended):
        for row in connection.execute(select(*_HELD).where(_COUNTED, *some)):
            run = UsageRun(*row)
            yield run._replace(era=known.of(run.submit))


def load_open_runs(connection: Connection, now: int) -> list[UsageRun]:
    """Return the started runs without an end, each with the time up to which it counts as its end.

    That is now; if gone from sacct, `last_seen`.
    """
    where = (text(OPEN), runs.c.start.is_not(None))
    return once(
        connection,
        ("open runs", now),
        lambda: [run for _, run in load_runs_with_ends(connection, now, where)],
    )


def usage_of_job(
    connection: Connection, job: str, edges: Edges, now: int
) -> Iterator[PartialUsage]:
    """Compute usage of the runs of one job: `12` (with all its parts) or `12_3`."""
    where = (is_of_job(job), runs.c.start < edges[-1])
    return split_usage((run for _, run in load_runs_with_ends(connection, now, where)), edges)


def gpu_use_moved_to_when_it_was(
    connection: Connection, edges: Edges, job: str | None
) -> Iterator[PartialUsage]:
    """Compute what makes measured GPU use grow evenly over each run, as what it holds does.

    The usage tables have it at the end of the run, under the first of its GPU types. What is added
    to one part and key is subtracted from another.

    Args:
        connection: to the ledger.
        edges: epoch seconds at which the parts begin and end.
        job: only this job; None for all jobs.
    """
    crossing = (and_(runs.c.start < edge, runs.c.end > edge) for edge in edges)
    several_types = runs.c.alloc_tres.like("%gres/gpu:%gres/gpu:%")
    overlap = (runs.c.start < edges[-1], runs.c.end > edges[0])
    query = select(*_HELD).where(_COUNTED, runs.c.gpu_used_permille.is_not(None), *overlap)
    query = query.where(or_(several_types, *crossing))
    known = known_eras(connection)
    for row in connection.execute(query if job is None else query.where(is_of_job(job))):
        run = UsageRun(*row)
        yield from _moved_gpu_use(run._replace(era=known.of(run.submit)), edges)


def _moved_gpu_use(run: UsageRun, edges: Edges) -> Iterator[PartialUsage]:
    start, end, tres = run.start or 0, run.end or 0, parse_alloc_tres(run.alloc_tres)
    *_, used, measured, _ = measured_use(run, tres)
    if not measured:
        return
    gpus = sum(count for _, count in tres.gpus)
    for part, (begin, until) in enumerate(pairwise(edges)):
        if begin < end <= until:
            yield PartialUsage(
                part, make_usage_key(run, tres.gpus[0][0]), _gpu_use(-used, -measured)
            )
        if (seconds := min(end, until) - max(start, begin)) > 0:
            for kind, count in tres.gpus:
                # Both are whole numbers per second and GPU, so there is no remainder.
                share, of = seconds * count, (end - start) * gpus
                sums = _gpu_use(used * share // of, measured * share // of)
                yield PartialUsage(part, make_usage_key(run, kind), sums)


def _gpu_use(used: int, measured: int) -> Sums:
    amounts = {"gpu_used_ms": used, "gpu_measured_ms": measured}
    return tuple(amounts.get(name, 0) for name in SUMS)


def usage_of_retracted_runs(
    connection: Connection, edges: Edges, now: int
) -> Iterator[PartialUsage]:
    """Compute the usage that retracted runs would have had."""
    rows = connection.execute(select(*_HELD).where(runs.c.retracted.is_not(None)))
    found = (
        run._replace(end=now if run.end is None else run.end)
        for run in (UsageRun(*row) for row in rows)
    )
    return split_usage(found, edges)


def usage_while_suspended(
    connection: Connection, edges: Edges, job: str | None
) -> Iterator[PartialUsage]:
    """Compute usage of runs while they were suspended: all sums that grow with time, no energy."""
    known = known_eras(connection)
    for *row, begin, length, suspended in _suspensions(connection, edges[0], edges[-1], job):
        run, seconds = UsageRun(*row), min(suspended, length)
        # Count the suspended seconds of each part as a run of that length.
        for part, (one, other) in enumerate(pairwise(edges)):
            before, until = (
                _suspended_until(edge - begin, length, seconds) for edge in (one, other)
            )
            if lasted := until - before:
                short = _unmeasured(run)._replace(start=0, end=lasted, era=known.of(run.submit))
                for key, sums in usage_in_window(short, 0, lasted):
                    yield PartialUsage(part, key, _only_time_sums(sums))


def _suspensions(
    connection: Connection, window_begin: int, window_end: int, job: str | None
) -> Iterator[Sequence[Any]]:
    """Load columns of runs, each with begin, length and seconds of one suspension interval."""
    span = (suspensions.c.begin, suspensions.c.length, suspensions.c.seconds)
    placed = select(*_HELD, *(each.label(f"span_{each.name}") for each in span))
    placed = placed.join_from(suspensions, runs)
    # Runs of a file, or not looked up yet, have no intervals: take the whole run as one.
    lasted = runs.c.end - runs.c.start
    nowhere = ~select(suspensions.c.run_id).where(suspensions.c.run_id == runs.c.id).exists()
    somewhere = select(*_HELD, runs.c.start.label("begin"), lasted, runs.c.suspended)
    somewhere = somewhere.where(text(SUSPENDED), nowhere)
    mine = (_COUNTED,) if job is None else (_COUNTED, is_of_job(job))
    for some, begin, length in (
        (placed, suspensions.c.begin, suspensions.c.length),
        (somewhere, runs.c.start, lasted),
    ):
        overlap = (length > 0, begin < window_end, begin + length > window_begin)
        yield from connection.execute(some.where(*mine, *overlap))


def is_of_job(job: str) -> ColumnElement[bool]:
    """Return the condition for the runs of a job; several ids are separated by commas.

    `12` is a job, or all of an array or heterogeneous job. `12_3` and `12+1` are parts of one. A
    SLUID is one run.
    """
    ids, one = job.split(","), runs.alias("one")
    numbers = [number for each in ids if (number := parse_sluid(each))]
    # With the cluster, which the index begins with.
    by_sluid = one.c.cluster_id.in_(select(clusters.c.id)) & one.c.db_index.in_(numbers)
    parts = (begins_with(one.c.job_id, f"{each}{sign}") for each in ids for sign in "_+")
    named = (one.c.job_id.in_(ids), *([by_sluid] if numbers else []), *parts)
    # A list of rows, each part of it by the index of job ids: for conditions joined by OR, SQLite
    # reads all runs.
    found = union_all(*(select(one.c.id).where(each) for each in named))
    return runs.c.id.in_(found)


def load_last_ingests(connection: Connection, *where: ColumnElement[bool]) -> dict[int, int]:
    """Return by cluster the start of its newest finished ingest that meets the conditions."""
    query = select(ingests.c.cluster_id, func.max(ingests.c.started)).group_by(ingests.c.cluster_id)
    found = connection.execute(query.where(ingests.c.ended.is_not(None), *where))
    return {row[0]: row[1] for row in found}


def load_runs_with_ends(
    connection: Connection,
    now: int,
    where: Iterable[ColumnElement[bool] | TextClause],
    further: Sequence[ColumnElement[Any]] = (),
) -> Generator[tuple[tuple[Any, ...], UsageRun], None, None]:
    """Load counted runs; a run without an end gets as its end the time up to which it counts.

    Args:
        connection: to the ledger.
        now: epoch seconds.
        where: conditions on the runs.
        further: further columns, whose values are yielded before each run.
    """
    last, known = load_last_ingests(connection, ingests.c.source == "sacct"), known_eras(connection)
    columns = (*further, runs.c.last_seen, runs.c.gone_since, *_HELD)
    query = select(*columns).where(_COUNTED, *where).execution_options(yield_per=10_000)
    with connection.execute(query) as found:
        for row in found:
            *values, seen, gone = row[: len(further) + 2]
            run = UsageRun(*row[len(further) + 2 :])
            if run.end is None:
                # A run that came from files only was last seen at the end of its file.
                latest = last.get(run.cluster_id, 0 if seen is None else now + 1)
                unseen = seen is not None and (gone is not None or seen < latest)
                until = min(seen or 0, now) if unseen else now
                run = _unmeasured(run)._replace(end=max(until, run.start or 0))
            yield tuple(values), run._replace(era=known.of(run.submit))


def open_runs_counted_until(connection: Connection, numbers: Collection[int], now: int) -> int:
    """Return up to when runs without an end of some clusters count, as `load_runs_with_ends` does.

    That is now; of a cluster that was only read from files, the end of the last one.
    """
    last = load_last_ingests(connection, ingests.c.source == "sacct")
    seen = select(func.max(runs.c.last_seen)).where(_COUNTED, text(OPEN))
    ends = (
        connection.scalar(seen.where(runs.c.cluster_id == number))
        for number in {*numbers} - {*last}
    )
    return min([now, *(int(end) for end in ends if end is not None)])


def _unmeasured(run: UsageRun) -> UsageRun:
    """Drop measured use and energy, which are not final for a run without an end."""
    return run._replace(
        cpu_used_ms=None,
        mem_peak_mib=None,
        gpu_used_permille=None,
        gpu_energy_joules=None,
        energy_joules=None,
    )


def split_usage(some: Iterable[UsageRun], edges: Edges) -> Iterator[PartialUsage]:
    """Compute usage of runs in each part of a window."""
    parts = list(enumerate(pairwise(edges)))
    for run in some:
        start, until = run.start or 0, run.end or 0
        for part, (begin, end) in parts:
            if until < begin or end <= start:
                continue
            for key, sums in usage_in_window(run, begin, end):
                yield PartialUsage(part, key, sums)


def _suspended_until(passed: int, length: int, seconds: int) -> int:
    """Return the suspended seconds up to `passed` in a span, as if spread evenly over the span."""
    return seconds * min(max(passed, 0), length) // length


def _only_time_sums(sums: Sums) -> Sums:
    """Keep the sums that grow with time; set the others to 0."""
    return tuple(each if name in _PER_SECOND else 0 for name, each in zip(SUMS, sums, strict=True))
