"""A Slurm cluster, and handles to the jobs submitted to it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from slurmkit import sacct
from slurmkit.errors import BadInput, DatabaseDown, NoSuchJob, Refused, SlurmError
from slurmkit.jobids import check_job_id, one_part
from slurmkit.jobinfo import JobInfo, from_queue, output_path, parse_gpu_indices
from slurmkit.log import follow
from slurmkit.queue import Queue, QueueFilter, QueueRow, read_queue
from slurmkit.slurm import LocalSlurm, Slurm

if TYPE_CHECKING:
    from slurmkit.capabilities.model import Capabilities, Standing
    from slurmkit.planner import Plan

_SUBMITTED = re.compile(r"(?P<id>\d+)(;\S+)?")  # `ID[;CLUSTER]`, sbatch(1) --parsable
_POLL_SECONDS = 2.0


class Cluster:
    """The cluster whose Slurm commands are on this machine's PATH.

    Args:
        slurm: the border to Slurm; `slurmkit.testing.FakeSlurm` in tests.
    """

    def __init__(self, slurm: Slurm | None = None) -> None:
        self.slurm: Slurm = slurm or LocalSlurm()

    def submit(self, plan: Plan) -> Job:
        """Send a plan, byte for byte, and return the handle of its job.

        Raises:
            Refused: in the controller's words.
        """
        (submission,) = plan.submissions
        said = self.slurm.run(["sbatch", "--parsable"], stdin=submission.script).strip()
        match = _SUBMITTED.fullmatch(said)
        if match is None:
            raise SlurmError(f"sbatch answered {said!r} where a job id was expected")
        return Job(match["id"], self)

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
        return read_queue(self.slurm, only)

    def job(self, job_id: str) -> Job:
        """Make a handle to any job, known to Slurm or not.

        Raises:
            BadInput: when `job_id` does not have the form of one.
        """
        return Job(check_job_id(job_id), self)

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


class Job:
    """A handle to one Slurm job."""

    def __init__(self, job_id: str, cluster: Cluster) -> None:
        self.id = job_id
        self._slurm = cluster.slurm

    def info(self) -> JobInfo:
        """Look the job up: in the queue, and once it has ended in the accounting database.

        Raises:
            NoSuchJob: when neither knows it.
            BadInput: when the id is that of an array with several tasks.
        """
        row = one_part(self.id, self._rows())
        if row is not None and not row.ended:
            return from_queue(row, self._gpu_indices(row))
        past = self._past(required=row is None)
        if row is None:
            if past is None:
                raise NoSuchJob(f"no job {self.id} in the queue or in the accounting database")
            return past
        if past is None or not past.is_over:  # slurmdbd lags behind
            return from_queue(row, {})
        return msgspec.structs.replace(past, output=output_path(row))

    def cancel(self) -> None:
        """Cancel the job, or all tasks of an array that have not ended.

        Raises:
            NoSuchJob: when Slurm does not know it.
            Refused: when it has already ended, or Slurm does not allow it.
        """
        rows = self._rows()
        if all(row.ended for row in rows):
            state = rows[0].state if rows else self.info().state
            raise Refused(f"job {self.id} has already ended ({state})")
        self._slurm.run(["scancel", self.id])

    def wait(self) -> JobInfo:
        """Block until the job has ended and return its last facts."""
        while not (info := self.info()).is_over:
            time.sleep(_POLL_SECONDS)
        return info

    def output_path(self, info: JobInfo) -> str | None:
        """Where the job's output goes, or None when Slurm does not say."""
        return info.output or sacct.output_path(self._slurm, info)

    def log(
        self, *, until_over: bool = False, notice: Callable[[str], None] = lambda _: None
    ) -> Iterator[bytes]:
        """Yield the job's output as it was written.

        Args:
            until_over: go on with what is added until the job has ended.
            notice: told in words that the job waits, or writes anew after a requeue.

        Raises:
            LogUnavailable: when the path is unknown or cannot be read.
        """
        return follow(self, until_over=until_over, notice=notice)

    def _rows(self) -> tuple[QueueRow, ...]:
        try:
            return read_queue(self._slurm, job_ids=[self.id], ended=True).rows
        except NoSuchJob:
            return ()

    def _past(self, *, required: bool) -> JobInfo | None:
        try:
            return sacct.newest_run(self._slurm, self.id)
        except DatabaseDown:
            if required:
                raise
            return None

    def _gpu_indices(self, row: QueueRow) -> dict[str, list[int]]:
        if not row.gpus or not row.node_list:
            return {}
        try:
            text = self._slurm.run(["scontrol", "show", "job", "--details", row.job_id])
        except NoSuchJob:
            return {}
        return parse_gpu_indices(text, row.node_list)
