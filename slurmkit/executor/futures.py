"""`CallFuture`, and how a result, an exception or a loss is put into it."""

from __future__ import annotations

import concurrent.futures
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurmkit.errors import CallDied, CallError, PythonDiffers, ResultLost
from slurmkit.executor import resultfiles
from slurmkit.executor.resultfiles import StoredResult
from slurmkit.executor.runs import CallRun


class LibraryDiffers(UserWarning):
    """A library has another version in the job than in the calling process."""


class RemoteTraceback(Exception):
    """The traceback in the job; set as the `__cause__` of the exception of a call."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class CallFuture(concurrent.futures.Future[Any]):
    """The future of one call; `cancel` also ends a running call.

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


def settle_future(future: CallFuture, result: StoredResult) -> None:
    """Put a result into its future."""
    if result.kind == resultfiles.LEFT_OUT:
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    if result.kind != resultfiles.VALUE:
        future.set_exception(result_exception(future, result))
        return
    try:
        _warn_of_versions(result.facts)
        future.set_result(pickle.loads(result.payload))  # noqa: S301 - from a file that is ours
    except LibraryDiffers as error:  # where warnings are errors
        future.set_exception(error)
    except Exception as error:  # noqa: BLE001 - whatever its __setstate__ raises
        words = f"its result cannot be read here: {type(error).__name__}: {error}"
        future.set_exception(_add_notes(CallError(f"{_name(future)}: {words}"), result.facts))


def set_lost(future: CallFuture, words: str) -> None:
    """Set ResultLost: the task ended and left no result."""
    if future.set_running_or_notify_cancel():
        future.set_exception(ResultLost(f"{_name(future)} left no result: {words}"))


def set_error(future: CallFuture, error: Exception) -> None:
    """Set an error of ours as the exception of a call."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def result_exception(future: CallFuture, result: StoredResult) -> BaseException:
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
    except Exception:  # noqa: BLE001 - an __init__ with its own arguments often fails
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


def _name(future: CallFuture) -> str:
    return f"call {future.index} of job {future.job_id}"
