"""One thread that reads result files and settles the futures of calls.

It looks for result files soon after the last one came, then less and less often. It also asks the
`JobMonitor` which tasks have ended without a result.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from slurmkit.errors import CallError, HostKeyRefused, ResultRefused, SshError
from slurmkit.executor import resultfiles, worker
from slurmkit.executor.futures import CallFuture, set_error, set_lost, settle_future
from slurmkit.executor.runs import CallRun
from slurmkit.executor.store import Store
from slurmkit.formats.display import printable

_SOONEST, _LATEST = 0.02, 1.0  # shortest and longest seconds between two looks
_CUT = (5.0, 30.0)  # the same while SSH is down
_SHARE = 0.05  # the next look comes after this share of the time since the last result
_REFRESH_SECONDS = 1.0  # after which the NFS client has to ask its server again
_TROUBLE = (OSError, SshError)
_HICCUP = 300.0  # seconds of filesystem or SSH trouble after which calls fail
_NOT_OURS = (errno.EPERM, errno.EACCES, errno.ELOOP, errno.ENXIO)  # a link, a socket, not ours
_GRACE = 2.0  # seconds for a result to appear after the end of its task
_FAREWELL = 10.0  # seconds that the exit of Python waits for jobs to be cancelled
_TAIL = 4096  # bytes at the end of a log that are searched for its last line


class JobMonitor(Protocol):
    """The system that runs the tasks: Slurm, or this machine."""

    def look(self, job_ids: Iterable[str]) -> Mapping[str, bool | None]:
        """Return the state of tasks: True while running, False when over, otherwise None.

        The call never blocks. `job_ids` are all tasks that are still waited for; the others may be
        forgotten.
        """
        ...

    def describe_end(self, job_id: str) -> str:
        """Describe how a task ended."""
        ...

    def stop(self, job_ids: Iterable[str]) -> None:
        """End tasks, or keep them from starting."""
        ...

    def is_busy(self) -> bool:
        """Return whether tasks are still to be started or ended, which `look` does."""
        ...

    def finish(self, seconds: float) -> None:
        """At the exit of Python wait until tasks are started and ended, or say which are not.

        Args:
            seconds: how long to wait for tasks to be ended; starting them has no limit.
        """
        ...


class FollowedTask:
    """A task whose calls are waited for.

    Attributes:
        id: job id of the task.
        left: the futures of the calls without a result, by index.
        cancelled: indices of the calls that were cancelled.
        over_since: monotonic time in seconds since which it has ended.
    """

    def __init__(self, run: CallRun, number: int) -> None:
        self.id = run.ids[number]
        self.number = number
        self.running = False
        self.over_since: float | None = None
        self.left: dict[int, CallFuture[Any]] = {
            index: CallFuture(run, number, index) for index in run.tasks[number]
        }
        self.cancelled: set[int] = set()
        for future in self.left.values():
            future.runs = self._runs

    def _runs(self) -> bool:
        return self.running


class RunResults:
    """The result files of one run; each is read once."""

    def __init__(self, run: CallRun, tasks: Iterable[FollowedTask], store: Store) -> None:
        self.folder = run.folder
        self.tasks = {task.number: task for task in tasks}
        self._store = store
        self.path = f"{run.folder}/{worker.RESULTS}"
        self._read: set[str] = set()
        self._marked: set[int] = set()
        self.away_since: float | None = None

    def take(self, names: Iterable[str]) -> bool:
        """Settle the futures of new result files and return whether there were any.

        Raises:
            OSError: when the filesystem is in trouble; the remaining files are read next time.
            SshError: when the machine cannot be reached, likewise.
        """
        new = [name for name in set(names) - self._read if not name.startswith(".")]
        for name in new:
            self._settle(name)
            self._read.add(name)
        return bool(new)

    def mark(self, task: FollowedTask) -> None:
        """Leave mark files that tell a running task which of its calls were cancelled."""
        for index in task.cancelled - self._marked:
            self._store.mark(f"{self.folder}/{worker.CANCELLED.format(index)}")
            self._marked.add(index)

    def last_words(self, log: Path) -> str:
        """Return the last line that a task printed: it often names the cause."""
        try:
            with self._store.machine.open(str(log)) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
                lines = file.read().decode("utf-8", "replace").split("\n")
        except OSError as error:
            return f"no log {log} ({error.strerror}): do the nodes share that folder?"
        except SshError as error:
            return f"its log {log} cannot be read: {error}"
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"its log {log} {f'ends with: {printable(last.strip())}' if last else 'is empty'}"

    def _settle(self, name: str) -> None:
        """Read one result file and settle its futures."""
        number = name.partition("-")[0]
        task = self.tasks.get(int(number)) if number.isdecimal() else None
        if task is None:
            return
        try:
            for result in resultfiles.results_in(self._store.read(f"{self.path}/{name}")):
                if future := task.left.pop(result.call, None):
                    settle_future(future, result)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
            refused = f"{error.filename} is not trusted: {error.strerror}"
            for future in task.left.values():
                set_error(future, ResultRefused(f"call {future.index} of job {task.id}: {refused}"))
            task.left.clear()


class Follower:
    """The thread that settles the futures of any number of runs.

    Args:
        place: runs the tasks.
        store: holds the files.
    """

    def __init__(self, place: JobMonitor, store: Store) -> None:
        self._place = place
        self._store = store
        self._runs: list[RunResults] = []
        self._changed = threading.Condition()
        self._called = False
        self._cut: SshError | None = None  # SSH failed in this look
        self._looked = 0.0
        self._looking = threading.Lock()  # held during a look
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        _FOLLOWERS.add(self)

    def follow(self, run: CallRun) -> list[CallFuture[Any]]:
        """Start to follow a run and return the futures of its calls, in order."""
        tasks = [FollowedTask(run, number) for number in range(len(run.tasks))]
        futures = [future for task in tasks for future in task.left.values()]
        for future in futures:
            future.wake = self._call
        with self._changed:
            self._runs.append(RunResults(run, tasks, self._store))
            if self._thread is None or not self._thread.is_alive():  # in a forked child
                self._thread = threading.Thread(
                    target=self._follow, name="slurmkit-calls", daemon=True
                )
                self._thread.start()
        self._call()
        return sorted(futures, key=lambda future: future.index)

    def _call(self) -> None:
        """Make the thread look now."""
        with self._changed:
            self._called = True
            self._changed.notify_all()

    def _follow(self) -> None:
        last_result = last_success = time.monotonic()
        while work := self._sleep(last_result):
            runs, called = work
            try:
                with self._looking:
                    came = self._look(runs)
                if came or called:
                    last_result = time.monotonic()
                last_success = time.monotonic()
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
                if not isinstance(error, _TROUBLE) or time.monotonic() - last_success > _HICCUP:
                    self._give_up(runs, error)
            with self._changed:
                self._runs = [each for each in self._runs if any(_unfinished(each))]

    def _sleep(self, last_result: float) -> tuple[list[RunResults], bool] | None:
        """Sleep until a look is due; return the runs, and whether somebody called for it.

        None when there is nothing left to do: then the thread ends, and `follow` starts another.
        """
        with self._changed:
            if not self._runs and not self._place.is_busy():
                self._thread = None
                return None
            soonest, latest = _CUT if self._cut else (_SOONEST, _LATEST)
            wait = min(latest, max(soonest, _SHARE * (time.monotonic() - last_result)))
            called = self._changed.wait_for(lambda: self._called, wait)
            self._called = False
            return list(self._runs), called

    def _look(self, runs: list[RunResults]) -> bool:
        """Read new results, stop cancelled calls, find lost tasks; return whether any changed."""
        listed = self._list_folders([each.path for each in runs])
        came = [self._take(each, listed.get(each.path, [])) for each in runs]
        unread = [each for each, new in zip(runs, came, strict=True) if new is None]
        tasks = [task for each in runs for task in _unfinished(each)]
        given_up = {task: futures for task in tasks if (futures := _pop_cancelled(task))}
        self._stop(runs, given_up)
        for futures in given_up.values():
            for future in futures:
                future.set_running_or_notify_cancel()
        waited = [(each, task) for each in runs for task in _unfinished(each)]
        blind = {task for each in unread for task in _unfinished(each)}  # may have results
        states = self._place.look([task.id for _, task in waited])
        for each, task in waited:
            state = states.get(task.id)
            task.running = state is True
            if state is False and task not in blind and self._is_late(task):
                self._lose(each, task)
        return any(came) or bool(given_up)

    def _list_folders(self, paths: list[str]) -> Mapping[str, list[str] | OSError]:
        fresh = time.monotonic() - self._looked > _REFRESH_SECONDS
        self._looked = time.monotonic() if fresh else self._looked
        self._cut = None
        try:
            return self._store.names(paths, fresh=fresh)
        except SshError as error:
            self._cut = error
            return {}

    def _take(self, results: RunResults, names: list[str] | OSError) -> bool | None:
        """Return whether results came; None while the filesystem or SSH is in trouble."""
        try:
            if self._cut is not None:
                raise self._cut
            if isinstance(names, OSError):
                raise names
            came = results.take(names)
        except _TROUBLE as error:
            self._cut = error if isinstance(error, SshError) else None
            now = time.monotonic()
            results.away_since = now if results.away_since is None else results.away_since
            if now - results.away_since > _HICCUP or isinstance(error, HostKeyRefused):
                self._give_up([results], error)
            return None
        results.away_since = None
        return came

    def _is_late(self, task: FollowedTask) -> bool:
        """Return whether an ended task has had its time to leave a result."""
        now = time.monotonic()
        task.over_since = now if task.over_since is None else task.over_since
        return now - task.over_since > _GRACE

    def _lose(self, results: RunResults, task: FollowedTask) -> None:
        words = self._place.describe_end(task.id)
        for future in task.left.values():
            set_lost(future, f"{words}; {results.last_words(future.log)}")
        task.left.clear()

    def _stop(self, runs: list[RunResults], given_up: Iterable[FollowedTask]) -> None:
        """End tasks without any call left; tell the other tasks which calls to leave out."""
        if unneeded := [task.id for task in given_up if not task.left]:
            self._place.stop(unneeded)
        for results in runs:
            for task in results.tasks.values():
                if task in given_up and task.left:
                    with suppress(*_TROUBLE):  # without the mark the call is made for nothing
                        results.mark(task)

    def farewell(self) -> None:
        """At the exit of Python wait until cancelled jobs are ended and local tasks are started."""
        if os.getpid() != self._process:  # a forked child, which has no thread that follows
            return
        end = time.monotonic() + _FAREWELL
        tasks = [task for each in self._runs for task in _unfinished(each)]
        while any(future.cancelled() for task in tasks for future in list(task.left.values())):
            self._call()
            time.sleep(_SOONEST)
            if time.monotonic() > end:
                break
        if self._looking.acquire(timeout=max(0.0, end - time.monotonic())):
            self._looking.release()  # the look that found the cancelled calls has ended their jobs
        self._place.finish(end - time.monotonic())

    def _give_up(self, runs: list[RunResults], error: BaseException) -> None:
        """Fail all open calls of runs that cannot be followed."""
        words = f"cannot follow the job: {type(error).__name__}: {error}"
        for task in (task for each in runs for task in _unfinished(each)):
            for future in task.left.values():
                set_error(future, CallError(f"call {future.index} of job {task.id}: {words}"))
            task.left.clear()


_FOLLOWERS: weakref.WeakSet[Follower] = weakref.WeakSet()


@atexit.register
def _farewell_all() -> None:
    for follower in list(_FOLLOWERS):
        follower.farewell()


def _unfinished(results: RunResults) -> list[FollowedTask]:
    return [task for task in results.tasks.values() if task.left]


def _pop_cancelled(task: FollowedTask) -> list[CallFuture[Any]]:
    """Remove the cancelled calls from a task and return them."""
    indices = [index for index, future in task.left.items() if future.cancelled()]
    task.cancelled.update(indices)
    return [task.left.pop(index) for index in indices]
