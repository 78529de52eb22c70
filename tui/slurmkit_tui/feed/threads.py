"""Blocking calls in threads, so that the event loop stays free.

Threads that parse take turns with the screen's thread, and garbage is rarely collected.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import TypeVar

from slurmkit.errors import SlurmkitError
from slurmkit.slurm.commands import SlurmCommands, at_low_priority
from slurmkit.slurm.machine import Machine, machine_of
from slurmkit_tui import state_files

ResultT = TypeVar("ResultT")
_SLICE = 0.001  # seconds of work between two pauses
# Seconds. `sleep(0)` is too short: the thread runs again before another one has woken up.
_PAUSE = 0.00005
_LINES = 20  # lines between two looks at the clock; one node takes 50 µs to parse
# Thresholds of the three generations. Python's default (700, 10, 10) scans all rows again and again
# while they are parsed. Most objects are in no cycle and need no collector. The second threshold is
# small, because generation 1 scans first x second objects: at 100,000 longer than one frame.
_THRESHOLDS = (10_000, 2, 250)


async def in_thread(function: Callable[[], ResultT]) -> ResultT:
    """Run a blocking function in a daemon thread and return its result.

    The event loop joins its own threads when it ends, so `q` would hang for as long as slurmctld
    keeps squeue waiting. A daemon thread is not joined.

    Raises:
        SlurmkitError: from the function. Any other error is logged and raised as a SlurmkitError.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ResultT] = loop.create_future()

    def settle(act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the app has ended in the meantime
            loop.call_soon_threadsafe(lambda: None if future.done() else act())

    def work() -> None:
        try:
            result = function()
        except SlurmkitError as error:
            refused = error
            settle(lambda: future.set_exception(refused))
        except BaseException as error:  # noqa: BLE001 - a screen full of work outlives one mistake
            state_files.log_error(error)
            mistake = SlurmkitError(
                f"an error in slurmkit itself ({error!r}); see {state_files.error_log_path()}"
            )
            settle(lambda: future.set_exception(mistake))
        else:
            settle(lambda: future.set_result(result))

    threading.Thread(target=work, name="slurmkit-tui", daemon=True).start()
    return await future


class NewestOnly:
    """A queue of one: runs one function at a time in a thread, then only the newest of the waiting.

    Many threads at once, as somebody types, would keep the screen's thread from the interpreter.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._newest: object = None

    async def run(self, function: Callable[[], ResultT]) -> ResultT | None:
        """Return the function's result, or None if a newer function replaced it before it began.

        Raises:
            SlurmkitError: see `in_thread`.
        """
        self._newest = function
        async with self._lock:
            return await in_thread(function) if self._newest is function else None


class ThreadTurns:
    """A lock with a preferred owner: other views wait while the view on screen has work to do."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at_work: list[object] = []  # owners, first come first
        self._preferred: object = None

    def prefer(self, owner: object) -> None:
        """Let this owner go first from now on, whenever it has work to do."""
        with self._changed:
            self._preferred = owner
            self._changed.notify_all()

    def take(self, owner: object) -> None:
        """Wait until it is this owner's turn."""
        with self._changed:
            if owner not in self._at_work:
                self._at_work.append(owner)
            self._changed.wait_for(lambda: self._next is owner)

    def leave(self, owner: object) -> None:
        """Give the turn up: this owner has no work for now."""
        with self._changed:
            if owner in self._at_work:
                self._at_work.remove(owner)
                self._changed.notify_all()

    @property
    def _next(self) -> object:
        return self._preferred if self._preferred in self._at_work else self._at_work[0]

    def run(self, owner: object, function: Callable[[], ResultT]) -> ResultT:
        """Run a function that calls `let_others_run` now and then, in turn with other threads."""
        _this_thread.turn = _Turn(self, owner)
        try:
            return function()
        finally:
            del _this_thread.turn
            self.leave(owner)


class _Turn:
    """The turn of one thread; it begins with the first pause."""

    def __init__(self, turns: ThreadTurns, owner: object) -> None:
        self._turns, self._owner = turns, owner
        self._began = 0.0

    def pause(self) -> None:
        if time.perf_counter() - self._began < _SLICE:
            return
        time.sleep(_PAUSE)
        self._turns.take(self._owner)
        self._began = time.perf_counter()

    def leave(self) -> None:
        self._turns.leave(self._owner)
        self._began = 0.0


class _ThreadState(threading.local):
    turn: _Turn | None = None


_this_thread = _ThreadState()


def let_others_run() -> None:
    """Let the screen's thread and the preferred owner run if this thread has worked for 1 ms."""
    if _this_thread.turn is not None:
        _this_thread.turn.pause()


class SlurmInTurns:
    """Slurm commands whose output is parsed in turns. Waiting for Slurm itself needs no turn.

    The commands only read, so they run at lower priority than the screen.
    """

    def __init__(self, slurm: SlurmCommands) -> None:
        self._slurm = slurm

    @property
    def calls(self) -> int:
        return self._slurm.calls

    @property
    def key(self) -> str | None:
        """Cache key of the cluster."""
        from slurmkit.state.cache import cluster_key  # noqa: PLC0415 - after the first paint

        return cluster_key(self._slurm)

    @property
    def machine(self) -> Machine:
        """The machine on which the commands run."""
        return machine_of(self._slurm)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout: float = 60,
        errors: bool = False,
    ) -> str:
        _leave_turn()
        with at_low_priority():
            output = self._slurm.run(argv, stdin=stdin, timeout=timeout, errors=errors)
        let_others_run()
        return output

    def stream(
        self, argv: Sequence[str], *, timeout: float | None = None
    ) -> Generator[str, None, None]:
        _leave_turn()
        with at_low_priority():
            for number, line in enumerate(self._slurm.stream(argv, timeout=timeout)):
                if number % _LINES == 0:
                    let_others_run()
                yield line


def _leave_turn() -> None:
    if _this_thread.turn is not None:
        _this_thread.turn.leave()


def tune_garbage_collector() -> None:
    """Make collections rare, and exclude all objects that exist now."""
    gc.set_threshold(*_THRESHOLDS)
    gc.freeze()
