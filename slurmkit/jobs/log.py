"""A job's output, read once or followed to the job's end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from slurmkit.errors import BadInput, LogUnavailable, SshError
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.logpaths import RANK_MARK, LogFile, find
from slurmkit.jobs.poller import Poller
from slurmkit.jobs.tail import Tail
from slurmkit.jobs.watch import Watch
from slurmkit.machine import Machine, machine_of
from slurmkit.slurm import Slurm

_FILE_SECONDS = 0.5
_LATE_SECONDS = 10.0


class Ask(msgspec.Struct, frozen=True):
    """What is wanted of a log.

    Attributes:
        file: which of the job's files.
        lines: only the last so many lines of what is there; all by default.
        notice: told in words that the job waits, has written nothing yet, or writes anew, and
            where its ranks write.
    """

    file: LogFile
    lines: int | None
    notice: Callable[[str], None]


def read_once(slurm: Slurm, info: JobInfo, ask: Ask) -> Iterator[bytes]:
    """Yield what a job has written so far.

    Raises:
        LogUnavailable: when the path is unknown, or the file is missing or unreadable.
    """
    refuse_parts(info)
    path = find(slurm, info, ask.file)
    tail = Tail(Path(path), ask.lines, machine_of(slurm)) if path else None
    if tail is None or not tail.exists:
        raise LogUnavailable(_why_none(info, path))
    if info.state == "PENDING":
        ask.notice(f"job {info.job_id} has not started{_because(info)}; this was there before")
    if words := _of_ranks(machine_of(slurm), tail, ask.file):
        ask.notice(words)
    yield from tail.read()


def follow(slurm: Slurm, poller: Poller, info: JobInfo, ask: Ask) -> Iterator[bytes]:
    """Yield a job's output as it is written, across requeues, until the job has ended.

    The file is looked at twice a second, Slurm at the poller's pace.

    Raises:
        LogUnavailable: when the path is unknown, or the job ended and the file is not there.
    """
    refuse_parts(info)
    with poller.watch([info.job_id]) as watch:
        follower = _Follower(slurm, info, ask)
        for known in watch.changes(every=_FILE_SECONDS):
            one = known[info.job_id]
            if one.error is not None:
                raise one.error
            yield from follower.look_again(one.info or info, watch)
    yield from follower.rest()


def refuse_parts(info: JobInfo) -> None:
    """Refuse an array as a whole: each task has a file of its own."""
    if info.tally:
        parts = ", ".join(f"{count} {state}" for state, count in info.tally.items())
        raise BadInput(
            f"{info.job_id} has several parts ({parts}); name one of them, e.g. {info.part}"
        )


class _Follower:
    """Where reading stands: the job's last facts, its file, and what was said of them."""

    def __init__(self, slurm: Slurm, info: JobInfo, ask: Ask) -> None:
        self._slurm = slurm
        self._machine = machine_of(slurm)
        self._ask = ask
        self._info = info
        self._tail: Tail | None = None
        self._place: tuple[int | None, str] | None = None
        self._said: set[object] = set()
        self._late_at = 0.0
        self._take(info)

    def look_again(self, info: JobInfo, watch: Watch) -> Iterator[bytes]:
        """As `look`; while a login node cannot be reached, it says so and goes on."""
        try:
            yield from self.look(info, watch)
        except SshError as error:
            self._say("line", f"{error}; trying again")
        else:
            self._said.discard("line")

    def look(self, info: JobInfo, watch: Watch) -> Iterator[bytes]:
        """Read on, and say what keeps the job from writing."""
        if info is not self._info:
            self._take(info)
        if watch.trouble:
            self._say("trouble", f"{watch.trouble}; asking again")
        else:
            self._said.discard("trouble")
        if words := _of_ranks(self._machine, self._tail, self._ask.file):
            self._say("ranks", words)
        yield from self._read()
        missing = info.state == "RUNNING" and self._tail is not None and not self._tail.exists
        if missing and self._tail and time.monotonic() >= self._late_at:
            words = f"nothing at {self._tail.path} yet; it may be on the node only"
            self._say(self._tail.path, words)

    def rest(self) -> Iterator[bytes]:
        """Read what came between the last look and the end of the job."""
        yield from self._read()
        if self._tail is None or not self._tail.exists:
            raise LogUnavailable(
                _why_none(self._info, str(self._tail.path) if self._tail else None)
            )

    def _take(self, info: JobInfo) -> None:
        """Note new facts; a run on another node may write to another file."""
        self._info = info
        if info.state == "PENDING":
            words = f"job {info.job_id} has not started{_because(info)}; waiting"
            self._say(info.submitted, words)
            return
        place = (info.submitted, info.node_list)
        if self._tail is not None and (info.is_over or place == self._place):
            return
        self._place = place
        path = find(self._slurm, info, self._ask.file)
        if path and (self._tail is None or self._tail.path != Path(path)):
            lines = self._ask.lines if self._tail is None else None
            self._tail = Tail(Path(path), lines, self._machine)
            self._late_at = time.monotonic() + _LATE_SECONDS

    def _read(self) -> Iterator[bytes]:
        if self._tail is None:
            return
        for chunk in self._tail.read():
            self._tell_anew(self._tail)
            yield chunk
        self._tell_anew(self._tail)  # it may just have been emptied

    def _tell_anew(self, tail: Tail) -> None:
        if tail.rewritten:
            tail.rewritten = False
            self._ask.notice(f"job {self._info.job_id} was requeued and writes its output anew")

    def _say(self, about: object, words: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self._ask.notice(words)


def _of_ranks(machine: Machine, tail: Tail | None, file: LogFile) -> str:
    """Where the rest of a job's output is, once its ranks have files of their own."""
    if tail is None or file != LogFile() or not _is_there(machine, f"{tail.path}{RANK_MARK}0"):
        return ""
    return f"its ranks write to {tail.path}{RANK_MARK}0 and so on; --rank N shows that of one"


def _is_there(machine: Machine, path: str) -> bool:
    try:
        return machine.exists(path)
    except OSError:  # which nobody asked for
        return False


def _because(info: JobInfo) -> str:
    """Why a job waits, once the scheduler has looked at it."""
    return "" if info.reason in {"", "None"} else f" ({info.reason})"


def _why_none(info: JobInfo, path: str | None) -> str:
    if info.state == "PENDING":
        return f"job {info.job_id} has not started{_because(info)}; follow it with -f"
    if info.is_over and info.started is None:
        return f"job {info.job_id} ended {info.state} before it started, so it wrote nothing"
    if info.is_over and (info.exit_code or "").endswith(":53"):
        return f"job {info.job_id} could not open {path} or its directory on the node, so it failed"
    of_rank = ", and had the job --log-per-rank" if RANK_MARK in (path or "") else ""
    return f"{path} does not exist here; is it on a filesystem shared with the nodes{of_rank}?"
