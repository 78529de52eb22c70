"""The backend that works on every cluster: Slurm's client commands, and the sbatch argv."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from slurmkit.errors import (
    BadInput,
    JobOver,
    NoSuchJob,
    Refused,
    SentUnknown,
    SlurmError,
    SlurmkitError,
    SlurmTimeout,
)
from slurmkit.formats.job_ids import batch_job_ids, group_by_id, whole_id
from slurmkit.slurm.commands import ANSWER_LOST, SlurmCommands
from slurmkit.state.queue import Queue, QueueFilter, read_queue

if TYPE_CHECKING:
    from slurmkit.spec.submission import Submission

# A line `ID[;CLUSTER]`, sbatch(1) --parsable, or the one without that option. A site's wrapper
# around sbatch may print other lines too, or drop the option.
_SUBMITTED = re.compile(
    r"^\s*(?:Submitted batch job )?(?P<id>\d+)(?:;\S+| on cluster \S+)?\s*$",
    re.ASCII | re.MULTILINE,
)
# Messages of Slurm 22.05 to 26.05; the exit code says less or nothing.
_NOT_CANCELLED = re.compile(r"Kill job error on job id (?P<id>[^\s:]+): (?P<why>[^;\n]+)")
# An array with tasks in several states: `12_0: …`, or on 26.05 `12_[0,3-5]: …`.
_TASK_MESSAGE = re.compile(r"(?P<id>\d+_\[?[\d,\-]+\]?): (?P<why>[^;\n]+)")
_TASK_DONE, _TASK_PENDING = "No error", "Job is pending execution"
_ENDED_MESSAGES = ("Job has already finished", "Job/step already completing or completed")
_UNKNOWN_JOB_MESSAGES = ("Invalid job id specified",)
_UPDATE_KEYS = {  # sbatch's long option -> its name in `scontrol update`
    "job-name": "JobName",
    "nice": "Nice",
    "partition": "Partition",
    "priority": "Priority",
    "qos": "QOS",
    "time": "TimeLimit",
}


class SubmitOverrides(msgspec.Struct, frozen=True):
    """sbatch options added at submit time.

    Attributes:
        after: dependencies as sbatch(1) --dependency takes them (`afterok:7:8`, `afterany:9`). All
            of them must hold, and the job's own as well.
        hold: whether the job is submitted held.
        comment: text that follows the user's own comment.
    """

    after: tuple[str, ...] = ()
    hold: bool = False
    comment: str = ""

    def after_jobs(self, job_ids: Iterable[str], order: str = "afterok") -> SubmitOverrides:
        """Return these options with a dependency on more jobs; unchanged without job ids.

        Args:
            job_ids: the jobs to wait for.
            order: `afterok` if they must succeed, `afterany` if they must only end.
        """
        ids = ":".join(job_ids)
        return msgspec.structs.replace(self, after=(*self.after, f"{order}:{ids}")) if ids else self

    def with_comment(self, words: str) -> SubmitOverrides:
        """Return these options with `words` added to the comment."""
        comment = " ".join(filter(None, [self.comment, words]))
        return msgspec.structs.replace(self, comment=comment)

    def over(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options that change or are added; a flag has an empty value.

        Args:
            options: the script's own, as sbatch's long names without dashes.

        Raises:
            BadInput: when the job's own dependency cannot be joined with `after`.
        """
        changed = self._dependency(options)
        if self.hold:
            changed["hold"] = ""
        if self.comment:
            changed["comment"] = " ".join(filter(None, [options.get("comment"), self.comment]))
        return changed

    def _dependency(self, options: Mapping[str, str]) -> dict[str, str]:
        """Join `after` with the job's own dependency."""
        if not self.after:
            return {}
        own = options.get("dependency", "")
        if "?" in own:
            raise BadInput(
                f"--dependency={own} waits for any of several jobs, but this job must wait for"
                f" {', '.join(self.after)} too; write commas in place of each ?"
            )
        changed = {"dependency": ",".join(filter(None, [own, *self.after]))}
        if "kill-on-invalid-dep" not in options:
            # Otherwise a job whose predecessor failed would pend for ever.
            changed["kill-on-invalid-dep"] = "yes"
        return changed


NO_OVERRIDES = SubmitOverrides()


class CommandsBackend:
    """The backend that runs sbatch, scancel, scontrol and squeue; the plugin `commands`."""

    def __init__(self, slurm: SlurmCommands) -> None:
        self._slurm = slurm

    def submit(self, submission: Submission, overrides: SubmitOverrides = NO_OVERRIDES) -> str:
        argv = sbatch_command(submission, overrides)
        try:
            return parse_job_id(self._slurm.run(argv, stdin=submission.script))
        except SlurmError as error:
            return self._find_sent(submission, overrides, error)

    def cancel(
        self, job_ids: Sequence[str], *, signal: str | None = None
    ) -> Mapping[str, SlurmError]:
        """Cancel jobs, or send them a signal; return the failures by job id.

        scancel exits with 0 for unknown and ended jobs unless it is verbose, so it runs with
        --verbose. It retries a signal to a pending job for ten seconds, so pending jobs are
        refused here first.
        """
        waiting = self._waiting(job_ids) if signal else {}
        batch, _, name = (signal or "").rpartition(":")
        options = [f"--signal={name}"] if name else []
        options += ["--batch"] if batch else []
        failed: dict[str, SlurmError] = dict(waiting)
        for ids in batch_job_ids(job_id for job_id in job_ids if job_id not in waiting):
            failed |= self._scancel(ids, options)
        return failed

    def hold(self, job_id: str) -> None:
        self._scontrol(job_id, "hold", job_id)

    def release(self, job_id: str) -> None:
        self._scontrol(job_id, "release", job_id)

    def requeue(self, job_id: str) -> None:
        self._scontrol(job_id, "requeue", job_id)

    def update(self, job_id: str, changes: Mapping[str, str]) -> None:
        """Change a job with `scontrol update`.

        Raises:
            BadInput: for an option that cannot be changed.
        """
        unknown = [name for name in changes if name not in _UPDATE_KEYS]
        if unknown or not changes:
            what = f"--{unknown[0]} of a job cannot be changed" if unknown else "nothing to change"
            raise BadInput(f"{what}; options that can be changed: --{', --'.join(_UPDATE_KEYS)}")
        words = [f"{_UPDATE_KEYS[name]}={value}" for name, value in changes.items()]
        self._scontrol(job_id, "update", f"JobId={job_id}", *words)

    def queue(self, only: QueueFilter | None = None) -> Queue:
        """Take a snapshot of the queue, with several squeue calls if one cannot take all ids."""
        only = only or QueueFilter()
        if not only.job_ids:
            return read_queue(self._slurm, only)
        queues: list[Queue] = []
        for ids in batch_job_ids(only.job_ids):
            try:
                part = msgspec.structs.replace(only, job_ids=tuple(ids))
                queues.append(read_queue(self._slurm, part))
            except NoSuchJob:  # squeue fails only when it is asked for a single job
                queues.append(Queue((), time.time(), 0.0))
        rows = tuple(row for queue in queues for row in queue.rows)
        return Queue(rows, queues[0].taken, sum(queue.seconds for queue in queues))

    def _find_sent(
        self, submission: Submission, overrides: SubmitOverrides, error: SlurmError
    ) -> str:
        """Return the id of a job that is in the queue although its submit ended with an error.

        The tag of an array or a workflow tells its jobs apart. Without one nothing does for sure.

        Raises:
            SentUnknown: when the job may be in the queue, and is not found.
            SlurmError: the error itself, if slurmctld has refused the job or never got it.
        """
        if not is_answer_lost(error):
            raise error
        name = dict(submission.options).get("job-name", "")
        tag = overrides.comment.rpartition(" ")[2]
        own = ""
        with suppress(SlurmError):
            rows = read_queue(self._slurm, QueueFilter(me=True)).rows
            if tag.startswith("slurmkit"):
                for row in rows:
                    if tag in row.comment.split():
                        return whole_id(row.job_id)
            alike = dict.fromkeys(whole_id(row.job_id) for row in rows if row.name == name)
            own = f"; your jobs of that name: {', '.join(alike)}" if alike else ""
        raise SentUnknown(
            f"the job {name or 'that was sent'} may have been submitted ({error}){own}; look before"
            " you submit it again: slurmkit queue --me"
        ) from error

    def _waiting(self, job_ids: Iterable[str]) -> dict[str, SlurmError]:
        """Return an error for each pending job: it cannot take a signal."""
        ids = tuple(job_ids)
        rows = group_by_id(ids, self.queue(QueueFilter(job_ids=ids)).rows)
        return {
            job_id: Refused(f"job {job_id} is PENDING; only a running job can take a signal")
            for job_id, own in rows.items()
            if own and all(row.waits for row in own)
        }

    def _scancel(self, job_ids: list[str], options: list[str]) -> dict[str, SlurmError]:
        """Run scancel, and return the jobs it failed for."""
        try:
            output = self._slurm.run(["scancel", "--verbose", *options, *job_ids], errors=True)
        except (Refused, NoSuchJob) as error:
            output = str(error)
            if not _NOT_CANCELLED.search(output):
                raise
        why = {match["id"]: match["why"].strip() for match in _NOT_CANCELLED.finditer(output)}
        named = {job_id: why.get(job_id) or _task_error(job_id, why) for job_id in job_ids}
        return {
            job_id: _error_from_message(job_id, words) for job_id, words in named.items() if words
        }

    def _scontrol(self, job_id: str, *words: str) -> None:
        """Run scontrol on a job; for an array, judge what it says of each task."""
        try:
            self._slurm.run(["scontrol", *words])
        except (Refused, NoSuchJob) as error:
            why = {
                match["id"]: match["why"].strip() for match in _TASK_MESSAGE.finditer(str(error))
            }
            if not why:
                raise _error_from_message(job_id, str(error)) from error
            refusal = _tasks_refusal(why) or self._unless_live(job_id, why)
            if refusal is not None:
                raise refusal from error

    def _unless_live(self, job_id: str, why: Mapping[str, str]) -> SlurmError | None:
        """Return JobOver if no task of the array is left; scontrol may name only ended tasks."""
        if _TASK_DONE in why.values() or self.queue(QueueFilter(job_ids=(job_id,))).rows:
            return None
        return JobOver(f"job {job_id} has already ended")


def parse_job_id(output: str) -> str:
    """Parse the job id in the output of `sbatch --parsable`.

    Raises:
        SentUnknown: when there is none, or more than one: sbatch has done something.
    """
    ids = {match["id"] for match in _SUBMITTED.finditer(output)}
    if len(ids) != 1:
        raise SentUnknown(f"sbatch printed {output!r} in place of a job id")
    return ids.pop()


def is_answer_lost(error: SlurmkitError) -> bool:
    """Tell whether a submit that ended with this error may have put its job into the queue."""
    if isinstance(error, SlurmTimeout | SentUnknown):
        return True
    return isinstance(error, SlurmError) and any(sign in str(error) for sign in ANSWER_LOST)


def sbatch_command(submission: Submission, overrides: SubmitOverrides = NO_OVERRIDES) -> list[str]:
    """Return the sbatch argv of a submission; sbatch reads the script from standard input.

    Raises:
        BadInput: when the job's own dependency cannot be joined with the one in `overrides`.
    """
    over = overrides.over(dict(submission.options)).items()
    return ["sbatch", "--parsable", *(f"--{name}={v}" if v else f"--{name}" for name, v in over)]


def _task_error(job_id: str, why: Mapping[str, str]) -> str | None:
    """Return the error of an array's task; with a signal, scancel names tasks, not the array."""
    return next((words for part, words in why.items() if part.startswith(f"{job_id}_")), None)


def _tasks_refusal(why: Mapping[str, str]) -> SlurmError | None:
    """Return what scontrol refused for some tasks; for tasks it does not name it succeeded."""
    # Pending tasks stay in the queue at a requeue, as they should.
    fine = (_TASK_DONE, *_ENDED_MESSAGES, *((_TASK_PENDING,) if _TASK_DONE in why.values() else ()))
    wrong = [f"job {part}: {words}" for part, words in why.items() if words not in fine]
    return Refused(f"{'; '.join(wrong)}; its other tasks are done") if wrong else None


def _error_from_message(job_id: str, words: str) -> SlurmError:
    """Translate Slurm's message about a job to an error."""
    if any(sign in words for sign in _ENDED_MESSAGES):
        return JobOver(f"job {job_id} has already ended")
    if any(sign in words for sign in _UNKNOWN_JOB_MESSAGES):
        return NoSuchJob(f"no job {job_id} in the queue")
    return Refused(words if job_id in words else f"job {job_id}: {words}")
