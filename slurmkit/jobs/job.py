"""The `Job` handle: look a job up, wait for it, read its output, change or cancel it.

A rehearsal sends the signal that a job with `--survive` gets before its time limit or preemption.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from slurmkit.errors import BadInput, JobOver, LogUnavailable, NoSuchJob, Refused, SlurmError
from slurmkit.formats.display import printable
from slurmkit.formats.durations import parse_time_limit
from slurmkit.formats.job_ids import whole_id
from slurmkit.formats.tres import gpu_count
from slurmkit.jobs.describe import format_state, format_state_counts
from slurmkit.jobs.info import UNKNOWN, JobInfo, parse_gpu_indices
from slurmkit.jobs.log import JobLog, LogFile, LogRequest, find_log_path, read_log_once
from slurmkit.jobs.log import follow_job_log as follow_log
from slurmkit.jobs.lookup import read_batch_script, read_job, summarize_parts
from slurmkit.jobs.outcome import Outcome, OutcomeEvidence, judge_outcome, read_outcome
from slurmkit.jobs.poller import settle_watched_codes
from slurmkit.jobs.run_history import RunRecord, read_history
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.spec.option_values import OPTION_FORMS, check_text
from slurmkit.spec.survival import SURVIVAL_LINE
from slurmkit.state.arrays import replace_task_ids

if TYPE_CHECKING:
    from slurmkit.jobs.backends.protocol import Backend
    from slurmkit.jobs.poller import Poller, WatchedJob
    from slurmkit.state.model import Capabilities


_NOT_ALLOWED = ("denied", "Invalid user id")  # 22.05 says the second of other people's jobs
_SIGNALS = {one.name.removeprefix("SIG") for one in signal.Signals}
_OPTIONS = {
    "time_limit": "time",
    "priority": "priority",
    "partition": "partition",
    "qos": "qos",
    "job_name": "job-name",
    "nice": "nice",
}
_QUIET_SECONDS = 5.0  # a wait that is shorter shows no progress
REHEARSALS = {"timeout": "B:USR1", "preempt": "B:USR2"}
"""Ending to the signal that `scancel` sends to the batch shell."""


def _no_notice(words: str) -> None:
    del words


def _no_progress(known: Mapping[str, WatchedJob]) -> None:
    del known


class JobCluster(Protocol):
    """The part of a `Cluster` that one of its jobs uses."""

    @property
    def slurm(self) -> SlurmCommands:
        """The runner of Slurm's commands."""
        ...

    @property
    def backend(self) -> Backend:
        """The backend that controls jobs."""
        ...

    @property
    def poller(self) -> Poller:
        """The poller of all jobs that this process waits for."""
        ...

    def capabilities(self, *, refresh: bool = False) -> Capabilities:
        """Return what the cluster is and has; see `Cluster.capabilities`."""
        ...

    def job(self, job_id: str) -> Job:
        """Return the handle of a job; see `Cluster.job`."""
        ...

    def cancel(self, job_ids: Sequence[str], *, signal: str | None = None) -> dict[str, SlurmError]:
        """Cancel or signal jobs; see `Cluster.cancel`."""
        ...

    def ended(self, failed: Mapping[str, SlurmError]) -> dict[str, SlurmError]:
        """Say how jobs ended that slurmctld no longer knows; see `Cluster.ended`."""
        ...


class Job:
    """A handle to a Slurm job, an array or a het job. Slurm need not know the job.

    A plan of several submissions is one job too: its id lists all ids and `parts` holds the jobs.
    A user's array that is split into several Slurm arrays has the id of the first one.

    Attributes:
        id: `12`, `12_3` (an array task), `12+1` (a het component), or `12,13` (a plan).
        cluster: the cluster the job is on.
        named: turns a Slurm id of a split array into the id that its user knows.
    """

    def __init__(self, job_id: str, cluster: JobCluster, parts: tuple[Job, ...] = ()) -> None:
        self.id = job_id
        self.cluster = cluster
        self.named: Callable[[str], str] = str
        self._parts = parts
        self._last: JobInfo | None = None

    def __repr__(self) -> str:
        """Return the id alone: anything else would have to be asked from Slurm."""
        return f"Job({self.id!r})"

    @property
    def parts(self) -> tuple[Job, ...]:
        """Slurm jobs that this job consists of; the job itself when it is a single one."""
        return self._parts or (self,)

    @property
    def state(self) -> str:
        """Current state in Slurm's word, e.g. RUNNING."""
        return self.info().state

    def info(self) -> JobInfo:
        """Read the job from the queue, or from the accounting database once it has ended.

        Raises:
            NoSuchJob: when neither knows it.
        """
        if self._parts:
            return summarize_parts(self.id, {part.id: part.info() for part in self._parts})
        info = read_job(self.cluster.backend, self.cluster.slurm, self.id)
        return msgspec.structs.replace(info, gpu_indices=self._gpu_indices(info))

    def wait(
        self,
        timeout: float | None = None,
        *,
        progress: bool | None = None,
        notice: Callable[[str], None] = _no_notice,
    ) -> JobInfo:
        """Block until the job has ended and return its last facts.

        Args:
            timeout: seconds to wait; for ever by default.
            progress: after some seconds write on standard error what the job waits for, and each
                change; by default only if that is a terminal.
            notice: called with a message when Slurm does not answer; polling goes on.

        Raises:
            NotOver: when the timeout ends first; the job goes on.
            NoSuchJob: when neither slurmctld nor slurmdbd knows it.
        """
        ids = [part.id for part in self.parts]
        shows = sys.stderr.isatty() if progress is None else progress
        show = self._progress() if shows else _no_progress
        with self.cluster.poller.watch(ids) as watch:
            last_trouble: str | None = None
            for known in watch.changes(timeout, every=_QUIET_SECONDS if shows else None):
                show(known)
                if watch.trouble and watch.trouble != last_trouble:
                    notice(f"{watch.trouble}; asking again")
                last_trouble = watch.trouble
            known = watch.known
        return self.take_end(settle_watched_codes(self.cluster.slurm, known))

    def take_end(self, known: Mapping[str, WatchedJob]) -> JobInfo:
        """Return the last facts of this job from what a poller knows of its ended parts.

        Raises:
            SlurmkitError: the error for which a part could not be watched.
        """
        watched = {part.id: known[part.id] for part in self.parts}
        for one in watched.values():
            if one.error is not None:
                raise one.error
        infos = {job_id: one.info for job_id, one in watched.items() if one.info}
        self._last = summarize_parts(self.id, infos) if self._parts else infos[self.id]
        return self._last

    def _progress(self) -> Callable[[Mapping[str, WatchedJob]], None]:
        """Return a function that writes the job's state when it has changed."""
        begin, last = time.monotonic(), ""

        def show(known: Mapping[str, WatchedJob]) -> None:
            nonlocal last
            infos = {job_id: one.info for job_id, one in known.items() if one.info}
            over = all(one.settled for one in known.values())
            if over or not infos or time.monotonic() - begin < _QUIET_SECONDS:
                return
            info = summarize_parts(self.id, infos) if self._parts else infos[self.id]
            words = format_state_counts(info.tally) or format_state(info.state, info.reason)
            if words != last:
                print(printable(f"job {self.id}: {words}"), file=sys.stderr, flush=True)
                last = words

        return show

    def outcome(self) -> Outcome:
        """Return how the job ended; for an array, het job or plan the worst part and a tally.

        Raises:
            NotOver: while it has not ended.
            NoSuchJob: when neither slurmctld nor slurmdbd knows it.
        """
        if self._parts:
            worst = _worst_of(self.id, [part.outcome() for part in self._parts])
            return msgspec.structs.replace(worst, words=replace_task_ids(worst.words, self.named))
        try:
            return read_outcome(self.cluster.backend, self.cluster.slurm, self.id)
        except NoSuchJob:
            if self._last is None or self._last.state != UNKNOWN:
                raise
            return judge_outcome(self._last, OutcomeEvidence())

    def restarts(self) -> tuple[RunRecord, ...]:
        """Return the ended runs of a job sent with `--survive`; empty for any other job."""
        return read_history(self.cluster.slurm, self.id)

    def interrupt(self, ending: str) -> None:
        """Rehearse `timeout` or `preempt` on a running job that was sent with `--survive`.

        Raises:
            BadInput: for an unknown ending, or a job that the signal would end.
            NoSuchJob: when Slurm does not know it; also JobOver and Refused, as `cancel`.
        """
        for part in self.parts:
            check_rehearsal(self.cluster.slurm, part.id, ending)
        self.cancel(signal=REHEARSALS[ending])

    def log(
        self,
        *,
        follow: bool = False,
        lines: int | None = None,
        file: LogFile | None = None,
        notice: Callable[[str], None] = _no_notice,
    ) -> JobLog:
        """Return the job's output: an iterator of bytes, whose `text()` is all of it.

        A het job, or one of its components, has the output of its first component: the batch
        script runs there.

        Args:
            follow: also yield new output, across requeues, until the job has ended.
            lines: begin with the last so many lines of the file; all by default.
            file: which of the job's files; its standard output by default.
            notice: called with a message when the job waits, or rewrites its file.

        Raises:
            BadInput: for an array or a plan, whose parts each have a file of their own.
            LogUnavailable: when the path is unknown or cannot be read.
        """
        ask = LogRequest(file or LogFile(), lines, notice)
        slurm, info = self.cluster.slurm, self._writer_info(ask.file)
        if follow:
            return JobLog(follow_log(slurm, self.cluster.poller, info, ask))
        return JobLog(read_log_once(slurm, info, ask))

    def log_path(self, file: LogFile | None = None) -> str | None:
        """Return the path of that file with its patterns filled in; None while unknown.

        Raises:
            LogUnavailable: when Slurm no longer knows it, or each part has its own file.
        """
        info = self._writer_info(file or LogFile())
        if info.part:
            raise LogUnavailable(
                f"each part of {self.id} has its own file; name a part, e.g. {info.part}"
            )
        return find_log_path(self.cluster.slurm, info, file or LogFile())

    def _writer_info(self, file: LogFile) -> JobInfo:
        """Read the job that writes a file: the script of a het job runs in its component 0.

        Raises:
            BadInput: for a plan of several jobs.
        """
        if self._parts:
            part = self.named(self.parts[0].info().part or self.parts[0].id)
            raise BadInput(f"{self.id} consists of several jobs; name one of them, e.g. {part}")
        info = self.info()
        named = info.part or info.job_id
        if "+" not in named or (file.pattern is not None and not info.part):
            return info
        first = f"{whole_id(named)}+0"
        return info if info.job_id == first else self.cluster.job(first).info()

    def cancel(self, *, signal: str | None = None) -> None:
        """Cancel the parts of the job that have not ended, or send them a signal.

        Args:
            signal: `USR1` for the job's steps, `B:USR1` for its batch shell.

        Raises:
            NoSuchJob: when Slurm does not know it.
            JobOver: when it has already ended.
            Refused: when Slurm does not allow it.
        """
        ids = [part.id for part in self.parts]
        failed = self.cluster.cancel(ids, signal=signal)
        _raise_failures(failed, ids)

    def hold(self) -> None:
        """Keep the job from starting. A running job goes on; it is held if it is requeued.

        Raises:
            JobOver: when it has ended; also NoSuchJob and Refused, as the methods below.
        """
        self._for_each_part(self.cluster.backend.hold)

    def release(self) -> None:
        """Let a held job start."""
        self._for_each_part(self.cluster.backend.release)

    def requeue(self) -> None:
        """Stop the job and put it back in the queue; a job that has just ended runs again."""
        self._for_each_part(self.cluster.backend.requeue)

    def update(self, **changes: Any) -> None:
        """Change options of the job; `Changes` lists them.

        Raises:
            BadInput: for an unknown option, or a value that Slurm would not take.
            Refused: with a message that says what Slurm allows.
        """
        try:
            options = Changes(**changes).options()
        except TypeError as error:
            known = ", ".join(Changes.__struct_fields__)
            raise BadInput(f"{error}; what can be changed: {known}") from error
        self._for_each_part(lambda job_id: self.cluster.backend.update(job_id, options), options)

    def _for_each_part(
        self, act: Callable[[str], None], options: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        failed: dict[str, SlurmError] = {}
        for part in self.parts:
            try:
                act(part.id)
            except (NoSuchJob, JobOver) as error:
                failed |= self.cluster.ended({part.id: error})
            except Refused as error:
                raise _explain_refusal(part, error, options) from error
        _raise_failures(failed, [part.id for part in self.parts])

    def _gpu_indices(self, info: JobInfo) -> dict[str, list[int]]:
        """Read which GPUs of its nodes a running job holds."""
        if info.is_over or info.state == "PENDING" or not gpu_count(info.tres):
            return {}
        try:
            argv = ["scontrol", "show", "job", "--details", self.id]
            text = self.cluster.slurm.run(argv)
        except (NoSuchJob, Refused):  # it has just ended
            return {}
        return parse_gpu_indices(text, info.node_list)


def _raise_failures(failed: Mapping[str, SlurmError], ids: Sequence[str]) -> None:
    """Raise the first failure, unless only some parts failed and all of those had ended."""
    refusals = [why for why in failed.values() if not isinstance(why, JobOver | NoSuchJob)]
    if refusals or len(failed) == len(ids):
        raise (*refusals, *failed.values())[0]


def _explain_refusal(job: Job, error: Refused, options: Mapping[str, str]) -> SlurmError:
    """Return slurmctld's refusal with a clearer message, where we know one."""
    message = str(error)
    if options and message.startswith("Job is no longer pending"):
        names = ", ".join(f"--{name}" for name in options)
        return Refused(
            f"job {job.id} is no longer pending, so Slurm does not allow this change of {names}"
        )
    if "time" in options and _is_denial(error) and "Invalid user" not in message:
        limit = job.info().time_limit
        return Refused(
            f"job {job.id}: its time limit is {limit}; users may lower the limit of a running"
            " job, and raise the limit of a pending job up to its partition's maximum; for more,"
            f" ask an operator (Slurm: {error})"
        )
    return explain_denial(error)


def explain_denial(error: SlurmError) -> SlurmError:
    """Return slurmctld's refusal of a user with a clearer message; other errors as they are."""
    if not _is_denial(error):
        return error
    words = str(error).partition("; slurm_suspend")[0]  # that says the same once more
    return Refused(f"{words}; the job is not yours, or only operators may do that")


def _is_denial(error: SlurmError) -> bool:
    return isinstance(error, Refused) and any(sign in str(error) for sign in _NOT_ALLOWED)


def _worst_of(job_id: str, outcomes: list[Outcome]) -> Outcome:
    """Return the first outcome that is no success, with a tally of all.

    The tally counts tasks if all outcomes are of arrays, otherwise jobs.
    """
    worst_one = next((one for one in outcomes if one.kind != "completed"), outcomes[0])
    tally: Counter[str] = Counter()
    arrays = all(one.tally for one in outcomes)
    for one in outcomes:
        tally.update(one.tally if arrays else {one.kind: 1})
    counts = ", ".join(f"{count} {kind}" for kind, count in tally.items())
    part, part_words = worst_one.job_id, worst_one.words
    if worst_one.part and arrays:
        part, part_words = worst_one.part, worst_one.part_words
    return msgspec.structs.replace(
        worst_one,
        job_id=job_id,
        tally=dict(tally),
        log=None,
        part=part,
        part_words=part_words,
        words=f"{counts}; {part}: {part_words}",
    )


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """New values for options of a job; None leaves an option as it is.

    Attributes:
        time_limit: any form of sbatch(1) `--time`; users may only lower it on a running job.
        priority: 0 or more; most sites let only operators set it.
        partition: one, or several with commas; only for a pending job.
        qos: only for a pending job.
        job_name: any text on one line.
        nice: lowers the priority by that much; only operators may go below 0.

    Raises:
        BadInput: for a value that Slurm would not take, or when there is nothing to change.
    """

    time_limit: str | None = None
    priority: int | None = None
    partition: str | None = None
    qos: str | None = None
    job_name: str | None = None
    nice: int | None = None

    def __post_init__(self) -> None:
        """Check the form of each value."""
        if self.time_limit is not None:
            parse_time_limit(self.time_limit)
        if self.priority is not None and not 0 <= self.priority <= 2**32 - 3:
            raise BadInput(f"--priority is a number from 0 to {2**32 - 3}, not {self.priority}")
        for name, value in self.options().items():
            form = OPTION_FORMS.get(name.replace("-", "_"))
            check_text(f"--{name}", value)
            if form and not form.fits(value):
                raise BadInput(f"--{name} {value!r} is not {form.meaning}")
        if not self.options():
            raise BadInput(f"nothing to change; give one of --{', --'.join(_OPTIONS.values())}")

    def options(self) -> dict[str, str]:
        """Return the changes by sbatch's long option, e.g. `{"time": "1:00:00"}`."""
        values = {name: getattr(self, field) for field, name in _OPTIONS.items()}
        return {name: str(value) for name, value in values.items() if value is not None}


def check_signal(text: str) -> str:
    """Return a signal in scancel's form: `USR1`, or `B:USR1` for the batch shell.

    Raises:
        BadInput: for anything else.
    """
    batch, _, name = text.upper().rpartition(":")
    short = name.removeprefix("SIG")
    known = short in _SIGNALS or (short.isdigit() and 1 <= int(short) <= 64)
    if batch not in {"", "B"} or not known:
        raise BadInput(f"--signal {text!r} is no signal; give USR1, or B:USR1 for the batch shell")
    return f"B:{short}" if batch else short


def check_rehearsal(slurm: SlurmCommands, job_id: str, ending: str) -> None:
    """Refuse a job whose batch shell does not handle the signal, which would end it.

    Raises:
        BadInput: with the reason.
        SlurmError: when Slurm does not show the job's script.
    """
    if ending not in REHEARSALS:
        raise BadInput(f"{ending!r} cannot be rehearsed; give one of {', '.join(REHEARSALS)}")
    if SURVIVAL_LINE not in read_batch_script(slurm, job_id):
        raise BadInput(
            f"job {job_id} was submitted without an --on-… option, so the signal would kill it;"
            f" submit it with --on-{ending} requeue"
        )
