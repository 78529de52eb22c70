"""Status of each job of a workflow, and what resuming does with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from slurmkit.cluster.workflow_record import WorkflowRecord, workflow_tag
from slurmkit.formats.job_ids import whole_id
from slurmkit.jobs.info import UNKNOWN, JobInfo
from slurmkit.jobs.lookup import read_jobs, summarize_parts
from slurmkit.spec.workflow import Edge
from slurmkit.state.queue import QueueFilter
from slurmkit.state.queue_rows import QueueRow

if TYPE_CHECKING:
    from slurmkit.cluster.protocol import Submitter

ResumeVerdict = Literal["done", "live", "skipped", "unknown", "due"]
"""What resuming does with a job. done: it has completed; live: it waits or runs; skipped: it was
for a case that did not happen; unknown: its end is not known; due: it is sent (again)."""

NOT_SENT = "NOT SENT"


class WorkflowJobStatus(msgspec.Struct, frozen=True):
    """The status of one job of a workflow.

    Attributes:
        name: name in the workflow.
        ids: ids of its Slurm jobs.
        info: facts of these jobs together; None if not sent or unknown.
        edges: what it waits for.
    """

    name: str
    ids: tuple[str, ...]
    info: JobInfo | None
    edges: tuple[Edge, ...]

    @property
    def state(self) -> str:
        """Slurm's state, or NOT SENT."""
        if not self.ids:
            return NOT_SENT
        return self.info.state if self.info else UNKNOWN

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.info is not None and self.info.is_over

    @property
    def is_live(self) -> bool:
        """Whether it waits or runs."""
        return self.info is not None and not self.info.is_over

    def has_broken(self, edge: Edge) -> bool:
        """Return whether it ended so that a job with this dependency on it can never run."""
        completed = self.state == "COMPLETED"
        broken = {"ok": not completed, "corr": not completed, "notok": completed}
        return self.is_over and broken.get(edge.kind, False)


def read_workflow_status(
    cluster: Submitter, record: WorkflowRecord
) -> dict[str, WorkflowJobStatus]:
    """Read the status of all jobs of a workflow at once, by name.

    Raises:
        SlurmError: when slurmctld does not answer, or slurmdbd for jobs out of the queue.
    """
    ids = record.ids
    infos = read_jobs(cluster.backend, cluster.slurm, ids) if ids else {}
    return workflow_statuses(record, infos)


def workflow_statuses(
    record: WorkflowRecord, infos: Mapping[str, JobInfo | None]
) -> dict[str, WorkflowJobStatus]:
    """Return the status of each job by name, from the facts of its Slurm jobs."""
    return {
        name: WorkflowJobStatus(
            name, job.ids, _merge(job.ids, infos), tuple(map(Edge.parse, job.after))
        )
        for name, job in record.jobs.items()
    }


def _merge(ids: Sequence[str], infos: Mapping[str, JobInfo | None]) -> JobInfo | None:
    """Return the facts of Slurm jobs together; None while any is unknown."""
    known = {job_id: info for job_id in ids if (info := infos.get(job_id))}
    if len(known) < len(ids) or not known:
        return None
    return next(iter(known.values())) if len(known) == 1 else summarize_parts(",".join(ids), known)


def resume_verdicts(
    found: Mapping[str, WorkflowJobStatus], again: Collection[str] = ()
) -> dict[str, ResumeVerdict]:
    """Return what resuming does with each job.

    Args:
        found: status of the jobs, in topological order.
        again: names of jobs to be sent again even if they have completed or are unknown.
    """
    verdict_of: dict[str, ResumeVerdict] = {}
    for name, one in found.items():
        verdict_of[name] = "due" if name in again else _verdict(one, verdict_of)
    return verdict_of


def _verdict(one: WorkflowJobStatus, before: Mapping[str, ResumeVerdict]) -> ResumeVerdict:
    """Return the verdict on a job from the verdicts on the jobs before it."""
    if one.state == "COMPLETED":
        return "done"
    is_renewed = any(before.get(edge.name) == "due" for edge in one.edges)
    if one.is_live:
        return "due" if is_renewed and one.state == "PENDING" else "live"
    if any(_is_impossible(edge, before) for edge in one.edges):
        return "skipped"
    return "unknown" if one.state == UNKNOWN else "due"


def _is_impossible(edge: Edge, before: Mapping[str, ResumeVerdict]) -> bool:
    """Return whether a dependency can no longer be met."""
    verdict = before.get(edge.name)
    return (verdict, edge.kind) in {("done", "notok"), ("skipped", "ok"), ("skipped", "corr")}


def unrecorded_jobs(cluster: Submitter, record: WorkflowRecord) -> list[str]:
    """Return the ids of tagged jobs in the queue that are missing in the record.

    Their sender was killed before it could record them; they are held.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    ids = (whole_id(row.job_id) for row in read_tagged_jobs(cluster, record.token))
    return list(dict.fromkeys(job_id for job_id in ids if job_id not in record.ids))


def read_tagged_jobs(cluster: Submitter, token: str) -> list[QueueRow]:
    """Read the user's jobs in the queue that have the tag of a workflow."""
    rows = cluster.backend.queue(QueueFilter(me=True)).rows
    return [
        row for row in rows if any(w.startswith(workflow_tag(token)) for w in row.comment.split())
    ]
