"""Base class of the executors: submit, map, attach, forget, shutdown.

Results come in the order of the calls, with a progress bar if wanted.
"""

from __future__ import annotations

import concurrent.futures
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import wait
from typing import Any, ParamSpec, Self, TypeVar

from slurmkit.errors import BadInput
from slurmkit.executor.follower import Follower, JobMonitor
from slurmkit.executor.futures import AttachRun, CallFuture
from slurmkit.executor.payload import write_program
from slurmkit.executor.runs import (
    Arguments,
    CallRun,
    divide_calls,
    load_run,
    remove_run,
    save_run,
    write_run,
)
from slurmkit.executor.store import Store
from slurmkit.resumable import Resumable

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")
_SOON = 0.3  # seconds before the bar appears
_EVERY = 0.2  # seconds between two updates


class CallExecutor(concurrent.futures.Executor, ABC):
    """Executor that sends calls to tasks through files in a shared folder.

    Args:
        place: runs the tasks.
        store: holds the files.
        tasks: most tasks that a map is divided into.
        progress: show a progress bar while waiting; None: if standard error is a terminal.
    """

    def __init__(
        self,
        place: JobMonitor,
        store: Store,
        tasks: int,
        *,
        progress: bool | None,
    ) -> None:
        if tasks < 1:
            raise BadInput(f"max_workers must be greater than 0, not {tasks}")
        self._follower = Follower(place, store)
        self._store = store
        self._tasks = tasks
        self._bar = ProgressBar(asked=progress)
        self._unsettled: set[CallFuture[Any]] = set()
        self._closed = False

    @property
    @abstractmethod
    def _where(self) -> str:
        """Name of the cluster (or `local`) under which records of runs are stored."""

    @abstractmethod
    def _send(self, run: CallRun, worker: str) -> CallRun:
        """Start the tasks of a run and return the run with its job ids."""

    @classmethod
    @abstractmethod
    def attach(cls, job_id: str) -> list[CallFuture[Any]]:
        """Return the futures of calls that were sent before, in order, by their job id."""

    def submit(
        self, fn: Callable[P, ReturnT | Resumable], /, *args: P.args, **kwargs: P.kwargs
    ) -> CallFuture[ReturnT]:
        """Send one call as a job of its own.

        Raises:
            BadInput: when it cannot be pickled, or its job cannot be planned.
            SlurmkitError: when it cannot be sent.
        """
        return self._send_calls(fn, [(args, kwargs)], 1)[0]

    def submit_all(
        self,
        fn: Callable[..., ReturnT | Resumable],
        *iterables: Iterable[Any],
        chunksize: int | None = None,
    ) -> list[CallFuture[ReturnT]]:
        """Send one call for each set of arguments; return their futures in order.

        Args:
            fn: the function to call.
            iterables: arguments, as for `map`.
            chunksize: number of calls that one task makes, one after the other. By default all
                calls are divided among `max_workers` tasks. Use 1 for calls that take long.
        """
        calls: list[Arguments] = [(args, {}) for args in zip(*iterables, strict=False)]
        if chunksize is not None and chunksize < 1:
            raise BadInput(f"chunksize must be greater than 0, not {chunksize}")
        tasks = -(-len(calls) // chunksize) if chunksize else self._tasks
        return self._send_calls(fn, calls, tasks) if calls else []

    def map(
        self,
        fn: Callable[..., ReturnT | Resumable],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
    ) -> Iterator[ReturnT]:
        """Send one call for each set of arguments; yield their results in order.

        If a call raised, `next` raises its exception. The `next` after that yields the next result;
        the other calls go on.

        Args:
            fn: the function to call.
            iterables: arguments; the shortest iterable counts.
            timeout: seconds from now within which each result must be there.
            chunksize: see `submit_all`.
        """
        futures = self.submit_all(fn, *iterables, chunksize=chunksize)
        return OrderedResults(futures, self._bar, timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Take no more calls.

        Args:
            wait: return only when all calls have ended.
            cancel_futures: cancel all calls that have no result yet, running ones too.
        """
        self._closed = True
        futures = list(self._unsettled)
        for future in futures if cancel_futures else ():
            future.cancel()
        if wait:
            self._bar.wait(futures, futures)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool | None:
        """Wait for all calls; after Ctrl-C return at once, and the jobs go on."""
        self.shutdown(wait=kind is None or issubclass(kind, Exception))
        return None

    def _send_calls(
        self, function: Callable[..., Any], calls: Sequence[Arguments], tasks: int
    ) -> list[CallFuture[Any]]:
        """Write the files of a run, send it, keep its record, and follow it."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        worker = write_program(self._store)
        run = write_run(self._store, function, calls, divide_calls(len(calls), tasks))
        run = self._send(run, worker)
        save_run(run, self._where)
        return self._follow(run)

    @property
    @abstractmethod
    def _attach(self) -> AttachRun:
        """`attach` as another process may call it; it can be pickled and compared."""

    def _follow(self, run: CallRun) -> list[CallFuture[Any]]:
        futures = self._follower.follow(run)
        attach = self._attach
        self._unsettled.update(futures)
        for future in futures:  # results may be large, and only their user keeps them
            future.attach = attach
            future.add_done_callback(self._unsettled.discard)
        return futures

    @classmethod
    @abstractmethod
    def forget(cls, job_id: str) -> None:
        """Remove the calls and results of an ended job, for good."""

    @abstractmethod
    def _unfinished(self, run: CallRun) -> str:
        """Describe a job or process of the run that has not ended; empty when all have."""

    def forget_run(self, job_id: str) -> None:
        """Do the work of `forget` with this executor."""
        run = load_run(job_id, self._where)
        if left := self._unfinished(run):
            raise BadInput(f"{left}; the files of {job_id} can be removed once it has ended")
        remove_run(self._store, run, self._where)

    def attach_run(self, job_id: str) -> list[CallFuture[Any]]:
        """Do the work of `attach` with this executor."""
        return self._follow(load_run(job_id, self._where))


class ProgressBar:
    """A progress bar that shows how many calls are done.

    Args:
        asked: whether to show it; None: if standard error is a terminal.
    """

    def __init__(self, *, asked: bool | None) -> None:
        self._asked = asked

    def wait(
        self,
        waited: Sequence[CallFuture[Any]],
        every: Collection[CallFuture[Any]],
        timeout: float | None = None,
        *,
        before: int = 0,
    ) -> None:
        """Block until calls are done, or the timeout is over.

        Args:
            waited: the calls to wait for.
            every: the calls that the bar counts; a single one has no bar.
            timeout: seconds; None for ever.
            before: done calls that the bar counts as well.
        """
        asked = sys.stderr.isatty() if self._asked is None else self._asked
        if not asked or before + len(every) < 2:
            wait(waited, timeout)
            return
        end = float("inf") if timeout is None else time.monotonic() + timeout
        soon = min(_SOON, end - time.monotonic())
        if wait(waited, max(0, soon)).not_done and end > time.monotonic():
            _draw(waited, every, end, before)


def _draw(
    waited: Sequence[CallFuture[Any]], every: Collection[CallFuture[Any]], end: float, before: int
) -> None:
    from rich import console, progress  # noqa: PLC0415 - 100 ms, and many wait for nothing

    columns = (
        "calls",
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
    )
    terminal = console.Console(stderr=True)
    shown = progress.Progress(
        *columns,
        console=terminal,
        transient=terminal.is_terminal,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with shown:
        bar = shown.add_task("", total=before + len(every))
        while wait(waited, max(0, min(_EVERY, end - time.monotonic()))).not_done:
            shown.update(bar, completed=before + sum(future.done() for future in every))
            if time.monotonic() > end:
                return


class OrderedResults(Iterator[ReturnT]):
    """Iterator over results in the order of the calls; an exception does not end it.

    Args:
        futures: the calls, in order.
        bar: progress bar to wait with.
        timeout: seconds from now within which each result must be there; None for ever.
    """

    def __init__(
        self, futures: Iterable[CallFuture[ReturnT]], bar: ProgressBar, timeout: float | None
    ) -> None:
        self._left = deque(futures)
        self._yielded = 0
        self._bar = bar
        self._end = None if timeout is None else time.monotonic() + timeout

    def __next__(self) -> ReturnT:
        """Return the next result, or raise the exception of its call; neither is stored.

        Raises:
            TimeoutError: when the timeout ends first; call again to wait for the same result.
        """
        if not self._left:
            raise StopIteration
        self._wait_for(self._left[0])
        self._yielded += 1
        return self._left.popleft().result()

    def _wait_for(self, future: CallFuture[ReturnT]) -> None:
        if not future.done():
            left = None if self._end is None else max(0.0, self._end - time.monotonic())
            self._bar.wait([future], self._left, left, before=self._yielded)
        if not future.done():
            raise TimeoutError(f"call {future.index} of job {future.job_id} has no result yet")
