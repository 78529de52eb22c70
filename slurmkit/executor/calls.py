"""What all executors have: submit, map, attach, shutdown."""

from __future__ import annotations

import concurrent.futures
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

from slurmkit.errors import BadInput
from slurmkit.executor.bar import Bar, Ordered
from slurmkit.executor.follow import Follower, Place
from slurmkit.executor.future import CallFuture
from slurmkit.executor.program import program
from slurmkit.executor.runs import Arguments, Run, divided, drop, find, keep, prepare
from slurmkit.executor.store import Store

ReturnT = TypeVar("ReturnT")


class CallExecutor(concurrent.futures.Executor, ABC):
    """Sends calls to where they run through files in a folder.

    Args:
        place: where they run.
        store: where the files are.
        tasks: the most that a map is divided into.
        progress: show a bar while calls are waited for; None: where standard error is a terminal.
    """

    def __init__(
        self,
        place: Place,
        store: Store,
        tasks: int,
        *,
        progress: bool | None,
    ) -> None:
        if tasks < 1:
            raise BadInput(f"max_workers must be at least 1, not {tasks}")
        self._follower = Follower(place, store)
        self._store = store
        self._tasks = tasks
        self._bar = Bar(asked=progress)
        self._futures: list[CallFuture] = []
        self._closed = False
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def _where(self) -> str:
        """The name of the place, under which runs are remembered."""

    @abstractmethod
    def _send(self, run: Run, worker: str) -> Run:
        """Start the tasks of a run; returns it with the ids of its jobs."""

    @classmethod
    @abstractmethod
    def attach(cls, job_id: str) -> list[CallFuture]:
        """The futures of calls that were sent before, in order, by their job's id."""

    def submit(self, fn: Callable[..., ReturnT], /, *args: Any, **kwargs: Any) -> CallFuture:
        """Send one call, as a job of its own.

        Raises:
            BadInput: when it cannot be pickled, or its job be planned.
            SlurmkitError: when it cannot be sent.
        """
        return self._sent(fn, [(args, kwargs)], 1)[0]

    def submit_all(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], chunksize: int | None = None
    ) -> list[CallFuture]:
        """Send a call for each of the arguments together; returns their futures in order.

        Args:
            fn: what is called.
            iterables: of arguments, as for `map`.
            chunksize: how many calls one task makes, one after the other; by default as many as
                divide all over `max_workers` tasks. For calls that take long: 1.
        """
        calls: list[Arguments] = [(args, {}) for args in zip(*iterables, strict=False)]
        if chunksize is not None and chunksize < 1:
            raise BadInput(f"chunksize must be at least 1, not {chunksize}")
        tasks = -(-len(calls) // chunksize) if chunksize else self._tasks
        return self._sent(fn, calls, tasks) if calls else []

    def map(
        self,
        fn: Callable[..., ReturnT],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
    ) -> Iterator[ReturnT]:
        """Send a call for each of the arguments together; gives their results in order.

        Where a call raised, so does `next` in its turn; the one after it gives the next result.
        No other call is given up for that.

        Args:
            fn: what is called.
            iterables: of arguments; the shortest counts.
            timeout: seconds from now in which a result must be there.
            chunksize: see `submit_all`.
        """
        futures = self.submit_all(fn, *iterables, chunksize=chunksize)
        return Ordered(futures, self._bar, timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Take no more calls.

        Args:
            wait: until all have ended.
            cancel_futures: give up all that have no result yet, whether they run or not.
        """
        self._closed = True
        for future in self._futures if cancel_futures else ():
            future.cancel()
        if wait:
            self._bar.wait(self._futures, self._futures)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool | None:
        """Wait for all calls, unless Ctrl-C or the like was pressed: then their jobs go on."""
        self.shutdown(wait=kind is None or issubclass(kind, Exception))
        return None

    def _sent(
        self, function: Callable[..., Any], calls: Sequence[Arguments], tasks: int
    ) -> list[CallFuture]:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        worker = program(self._store)
        run = prepare(self._store, function, calls, divided(len(calls), tasks))
        run = self._send(run, worker)
        keep(run, self._where)
        return self._followed(run)

    def _followed(self, run: Run) -> list[CallFuture]:
        futures = self._follower.follow(run)
        with self._lock:
            self._futures = [each for each in self._futures if not each.done()] + futures
        return futures

    @classmethod
    @abstractmethod
    def forget(cls, job_id: str) -> None:
        """Remove calls and results of a job that is over, for good."""

    @abstractmethod
    def _at_work(self, run: Run) -> str:
        """What of a run is not over, in words; empty when all is."""

    def forgotten(self, job_id: str) -> None:
        """As `forget`, with this executor."""
        run = find(job_id, self._where)
        if left := self._at_work(run):
            raise BadInput(f"{left}; what is left of {job_id} can be removed once that is over")
        drop(self._store, run, self._where)

    def found(self, job_id: str) -> list[CallFuture]:
        """As `attach`, with this executor."""
        return self._followed(find(job_id, self._where))
