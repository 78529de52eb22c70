"""The `SentWorkflow` handle: submit a workflow, show the status of its jobs, cancel or resume."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from slurmkit.cluster.sweep_results import read_completed_tasks
from slurmkit.cluster.workflow_plan import WorkflowPlan
from slurmkit.cluster.workflow_record import (
    SentJob,
    WorkflowRecord,
    WorkflowRecords,
    job_digest,
    read_queued_tokens,
    recover_record,
)
from slurmkit.cluster.workflow_send import cancel_jobs, cancel_workflow, send_workflow
from slurmkit.errors import BadInput, SlurmError
from slurmkit.formats.job_ids import parse_index_spans
from slurmkit.jobs.info import UNKNOWN, JobInfo
from slurmkit.jobs.job import Job
from slurmkit.jobs.lookup import read_jobs, summarize_parts
from slurmkit.planning.arrays import array_throttle
from slurmkit.spec.workflow import Edge, Workflow
from slurmkit.state.arrays import format_indices

if TYPE_CHECKING:
    from slurmkit.cluster.protocol import Submitter

ResumeVerdict = Literal["done", "live", "skipped", "unknown", "due"]
"""What resuming does with a job. done: it has completed; live: it waits or runs; skipped: it was
for a case that did not happen; unknown: its end is not known; due: it is sent (again)."""

NOT_SENT = "NOT SENT"
_TOKEN = re.compile(r"[0-9a-f]{8}")


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


class ResumePlan(msgspec.Struct, frozen=True):
    """The part of a workflow that resuming would send.

    Attributes:
        verdicts: what resuming does with each job, by name.
        replaced: pending jobs that wait for a job which is sent again; they are sent again too.
        changed: jobs that have changed since they were sent.
        added: jobs that are new in the workflow.
        left_out: jobs that are no longer in the workflow; they are left as they are.
        missing: for arrays that completed in part, the tasks still to run, by name.
    """

    verdicts: dict[str, ResumeVerdict]
    replaced: tuple[str, ...]
    changed: tuple[str, ...]
    added: tuple[str, ...]
    left_out: tuple[str, ...]
    missing: dict[str, str] = {}

    def names(self, verdict: ResumeVerdict) -> list[str]:
        """Return the jobs with a verdict."""
        return [name for name, each in self.verdicts.items() if each == verdict]

    @property
    def differs(self) -> bool:
        """Whether the workflow has changed since it was sent."""
        return bool(self.changed or self.added or self.left_out)


class SentWorkflow:
    """A handle to a workflow that was sent, wholly or in part.

    Attributes:
        cluster: the cluster it was sent to.
        record: its record on disk.
    """

    def __init__(self, cluster: Submitter, record: WorkflowRecord) -> None:
        self.cluster = cluster
        self.record = record

    def __repr__(self) -> str:
        """Return token and name."""
        return f"SentWorkflow({self.token!r}, {self.record.name!r})"

    @property
    def token(self) -> str:
        """Id of the workflow, eight hexadecimal digits."""
        return self.record.token

    @property
    def jobs(self) -> dict[str, Job]:
        """Handles of the jobs that were sent, by name."""
        sent = {name: job.ids for name, job in self.record.jobs.items() if job.ids}
        return {name: self._job(ids) for name, ids in sent.items()}

    def _job(self, ids: tuple[str, ...]) -> Job:
        parts = tuple(Job(job_id, self.cluster) for job_id in ids)
        return parts[0] if len(parts) == 1 else Job(",".join(ids), self.cluster, parts)

    def look(self) -> dict[str, WorkflowJobStatus]:
        """Read the status of each job, by name.

        Raises:
            SlurmError: when Slurm does not answer.
        """
        return read_workflow_status(self.cluster, self.record)

    def cancel(self) -> dict[str, SlurmError]:
        """Cancel all jobs that have not ended; return the failures by job id.

        Raises:
            JobOver: when all jobs had already ended.
            SlurmkitError: when Slurm does not answer, or another process is sending it.
        """
        with WorkflowRecords(self.cluster).locked(self.token):
            self._reload()
            self.record, failed = cancel_workflow(self.cluster, self.record)
        return failed

    def rest(self, workflow: Workflow, again: Collection[str] = ()) -> ResumePlan:
        """Return what resuming would do; nothing is sent or cancelled.

        Args:
            workflow: the workflow as it is now.
            again: names of jobs to be sent again even if they have completed.

        Raises:
            BadInput: for an unknown name.
            SlurmError: when Slurm does not answer.
        """
        for name in again:
            workflow.known(name)
        was = self.record.jobs
        every = read_workflow_status(self.cluster, _with_workflow(self.record, workflow))
        current = {name: standing for name, standing in every.items() if name in workflow.jobs}
        now = resume_verdicts(current, again)
        due = [name for name, verdict in now.items() if verdict == "due"]
        changed = [n for n in now if n in was and was[n].digest != job_digest(workflow, n)]
        whole = {*again, *changed, *_needed_by_task(current[name] for name in due)}
        return ResumePlan(
            verdicts=now,
            missing=self._missing_tasks(current[name] for name in due if name not in whole),
            replaced=tuple(name for name in due if current[name].is_live),
            changed=tuple(changed),
            added=tuple(name for name in now if name not in was),
            left_out=tuple(name for name in was if name not in now),
        )

    def resume(self, plan: WorkflowPlan, rest: ResumePlan, *, force: bool = False) -> None:
        """Send the jobs that are due; release the others if that is still to be done.

        Args:
            plan: plan of the jobs that are due, from
                `plan_workflow(…, names=rest.names("due"), arrays=rest.missing)`.
            rest: result of `rest`.
            force: send jobs in spite of errors.

        Raises:
            BadInput: when the plan has errors, or the end of a job is unknown.
            SlurmkitError: as for `send_workflow`.
        """
        if unknown := rest.names("unknown"):
            raise BadInput(
                f"it is unknown how {', '.join(unknown)} ended: neither squeue nor sacct has it;"
                " name the jobs that should run again: --again NAME"
            )
        with WorkflowRecords(self.cluster).locked(self.token):
            self._reload()
            record = _with_workflow(self.record, plan.workflow)
            cancel_jobs(self.cluster, record, rest.replaced)
            met = {name for name, each in rest.verdicts.items() if each in ("done", "skipped")}
            self.record = send_workflow(self.cluster, plan, record, met, force=force)

    def _missing_tasks(self, due: Iterable[WorkflowJobStatus]) -> dict[str, str]:
        """Return the tasks still to run of arrays that completed in part, by name."""
        missing: dict[str, str] = {}
        for one in due:
            array = self.record.jobs[one.name].array if one.ids else ""
            if array and one.is_over and one.info and "COMPLETED" in one.info.tally:
                sent = {index for span in parse_index_spans(array) for index in span}
                limit = array_throttle(array)
                rest = format_indices(sent - read_completed_tasks(self.cluster, one.ids))
                missing[one.name] = f"{rest}%{limit}" if limit else rest
        return missing

    def _reload(self) -> None:
        """Load the record again: another process may have sent more jobs."""
        self.record = WorkflowRecords(self.cluster).read(self.token) or self.record


def _needed_by_task(due: Iterable[WorkflowJobStatus]) -> set[str]:
    """Return arrays that another array waits for task by task: all their tasks must exist."""
    return {edge.name for one in due for edge in one.edges if edge.kind == "corr"}


def _with_workflow(record: WorkflowRecord, workflow: Workflow) -> WorkflowRecord:
    """Return the record with the jobs and dependencies that the workflow has now.

    Jobs that were sent and are no longer in the workflow stay: they are shown and cancelled too.
    """
    others = {
        name: msgspec.structs.replace(job, after=())
        for name, job in record.jobs.items()
        if name not in workflow.jobs and job.ids
    }
    jobs = others | {
        name: msgspec.structs.replace(
            record.jobs.get(name) or SentJob((), job_digest(workflow, name)),
            after=tuple(map(str, workflow.edges(name))),
        )
        for name in workflow.order()
    }
    return msgspec.structs.replace(record, jobs=jobs)


def submit_workflow(
    cluster: Submitter, plan: WorkflowPlan, *, file: Path | None = None, force: bool = False
) -> SentWorkflow:
    """Send all jobs of a workflow, as `Cluster.submit_workflow` describes."""
    record = WorkflowRecord(
        token=secrets.token_hex(4),
        name=plan.workflow.name,
        file=str(file.absolute()) if file else "",
        folder=os.getcwd(),  # noqa: PTH109 - a text
        created=int(time.time()),
        phase="sending",
        jobs={
            name: SentJob(
                tuple(map(str, plan.workflow.edges(name))), job_digest(plan.workflow, name)
            )
            for name in plan.workflow.order()
        },
    )
    with WorkflowRecords(cluster).locked(record.token):
        return SentWorkflow(cluster, send_workflow(cluster, plan, record, (), force=force))


def find_workflow(cluster: Submitter, word: str) -> SentWorkflow:
    """Return a workflow by its token, or the latest of a name."""
    shelf = WorkflowRecords(cluster)
    record = shelf.find(word)
    if record is None and _TOKEN.fullmatch(word):
        record = recover_record(cluster, word)
    if record is None:
        raise shelf.unknown(word)
    return SentWorkflow(cluster, record)


def load_workflows(cluster: Submitter) -> list[SentWorkflow]:
    """Return all workflows sent from here, latest first, and others with jobs in the queue."""
    records = WorkflowRecords(cluster).records()
    known = {record.token for record in records}
    others = (
        recover_record(cluster, each) for each in read_queued_tokens(cluster) if each not in known
    )
    return [SentWorkflow(cluster, record) for record in (*records, *filter(None, others))]
