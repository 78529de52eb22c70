"""A handle to a job: what it is, how it ends, and what can be done to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from slurmkit.errors import BadInput, JobOver, LogUnavailable, NoSuchJob, Refused, SlurmError
from slurmkit.jobs.changes import Changes
from slurmkit.jobs.evidence import read_outcome
from slurmkit.jobs.ids import whole_id
from slurmkit.jobs.info import UNKNOWN, JobInfo, parse_gpu_indices
from slurmkit.jobs.log import Ask, follow, read_once
from slurmkit.jobs.logpaths import LogFile, find
from slurmkit.jobs.lookup import look_up, summary
from slurmkit.jobs.outcome import Evidence, Outcome
from slurmkit.jobs.verdict import outcome_of
from slurmkit.logical import in_words
from slurmkit.survive.history import RunEnd, history_of
from slurmkit.survive.rehearsal import REHEARSALS, check_rehearsal
from slurmkit.tres import gpu_count

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster


_NOT_ALLOWED = ("denied", "Invalid user id")  # the second is what 22.05 says of others' jobs


def _no_notice(words: str) -> None:
    del words


class Job:
    """A handle to a job of Slurm, known to it or not; also to an array or a het job as a whole.

    A plan of several submissions is one job too: its id names them all, `parts` holds them. An
    array in several of Slurm's has the id of the first.

    Attributes:
        id: `12`, `12_3` (an array task), `12+1` (a het component), or `12,13` for a plan's.
        cluster: where it is.
        named: what its user calls an id of Slurm's, of an array in several of Slurm's.
    """

    def __init__(self, job_id: str, cluster: Cluster, parts: tuple[Job, ...] = ()) -> None:
        self.id = job_id
        self.cluster = cluster
        self.named: Callable[[str], str] = str
        self._parts = parts
        self._last: JobInfo | None = None

    def __repr__(self) -> str:
        """The id alone: what else there is to know takes a question to Slurm."""
        return f"Job({self.id!r})"

    @property
    def parts(self) -> tuple[Job, ...]:
        """The jobs of Slurm that it consists of; itself when it is one."""
        return self._parts or (self,)

    @property
    def state(self) -> str:
        """Its state now, in Slurm's word."""
        return self.info().state

    def info(self) -> JobInfo:
        """Look the job up: in the queue, and once it has ended in the accounting database.

        Raises:
            NoSuchJob: when neither knows it.
        """
        if self._parts:
            return summary(self.id, {part.id: part.info() for part in self._parts})
        info = look_up(self.cluster.backend, self.cluster.slurm, self.id)
        return msgspec.structs.replace(info, gpu_indices=self._gpu_indices(info))

    def wait(
        self, timeout: float | None = None, *, notice: Callable[[str], None] = _no_notice
    ) -> JobInfo:
        """Block until the job has ended and return its last facts.

        Args:
            timeout: seconds to wait; for ever by default.
            notice: told in words that Slurm does not answer; it goes on being asked.

        Raises:
            NotOver: when the time is over first; the job goes on.
            NoSuchJob: when neither slurmctld nor slurmdbd knows it.
        """
        ids = [part.id for part in self.parts]
        with self.cluster.poller.watch(ids) as watch:
            said: str | None = None
            for _ in watch.changes(timeout):
                if watch.trouble and watch.trouble != said:
                    notice(f"{watch.trouble}; asking again")
                said = watch.trouble
            known = watch.known
        for one in known.values():
            if one.error is not None:
                raise one.error
        infos = {job_id: one.info for job_id, one in known.items() if one.info}
        self._last = summary(self.id, infos) if self._parts else infos[self.id]
        return self._last

    def outcome(self) -> Outcome:
        """How it ended; of an array, het job or plan how the worst part did, and a tally.

        Raises:
            NotOver: while it has not ended.
            NoSuchJob: when neither slurmctld nor slurmdbd knows it.
        """
        if self._parts:
            found = _worst_of(self.id, [part.outcome() for part in self._parts])
            return msgspec.structs.replace(found, words=in_words(found.words, self.named))
        try:
            return read_outcome(self.cluster.backend, self.cluster.slurm, self.id)
        except NoSuchJob:
            if self._last is None or self._last.state != UNKNOWN:
                raise
            return outcome_of(self._last, Evidence())

    def restarts(self) -> tuple[RunEnd, ...]:
        """Its runs so far and why each ended, of a job that survives; none of any other."""
        return history_of(self.cluster.slurm, self.id)

    def interrupt(self, ending: str) -> None:
        """Rehearse an ending on a running job that survives: `timeout` or `preempt`.

        Raises:
            BadInput: for a job that would be ended by that, and another ending.
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
    ) -> Iterator[bytes]:
        """Yield the job's output as it was written.

        Args:
            follow: go on with what is added, across requeues, until the job has ended.
            lines: only the last so many lines of what is there; all by default.
            file: which of its files; its standard output by default.
            notice: told in words that the job waits, or writes anew after a requeue.

        Raises:
            BadInput: for an array or a plan; each part has a file of its own. Of a het job, or one
                of its components, it is the first component's, where its script runs.
            LogUnavailable: when the path is unknown or cannot be read.
        """
        ask = Ask(file or LogFile(), lines, notice)
        slurm, info = self.cluster.slurm, self._writer(ask.file)
        return _follow(self.cluster, info, ask) if follow else read_once(slurm, info, ask)

    def log_path(self, file: LogFile | None = None) -> str | None:
        """Where that file is, its patterns filled in; None while that is not known.

        Raises:
            LogUnavailable: when Slurm no longer says, or each part has a file of its own.
        """
        info = self._writer(file or LogFile())
        if info.part:
            raise LogUnavailable(f"each part of {self.id} has its own, e.g. {info.part}")
        return find(self.cluster.slurm, info, file or LogFile())

    def _writer(self, file: LogFile) -> JobInfo:
        """Facts of what writes a file: the script of a het job runs in its first component."""
        info = self._one().info()
        named = info.part or info.job_id
        if "+" not in named or (file.pattern is not None and not info.part):
            return info
        first = f"{whole_id(named)}+0"
        return info if info.job_id == first else self.cluster.job(first).info()

    def cancel(self, *, signal: str | None = None) -> None:
        """Cancel what of the job has not ended, or send it a signal.

        Args:
            signal: `USR1` for its steps, `B:USR1` for its batch shell.

        Raises:
            NoSuchJob: when Slurm does not know it.
            JobOver: when it has already ended.
            Refused: when Slurm does not allow it.
        """
        ids = [part.id for part in self.parts]
        failed = self.cluster.cancel(ids, signal=signal)
        _raise_unless_some(failed, ids)

    def hold(self) -> None:
        """Keep the job from starting; one that runs goes on, and is held should it be requeued.

        Raises:
            JobOver: when it has ended; also NoSuchJob and Refused, as the methods below.
        """
        self._each(self.cluster.backend.hold)

    def release(self) -> None:
        """Let a held job start."""
        self._each(self.cluster.backend.release)

    def requeue(self) -> None:
        """Stop the job and put it back in the queue; one that has just ended runs again."""
        self._each(self.cluster.backend.requeue)

    def update(self, **changes: Any) -> None:
        """Change the job: see `Changes` for what can be changed.

        Raises:
            BadInput: for what cannot be changed, or a value Slurm would not take.
            Refused: in words that say what Slurm allows.
        """
        try:
            options = Changes(**changes).options()
        except TypeError as error:
            known = ", ".join(Changes.__struct_fields__)
            raise BadInput(f"{error}; what can be changed: {known}") from error
        self._each(lambda job_id: self.cluster.backend.update(job_id, options), options)

    def _each(
        self, act: Callable[[str], None], options: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        failed: dict[str, SlurmError] = {}
        for part in self.parts:
            try:
                act(part.id)
            except (NoSuchJob, JobOver) as error:
                failed |= self.cluster.ended({part.id: error})
            except Refused as error:
                raise _explained(part, error, options) from error
        _raise_unless_some(failed, [part.id for part in self.parts])

    def _one(self) -> Job:
        if self._parts:
            part = self.named(self.parts[0].info().part or self.parts[0].id)
            raise BadInput(f"{self.id} are several jobs; name one of them, e.g. {part}")
        return self

    def _gpu_indices(self, info: JobInfo) -> dict[str, list[int]]:
        if info.is_over or info.state == "PENDING" or not gpu_count(info.tres):
            return {}
        try:
            argv = ["scontrol", "show", "job", "--details", self.id]
            text = self.cluster.slurm.run(argv)
        except (NoSuchJob, Refused):  # it has just ended
            return {}
        return parse_gpu_indices(text, info.node_list)


def _raise_unless_some(failed: Mapping[str, SlurmError], ids: Sequence[str]) -> None:
    """Parts that have ended keep nobody from doing it to the others."""
    real = [why for why in failed.values() if not isinstance(why, JobOver | NoSuchJob)]
    if real or len(failed) == len(ids):
        raise (*real, *failed.values())[0]


def _explained(job: Job, error: Refused, options: Mapping[str, str]) -> Refused:
    """What a refusal of slurmctld means, where its words do not tell."""
    said = str(error)
    if options and said.startswith("Job is no longer pending"):
        names = ", ".join(f"--{name}" for name in options)
        return Refused(f"job {job.id} no longer waits; only then {names} can be changed so")
    if not any(sign in said for sign in _NOT_ALLOWED):
        return error
    if "time" in options and "Invalid user" not in said:
        limit = job.info().time_limit
        return Refused(
            f"job {job.id}: its time limit is {limit}; users may lower the limit of a running"
            " job, and raise that of a waiting one up to its partition's; ask an operator for"
            f" more (Slurm: {error})"
        )
    words = said.partition("; slurm_suspend")[0]  # that says the same once more
    return Refused(f"{words}; it is not yours, or only an operator may do that")


def _follow(cluster: Cluster, info: JobInfo, ask: Ask) -> Iterator[bytes]:
    return follow(cluster.slurm, cluster.poller, info, ask)


def _worst_of(job_id: str, outcomes: list[Outcome]) -> Outcome:
    """The first that did not complete, and how many ended how: tasks where they are arrays."""
    worst_one = next((one for one in outcomes if one.kind != "completed"), outcomes[0])
    tally: Counter[str] = Counter()
    arrays = all(one.tally for one in outcomes)
    for one in outcomes:
        tally.update(one.tally if arrays else {one.kind: 1})
    said = ", ".join(f"{count} {kind}" for kind, count in tally.items())
    own = worst_one.words.partition("; ")[2] if arrays else ""
    words = f"{said}; {own or f'{worst_one.job_id}: {worst_one.words}'}"
    return msgspec.structs.replace(
        worst_one, job_id=job_id, tally=dict(tally), log=None, words=words
    )
