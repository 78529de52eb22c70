"""Send the jobs of a workflow so that nothing of it runs before all is there, or cancel them.

Each job is sent held, and noted on disk at once; all are released at the end, those that others
wait for last. What fails in between, and Ctrl-C, cancels what was sent; if the process itself is
killed, the jobs stay held until `resume` or `cancel`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from slurmkit.backends.beside import Beside
from slurmkit.errors import (
    BadInput,
    Interrupted,
    JobOver,
    NoSuchJob,
    SlurmError,
    SlurmkitError,
)
from slurmkit.spec import with_array
from slurmkit.sweeps import records
from slurmkit.workflows.model import KINDS, Edge
from slurmkit.workflows.plan import WorkflowPlan
from slurmkit.workflows.record import Record, SentJob, Shelf, digest, tag
from slurmkit.workflows.standing import strays

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

_IN_FLIGHT = 1.0  # seconds in which a job whose sender was interrupted shows up in the queue


def send(
    cluster: Cluster, plan: WorkflowPlan, record: Record, met: Collection[str], *, force: bool
) -> Record:
    """Send every job of a plan and release them; the record's lock is held.

    Args:
        cluster: where.
        plan: the jobs to be sent.
        record: of the workflow; what is sent of a job takes the place of what was.
        met: jobs of the workflow that nothing has to wait for any more.
        force: send jobs in spite of errors.

    Returns:
        The record of what is sent.

    Raises:
        BadInput: when the plan has errors.
        SlurmkitError: naming what became of the jobs sent before.
    """
    _refuse(plan, force=force)
    shelf = Shelf(cluster)
    before, record = record, msgspec.structs.replace(record, phase="sending")
    shelf.write(record)
    try:
        for name in plan.plans:
            record = _send(cluster, plan, record, name, met)
            shelf.write(record)
    except (SlurmkitError, KeyboardInterrupt) as error:
        raise _taken_back(cluster, before, record, error) from error
    return release(cluster, record)


def _refuse(plan: WorkflowPlan, *, force: bool) -> None:
    if stopping := plan.unsafe if force else plan.errors:
        said = (f"{name}: {each.message}" if name else each.message for name, each in stopping)
        raise BadInput("; ".join(said))


def _send(
    cluster: Cluster, plan: WorkflowPlan, record: Record, name: str, met: Collection[str]
) -> Record:
    edges = plan.workflow.edges(name)
    made, own = plan.plans[name], with_array(plan.workflow.spec(name))
    beside = Beside(
        after=tuple(_clauses(edges, record, met)), hold=True, comment=tag(record.token, name)
    )
    again = _first_run(cluster, record.jobs[name]) if made.spec.array != own.array else None
    job = cluster.submit(made, force=True, beside=beside, again=again)
    sent = SentJob(
        after=tuple(map(str, edges)),
        digest=digest(plan.workflow, name),
        ids=tuple(part.id for part in job.parts),
        held=not made.spec.hold,  # what its user holds stays held
        array=made.spec.array or "",
    )
    return record.with_job(name, sent)


def _first_run(cluster: Cluster, before: SentJob) -> str | None:
    """Id of the sweep of which some points run again; None where nothing is remembered of it."""
    run = records.read(cluster, before.ids[0]) if before.ids else None
    return (run.again or run.first) if run else None


def _clauses(edges: Iterable[Edge], record: Record, met: Collection[str]) -> Iterator[str]:
    """What a job waits for in Slurm's words (sbatch(1) --dependency)."""
    for edge in edges:
        if edge.name not in met:
            minutes = f"+{edge.minutes}" if edge.minutes else ""
            ids = ":".join(f"{job_id}{minutes}" for job_id in record.jobs[edge.name].ids)
            yield f"{KINDS[edge.kind]}:{ids}"


def release(cluster: Cluster, record: Record) -> Record:
    """Let all jobs of a workflow start; those that others wait for come last.

    Raises:
        SlurmkitError: when slurmctld does not let it; what is held stays held.
    """
    shelf = Shelf(cluster)
    try:
        for name, job in reversed(record.jobs.items()):
            if job.held:
                for job_id in job.ids:
                    _release(cluster, job_id)
                record = record.with_job(name, msgspec.structs.replace(job, held=False))
                shelf.write(record)
    except (SlurmkitError, KeyboardInterrupt) as error:
        kind, why = _said(error)
        raise kind(f"all jobs are sent, not all released ({why}); {ways_on(record)}") from error
    record = msgspec.structs.replace(record, phase="sent")
    shelf.write(record)
    return record


def _release(cluster: Cluster, job_id: str) -> None:
    try:
        cluster.backend.release(job_id)
    except (NoSuchJob, JobOver):  # its user has cancelled it
        return


def ways_on(record: Record) -> str:
    """What can be done about a workflow that is sent in part."""
    return (
        f"what is held stays held until slurmkit workflow resume {record.token},"
        f" or slurmkit workflow cancel {record.token}"
    )


def _said(error: SlurmkitError | KeyboardInterrupt) -> tuple[type[SlurmkitError], str]:
    if isinstance(error, KeyboardInterrupt):
        return Interrupted, "interrupted"
    return type(error), str(error)


def _taken_back(
    cluster: Cluster, before: Record, record: Record, error: SlurmkitError | KeyboardInterrupt
) -> SlurmkitError:
    """Cancel what was sent just now: all of it is held, so the order does not matter."""
    kind, why = _said(error)
    sent = [job_id for job_id in record.ids if job_id not in before.ids]
    try:
        if kind is Interrupted:
            time.sleep(_IN_FLIGHT)
        left = _cancelled(cluster, [*sent, *strays(cluster, record)])
    except (SlurmkitError, KeyboardInterrupt):
        return kind(f"{why}; {ways_on(record)}")
    if left:
        return kind(f"{why}; could not cancel {', '.join(left)}: {ways_on(record)}")
    if before.ids:
        Shelf(cluster).write(before)
    else:
        Shelf(cluster).remove(record.token)
    return kind(f"{why}; nothing was started: the {len(sent)} jobs sent before are cancelled")


def cancel(cluster: Cluster, record: Record) -> tuple[Record, dict[str, SlurmError]]:
    """Cancel all jobs of a workflow; returns its record, and those it did not work for, and why.

    What waits for others goes first: it could start when these are cancelled.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    failed = cancel_jobs(cluster, record, record.jobs)
    jobs = {n: msgspec.structs.replace(job, held=False) for n, job in record.jobs.items()}
    record = msgspec.structs.replace(
        record, phase="cancelled", jobs=record.jobs if failed else jobs
    )
    Shelf(cluster).write(record)
    return record, failed


def cancel_jobs(cluster: Cluster, record: Record, names: Collection[str]) -> dict[str, SlurmError]:
    """Cancel these jobs, and those that nobody noted; what waits for others goes first.

    Returns:
        Those it did not work for, and why.
    """
    failed = _cancelled(cluster, strays(cluster, record))
    for level in reversed(_levels(record)):
        for ids in _last_first([record.jobs[name].ids for name in level if name in names]):
            failed |= _cancelled(cluster, ids)
    return failed


def _last_first(parts: list[tuple[str, ...]]) -> Iterator[list[str]]:
    """Of jobs in several parts the last ones: they may wait for those before them."""
    for at in range(1, max(map(len, parts), default=0) + 1):
        yield [ids[-at] for ids in parts if at <= len(ids)]


def _levels(record: Record) -> list[list[str]]:
    """Names by how many jobs stand in a row before them."""
    depth: dict[str, int] = {}
    levels: list[list[str]] = []
    for name, job in record.jobs.items():
        before = (depth.get(Edge.parse(text).name, -1) for text in job.after)
        depth[name] = max(before, default=-1) + 1
        levels += [[]] * (depth[name] >= len(levels))
        levels[depth[name]] = [*levels[depth[name]], name]
    return levels


def _cancelled(cluster: Cluster, ids: list[str]) -> dict[str, SlurmError]:
    """Cancel jobs; returns those that go on all the same."""
    failed = cluster.cancel(ids) if ids else {}
    return {i: why for i, why in failed.items() if not isinstance(why, JobOver | NoSuchJob)}
