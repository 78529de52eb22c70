"""One thread at a time makes rows of what Slurm said, the one for the view on screen first.

Two would keep the screen's own thread from the interpreter for twice as long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from slurmkit.machine import Machine, machine_of
from slurmkit.slurm import Slurm, behind

_SLICE = 0.001  # seconds of work between two pauses
# Seconds. `sleep(0)` gives nothing away: the thread is back before another one has woken up.
_PAUSE = 0.00005
_LINES = 20  # between two looks at the clock; to read a node takes 50 µs

ResultT = TypeVar("ResultT")


class Turns:
    """Who may work. A view that was left waits while the one on screen has something to work on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at_work: list[object] = []  # the one that began first comes first
        self._preferred: object = None

    def prefer(self, whose: object) -> None:
        """Let somebody go first from now on, whenever there is work of theirs."""
        with self._changed:
            self._preferred = whose
            self._changed.notify_all()

    def take(self, whose: object) -> None:
        """Wait until it is somebody's turn."""
        with self._changed:
            if whose not in self._at_work:
                self._at_work.append(whose)
            self._changed.wait_for(lambda: self._next is whose)

    def leave(self, whose: object) -> None:
        """Have no work for now."""
        with self._changed:
            if whose in self._at_work:
                self._at_work.remove(whose)
                self._changed.notify_all()

    @property
    def _next(self) -> object:
        return self._preferred if self._preferred in self._at_work else self._at_work[0]

    def run(self, whose: object, function: Callable[[], ResultT]) -> ResultT:
        """Run a function that pauses now and then (see `pause`), in turn with others."""
        _here.turn = _Turn(self, whose)
        try:
            return function()
        finally:
            del _here.turn
            self.leave(whose)


class _Turn:
    """One thread's turn; it begins with the first pause."""

    def __init__(self, turns: Turns, whose: object) -> None:
        self._turns, self._whose = turns, whose
        self._began = 0.0

    def pause(self) -> None:
        if time.perf_counter() - self._began < _SLICE:
            return
        time.sleep(_PAUSE)
        self._turns.take(self._whose)
        self._began = time.perf_counter()

    def leave(self) -> None:
        self._turns.leave(self._whose)
        self._began = 0.0


class _Here(threading.local):
    turn: _Turn | None = None


_here = _Here()


def pause() -> None:
    """Let the screen's thread run, and whoever goes first, if this thread has worked for long."""
    if _here.turn is not None:
        _here.turn.pause()


class InTurns:
    """A border to Slurm whose answers are read in turn; nobody waits for one that has none yet.

    Its commands only ask, so the machine runs the screen before them.
    """

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm

    @property
    def calls(self) -> int:
        """See `Slurm.calls`."""
        return self._slurm.calls

    @property
    def key(self) -> str | None:
        """Names the cluster, so that what is kept of it is found."""
        from slurmkit.capabilities.cache import cluster_key  # noqa: PLC0415 - after the first paint

        return cluster_key(self._slurm)

    @property
    def machine(self) -> Machine:
        """Where its commands run."""
        return machine_of(self._slurm)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout: float = 60,
        errors: bool = False,
    ) -> str:
        """See `Slurm.run`."""
        _leave()
        with behind():
            said = self._slurm.run(argv, stdin=stdin, timeout=timeout, errors=errors)
        pause()
        return said

    def stream(
        self, argv: Sequence[str], *, timeout: float | None = None
    ) -> Generator[str, None, None]:
        """See `Slurm.stream`."""
        _leave()
        with behind():
            for number, line in enumerate(self._slurm.stream(argv, timeout=timeout)):
                if number % _LINES == 0:
                    pause()
                yield line


def _leave() -> None:
    if _here.turn is not None:
        _here.turn.leave()
