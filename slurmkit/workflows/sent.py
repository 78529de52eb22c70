"""A handle to a workflow that was sent: how far it is, and what can be done about it."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurmkit.arrays import fold
from slurmkit.errors import BadInput, SlurmError
from slurmkit.jobs.ids import spans
from slurmkit.jobs.job import Job
from slurmkit.planning.chunks import throttle
from slurmkit.sweeps.results import completed
from slurmkit.workflows.model import Workflow
from slurmkit.workflows.plan import WorkflowPlan
from slurmkit.workflows.record import Record, SentJob, Shelf, digest
from slurmkit.workflows.recover import recovered, tokens
from slurmkit.workflows.send import cancel, cancel_jobs, send
from slurmkit.workflows.standing import Standing, Verdict, look, verdicts

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

_TOKEN = re.compile(r"[0-9a-f]{8}")


class Rest(msgspec.Struct, frozen=True):
    """What is still to be done of a workflow.

    Attributes:
        verdicts: by name, what resuming makes of each job.
        replaced: jobs in the queue that wait for one that is sent again: they are sent again, too.
        changed: jobs that are not as they were when they were sent.
        added: jobs that were not in the workflow then.
        left_out: jobs that are not in the workflow any more; they are left as they are.
        missing: of arrays that are due, the tasks that have not completed, where others have.
    """

    verdicts: dict[str, Verdict]
    replaced: tuple[str, ...]
    changed: tuple[str, ...]
    added: tuple[str, ...]
    left_out: tuple[str, ...]
    missing: dict[str, str] = {}

    def names(self, verdict: Verdict) -> list[str]:
        """The jobs of which resuming makes that."""
        return [name for name, made in self.verdicts.items() if made == verdict]

    @property
    def differs(self) -> bool:
        """Whether the workflow is another one than the one that was sent."""
        return bool(self.changed or self.added or self.left_out)


class SentWorkflow:
    """A workflow that was sent, wholly or in part.

    Attributes:
        cluster: where it is.
        record: what is known of it on disk.
    """

    def __init__(self, cluster: Cluster, record: Record) -> None:
        self.cluster = cluster
        self.record = record

    def __repr__(self) -> str:
        """What names it."""
        return f"SentWorkflow({self.token!r}, {self.record.name!r})"

    @property
    def token(self) -> str:
        """Eight hexadecimal digits that name it."""
        return self.record.token

    @property
    def jobs(self) -> dict[str, Job]:
        """Handles of its jobs by name, of those that are sent."""
        sent = {name: job.ids for name, job in self.record.jobs.items() if job.ids}
        return {name: self._job(ids) for name, ids in sent.items()}

    def _job(self, ids: tuple[str, ...]) -> Job:
        parts = tuple(Job(job_id, self.cluster) for job_id in ids)
        return parts[0] if len(parts) == 1 else Job(",".join(ids), self.cluster, parts)

    def look(self) -> dict[str, Standing]:
        """How far each job is now, by name.

        Raises:
            SlurmError: when Slurm does not answer.
        """
        return look(self.cluster, self.record)

    def cancel(self) -> dict[str, SlurmError]:
        """Cancel all that has not ended; returns the jobs it did not work for, and why.

        Raises:
            SlurmkitError: when Slurm does not answer, or another process is sending it.
        """
        with Shelf(self.cluster).locked(self.token):
            self._read_again()
            self.record, failed = cancel(self.cluster, self.record)
        return failed

    def rest(self, workflow: Workflow, again: Collection[str] = ()) -> Rest:
        """What resuming would do; nothing is sent or cancelled.

        Args:
            workflow: as it is now.
            again: names of jobs to be sent again though they have completed.

        Raises:
            BadInput: for a name that is none of its jobs.
            SlurmError: when Slurm does not answer.
        """
        for name in again:
            workflow.known(name)
        was = self.record.jobs
        every = look(self.cluster, _as_now(self.record, workflow))
        found = {name: one for name, one in every.items() if name in workflow.jobs}
        made = verdicts(found, again)
        due = [name for name, each in made.items() if each == "due"]
        changed = [n for n in made if n in was and was[n].digest != digest(workflow, n)]
        whole = {*again, *changed, *_task_by_task(found[name] for name in due)}
        return Rest(
            verdicts=made,
            missing=self._missing(found[name] for name in due if name not in whole),
            replaced=tuple(name for name in due if found[name].is_live),
            changed=tuple(changed),
            added=tuple(name for name in made if name not in was),
            left_out=tuple(name for name in was if name not in made),
        )

    def resume(self, plan: WorkflowPlan, rest: Rest, *, force: bool = False) -> None:
        """Send what is missing, failed or was given up; or release what is all sent.

        Args:
            plan: of the jobs that are due, by
                `plan_workflow(…, names=rest.names("due"), arrays=rest.missing)`.
            rest: what `rest` found.
            force: send jobs in spite of errors.

        Raises:
            BadInput: when the plan has errors, or nobody knows how a job ended.
            SlurmkitError: as for `send`.
        """
        if unknown := rest.names("unknown"):
            raise BadInput(
                f"nobody knows how {', '.join(unknown)} ended: neither squeue nor sacct has it;"
                " name what is to run again: --again NAME"
            )
        with Shelf(self.cluster).locked(self.token):
            self._read_again()
            record = _as_now(self.record, plan.workflow)
            cancel_jobs(self.cluster, record, rest.replaced)
            met = {name for name, made in rest.verdicts.items() if made in ("done", "skipped")}
            self.record = send(self.cluster, plan, record, met, force=force)

    def _missing(self, due: Iterable[Standing]) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in due:
            array = self.record.jobs[one.name].array if one.ids else ""
            if array and one.is_over and one.info and "COMPLETED" in one.info.tally:
                sent = {index for span in spans(array) for index in span}
                limit = throttle(array)
                rest = fold(sent - completed(self.cluster, one.ids))
                found[one.name] = f"{rest}%{limit}" if limit else rest
        return found

    def _read_again(self) -> None:
        """Another process may have sent more meanwhile."""
        self.record = Shelf(self.cluster).read(self.token) or self.record


def _task_by_task(due: Iterable[Standing]) -> set[str]:
    """Arrays of which another waits for the task of its own index: that must be there."""
    return {edge.name for one in due for edge in one.edges if edge.kind == "corr"}


def _as_now(record: Record, workflow: Workflow) -> Record:
    """The record with the jobs that the workflow has now, and what they wait for now.

    Others that were sent stay in it: they are part of what is shown and cancelled.
    """
    others = {
        name: msgspec.structs.replace(job, after=())
        for name, job in record.jobs.items()
        if name not in workflow.jobs and job.ids
    }
    jobs = others | {
        name: msgspec.structs.replace(
            record.jobs.get(name) or SentJob((), digest(workflow, name)),
            after=tuple(map(str, workflow.edges(name))),
        )
        for name in workflow.order()
    }
    return msgspec.structs.replace(record, jobs=jobs)


def submit_workflow(
    cluster: Cluster, plan: WorkflowPlan, *, file: Path | None = None, force: bool = False
) -> SentWorkflow:
    """See `Cluster.submit_workflow`."""
    record = Record(
        token=secrets.token_hex(4),
        name=plan.workflow.name,
        file=str(file.absolute()) if file else "",
        folder=os.getcwd(),  # noqa: PTH109 - a text
        created=int(time.time()),
        phase="sending",
        jobs={
            name: SentJob(tuple(map(str, plan.workflow.edges(name))), digest(plan.workflow, name))
            for name in plan.workflow.order()
        },
    )
    with Shelf(cluster).locked(record.token):
        return SentWorkflow(cluster, send(cluster, plan, record, (), force=force))


def found(cluster: Cluster, word: str) -> SentWorkflow:
    """See `Cluster.workflow`."""
    shelf = Shelf(cluster)
    record = shelf.find(word)
    if record is None and _TOKEN.fullmatch(word):
        record = recovered(cluster, word)
    if record is None:
        raise shelf.unknown(word)
    return SentWorkflow(cluster, record)


def every(cluster: Cluster) -> list[SentWorkflow]:
    """All that were sent from here, the last one first, and others that are in the queue."""
    records = Shelf(cluster).records()
    known = {record.token for record in records}
    others = (recovered(cluster, each) for each in tokens(cluster) if each not in known)
    return [SentWorkflow(cluster, record) for record in (*records, *filter(None, others))]
