"""The backend that every cluster has: Slurm's client commands."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from slurmkit.backends.beside import ALONE, Beside
from slurmkit.errors import BadInput, JobOver, NoSuchJob, Refused, SlurmError
from slurmkit.jobs.ids import batches, group
from slurmkit.queue.snapshot import Queue, QueueFilter, read_queue
from slurmkit.slurm import Slurm

if TYPE_CHECKING:
    from slurmkit.planner import Submission

_SUBMITTED = re.compile(r"(?P<id>\d+)(;\S+)?")  # `ID[;CLUSTER]`, sbatch(1) --parsable
# Slurm's own words on 22.05 to 26.05, where an exit code says less or nothing.
_NOT_CANCELLED = re.compile(r"Kill job error on job id (?P<id>[^\s:]+): (?P<why>[^;\n]+)")
# Of an array with tasks in several states: `12_0: …` or, on 26.05, `12_[0,3-5]: …`.
_OF_TASKS = re.compile(r"(?P<id>\d+_\[?[\d,\-]+\]?): (?P<why>[^;\n]+)")
_DONE, _WAITS = "No error", "Job is pending execution"
_OVER = ("Job has already finished", "Job/step already completing or completed")
_UNKNOWN = ("Invalid job id specified",)
_SETTINGS = {  # sbatch's long option to the name scontrol update has for it
    "job-name": "JobName",
    "nice": "Nice",
    "partition": "Partition",
    "priority": "Priority",
    "qos": "QOS",
    "time": "TimeLimit",
}


class CommandsBackend:
    """See `slurmkit.plugins.Backend`; the name of the plugin is `commands`."""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm

    def submit(self, submission: Submission, beside: Beside = ALONE) -> str:
        """See `Backend.submit`."""
        return job_id_in(self._slurm.run(command(submission, beside), stdin=submission.script))

    def cancel(
        self, job_ids: Sequence[str], *, signal: str | None = None
    ) -> Mapping[str, SlurmError]:
        """See `Backend.cancel`.

        scancel ends well for jobs that it does not know or that have ended, unless it is verbose;
        one that waits it asks to take a signal again and again for ten seconds.
        """
        waiting = self._waiting(job_ids) if signal else {}
        batch, _, name = (signal or "").rpartition(":")
        options = [f"--signal={name}"] if name else []
        options += ["--batch"] if batch else []
        failed: dict[str, SlurmError] = dict(waiting)
        for ids in batches(job_id for job_id in job_ids if job_id not in waiting):
            failed |= self._scancel(ids, options)
        return failed

    def hold(self, job_id: str) -> None:
        """See `Backend.hold`."""
        self._scontrol(job_id, "hold", job_id)

    def release(self, job_id: str) -> None:
        """See `Backend.release`."""
        self._scontrol(job_id, "release", job_id)

    def requeue(self, job_id: str) -> None:
        """See `Backend.requeue`."""
        self._scontrol(job_id, "requeue", job_id)

    def update(self, job_id: str, changes: Mapping[str, str]) -> None:
        """See `Backend.update`.

        Raises:
            BadInput: for what is not changed this way.
        """
        unknown = [name for name in changes if name not in _SETTINGS]
        if unknown or not changes:
            what = f"--{unknown[0]} of a job cannot be changed" if unknown else "nothing to change"
            raise BadInput(f"{what}; there are --{', --'.join(_SETTINGS)}")
        words = [f"{_SETTINGS[name]}={value}" for name, value in changes.items()]
        self._scontrol(job_id, "update", f"JobId={job_id}", *words)

    def queue(self, only: QueueFilter | None = None) -> Queue:
        """See `Backend.queue`; more ids than one command line takes are asked for in turn."""
        only = only or QueueFilter()
        if not only.job_ids:
            return read_queue(self._slurm, only)
        read = [
            self._of_jobs(msgspec.structs.replace(only, job_ids=tuple(ids)))
            for ids in batches(only.job_ids)
        ]
        rows = tuple(row for queue in read for row in queue.rows)
        return Queue(rows, read[0].taken, sum(queue.seconds for queue in read))

    def _of_jobs(self, only: QueueFilter) -> Queue:
        try:
            return read_queue(self._slurm, only)
        except NoSuchJob:  # only when it is asked for a single job
            return Queue((), time.time(), 0.0)

    def _waiting(self, job_ids: Iterable[str]) -> dict[str, SlurmError]:
        ids = tuple(job_ids)
        rows = group(ids, self.queue(QueueFilter(job_ids=ids)).rows)
        return {
            job_id: Refused(f"job {job_id} waits (PENDING); only a job that runs takes a signal")
            for job_id, own in rows.items()
            if own and all(row.waits for row in own)
        }

    def _scancel(self, job_ids: list[str], options: list[str]) -> dict[str, SlurmError]:
        try:
            said = self._slurm.run(["scancel", "--verbose", *options, *job_ids], errors=True)
        except (Refused, NoSuchJob) as error:
            said = str(error)
            if not _NOT_CANCELLED.search(said):
                raise
        why = {match["id"]: match["why"].strip() for match in _NOT_CANCELLED.finditer(said)}
        named = {job_id: why.get(job_id) or _of_tasks(job_id, why) for job_id in job_ids}
        return {job_id: _refusal(job_id, words) for job_id, words in named.items() if words}

    def _scontrol(self, job_id: str, *words: str) -> None:
        try:
            self._slurm.run(["scontrol", *words])
        except (Refused, NoSuchJob) as error:
            why = {match["id"]: match["why"].strip() for match in _OF_TASKS.finditer(str(error))}
            if not why:
                raise _refusal(job_id, str(error)) from error
            refusal = _of_some(why) or self._unless_live(job_id, why)
            if refusal is not None:
                raise refusal from error

    def _unless_live(self, job_id: str, why: Mapping[str, str]) -> SlurmError | None:
        """Of an array that has ended in part scontrol may name these tasks alone."""
        if _DONE in why.values() or self.queue(QueueFilter(job_ids=(job_id,))).rows:
            return None
        return JobOver(f"job {job_id} has already ended")


def job_id_in(said: str) -> str:
    """The id of the job in what sbatch answered.

    Raises:
        SlurmError: when there is none.
    """
    match = _SUBMITTED.fullmatch(said.strip())
    if match is None:
        raise SlurmError(f"sbatch answered {said!r} where a job id was expected")
    return match["id"]


def command(submission: Submission, beside: Beside = ALONE) -> list[str]:
    """The command that reads a submission's script from its standard input.

    Raises:
        BadInput: when its own dependency cannot be joined with that of `beside`.
    """
    over = beside.over(dict(submission.options)).items()
    return ["sbatch", "--parsable", *(f"--{name}={v}" if v else f"--{name}" for name, v in over)]


def _of_tasks(job_id: str, why: Mapping[str, str]) -> str | None:
    """With a signal, scancel names an array's tasks instead of the array."""
    return next((words for part, words in why.items() if part.startswith(f"{job_id}_")), None)


def _of_some(why: Mapping[str, str]) -> SlurmError | None:
    """What scontrol refused for tasks of an array that have not ended; those not named are done."""
    # A requeue leaves those that wait in the queue, where they are to be.
    fine = (_DONE, *_OVER, *((_WAITS,) if _DONE in why.values() else ()))
    wrong = [f"job {part}: {words}" for part, words in why.items() if words not in fine]
    return Refused(f"{'; '.join(wrong)}; what else it has is done") if wrong else None


def _refusal(job_id: str, words: str) -> SlurmError:
    if any(sign in words for sign in _OVER):
        return JobOver(f"job {job_id} has already ended")
    if any(sign in words for sign in _UNKNOWN):
        return NoSuchJob(f"no job {job_id} in the queue")
    return Refused(words if job_id in words else f"job {job_id}: {words}")
