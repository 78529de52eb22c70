"""A Slurm cluster, and handles to the jobs submitted to it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slurmkit.backends.beside import ALONE, Beside
from slurmkit.backends.choice import DefaultBackend
from slurmkit.chosen import chosen
from slurmkit.errors import BadInput, JobOver, NoSuchJob, SlurmError, SlurmkitError
from slurmkit.jobs.ids import check_job_id, check_part_id, whole_id
from slurmkit.queue.snapshot import Queue, QueueFilter
from slurmkit.slurm import LocalSlurm, Slurm

if TYPE_CHECKING:
    from pathlib import Path

    from slurmkit.capabilities.model import Capabilities, Standing
    from slurmkit.jobs.info import JobInfo
    from slurmkit.jobs.job import Job
    from slurmkit.jobs.poller import Pace, Poller
    from slurmkit.planner import Plan
    from slurmkit.plugins import Backend
    from slurmkit.sweeps.finding import Whole
    from slurmkit.workflows.plan import WorkflowPlan
    from slurmkit.workflows.sent import SentWorkflow

# One border for all clusters of this process, so that all their jobs are asked about together.
_LOCAL = LocalSlurm()
_POLLERS: dict[Slurm, Poller] = {}
_POLLERS_LOCK = threading.Lock()


class Cluster:
    """The cluster whose Slurm commands are on this machine's PATH, or one reached over SSH.

    Args:
        slurm: its name in the configuration (`[clusters.NAME]`), or the border to Slurm:
            `slurmkit.testing.FakeSlurm` in tests. By default what SLURMKIT_CLUSTER or
            `slurmkit --cluster` names, else the cluster of this machine.
        backend: how jobs are submitted and controlled; by default Slurm's commands, and for
            submits what `[submit] backend` names.
        pace: how often Slurm is asked about jobs that are waited for; the site's by default.
    """

    def __init__(
        self,
        slurm: Slurm | str | None = None,
        backend: Backend | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.slurm: Slurm
        name = slurm if isinstance(slurm, str) else chosen() if slurm is None else ""
        if name:
            from slurmkit.ssh import reached  # noqa: PLC0415 - another import for few

            self.slurm, over_ssh = reached(name)
            self.backend: Backend = backend or over_ssh
        else:
            self.slurm = _LOCAL if slurm is None or isinstance(slurm, str) else slurm
            self.backend = backend or DefaultBackend(self.slurm)
        self.name = name
        self._pace = pace

    @property
    def poller(self) -> Poller:
        """What asks about all jobs that this process waits for on this cluster."""
        from slurmkit.config import load_section  # noqa: PLC0415 - most commands wait for nothing
        from slurmkit.jobs.poller import Pace, Poller, PollSection  # noqa: PLC0415

        with _POLLERS_LOCK:
            if self.slurm not in _POLLERS:
                pace = self._pace or Pace(floor=load_section("poll", PollSection).floor_seconds)
                _POLLERS[self.slurm] = Poller(self.backend, self.slurm, pace)
            return _POLLERS[self.slurm]

    def attach(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Lend this terminal to a command on the machine of its commands; returns its exit code.

        Raises:
            SlurmError: when it cannot be run.
        """
        from slurmkit.slurm import attach  # noqa: PLC0415 - few need it

        lend = getattr(self.slurm, "attach", attach)  # that of a border over SSH
        return int(lend(argv, environment or {}))

    def submit(
        self, plan: Plan, *, force: bool = False, beside: Beside = ALONE, again: str | None = None
    ) -> Job:
        """Send a plan, byte for byte, and return the handle of its job.

        A submission that comes after others is given the ids of those as a dependency. The parts
        of an array say in their comments what whole they are of, and the first stands for it.

        Args:
            plan: what `slurmkit.plan` made.
            force: send it in spite of errors; unsafe ones are never sent.
            beside: what joins the options of each of its submissions.
            again: id of the sweep whose points the plan runs again.

        Raises:
            BadInput: when the plan has errors.
            Refused: in the controller's words; what was sent of the plan before is cancelled.
        """
        if stopping := plan.unsafe if force else plan.errors:
            raise BadInput("; ".join(finding.message for finding in stopping))
        from slurmkit.secretfiles import forget, handed_over  # noqa: PLC0415 - few need it
        from slurmkit.sweeps.sending import Sending  # noqa: PLC0415 - only who submits

        jobs: list[Job] = []
        forget(self)
        sending = Sending(plan, self, again)
        try:
            with handed_over(plan.spec, self) as name:
                for submission in plan.submissions:
                    after = (jobs[at].id for at in submission.after)
                    given = beside.following(after, submission.order)
                    given = sending.beside(given, submission)
                    jobs.append(self._job(self.backend.submit(submission, given)))
                    name(jobs[-1].id)
                    sending.sent(submission, jobs[-1].id)
        except SlurmkitError as error:
            if jobs:
                raise self._taken_back(jobs, error) from error
            sending.forget()
            raise
        except KeyboardInterrupt:  # one may be on its way, and its id never be heard
            if known := {*(job.id for job in jobs), *sending.in_queue()}:
                self.backend.cancel(sorted(known))
            raise
        if sending.is_array:
            parts = (each.part for each in plan.submissions if each.part)
            offsets = (part.offset for part in parts)
            return self._array(dict(zip((job.id for job in jobs), offsets, strict=True)))
        return jobs[0] if len(jobs) == 1 else self._job(",".join(j.id for j in jobs), *jobs)

    def cancel(self, job_ids: Sequence[str], *, signal: str | None = None) -> dict[str, SlurmError]:
        """Cancel jobs together, or send them a signal; returns those it did not work for, and why.

        Args:
            job_ids: as for `job`, or `12_[4-9]` for tasks that wait together.
            signal: `USR1` for their steps, `B:USR1` for their batch shells.

        Raises:
            BadInput: for what is no job id or no signal.
        """
        from slurmkit.jobs.changes import check_signal  # noqa: PLC0415 - few need it

        ids = [check_part_id(job_id) for job_id in job_ids]
        failed = self.backend.cancel(ids, signal=signal and check_signal(signal))
        if signal is None:
            from slurmkit.secretfiles import forget  # noqa: PLC0415 - few need it

            forget(self, set(ids) - set(failed))
        return self.ended(failed)

    def ended(self, failed: Mapping[str, SlurmError]) -> dict[str, SlurmError]:
        """Say of jobs that slurmctld does not know any more, or not as running, how they ended.

        Args:
            failed: why it did not work, by job id; any other error stays as it is.
        """
        gone = [job_id for job_id, why in failed.items() if isinstance(why, NoSuchJob | JobOver)]
        if not gone:
            return dict(failed)
        from slurmkit.jobs.lookup import look_up_all  # noqa: PLC0415 - few need it

        try:
            infos = look_up_all(self.backend, self.slurm, gone)
        except SlurmError as unknown:
            unsure = {job_id for job_id in gone if isinstance(failed[job_id], NoSuchJob)}
            return {**failed, **dict.fromkeys(unsure, unknown)}
        return {
            **failed,
            **{job_id: _end(job_id, infos[job_id], failed[job_id]) for job_id in gone},
        }

    def _taken_back(self, jobs: list[Job], error: SlurmkitError) -> SlurmkitError:
        ids = [job.id for job in jobs]
        left = self.backend.cancel(ids)
        rest = f", but not {', '.join(left)}" if left else ""
        return type(error)(f"{error}; what was sent before ({', '.join(ids)}) is cancelled{rest}")

    def queue(self, only: QueueFilter | None = None, *, user: str | None = None) -> Queue:
        """Take a snapshot of the queue.

        Args:
            only: which jobs; everybody's by default.
            user: only this person's; short for a filter.

        Raises:
            BadInput: for an empty user name, which Slurm takes as everybody, and when the filter
                names what the cluster does not have.
        """
        if user is not None:
            only = QueueFilter(users=(user,))
        return self.backend.queue(only)

    def job(self, job_id: str) -> Job:
        """Make a handle to any job, known to Slurm or not.

        Raises:
            BadInput: when `job_id` does not have the form of one.
        """
        return self._job(check_job_id(job_id))

    def handle(self, job_id: str) -> Job:
        """As `job`, but Slurm is asked whether the id stands for an array in several of its own.

        Of such an array, `12` is the whole, and `12_1003` the task of that index in the whole,
        whatever number Slurm has for it.

        Raises:
            BadInput: when `job_id` does not have the form of one.
        """
        return self.handles([job_id])[0]

    def handles(self, job_ids: Sequence[str]) -> list[Job]:
        """As `handle`, for several; Slurm is asked about all of them together."""
        from slurmkit.sweeps.finding import wholes  # noqa: PLC0415 - only who names a job

        jobs = [self.job(job_id) for job_id in job_ids]
        found = wholes(self, (whole_id(job_id) for job_id in job_ids if "+" not in job_id))
        return [self._within(job, found.get(whole_id(job.id))) for job in jobs]

    def _within(self, job: Job, whole: Whole | None) -> Job:
        """What an id is in an array in several of Slurm's."""
        if whole is None or "+" in job.id:
            return job
        index = job.id.partition("_")[2]
        if not index:
            return self._array(whole.offsets)
        part = self._job(whole.part_of(int(index)))
        part.named = whole.named
        return part

    def _array(self, offsets: Mapping[str, int]) -> Job:
        """One array in several of Slurm's, by their ids."""
        from slurmkit.sweeps.finding import Whole  # noqa: PLC0415 - few need it

        first = next(iter(offsets))
        several = len(offsets) > 1
        job = self._job(first, *(map(self._job, offsets) if several else ()))
        job.named = Whole(first, offsets).named
        return job

    def submit_workflow(
        self, plan: WorkflowPlan, *, file: Path | None = None, force: bool = False
    ) -> SentWorkflow:
        """Send all jobs of a workflow: none starts before all are sent.

        Args:
            plan: what `slurmkit.plan_workflow` made.
            file: it was read from, to be read again when it is resumed.
            force: send jobs in spite of errors; unsafe ones are never sent.

        Raises:
            BadInput: when the plan has errors.
            SlurmkitError: when not all could be sent; the message says what became of the others.
        """
        from slurmkit.workflows.sent import submit_workflow  # noqa: PLC0415 - few need it

        return submit_workflow(self, plan, file=file, force=force)

    def workflow(self, word: str) -> SentWorkflow:
        """A workflow that was sent from here, by its token, or the last one sent of a name.

        Raises:
            BadInput: when there is none.
        """
        from slurmkit.workflows.sent import found  # noqa: PLC0415 - few need it

        return found(self, word)

    def _job(self, job_id: str, *parts: Job) -> Job:
        from slurmkit.jobs.job import Job  # noqa: PLC0415 - `slurmkit queue` starts without it

        return Job(job_id, self, parts)

    def capabilities(self, *, refresh: bool = False) -> Capabilities:
        """What the cluster is and has, as kept on disk for ten minutes; `taken` tells its age.

        Args:
            refresh: ask the cluster, whatever is kept.

        Raises:
            SlurmError: when slurmctld has to be asked and does not answer.
        """
        from slurmkit.capabilities.cache import load_capabilities  # noqa: PLC0415 - few need it

        return load_capabilities(self.slurm, refresh=refresh)

    def standing(self, user: str | None = None) -> Standing:
        """Where a user stands now: associations, limits and their use, QOS, reservations.

        Args:
            user: login name; who runs this by default.

        Raises:
            BadInput: for a name that cannot be one.
            SlurmError: when slurmctld does not answer.
        """
        from slurmkit.capabilities.standing import me, read_standing  # noqa: PLC0415

        return read_standing(self.slurm, me(self.slurm) if user is None else user)


def _end(job_id: str, info: JobInfo | None, error: SlurmError) -> SlurmError:
    if info is None:
        unknown = NoSuchJob(f"no job {job_id} in the queue or in the accounting database")
        return unknown if isinstance(error, NoSuchJob) else error
    return JobOver(f"job {job_id} has already ended ({info.state})") if info.is_over else error
