"""`CallFuture`, and how a result, an exception or a loss is put into it."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import format_exception_only
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from slurmkit.errors import CallDied, CallError, PythonDiffers, ResultLost
from slurmkit.executor import resultfiles
from slurmkit.executor.resultfiles import StoredResult
from slurmkit.executor.runs import CallRun

ResultT = TypeVar("ResultT")
_LOGGER = logging.getLogger("concurrent.futures")


class LibraryDiffers(UserWarning):
    """A library has another version in the job than in the calling process."""


class RemoteTraceback(Exception):
    """The traceback in the job; set as the `__cause__` of the exception of a call."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class CallFuture(concurrent.futures.Future[ResultT]):
    """The future of one call; `cancel` also ends a running call.

    It can be pickled. Unpickled, also by another process of the same user, it is attached to the
    call again, as by `attach`. A call of a `LocalExecutor` must have ended for that.

    Attributes:
        index: index of the call among those sent together.
        job: id of all calls sent together, to be given to `attach`.
        job_id: id of the job or array task that makes the call.
        log: log of that task, with the output of all its calls.
    """

    def __init__(self, run: CallRun, number: int, index: int) -> None:
        super().__init__()
        self.index = index
        self.job = run.first
        self.job_id = run.ids[number]
        self.log: Path = run.log(number)
        self.wake: Callable[[], None] = lambda: None
        self.runs: Callable[[], bool] = lambda: False
        self.attach: AttachRun | None = None
        self.attached_run: _AttachedRun | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach_call, (self.attach, self.job, self.index)

    def __repr__(self) -> str:
        """Return index, job and state."""
        state = "running" if self.running() else self._state.lower()
        return f"<CallFuture {self.index} of job {self.job_id}: {state}>"

    def cancel(self) -> bool:
        """Cancel the call, and end its job once no other call needs it; False when it is done."""
        given_up = super().cancel()
        if given_up:
            self.wake()
        return given_up

    def running(self) -> bool:
        """Return whether its job was seen running and the call has no result yet."""
        return not self.done() and self.runs()


# Returns the futures of a run by its job id: an executor's `attach`, with its cluster.
AttachRun = Callable[[str], list[CallFuture[Any]]]


class _AttachedRun:
    """The futures of one run, attached together although they are unpickled one by one.

    Only users refer to the futures that were handed out: their results may be large. Each
    of them keeps the run, so that the next one that is unpickled belongs to the same attachment.
    """

    def __init__(self, futures: list[CallFuture[Any]]) -> None:
        self._waiting = dict(enumerate(futures))
        self._handed_out: WeakValueDictionary[int, CallFuture[Any]] = WeakValueDictionary()

    def hand_out(self, index: int) -> CallFuture[Any] | None:
        """Return the future of a call; None when its user no longer has it."""
        future = self._waiting.pop(index, None) or self._handed_out.get(index)
        if future is not None:
            future.attached_run = self
            self._handed_out[index] = future
        return future


class _AttachedRuns:
    """The runs that were attached by unpickling their futures, each at most once.

    A forked child starts with none: it has no thread that follows them, and the lock may be held
    by a thread that it does not have.
    """

    def __init__(self) -> None:
        self.clear()
        os.register_at_fork(after_in_child=self.clear)

    def clear(self) -> None:
        self._lock = threading.RLock()
        self._runs: WeakValueDictionary[tuple[AttachRun, str], _AttachedRun]
        self._runs = WeakValueDictionary()

    def call(self, attach: AttachRun, job: str, index: int) -> CallFuture[Any]:
        """Return the future of a call; the first one attaches its run."""
        with self._lock:
            run = self._runs.get((attach, job))
            future = run.hand_out(index) if run else None
            if future is None:
                self._runs[attach, job] = run = _AttachedRun(attach(job))
                future = run.hand_out(index)
                assert future is not None  # noqa: S101 - nobody else has this run yet
            return future


_ATTACHED_RUNS = _AttachedRuns()


def _attach_call(attach: AttachRun, job: str, index: int) -> CallFuture[Any]:
    """Return the unpickled future of a call."""
    return _ATTACHED_RUNS.call(attach, job, index)


def settle_future(future: CallFuture[Any], result: StoredResult) -> None:
    """Put a result into its future, whatever its unpickling or a callback raises."""
    with _outliving_callbacks(future):
        if result.kind == resultfiles.LEFT_OUT:
            future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    value, error = _read_result(future, result)
    with _outliving_callbacks(future):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def set_lost(future: CallFuture[Any], words: str) -> None:
    """Set ResultLost: the task ended and left no result."""
    set_error(future, ResultLost(f"{_name(future)} left no result: {words}"))


def set_error(future: CallFuture[Any], error: Exception) -> None:
    """Set an error of ours as the exception of a call."""
    if future.set_running_or_notify_cancel():
        with _outliving_callbacks(future):
            future.set_exception(error)


@contextmanager
def _outliving_callbacks(future: CallFuture[Any]) -> Iterator[None]:
    """Log a SystemExit of a callback: the thread that settles all other futures must go on.

    The stdlib logs every Exception of a callback in the same way.
    """
    try:
        yield
    except BaseException:
        _LOGGER.exception("exception calling callback for %r", future)


def _read_result(
    future: CallFuture[Any], result: StoredResult
) -> tuple[Any, None] | tuple[None, BaseException]:
    """Return the value of a call, or its exception."""
    try:
        if result.kind != resultfiles.VALUE:
            return None, result_exception(future, result)
        _warn_of_versions(result.facts)
        return pickle.loads(result.payload), None  # noqa: S301 - from a file that is ours
    except LibraryDiffers as error:  # where warnings are errors
        return None, error
    except BaseException as error:  # noqa: BLE001 - unpickling runs code of the caller
        words = "".join(format_exception_only(error)).strip()  # its own __str__ may raise
        unread = CallError(f"{_name(future)}: its result cannot be read here: {words}")
        return None, _add_notes(unread, result.facts)


def result_exception(future: CallFuture[Any], result: StoredResult) -> BaseException:
    """Return the exception that a call raised, or the error for a call without a value."""
    facts, name = result.facts, _name(future)
    words = str(facts.get("words", ""))
    if result.kind == resultfiles.UNFIT:
        hint = "choose a Python of the same version that the nodes have: Executor(python=…)"
        return PythonDiffers(f"{name}: {words}; {hint}")
    if result.kind == resultfiles.DIED:
        return CallDied(f"{name}: {words} (on {facts.get('node')}); its output is in {future.log}")
    error = _load_exception(result.payload) or CallError(f"{name} raised {words}")
    error.__cause__ = RemoteTraceback(str(facts.get("trace", words)))
    return _add_notes(error, facts)


def _load_exception(payload: bytes) -> BaseException | None:
    try:
        error = pickle.loads(payload)  # noqa: S301 - from a file that is ours
    except BaseException:  # noqa: BLE001 - an __init__ with its own arguments often fails
        return None
    return error if isinstance(error, BaseException) else None


def _add_notes(error: BaseException, facts: dict[str, Any]) -> BaseException:
    """Add notes on missing modules and other library versions: they may be the cause."""
    where = f"{facts.get('python')} on {facts.get('node')}"
    if missing := facts.get("missing"):
        error.add_note(f"{where} could not import {missing}")
    for name, (there, here) in facts.get("differ", {}).items():
        error.add_note(f"{name} has version {there} for {where}, and {here} here")
    return error


def _warn_of_versions(facts: dict[str, Any]) -> None:
    for name, (there, here) in facts.get("differ", {}).items():
        words = f"{name} has version {there} for {facts.get('python')} on {facts.get('node')}"
        warnings.warn(f"{words}, and {here} here", LibraryDiffers, stacklevel=2)


def _name(future: CallFuture[Any]) -> str:
    return f"call {future.index} of job {future.job_id}"
