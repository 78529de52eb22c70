"""The future of a call, and what becomes of it when its result is there."""

from __future__ import annotations

import concurrent.futures
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurmkit.errors import CallDied, CallError, PythonDiffers, ResultLost
from slurmkit.executor import resultfiles
from slurmkit.executor.resultfiles import Result
from slurmkit.executor.runs import Run


class LibraryDiffers(UserWarning):
    """A library has another version in the job than where its call was made."""


class RemoteTraceback(Exception):
    """Where an exception was raised in the job; it is the cause of the exception."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class CallFuture(concurrent.futures.Future[Any]):
    """The future of one call; `cancel` also ends one that runs.

    Attributes:
        index: of the call among those sent with it.
        job: id that stands for all calls sent with it: what `attach` takes.
        job_id: id of the job, or the task of an array, that makes it.
        log: what that task prints, of all its calls.
    """

    def __init__(self, run: Run, number: int, index: int) -> None:
        super().__init__()
        self.index = index
        self.job = run.first
        self.job_id = run.ids[number]
        self.log: Path = run.log(number)
        self.wake: Callable[[], None] = lambda: None
        self.runs: Callable[[], bool] = lambda: False

    def __repr__(self) -> str:
        """Which call it is, and how it stands."""
        state = "running" if self.running() else self._state.lower()
        return f"<CallFuture {self.index} of job {self.job_id}: {state}>"

    def cancel(self) -> bool:
        """Give the call up, and end its job once no other call needs it; False when it is done."""
        given_up = super().cancel()
        if given_up:
            self.wake()
        return given_up

    def running(self) -> bool:
        """Whether its job was seen running and the call has no result yet."""
        return not self.done() and self.runs()


def settle(future: CallFuture, result: Result) -> None:
    """Take a result for what the call gave."""
    if result.kind == resultfiles.LEFT_OUT:
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    if result.kind != resultfiles.VALUE:
        future.set_exception(exception_of(future, result))
        return
    try:
        _warn(result.facts)
        future.set_result(pickle.loads(result.payload))  # noqa: S301 - from a file that is ours
    except LibraryDiffers as error:  # where warnings are errors
        future.set_exception(error)
    except Exception as error:  # noqa: BLE001 - whatever its __setstate__ raises
        words = f"its result cannot be read here: {type(error).__name__}: {error}"
        future.set_exception(_noted(CallError(f"{_name(future)}: {words}"), result.facts))


def lose(future: CallFuture, words: str) -> None:
    """No result will come."""
    if future.set_running_or_notify_cancel():
        future.set_exception(ResultLost(f"{_name(future)} left no result: {words}"))


def fail(future: CallFuture, error: Exception) -> None:
    """Nothing can be said of it but this."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def exception_of(future: CallFuture, result: Result) -> BaseException:
    """The exception that a call raised, or what else there is instead of a value."""
    facts, name = result.facts, _name(future)
    words = str(facts.get("words", ""))
    if result.kind == resultfiles.UNFIT:
        hint = "name one of the same version that the nodes have: Executor(python=…)"
        return PythonDiffers(f"{name}: {words}; {hint}")
    if result.kind == resultfiles.DIED:
        said = f"{words} (on {facts.get('node')}); what it printed: {future.log}"
        return CallDied(f"{name}: {said}")
    error = _loaded(result.payload) or CallError(f"{name} raised {words}")
    error.__cause__ = RemoteTraceback(str(facts.get("trace", words)))
    return _noted(error, facts)


def _loaded(payload: bytes) -> BaseException | None:
    try:
        error = pickle.loads(payload)  # noqa: S301 - from a file that is ours
    except Exception:  # noqa: BLE001 - one with arguments of its own often cannot be
        return None
    return error if isinstance(error, BaseException) else None


def _noted(error: BaseException, facts: dict[str, Any]) -> BaseException:
    """Tell what differs from here: it may be why."""
    where = f"{facts.get('python')} on {facts.get('node')}"
    if missing := facts.get("missing"):
        error.add_note(f"{where} could not import {missing}")
    for name, (there, here) in facts.get("differ", {}).items():
        error.add_note(f"{name} is {there} for {where}, and {here} here")
    return error


def _warn(facts: dict[str, Any]) -> None:
    for name, (there, here) in facts.get("differ", {}).items():
        words = f"{name} is {there} for {facts.get('python')} on {facts.get('node')}"
        warnings.warn(f"{words}, and {here} here", LibraryDiffers, stacklevel=2)


def _name(future: CallFuture) -> str:
    return f"call {future.index} of job {future.job_id}"
