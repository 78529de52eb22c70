"""One thread that asks Slurm about all jobs that this process waits for.

The thread starts with the first watch and ends after the last. It asks about all ids in one squeue,
then in one sacct about the jobs that are not live in the queue. While nothing changes it asks less
often. While Slurm does not answer it goes on asking and never guesses a state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Annotated, NamedTuple

import msgspec

from slurmkit.errors import (
    ConnectionLost,
    ControllerDown,
    DatabaseDown,
    HostKeyRefused,
    NoSuchJob,
    NotOver,
    SlurmError,
    SlurmkitError,
    SlurmMissing,
    SlurmTimeout,
    Unreachable,
)
from slurmkit.jobs.backends.protocol import Backend
from slurmkit.jobs.exit_codes import settle_exit_codes
from slurmkit.jobs.info import UNKNOWN, JobInfo
from slurmkit.jobs.lookup import merge_job_facts, read_database_runs, read_queue_rows
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.queue_rows import QueueRow

_TOGETHER_SECONDS = 0.05  # jobs that are watched within this time share one query
_REFUSALS = 5  # so many in a row are no hiccup of a busy slurmctld
_OUTAGES = (ControllerDown, DatabaseDown, SlurmTimeout, Unreachable, ConnectionLost)
_FOR_GOOD = (SlurmMissing, HostKeyRefused)
LAG_SECONDS = 10.0
"""Time that slurmdbd gets to hear of an end, before slurmctld's facts alone are taken."""
GRACE_SECONDS = 60.0
"""Time out of the queue, unknown to slurmdbd, after which a job is given up as UNKNOWN."""
_FIRST_LOOK_SECONDS = 10.0


class PollSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `[poll]`.

    Attributes:
        floor_seconds: shortest time in seconds between two queries of the queue.
    """

    floor_seconds: Annotated[float, msgspec.Meta(ge=0.1)] = 2.0


class PollPace(msgspec.Struct, frozen=True, kw_only=True):
    """Polling intervals in seconds.

    Attributes:
        first: interval after a change.
        longest: longest interval, reached when nothing changes for long.
        growth: factor from one interval to the next while nothing changes.
        floor: shortest interval.
    """

    first: float = 2.0
    longest: float = 30.0
    growth: float = 1.5
    floor: float = 2.0

    def after(self, interval: float, *, changed: bool) -> float:
        """Return the interval that follows one in which something changed, or nothing did."""
        longer = min(interval * self.growth, self.longest)
        return max(self.floor, self.first if changed else longer)


class Poller:
    """Polls Slurm for any number of watches.

    Args:
        backend: asks slurmctld.
        slurm: asks slurmdbd.
        pace: polling intervals.

    Attributes:
        calls: queries of squeue and sacct so far, each at least one RPC.
        trouble: message why Slurm does not answer at the moment; None when it does.
    """

    def __init__(
        self, backend: Backend, slurm: SlurmCommands, pace: PollPace | None = None
    ) -> None:
        self._backend = backend
        self._slurm = slurm
        self._pace = pace or PollPace()
        self.calls = 0
        self.trouble: str | None = None
        self._refusals = 0
        self._known: dict[str, WatchedJob] = {}
        self._watchers: dict[str, int] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._soon = False
        self._last_poll = float("-inf")  # monotonic time in seconds

    def watch(self, job_ids: Iterable[str]) -> Watch:
        """Poll jobs until the watch is closed; for a `with` statement."""
        ids = tuple(dict.fromkeys(job_ids))
        with self._changed:
            for job_id in ids:
                self._known.setdefault(job_id, WatchedJob())
                self._watchers[job_id] = self._watchers.get(job_id, 0) + 1
            self._soon = True
            if self._thread is None or not self._thread.is_alive():  # not alive after a fork
                self._thread = threading.Thread(target=self._run, name="slurmkit-poll", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return Watch(self, ids)

    def forget(self, job_ids: Iterable[str]) -> None:
        """Stop polling jobs for one watch; called when the watch is closed."""
        with self._changed:
            for job_id in job_ids:
                self._watchers[job_id] -= 1
                if not self._watchers[job_id]:
                    del self._watchers[job_id], self._known[job_id]
            if not self._watchers:
                self._changed.notify_all()  # the thread ends

    def known(self, job_ids: Iterable[str]) -> dict[str, WatchedJob]:
        """Return what is known of watched jobs."""
        with self._changed:
            return {job_id: self._known[job_id] for job_id in job_ids}

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Block until a poll made `condition` true, or `timeout` seconds have passed."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def _run(self) -> None:
        interval = self._pace.first
        while self._sleep(interval):
            changed = self._poll()
            self._last_poll = time.monotonic()
            interval = self._pace.after(interval, changed=changed)

    def _sleep(self, interval: float) -> bool:
        """Sleep until the next poll; a new watch is polled as soon as the floor allows.

        False when nobody watches any more: then the thread ends, and `watch` starts another.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._watchers or bool(self._unsettled()))
            new = self._soon
            if not new:
                due = self._last_poll + interval
                new = self._changed.wait_for(
                    lambda: self._soon or not self._watchers, due - time.monotonic()
                )
            if not self._watchers:
                self._thread = None
                return False
            if new:
                due = max(self._last_poll + self._pace.floor, time.monotonic() + _TOGETHER_SECONDS)
        if new:
            time.sleep(max(0, due - time.monotonic()))
        return True

    def _unsettled(self) -> list[str]:
        return [job_id for job_id, known in self._known.items() if not known.settled]

    def _poll(self) -> bool:
        """Ask once about every job and return whether anything has changed."""
        with self._changed:
            self._soon = False
            before = {job_id: self._known[job_id] for job_id in self._unsettled()}
        try:
            seen = self._ask_slurm(before) if before else {}
            after = {
                job_id: update_watched(job_id, before[job_id], one) for job_id, one in seen.items()
            }
        except SlurmkitError as error:
            return self._handle_error(error, before)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            wrong = SlurmError(f"watching jobs failed: {type(error).__name__}: {error}")
            return self._publish({job_id: WatchedJob(error=wrong) for job_id in before}, None)
        self._refusals = 0
        silent = next(
            (one.silent for one in seen.values() if isinstance(one.silent, _OUTAGES)), None
        )
        return self._publish(after, str(silent) if silent else None)

    def _ask_slurm(self, asked: Mapping[str, WatchedJob]) -> dict[str, PollResult]:
        """Run squeue for all jobs, and sacct for those that are not live in the queue."""
        self.calls += 1
        # After a refusal ask for all users: Slurm may have refused the user.
        user = None if self._refusals else _only_user(asked.values())
        rows = read_queue_rows(self._backend, list(asked), user)
        gone = [job_id for job_id, own in rows.items() if all(row.ended for row in own)]
        runs: dict[str, list[JobInfo]] = {}
        silent: SlurmError | None = None
        if gone:
            self.calls += 1
            try:
                runs = read_database_runs(self._slurm, gone)
            except SlurmMissing:
                raise
            except SlurmError as error:
                silent = error
        now = time.monotonic()
        return {
            job_id: PollResult(own, runs.get(job_id, ()), silent, now)
            for job_id, own in rows.items()
        }

    def _handle_error(self, error: SlurmkitError, asked: Mapping[str, WatchedJob]) -> bool:
        """Keep asking through an outage; give up if Slurm refuses again and again."""
        self._refusals += not isinstance(error, _OUTAGES)
        if isinstance(error, _FOR_GOOD) or self._refusals >= _REFUSALS:
            self._refusals = 0
            return self._publish({job_id: WatchedJob(error=error) for job_id in asked}, None)
        self._publish({}, str(error))
        return False

    def _publish(self, after: Mapping[str, WatchedJob], trouble: str | None) -> bool:
        """Store the result of a poll, wake all watches, and return whether anything changed."""
        with self._changed:
            changed = trouble is None and self.trouble is not None
            self.trouble = trouble
            for job_id, known in after.items():
                if job_id in self._known:
                    changed |= known.differs(self._known[job_id])
                    self._known[job_id] = known
            self._changed.notify_all()
        return changed


def _only_user(known: Iterable[WatchedJob]) -> str | None:
    """Return the owner of all these jobs, if they have one: slurmctld then sends only theirs."""
    users = {one.info.user if one.info else "" for one in known}
    (only,) = users if len(users) == 1 else ("",)
    return only if only and not only.isdigit() else None


class WatchedJob(NamedTuple):
    """What is known of a watched job.

    Attributes:
        info: its last facts.
        over: whether the job has ended and its facts are final.
        error: why it cannot be watched.
        gone_since: monotonic time in seconds since which it is not live in the queue.
    """

    info: JobInfo | None = None
    over: bool = False
    error: SlurmkitError | None = None
    gone_since: float | None = None

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to ask."""
        return self.over or self.error is not None

    def differs(self, other: WatchedJob) -> bool:
        """Return whether something happened, other than time passing."""
        return self.settled != other.settled or _gist(self.info) != _gist(other.info)


def settle_watched_codes(
    slurm: SlurmCommands, known: Mapping[str, WatchedJob]
) -> dict[str, WatchedJob]:
    """Return what is known of watched jobs, with whole exit codes; see `settle_exit_codes`.

    The poller leaves this to those who show the codes: it may take long, and nobody must wait for
    it to hear of an end.
    """
    infos = {job_id: one.info for job_id, one in known.items() if one.over and one.info}
    settled = dict(zip(infos, settle_exit_codes(slurm, infos.values()), strict=True))
    return {
        job_id: one._replace(info=settled.get(job_id, one.info)) for job_id, one in known.items()
    }


class PollResult(NamedTuple):
    """Slurm's answers about one job in one poll.

    Attributes:
        rows: rows of squeue.
        runs: runs in sacct, which is asked only about jobs that are not live in the queue.
        silent: why sacct did not answer.
        now: monotonic time in seconds.
    """

    rows: Sequence[QueueRow]
    runs: Sequence[JobInfo]
    silent: SlurmError | None
    now: float


def update_watched(job_id: str, before: WatchedJob, seen: PollResult) -> WatchedJob:
    """Return what is known of a job after one poll."""
    info = merge_job_facts(job_id, seen.rows, seen.runs)
    if any(not row.ended for row in seen.rows):
        return WatchedJob(info)
    since = seen.now if before.gone_since is None else before.gone_since
    if seen.rows:
        return _known_ended(job_id, info, seen, since)
    if info is not None and info.is_over and not _is_earlier_run(info, before.info):
        return WatchedJob(info, over=True)
    if isinstance(seen.silent, DatabaseDown | SlurmTimeout):
        return before._replace(gone_since=None)  # sacct gave no answer: the grace starts again
    return _known_missing(job_id, before._replace(gone_since=since), info, seen.now)


def _known_ended(job_id: str, info: JobInfo | None, seen: PollResult, since: float) -> WatchedJob:
    """Handle a job that squeue shows as ended: wait `LAG_SECONDS` for sacct's fuller facts."""
    if info is not None and info.is_over and info.source == "sacct":
        return WatchedJob(info, over=True)
    if seen.silent is not None or seen.now - since >= LAG_SECONDS:
        return WatchedJob(merge_job_facts(job_id, seen.rows, ()), over=True)
    return WatchedJob(info, gone_since=since)


def _known_missing(job_id: str, before: WatchedJob, info: JobInfo | None, now: float) -> WatchedJob:
    """Handle a job that has left the queue and whose end slurmdbd does not know yet."""
    last_info = before.info or info
    if last_info is None:
        return WatchedJob(
            error=NoSuchJob(f"no job {job_id} in the queue or in the accounting database")
        )
    if now - (before.gone_since or now) < GRACE_SECONDS:
        return before._replace(info=last_info)
    return WatchedJob(
        msgspec.structs.replace(last_info, state=UNKNOWN, reason="", tally={}), over=True
    )


def _is_earlier_run(past: JobInfo, last_seen: JobInfo | None) -> bool:
    """Return whether slurmdbd only knows a run before the one last seen in the queue."""
    return last_seen is not None and (past.submitted or 0) < (last_seen.submitted or 0)


def _gist(info: JobInfo | None) -> object:
    """Return the facts whose change counts as a change of the job."""
    return info and (info.state, info.reason, info.node_list, info.tally, info.submitted)


class Watch:
    """A set of jobs that a `Poller` polls; to be used in a `with` statement."""

    def __init__(self, poller: Poller, job_ids: tuple[str, ...]) -> None:
        self._poller = poller
        self.job_ids = job_ids

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop polling these jobs for this watch."""
        self._poller.forget(self.job_ids)

    @property
    def known(self) -> dict[str, WatchedJob]:
        """The latest state of each job, by id."""
        return self._poller.known(self.job_ids)

    @property
    def trouble(self) -> str | None:
        """Message why Slurm does not answer at the moment; polling goes on."""
        return self._poller.trouble

    def changes(
        self, timeout: float | None = None, every: float | None = None
    ) -> Iterator[dict[str, WatchedJob]]:
        """Yield what is known of all jobs at each change, until all have ended.

        A job that cannot be watched counts as ended; its `WatchedJob.error` says why.

        Args:
            timeout: seconds after which to give up.
            every: yield again after so many seconds even if nothing has changed.

        Raises:
            NotOver: when the timeout ends first.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            known, trouble = self.known, self.trouble
            yield known
            going_on = [job_id for job_id, one in known.items() if not one.settled]
            if not going_on:
                return
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                unseen = any(known[job_id].info is None for job_id in going_on)
                if not unseen or trouble or left <= -_FIRST_LOOK_SECONDS:
                    what = "still no answer from Slurm" if unseen else "not over"
                    raise NotOver(f"{what} after {timeout:g} s: {_join_ids(going_on)}")
                left += _FIRST_LOOK_SECONDS  # say "not over" only of jobs that were seen
            waits = [wait for wait in (left, every) if wait is not None]
            changed = partial(self._has_changed, known, trouble)
            self._poller.wait_for(changed, min(waits, default=None))

    def _has_changed(self, known: dict[str, WatchedJob], trouble: str | None) -> bool:
        return self.known != known or self.trouble != trouble


def _join_ids(job_ids: Sequence[str]) -> str:
    rest = f" and {len(job_ids) - 3} more" if len(job_ids) > 3 else ""
    return f"job{'s' if len(job_ids) > 1 else ''} {', '.join(job_ids[:3])}{rest}"
