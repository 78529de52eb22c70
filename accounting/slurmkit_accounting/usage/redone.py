"""Find runs that were cut short and whose work a later run of the same job completed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from sqlalchemy import Connection, select, text

from slurmkit_accounting.ledger.bulk_write import in_values, update_rows
from slurmkit_accounting.ledger.schema.runs import CUT_SHORT, runs

CUT_SHORT_STATES = frozenset(("REQUEUED", "PREEMPTED", "NODE_FAIL"))
# Slurm gives a requeued job a new Submit at about the time at which its run ends.
NEAR_SECONDS = 300


class RestartedRun(NamedTuple):
    """One run of a job, with the columns that decide whether it was redone."""

    id: int
    cluster_id: int
    job_id_raw: int
    user: str
    state: str
    submit: int
    end: int | None
    redone: bool


def find_redone(job: Sequence[RestartedRun]) -> set[int]:
    """Return row ids of the runs of one job (in order of Submit) that a later run completed."""
    found: set[int] = set()
    for run, following in reversed(list(pairwise(job))):
        good = following.state == "COMPLETED" or following.id in found
        if good and run.state in CUT_SHORT_STATES and _follows(run, following):
            found.add(run.id)
    return found


def mark_redone(
    connection: Connection, cluster: int | None = None, jobs: Iterable[int] = ()
) -> list[int]:
    """Set `redone` of all runs, or of the runs of some jobs; return row ids of the changed runs."""
    wrong = list(find_wrong_redone(connection, cluster, jobs))
    update_rows(connection, runs, ("id", "redone"), wrong)
    return [run_id for run_id, _ in wrong]


def find_wrong_redone(
    connection: Connection, cluster: int | None = None, jobs: Iterable[int] = ()
) -> Iterator[tuple[int, bool]]:
    """Find runs whose stored `redone` is wrong; yield each row id with the right value."""
    some = () if cluster is None else _jobs_condition(connection, cluster, jobs)
    if cluster is not None and not some:
        return
    parts = _load_runs(connection, some)
    for _, job in groupby(parts, key=lambda part: (part.cluster_id, part.job_id_raw)):
        in_order = list(job)
        right = find_redone(in_order)
        for part in in_order:
            if part.redone != (part.id in right):
                yield part.id, part.id in right


def _follows(run: RestartedRun, following: RestartedRun) -> bool:
    near = run.end is not None and abs(following.submit - run.end) <= NEAR_SECONDS
    return near and run.user == following.user


def _jobs_condition(connection: Connection, cluster: int, jobs: Iterable[int]) -> tuple[Any, ...]:
    """Return the condition for the `jobs` with a run that was cut short; empty if none."""
    asked = set(jobs)
    if not asked:
        return ()
    # Few runs are cut short: read all of the range instead of looking up each job.
    between = runs.c.job_id_raw.between(min(asked), max(asked))
    query = select(runs.c.job_id_raw).where(text(CUT_SHORT), runs.c.cluster_id == cluster, between)
    found = asked.intersection(connection.scalars(query))
    if not found:
        return ()
    return (runs.c.cluster_id == cluster, in_values(connection, runs.c.job_id_raw, sorted(found)))


def _load_runs(connection: Connection, where: tuple[Any, ...]) -> Iterable[RestartedRun]:
    """Load runs in the order of job and Submit; without a condition, all jobs ever cut short."""
    if not where:
        cut = (
            select(runs.c.cluster_id, runs.c.job_id_raw)
            .where(text(CUT_SHORT))
            .distinct()
            .subquery()
        )
        same = (runs.c.cluster_id == cut.c.cluster_id) & (runs.c.job_id_raw == cut.c.job_id_raw)
        query = select(*(runs.c[name] for name in RestartedRun._fields)).join(cut, same)
    else:
        query = select(*(runs.c[name] for name in RestartedRun._fields)).where(*where)
    order = (runs.c.cluster_id, runs.c.job_id_raw, runs.c.submit, runs.c.id)
    found = connection.execute(query.where(runs.c.retracted.is_(None)).order_by(*order))
    return [RestartedRun(*row) for row in found]
