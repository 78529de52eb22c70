"""Send or cancel the jobs of a workflow; no job runs before all are sent.

Each job is sent held and recorded on disk at once. At the end all are released, those that others
wait for last. After a failure or Ctrl-C the jobs sent so far are cancelled. If the process is
killed, the jobs stay held until `resume` or `cancel_workflow`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from slurmkit.cluster import sweeps
from slurmkit.cluster.workflow_plan import WorkflowPlan
from slurmkit.cluster.workflow_record import (
    SentJob,
    WorkflowRecord,
    WorkflowRecords,
    job_digest,
    unrecorded_jobs,
    workflow_tag,
)
from slurmkit.errors import (
    BadInput,
    Interrupted,
    JobOver,
    NoSuchJob,
    SlurmError,
    SlurmkitError,
)
from slurmkit.jobs.backends.commands import SubmitOverrides
from slurmkit.spec.jobspec import with_array
from slurmkit.spec.workflow import KINDS, Edge

if TYPE_CHECKING:
    from slurmkit.cluster.protocol import Submitter

_IN_FLIGHT = 1.0  # seconds until a job of an interrupted sbatch shows up in the queue


def send_workflow(
    cluster: Submitter,
    plan: WorkflowPlan,
    record: WorkflowRecord,
    met: Collection[str],
    *,
    force: bool,
) -> WorkflowRecord:
    """Send every job of a plan and release them. The caller holds the record's lock.

    Args:
        cluster: the cluster to send to.
        plan: the jobs to be sent.
        record: record of the workflow; jobs that are sent replace their entries.
        met: jobs of the workflow whose dependants need not wait any more.
        force: send jobs in spite of errors.

    Returns:
        The new record.

    Raises:
        BadInput: when the plan has errors.
        SlurmkitError: with what became of the jobs sent before the failure.
    """
    if stopping := plan.unsafe if force else plan.errors:
        errors = (f"{name}: {each.message}" if name else each.message for name, each in stopping)
        raise BadInput("; ".join(errors))
    shelf = WorkflowRecords(cluster)
    before, record = record, msgspec.structs.replace(record, phase="sending")
    shelf.write(record)
    try:
        for name in plan.plans:
            record = _send_job(cluster, plan, record, name, met)
            shelf.write(record)
    except (SlurmkitError, KeyboardInterrupt) as error:
        raise _take_back(cluster, before, record, error) from error
    return release_workflow(cluster, record)


def _send_job(
    cluster: Submitter, plan: WorkflowPlan, record: WorkflowRecord, name: str, met: Collection[str]
) -> WorkflowRecord:
    """Send one job, held and tagged, and return the record with it."""
    edges = plan.workflow.edges(name)
    job_plan, own = plan.plans[name], with_array(plan.workflow.spec(name))
    overrides = SubmitOverrides(
        after=tuple(_clauses(edges, record, met)),
        hold=True,
        comment=workflow_tag(record.token, name),
    )
    is_rerun = job_plan.spec.array != own.array
    again = _first_run(cluster, record.jobs[name]) if is_rerun else None
    job = cluster.submit(job_plan, force=True, overrides=overrides, again=again)
    sent = SentJob(
        after=tuple(map(str, edges)),
        digest=job_digest(plan.workflow, name),
        ids=tuple(part.id for part in job.parts),
        held=not job_plan.spec.hold,  # a job with its own --hold stays held
        array=job_plan.spec.array or "",
    )
    return record.with_job(name, sent)


def _first_run(cluster: Submitter, before: SentJob) -> str | None:
    """Return the id of the sweep whose points run again; None when there is no record of it."""
    run = sweeps.load_record(cluster, before.ids[0]) if before.ids else None
    return (run.again or run.first) if run else None


def _clauses(edges: Iterable[Edge], record: WorkflowRecord, met: Collection[str]) -> Iterator[str]:
    """Yield the dependencies of a job in the form of sbatch(1) --dependency."""
    for edge in edges:
        if edge.name not in met:
            minutes = f"+{edge.minutes}" if edge.minutes else ""
            ids = ":".join(f"{job_id}{minutes}" for job_id in record.jobs[edge.name].ids)
            yield f"{KINDS[edge.kind]}:{ids}"


def release_workflow(cluster: Submitter, record: WorkflowRecord) -> WorkflowRecord:
    """Release all jobs of a workflow, those that others wait for last.

    Raises:
        SlurmkitError: when slurmctld refuses; the remaining jobs stay held.
    """
    shelf = WorkflowRecords(cluster)
    try:
        for name, job in reversed(record.jobs.items()):
            if job.held:
                for job_id in job.ids:
                    with suppress(NoSuchJob, JobOver):  # its user has cancelled it
                        cluster.backend.release(job_id)
                record = record.with_job(name, msgspec.structs.replace(job, held=False))
                shelf.write(record)
    except (SlurmkitError, KeyboardInterrupt) as error:
        kind, why = _kind_and_reason(error)
        raise kind(
            f"all jobs are sent, but not all released ({why}); {resume_or_cancel_advice(record)}"
        ) from error
    record = msgspec.structs.replace(record, phase="sent")
    shelf.write(record)
    return record


def resume_or_cancel_advice(record: WorkflowRecord) -> str:
    """Return the advice for a workflow that was sent only in part."""
    return (
        "held jobs do not start until you go on:"
        f" slurmkit workflow resume {record.token}; or cancel them:"
        f" slurmkit workflow cancel {record.token}"
    )


def _kind_and_reason(error: SlurmkitError | KeyboardInterrupt) -> tuple[type[SlurmkitError], str]:
    if isinstance(error, KeyboardInterrupt):
        return Interrupted, "interrupted"
    return type(error), str(error)


def _take_back(
    cluster: Submitter,
    before: WorkflowRecord,
    record: WorkflowRecord,
    error: SlurmkitError | KeyboardInterrupt,
) -> SlurmkitError:
    """Cancel the jobs just sent and return the error to raise.

    All of them are held, so they may be cancelled in any order.
    """
    kind, why = _kind_and_reason(error)
    sent = [job_id for job_id in record.ids if job_id not in before.ids]
    try:
        if kind is Interrupted:
            time.sleep(_IN_FLIGHT)
        ids = [*sent, *unrecorded_jobs(cluster, record)]
        failed = cluster.cancel(ids) if ids else {}
        left = [i for i, why in failed.items() if not isinstance(why, JobOver | NoSuchJob)]
    except (SlurmkitError, KeyboardInterrupt):
        return kind(f"{why}; {resume_or_cancel_advice(record)}")
    if left:
        return kind(f"{why}; could not cancel {', '.join(left)}; {resume_or_cancel_advice(record)}")
    if before.ids:
        WorkflowRecords(cluster).write(before)
    else:
        WorkflowRecords(cluster).remove(record.token)
    return kind(f"{why}; nothing was started: the {len(sent)} jobs sent before are cancelled")


def cancel_workflow(
    cluster: Submitter, record: WorkflowRecord
) -> tuple[WorkflowRecord, dict[str, SlurmError]]:
    """Cancel all jobs of a workflow; return its record, and the failures by job id.

    Jobs that wait for others are cancelled first: they could start when those are cancelled.

    Raises:
        JobOver: when all jobs had already ended; the record stays as it was.
        SlurmError: when slurmctld does not answer.
    """
    failed = cancel_jobs(cluster, record, record.jobs)
    ended = {job_id for job_id, why in failed.items() if isinstance(why, JobOver | NoSuchJob)}
    if record.phase != "sending" and ended.issuperset(record.ids):
        raise JobOver(
            f"workflow {record.name} has already ended; see how: slurmkit workflow show"
            f" {record.name}"
        )
    failed = {job_id: why for job_id, why in failed.items() if job_id not in ended}
    jobs = {n: msgspec.structs.replace(job, held=False) for n, job in record.jobs.items()}
    record = msgspec.structs.replace(
        record, phase="cancelled", jobs=record.jobs if failed else jobs
    )
    WorkflowRecords(cluster).write(record)
    return record, failed


def cancel_jobs(
    cluster: Submitter, record: WorkflowRecord, names: Collection[str]
) -> dict[str, SlurmError]:
    """Cancel jobs by name, and those missing in the record; jobs that wait for others first.

    Returns:
        The failures by job id, those of jobs that have ended included.
    """
    unrecorded = unrecorded_jobs(cluster, record)
    failed = cluster.cancel(unrecorded) if unrecorded else {}
    for level in reversed(_levels(record)):
        for ids in _last_first([record.jobs[name].ids for name in level if name in names]):
            failed |= cluster.cancel(ids)
    return failed


def _last_first(parts: list[tuple[str, ...]]) -> Iterator[list[str]]:
    """Yield the last ids of all jobs, then those before: later parts may wait for earlier ones."""
    for back in range(1, max(map(len, parts), default=0) + 1):
        yield [ids[-back] for ids in parts if back <= len(ids)]


def _levels(record: WorkflowRecord) -> list[list[str]]:
    """Group names by the length of the longest chain of jobs before them."""
    depth: dict[str, int] = {}
    levels: list[list[str]] = []
    for name, job in record.jobs.items():
        before = (depth.get(Edge.parse(text).name, -1) for text in job.after)
        depth[name] = max(before, default=-1) + 1
        levels += [[]] * (depth[name] >= len(levels))
        levels[depth[name]] = [*levels[depth[name]], name]
    return levels
