"""A Slurm cluster, and handles to the jobs submitted to it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slurmkit.backends.beside import ALONE, Beside
from slurmkit.backends.choice import DefaultBackend
from slurmkit.errors import BadInput, JobOver, NoSuchJob, SlurmError, SlurmkitError
from slurmkit.jobs.ids import check_job_id, check_part_id
from slurmkit.queue.snapshot import Queue, QueueFilter
from slurmkit.slurm import LocalSlurm, Slurm

if TYPE_CHECKING:
    from slurmkit.capabilities.model import Capabilities, Standing
    from slurmkit.jobs.info import JobInfo
    from slurmkit.jobs.job import Job
    from slurmkit.jobs.poller import Pace, Poller
    from slurmkit.planner import Plan
    from slurmkit.plugins import Backend

# One border for all clusters of this process, so that all their jobs are asked about together.
_LOCAL = LocalSlurm()
_POLLERS: dict[Slurm, Poller] = {}
_POLLERS_LOCK = threading.Lock()


class Cluster:
    """The cluster whose Slurm commands are on this machine's PATH.

    Args:
        slurm: the border to Slurm; `slurmkit.testing.FakeSlurm` in tests.
        backend: how jobs are submitted and controlled; by default Slurm's commands, and for
            submits what `[submit] backend` names.
        pace: how often Slurm is asked about jobs that are waited for; the site's by default.
    """

    def __init__(
        self,
        slurm: Slurm | None = None,
        backend: Backend | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.slurm: Slurm = slurm or _LOCAL
        self.backend: Backend = backend or DefaultBackend(self.slurm)
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

    def submit(self, plan: Plan, *, force: bool = False, beside: Beside = ALONE) -> Job:
        """Send a plan, byte for byte, and return the handle of its job.

        A submission that comes after others is given the ids of those as a dependency.

        Args:
            plan: what `slurmkit.plan` made.
            force: send it in spite of errors; unsafe ones are never sent.
            beside: what joins the options of each of its submissions.

        Raises:
            BadInput: when the plan has errors.
            Refused: in the controller's words; what was sent of the plan before is cancelled.
        """
        if stopping := plan.unsafe if force else plan.errors:
            raise BadInput("; ".join(finding.message for finding in stopping))
        from slurmkit.secretfiles import forget, handed_over  # noqa: PLC0415 - few need it

        jobs: list[Job] = []
        forget(self)
        try:
            with handed_over(plan.spec, self) as name:
                for submission in plan.submissions:
                    given = beside.following(jobs[at].id for at in submission.after)
                    jobs.append(self._job(self.backend.submit(submission, given)))
                    name(jobs[-1].id)
        except SlurmkitError as error:
            if jobs:
                raise self._taken_back(jobs, error) from error
            raise
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

        return read_standing(self.slurm, me() if user is None else user)


def _end(job_id: str, info: JobInfo | None, error: SlurmError) -> SlurmError:
    if info is None:
        unknown = NoSuchJob(f"no job {job_id} in the queue or in the accounting database")
        return unknown if isinstance(error, NoSuchJob) else error
    return JobOver(f"job {job_id} has already ended ({info.state})") if info.is_over else error
