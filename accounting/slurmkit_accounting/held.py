"""What single runs held in parts of a window: around an edge, without an end, while suspended.

The sums of whole hours and days are in the usage tables; this is what those cannot say.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Connection, TextClause, and_, func, or_, select, text

from slurmkit_accounting.bins import Eras, Held, Key, within
from slurmkit_accounting.schema import (
    DAY,
    LONG,
    OPEN,
    SUMS,
    SUSPENDED,
    ingests,
    runs,
    suspensions,
)
from slurmkit_accounting.upkeep import eras as known_eras

Edges: TypeAlias = tuple[int, ...]
Sums: TypeAlias = tuple[int, ...]
_HELD = [runs.c[name] for name in Held._fields[:-1]]
_COUNTED = runs.c.retracted.is_(None)
_PER_SECOND = SUMS[:5]


class Found(NamedTuple):
    """What a run held in one part of a window, under one of its keys."""

    part: int
    key: Key
    sums: Sums


def around(connection: Connection, begin: int, end: int) -> Iterator[Held]:
    """Runs that ended and may overlap a span of less than a day."""
    after = and_(runs.c.end >= begin, runs.c.start < end)
    soon = and_(runs.c.end < end + DAY, runs.c.end - runs.c.start <= DAY)
    known = known_eras(connection)
    for some in (soon, text(LONG)):
        yield from _read(connection.execute(select(*_HELD).where(_COUNTED, after, some)), known)


def of_open_runs(connection: Connection, edges: Edges, now: int) -> Iterator[Found]:
    """What runs without an end held, up to now; those gone from sacct up to when last seen."""
    where = (text(OPEN), runs.c.start < edges[-1])
    return _parted((run for _, run in with_ends(connection, now, where)), edges)


def of_job(connection: Connection, job: str, edges: Edges, now: int) -> Iterator[Found]:
    """What the runs of one job held, `12` (with all its parts) or `12_3`."""
    where = (of(job), runs.c.start < edges[-1])
    return _parted((run for _, run in with_ends(connection, now, where)), edges)


def of_retracted_runs(connection: Connection, edges: Edges, now: int) -> Iterator[Found]:
    """What runs would have held that were taken out of the books."""
    rows = connection.execute(select(*_HELD).where(runs.c.retracted.is_not(None)))
    found = (
        run._replace(end=now if run.end is None else run.end)
        for run in (Held(*row) for row in rows)
    )
    return _parted(found, edges)


def while_suspended(connection: Connection, edges: Edges, job: str | None) -> Iterator[Found]:
    """What runs held while they were suspended: all that grows with time, but no energy."""
    known = known_eras(connection)
    for *row, begin, length, told in _suspensions(connection, (edges[0], edges[-1]), job):
        run, seconds = Held(*row), min(told, length)
        # Some seconds of it, wherever they lay: as a run that lasted as long.
        for part, (one, other) in enumerate(pairwise(edges)):
            until = [_suspended(edge - begin, length, seconds) for edge in (one, other)]
            if lasted := until[1] - until[0]:
                short = _unmeasured(run)._replace(start=0, end=lasted, era=known.of(run.submit))
                for key, sums in within(short, 0, lasted):
                    yield Found(part, key, _timed(sums))


def _suspensions(
    connection: Connection, window: tuple[int, int], job: str | None
) -> Iterator[Sequence[Any]]:
    """Columns of runs, and begin, length and seconds of where they were suspended."""
    span = (suspensions.c.begin, suspensions.c.length, suspensions.c.seconds)
    placed = select(*_HELD, *(each.label(f"span_{each.name}") for each in span))
    placed = placed.join_from(suspensions, runs)
    # Of runs that came from a file, and those that an ingest has not come to, it lies somewhere.
    lasted = runs.c.end - runs.c.start
    nowhere = ~select(suspensions.c.run_id).where(suspensions.c.run_id == runs.c.id).exists()
    somewhere = select(*_HELD, runs.c.start.label("begin"), lasted, runs.c.suspended)
    somewhere = somewhere.where(text(SUSPENDED), nowhere)
    mine = (_COUNTED,) if job is None else (_COUNTED, of(job))
    for some, begin, length in ((placed, span[0], span[1]), (somewhere, runs.c.start, lasted)):
        overlap = (length > 0, begin < window[1], begin + length > window[0])
        yield from connection.execute(some.where(*mine, *overlap))


def of(job: str) -> ColumnElement[bool]:
    """`12` is a job, or all of an array or heterogeneous job, `12_3` or `12+1` a part of one.

    Several are separated by commas.
    """
    ids = job.split(",")
    parts = (runs.c.job_id.startswith(f"{i}{sign}", autoescape=True) for i in ids for sign in "_+")
    return or_(runs.c.job_id.in_(ids), *parts)


def last_ingests(connection: Connection, *where: ColumnElement[bool]) -> dict[int, int]:
    """Start of each cluster's newest finished ingest, or of the newest such."""
    query = select(ingests.c.cluster_id, func.max(ingests.c.started)).group_by(ingests.c.cluster_id)
    found = connection.execute(query.where(ingests.c.ended.is_not(None), *where))
    return {row[0]: row[1] for row in found}


def with_ends(
    connection: Connection,
    now: int,
    where: Iterable[ColumnElement[bool] | TextClause],
    beside: Sequence[ColumnElement[Any]] = (),
) -> Generator[tuple[tuple[Any, ...], Held], None, None]:
    """Runs that count, those without an end with the time up to which they do instead.

    Args:
        connection: to the ledger.
        now: epoch seconds.
        where: which.
        beside: columns whose values come before each.
    """
    last, known = last_ingests(connection, ingests.c.source == "sacct"), known_eras(connection)
    columns = (*beside, runs.c.last_seen, runs.c.gone_since, *_HELD)
    query = select(*columns).where(_COUNTED, *where).execution_options(yield_per=10_000)
    with connection.execute(query) as found:
        for row in found:
            *told, seen, gone = row[: len(beside) + 2]
            run = Held(*row[len(beside) + 2 :])
            if run.end is None:
                # What came from files alone was last seen at the end of its file.
                latest = last.get(run.cluster_id, 0 if seen is None else now + 1)
                unseen = seen is not None and (gone is not None or seen < latest)
                until = min(seen or 0, now) if unseen else now
                run = _unmeasured(run)._replace(end=max(until, run.start or 0))
            yield tuple(told), run._replace(era=known.of(run.submit))


def _unmeasured(run: Held) -> Held:
    """Of a run without an end its steps have not said all yet, nor when its energy was used."""
    return run._replace(
        cpu_used_ms=None, mem_peak_mib=None, gpu_used_permille=None, energy_joules=None
    )


def _read(rows: Iterable[Any], known: Eras) -> Iterator[Held]:
    for row in rows:
        run = Held(*row)
        yield run._replace(era=known.of(run.submit))


def _parted(found: Iterable[Held], edges: Edges) -> Iterator[Found]:
    for run in found:
        for part, (begin, end) in enumerate(pairwise(edges)):
            for key, sums in within(run, begin, end):
                yield Found(part, key, sums)


def _suspended(passed: int, length: int, seconds: int) -> int:
    """Of the seconds suspended in a span, those before an edge, as if spread evenly over it."""
    return seconds * min(max(passed, 0), length) // length


def _timed(sums: Sums) -> Sums:
    """Only what grows with time."""
    return tuple(each if name in _PER_SECOND else 0 for name, each in zip(SUMS, sums, strict=True))
