"""One thread that looks for results, and asks about tasks that leave none.

Results are files, so it looks for files: soon after the last one came, then less and less often.
Whether a task is over is asked beside it, at the pace of whoever knows.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from slurmkit.errors import CallError, HostKeyRefused, ResultRefused, SshError
from slurmkit.executor import resultfiles, worker
from slurmkit.executor.future import CallFuture, fail, lose, settle
from slurmkit.executor.runs import Run
from slurmkit.executor.store import Store
from slurmkit.text import printable

_SOONEST, _LATEST = 0.02, 1.0  # seconds between two looks
_CUT = (5.0, 30.0)  # the same while the line is away
_SHARE = 0.05  # of the time since something came: so much later than it came is it seen at most
_ANEW = 1.0  # seconds after which NFS is made to look at the folder itself
_TROUBLE = (OSError, SshError)
_HICCUP = 300.0  # seconds that a filesystem, or the way to it, may be in trouble
_NOT_OURS = (errno.EPERM, errno.EACCES, errno.ELOOP, errno.ENXIO)  # a link, a socket, somebody's
_GRACE = 2.0  # seconds in which a result may come after the end of its task
_FAREWELL = 10.0  # seconds that the end of Python waits for jobs to be cancelled
_TAIL = 4096  # bytes of a log in which its last line is looked for


class Place(Protocol):
    """Where tasks run."""

    def look(self, job_ids: Iterable[str]) -> Mapping[str, bool | None]:
        """Of tasks that are waited for: True while it runs, False when it is over, else None.

        It never waits; it is asked with all there are, so what is not named is not waited for.
        """
        ...

    def words(self, job_id: str) -> str:
        """How a task that is over ended."""
        ...

    def stop(self, job_ids: Iterable[str]) -> None:
        """End tasks, or keep them from starting."""
        ...


class Task:
    """What is waited for of one task."""

    def __init__(self, run: Run, number: int) -> None:
        self.id = run.ids[number]
        self.number = number
        self.running = False
        self.over_since: float | None = None
        self.futures = {index: CallFuture(run, number, index) for index in run.tasks[number]}
        self.left = dict(self.futures)
        for future in self.futures.values():
            future.runs = self._runs

    def _runs(self) -> bool:
        return self.running


class Results:
    """The files with results of one run, each read once."""

    def __init__(self, run: Run, tasks: Iterable[Task], store: Store) -> None:
        self.folder = run.folder
        self.tasks = {task.number: task for task in tasks}
        self._store = store
        self.path = f"{run.folder}/{worker.RESULTS}"
        self._read: set[str] = set()
        self._marked: set[int] = set()
        self.away_since: float | None = None

    def take(self, names: Iterable[str]) -> bool:
        """Settle what results are new in the folder; returns whether there were any.

        Raises:
            OSError: when the filesystem is in trouble; what was not read is read the next time.
            SshError: when it cannot be reached, likewise.
        """
        new = [name for name in set(names) - self._read if not name.startswith(".")]
        for name in new:
            self._settle(name)
            self._read.add(name)
        return bool(new)

    def mark(self, task: Task) -> None:
        """Say to a task that goes on which of its calls nobody needs any more."""
        given_up = {at for at, future in task.futures.items() if future.cancelled()}
        for index in given_up - self._marked:
            self._store.mark(f"{self.folder}/{worker.CANCELLED.format(index)}")
            self._marked.add(index)

    def last_words(self, log: Path) -> str:
        """What a task printed last: often why."""
        try:
            with self._store.machine.open(str(log)) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
                lines = file.read().decode("utf-8", "replace").split("\n")
        except OSError as error:
            return f"no log {log} ({error.strerror}): do the nodes share that folder?"
        except SshError as error:
            return f"its log {log} is unknown: {error}"
        said = next((line for line in reversed(lines) if line.strip()), "")
        return f"its log {log} {f'ends with: {printable(said.strip())}' if said else 'is empty'}"

    def _settle(self, name: str) -> None:
        number = name.partition("-")[0]
        task = self.tasks.get(int(number)) if number.isdecimal() else None
        if task is None:
            return
        try:
            for result in resultfiles.results_in(self._store.read(f"{self.path}/{name}")):
                if future := task.left.pop(result.call, None):
                    settle(future, result)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
            refused = f"{error.filename} is not believed: {error.strerror}"
            for future in task.left.values():
                fail(future, ResultRefused(f"call {future.index} of job {task.id}: {refused}"))
            task.left.clear()


class Follower:
    """Settles the futures of any number of runs.

    Args:
        place: where their tasks run.
        store: where their files are.
    """

    def __init__(self, place: Place, store: Store) -> None:
        self._place = place
        self._store = store
        self._runs: list[Results] = []
        self._changed = threading.Condition()
        self._called = False
        self._cut: SshError | None = None  # the line, for all runs of this look
        self._looked = 0.0
        self._thread: threading.Thread | None = None
        atexit.register(self._farewell)

    def follow(self, run: Run) -> list[CallFuture]:
        """The futures of a run's calls, in order."""
        tasks = [Task(run, number) for number in range(len(run.tasks))]
        futures = [future for task in tasks for future in task.futures.values()]
        for future in futures:
            future.wake = self._call
        with self._changed:
            self._runs.append(Results(run, tasks, self._store))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._follow, name="slurmkit-calls", daemon=True
                )
                self._thread.start()
        self._call()
        return sorted(futures, key=lambda future: future.index)

    def _call(self) -> None:
        """A look is due now."""
        with self._changed:
            self._called = True
            self._changed.notify_all()

    def _follow(self) -> None:
        came = fine = time.monotonic()
        while True:
            runs, called = self._rest(came)
            try:
                if self._look(runs) or called:
                    came = time.monotonic()
                fine = time.monotonic()
            except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
                if not isinstance(error, _TROUBLE) or time.monotonic() - fine > _HICCUP:
                    self._give_up(runs, error)
            with self._changed:
                self._runs = [each for each in self._runs if any(_left(each))]

    def _rest(self, came: float) -> tuple[list[Results], bool]:
        """Sleep until a look is due; gives what is to be looked at, and whether it was called."""
        with self._changed:
            soonest, latest = _CUT if self._cut else (_SOONEST, _LATEST)
            wait = min(latest, max(soonest, _SHARE * (time.monotonic() - came)))
            called = self._changed.wait_for(lambda: self._called, wait if self._runs else None)
            self._called = False
            return list(self._runs), called

    def _look(self, runs: list[Results]) -> bool:
        listed = self._listed([each.path for each in runs])
        came = [self._take(each, listed.get(each.path, [])) for each in runs]
        unread = [each for each, new in zip(runs, came, strict=True) if new is None]
        tasks = [task for each in runs for task in _left(each)]
        given_up = {task: found for task in tasks if (found := _given_up(task))}
        self._stop(runs, given_up)
        for found in given_up.values():
            for future in found:
                future.set_running_or_notify_cancel()
        waited = [(each, task) for each in runs for task in _left(each)]
        blind = {task for each in unread for task in _left(each)}  # their results may be there
        seen = self._place.look([task.id for _, task in waited])
        for each, task in waited:
            state = seen.get(task.id)
            task.running = state is True
            if state is False and task not in blind and self._is_late(task):
                self._lose(each, task)
        return any(came) or bool(given_up)

    def _listed(self, paths: list[str]) -> Mapping[str, list[str] | OSError]:
        anew = time.monotonic() - self._looked > _ANEW
        self._looked = time.monotonic() if anew else self._looked
        self._cut = None
        try:
            return self._store.names(paths, anew=anew)
        except SshError as error:
            self._cut = error
            return {}

    def _take(self, results: Results, names: list[str] | OSError) -> bool | None:
        """Whether results came; None when the filesystem is in trouble, which may pass."""
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

    def _is_late(self, task: Task) -> bool:
        now = time.monotonic()
        task.over_since = now if task.over_since is None else task.over_since
        return now - task.over_since > _GRACE

    def _lose(self, results: Results, task: Task) -> None:
        words = self._place.words(task.id)
        for future in task.left.values():
            lose(future, f"{words}; {results.last_words(future.log)}")
        task.left.clear()

    def _stop(self, runs: list[Results], given_up: Iterable[Task]) -> None:
        """End the tasks that nobody waits for any more; others are told what not to do."""
        if unneeded := [task.id for task in given_up if not task.left]:
            self._place.stop(unneeded)
        for results in runs:
            for task in results.tasks.values():
                if task in given_up and task.left:
                    with suppress(*_TROUBLE):  # then what nobody needs is made
                        results.mark(task)

    def _farewell(self) -> None:
        """Python ends: jobs that were given up a moment ago are to be cancelled yet."""
        end = time.monotonic() + _FAREWELL
        tasks = [task for each in self._runs for task in _left(each)]
        while any(future.cancelled() for task in tasks for future in list(task.left.values())):
            self._call()
            time.sleep(_SOONEST)
            if time.monotonic() > end:
                return

    def _give_up(self, runs: list[Results], error: Exception) -> None:
        """Nothing is waited for that cannot be followed."""
        words = f"cannot follow it: {type(error).__name__}: {error}"
        for task in (task for each in runs for task in _left(each)):
            for future in task.left.values():
                fail(future, CallError(f"call {future.index} of job {task.id}: {words}"))
            task.left.clear()


def _left(results: Results) -> list[Task]:
    return [task for task in results.tasks.values() if task.left]


def _given_up(task: Task) -> list[CallFuture]:
    """Take away the calls that are given up."""
    indices = [index for index, future in task.left.items() if future.cancelled()]
    return [task.left.pop(index) for index in indices]
