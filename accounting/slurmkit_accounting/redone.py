"""Which runs were cut short and done again: their hours were not lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from sqlalchemy import Connection, select, text

from slurmkit_accounting.bulk import among, update_rows
from slurmkit_accounting.schema import CUT_SHORT, runs

CUT_SHORT_STATES = frozenset(("REQUEUED", "PREEMPTED", "NODE_FAIL"))
# Slurm submits a requeued job anew at about the time at which its run ends.
NEAR_SECONDS = 300


class Part(NamedTuple):
    """One run of a job, as far as it matters here."""

    id: int
    cluster_id: int
    job_id_raw: int
    user: str
    state: str
    submit: int
    end: int | None
    redone: bool


def redone(job: Sequence[Part]) -> set[int]:
    """Numbers of the runs of one job, in order of Submit, whose work a later one completed."""
    found: set[int] = set()
    for run, following in reversed(list(pairwise(job))):
        good = following.state == "COMPLETED" or following.id in found
        if good and run.state in CUT_SHORT_STATES and _follows(run, following):
            found.add(run.id)
    return found


def mark_redone(
    connection: Connection, cluster: int | None = None, jobs: Iterable[int] = ()
) -> list[int]:
    """Set `redone` of every run, or of those of some jobs; return the runs that this changed."""
    wrong = list(wrongly_marked(connection, cluster, jobs))
    update_rows(connection, runs, ("id", "redone"), wrong)
    return [number for number, _ in wrong]


def wrongly_marked(
    connection: Connection, cluster: int | None = None, jobs: Iterable[int] = ()
) -> Iterator[tuple[int, bool]]:
    """Runs whose `redone` is not what it should be, and what that is."""
    some = () if cluster is None else _those(connection, cluster, jobs)
    if cluster is not None and not some:
        return
    parts = _parts(connection, some)
    for _, job in groupby(parts, key=lambda part: (part.cluster_id, part.job_id_raw)):
        chain = list(job)
        right = redone(chain)
        for part in chain:
            if part.redone != (part.id in right):
                yield part.id, part.id in right


def _follows(run: Part, following: Part) -> bool:
    near = run.end is not None and abs(following.submit - run.end) <= NEAR_SECONDS
    return near and run.user == following.user


def _those(connection: Connection, cluster: int, jobs: Iterable[int]) -> tuple[Any, ...]:
    """A condition for those of `jobs` that have a run that was cut short; empty without any."""
    asked = set(jobs)
    if not asked:
        return ()
    # Few runs are cut short: all of that range are looked at rather than each job looked up.
    between = runs.c.job_id_raw.between(min(asked), max(asked))
    query = select(runs.c.job_id_raw).where(text(CUT_SHORT), runs.c.cluster_id == cluster, between)
    found = asked.intersection(connection.scalars(query))
    if not found:
        return ()
    return (runs.c.cluster_id == cluster, among(connection, runs.c.job_id_raw, sorted(found)))


def _parts(connection: Connection, some: tuple[Any, ...]) -> Iterable[Part]:
    where = some
    if not some:
        cut = (
            select(runs.c.cluster_id, runs.c.job_id_raw)
            .where(text(CUT_SHORT))
            .distinct()
            .subquery()
        )
        same = (runs.c.cluster_id == cut.c.cluster_id) & (runs.c.job_id_raw == cut.c.job_id_raw)
        query = select(*(runs.c[name] for name in Part._fields)).join(cut, same)
    else:
        query = select(*(runs.c[name] for name in Part._fields)).where(*where)
    order = (runs.c.cluster_id, runs.c.job_id_raw, runs.c.submit, runs.c.id)
    found = connection.execute(query.where(runs.c.retracted.is_(None)).order_by(*order))
    return [Part(*row) for row in found]
