"""A Slurm cluster: submit and cancel jobs, read the queue, get handles of jobs.

Its commands run on this machine, or over SSH on its login node.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slurmkit.config.extras import missing_extra
from slurmkit.config.files import default_cluster_name, load_section
from slurmkit.errors import BadInput, JobOver, NoSuchJob, SlurmError
from slurmkit.formats.job_ids import check_job_id, check_part_id, whole_id
from slurmkit.jobs.backends.choice import DefaultBackend
from slurmkit.jobs.backends.commands import NO_OVERRIDES, SubmitOverrides
from slurmkit.slurm.commands import LocalSlurmCommands, SlurmCommands, run_in_terminal
from slurmkit.state.arrays import SplitArray
from slurmkit.state.queue import Queue, QueueFilter

if TYPE_CHECKING:
    from pathlib import Path

    from slurmkit.cluster.workflow import SentWorkflow
    from slurmkit.cluster.workflow_plan import WorkflowPlan
    from slurmkit.jobs.backends.commands import CommandsBackend
    from slurmkit.jobs.backends.protocol import Backend
    from slurmkit.jobs.info import JobInfo
    from slurmkit.jobs.job import Job
    from slurmkit.jobs.poller import Poller, PollPace
    from slurmkit.planning.planner import Plan
    from slurmkit.slurm.ssh.login import SshSlurmCommands
    from slurmkit.spec.findings import Finding
    from slurmkit.spec.jobspec import JobSpec
    from slurmkit.state.model import Capabilities, Standing

# Shared by all clusters of this process, so that one query reads the states of all their jobs.
_LOCAL = LocalSlurmCommands()
_POLLERS: dict[SlurmCommands, Poller] = {}
_POLLERS_LOCK = threading.Lock()


class PlanRefused(BadInput):
    """A plan that was not sent because it has errors.

    Attributes:
        findings: these errors, each with the nearest request that passes.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(finding.message for finding in findings))
        self.findings = tuple(findings)


class Cluster:
    """A cluster whose Slurm commands are on this machine's PATH, or one used over SSH.

    Args:
        slurm: a name from the configuration (`[clusters.NAME]`), or an object that runs Slurm's
            commands: `slurmkit.testing.FakeSlurm` in tests. The default is the cluster that
            `slurmkit --cluster` or SLURMKIT_CLUSTER names, else the cluster of this machine.
        backend: submits and controls jobs; by default through Slurm's commands, and submits
            through the backend that `[submit] backend` names.
        pace: how often Slurm is asked about jobs that someone waits for; by default the site's.
    """

    def __init__(
        self,
        slurm: SlurmCommands | str | None = None,
        backend: Backend | None = None,
        pace: PollPace | None = None,
    ) -> None:
        self.slurm: SlurmCommands
        name = slurm if isinstance(slurm, str) else default_cluster_name() if slurm is None else ""
        if name:
            self.slurm, over_ssh = _over_ssh(name)
            self.backend: Backend = backend or over_ssh
        else:
            self.slurm = _LOCAL if slurm is None or isinstance(slurm, str) else slurm
            self.backend = backend or DefaultBackend(self.slurm)
        self.name = name
        self._pace = pace

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the cluster's name; the process that unpickles it connects again.

        Raises:
            TypeError: for a cluster with its own object to run Slurm's commands.
        """
        if not self.name and self.slurm is not _LOCAL:
            raise TypeError("a Cluster made with its own `slurm` object cannot be pickled")
        return Cluster, (self.name, None, self._pace)

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same cluster, reached in the same way."""
        return isinstance(other, Cluster) and self.slurm is other.slurm

    def __hash__(self) -> int:
        return hash(self.slurm)

    @property
    def poller(self) -> Poller:
        """The poller that asks about all jobs this process waits for on this cluster."""
        from slurmkit.jobs.poller import Poller, PollPace, PollSection

        with _POLLERS_LOCK:
            if self.slurm not in _POLLERS:
                pace = self._pace or PollPace(floor=load_section("poll", PollSection).floor_seconds)
                _POLLERS[self.slurm] = Poller(self.backend, self.slurm, pace)
            return _POLLERS[self.slurm]

    def attach(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Run a command in this terminal, where Slurm's commands run; return its exit code.

        Raises:
            SlurmError: when the command cannot be run.
        """
        lend = getattr(self.slurm, "attach", run_in_terminal)  # a cluster over SSH has its own
        return int(lend(argv, environment or {}))

    def run(self, spec: JobSpec, *, force: bool = False) -> Job:
        """Plan a job and send it: `plan` and `submit` in one.

        `plan` also shows the script, warnings, cost and start before anything is sent.

        Args:
            spec: the job.
            force: send it although the plan has errors; unsafe errors always stop it.

        Raises:
            PlanRefused: when the plan has errors; `findings` lists them.
            BadInput: when the spec cannot be rendered at all.
            SlurmError: when Slurm does not answer or refuses the job.
        """
        from slurmkit.planning.planner import plan

        return self.submit(plan(spec, self), force=force)

    def submit(
        self,
        plan: Plan,
        *,
        force: bool = False,
        overrides: SubmitOverrides = NO_OVERRIDES,
        again: str | None = None,
    ) -> Job:
        """Send a plan, byte for byte, and return the handle of its job.

        A submission that follows others gets their ids as a dependency. If Slurm needs several
        arrays for one, a tag in their comments says so, and the id of the first is the job's id.

        Args:
            plan: what `slurmkit.planning.planner.plan` made.
            force: send it although it has errors; a plan with unsafe errors is never sent.
            overrides: sbatch options added to each submission.
            again: id of the sweep whose points the plan runs again.

        Raises:
            PlanRefused: when the plan has errors.
            Refused: with Slurm's message; parts of the plan already sent are cancelled.
        """
        from slurmkit.cluster.send import send_plan

        if stopping := plan.unsafe if force else plan.errors:
            raise PlanRefused(stopping)
        job_ids, offsets = send_plan(self, plan, overrides, again)
        return self._array(offsets) if offsets else self._joined(job_ids)

    def _joined(self, job_ids: Sequence[str]) -> Job:
        """Return the handle of one job, or of several jobs that count as one."""
        jobs = [self._job(job_id) for job_id in job_ids]
        return jobs[0] if len(jobs) == 1 else self._job(",".join(job_ids), *jobs)

    def cancel(self, job_ids: Sequence[str], *, signal: str | None = None) -> dict[str, SlurmError]:
        """Cancel jobs with one command, or send them a signal; return the failures by job id.

        Args:
            job_ids: as for `job`, or `12_[4-9]` for pending tasks.
            signal: `USR1` for their steps, `B:USR1` for their batch shells.

        Raises:
            BadInput: for a malformed job id or an unknown signal.
        """
        from slurmkit.jobs.job import check_signal, explain_denial

        ids = [check_part_id(job_id) for job_id in job_ids]
        failed = self.backend.cancel(ids, signal=signal and check_signal(signal))
        if signal is None:
            from slurmkit.cluster.send import remove_secrets

            remove_secrets(self, set(ids) - set(failed))
        return self.ended({job_id: explain_denial(why) for job_id, why in failed.items()})

    def ended(self, failed: Mapping[str, SlurmError]) -> dict[str, SlurmError]:
        """Replace errors about jobs that are over by errors that say how these jobs ended.

        Args:
            failed: errors by job id; those that are neither `NoSuchJob` nor `JobOver` stay.
        """
        gone = [job_id for job_id, why in failed.items() if isinstance(why, NoSuchJob | JobOver)]
        if not gone:
            return dict(failed)
        from slurmkit.jobs.lookup import read_jobs

        try:
            infos = read_jobs(self.backend, self.slurm, gone)
        except SlurmError as unknown:
            unsure = {job_id for job_id in gone if isinstance(failed[job_id], NoSuchJob)}
            return {**failed, **dict.fromkeys(unsure, unknown)}
        return {
            **failed,
            **{job_id: _end(job_id, infos[job_id], failed[job_id]) for job_id in gone},
        }

    def queue(self, only: QueueFilter | None = None, *, user: str | None = None) -> Queue:
        """Take a snapshot of the queue.

        Args:
            only: which jobs; all jobs of all users by default.
            user: only jobs of this user; instead of a filter.

        Raises:
            BadInput: for an empty user name, which Slurm takes as everybody, and for a filter
                that names e.g. a partition that the cluster does not have.
        """
        if user is not None:
            only = QueueFilter(users=(user,))
        return self.backend.queue(only)

    def job(self, job_id: str) -> Job:
        """Return a handle for a job id without asking Slurm about it.

        Raises:
            BadInput: when `job_id` does not have the form of a job id.
        """
        return self._job(check_job_id(job_id))

    def handle(self, job_id: str) -> Job:
        """Return a handle as `job` does, also for an array that Slurm holds as several arrays.

        Slurm is asked whether it does. `12` is then the whole array, and `12_1003` its task of
        that index, whatever id Slurm has for the task.

        Raises:
            BadInput: when `job_id` does not have the form of a job id.
        """
        return self.handles([job_id])[0]

    def handles(self, job_ids: Sequence[str]) -> list[Job]:
        """Return handles as `handle` does, with one query for all of them."""
        from slurmkit.cluster.sweeps import find_split_arrays

        jobs = [self.job(job_id) for job_id in job_ids]
        found = find_split_arrays(
            self, (whole_id(job_id) for job_id in job_ids if "+" not in job_id)
        )
        return [self._within(job, found.get(whole_id(job.id))) for job in jobs]

    def _within(self, job: Job, whole: SplitArray | None) -> Job:
        """Return the job that an id means in an array that Slurm holds as several arrays."""
        if whole is None or "+" in job.id:
            return job
        index = job.id.partition("_")[2]
        if not index:
            return self._array(whole.offsets)
        part = self._job(whole.part_of(int(index)))
        part.named = whole.named
        return part

    def _array(self, offsets: Mapping[str, int]) -> Job:
        """Return the handle of an array whose Slurm arrays have these ids and index offsets."""
        first = next(iter(offsets))
        several = len(offsets) > 1
        job = self._job(first, *(map(self._job, offsets) if several else ()))
        job.named = SplitArray(first, offsets).named
        return job

    def submit_workflow(
        self, plan: WorkflowPlan, *, file: Path | None = None, force: bool = False
    ) -> SentWorkflow:
        """Send all jobs of a workflow; none starts before all are sent.

        Args:
            plan: what `slurmkit.cluster.workflow_plan.plan_workflow` made.
            file: the workflow's file, read again when the workflow is resumed.
            force: send jobs although they have errors; unsafe ones are never sent.

        Raises:
            BadInput: when the plan has errors.
            SlurmkitError: when a job could not be sent; it says what happened to the others.
        """
        from slurmkit.cluster.workflow import submit_workflow

        return submit_workflow(self, plan, file=file, force=force)

    def workflow(self, word: str) -> SentWorkflow:
        """Return a workflow that was sent from here: by its token, or the latest of a name.

        Raises:
            BadInput: when there is none.
        """
        from slurmkit.cluster.workflow import find_workflow

        return find_workflow(self, word)

    def _job(self, job_id: str, *parts: Job) -> Job:
        from slurmkit.jobs.job import Job

        return Job(job_id, self, parts)

    def capabilities(self, *, refresh: bool = False) -> Capabilities:
        """Return what the cluster is and has; cached on disk for ten minutes (see `taken`).

        Args:
            refresh: ask the cluster even if the cache is fresh.

        Raises:
            SlurmError: when slurmctld has to be asked and does not answer.
        """
        from slurmkit.state.cache import load_capabilities

        return load_capabilities(self.slurm, refresh=refresh)

    def standing(self, user: str | None = None) -> Standing:
        """Read what a user may use now: associations, limits and their use, QOS, reservations.

        Args:
            user: login name; by default the user who runs this.

        Raises:
            BadInput: for a malformed login name.
            SlurmError: when slurmctld does not answer.
        """
        from slurmkit.state.associations import current_user, read_standing

        return read_standing(self.slurm, current_user(self.slurm) if user is None else user)


def _end(job_id: str, info: JobInfo | None, error: SlurmError) -> SlurmError:
    if info is None:
        unknown = NoSuchJob(f"no job {job_id} in the queue or in the accounting database")
        return unknown if isinstance(error, NoSuchJob) else error
    return JobOver(f"job {job_id} has already ended ({info.state})") if info.is_over else error


def _over_ssh(name: str) -> tuple[SshSlurmCommands, CommandsBackend]:
    """Return the Slurm commands and the backend of a configured cluster, without connecting.

    Raises:
        BadInput: when there is none of that name.
        MissingExtra: when paramiko is not installed.
    """
    try:
        from slurmkit.jobs.backends.ssh import ssh_slurm_and_backend
    except ModuleNotFoundError as error:
        if error.name != "paramiko":
            raise
        raise missing_extra("paramiko", "ssh", "a cluster over SSH") from error
    return ssh_slurm_and_backend(name)
