"""What sacct is asked for, window by window, one command at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from slurmkit.errors import ControllerDown, SlurmError, SlurmMissing
from slurmkit.queue.rows import record_mark
from slurmkit.slurm import Slurm
from slurmkit_accounting.columns import Layout
from slurmkit_accounting.rows import Batch
from slurmkit_accounting.sacct_rows import read_batches, sacct_argv
from slurmkit_accounting.steps_rows import StepBatch, read_steps, steps_argv

_DAY = 86400
_LEAST = 3600  # seconds; a window that fails is halved down to this
_IDS_PER_CALL = 1000
_PATIENCE = 600.0  # seconds for one window
# What no smaller window helps against.
_HOPELESS = (SlurmMissing, ControllerDown)


class Window(NamedTuple):
    """Epoch seconds [begin, end)."""

    begin: int
    end: int


class Done(NamedTuple):
    """All rows of a window have come."""

    window: Window


Fetched: TypeAlias = "Batch | StepBatch | Done"
Ask: TypeAlias = "Callable[[Sequence[str]], Generator[Fetched, None, None]]"


def days(begin: int, end: int) -> list[Window]:
    """Cut a window at the edges of UTC days."""
    edges = [begin, *range((begin // _DAY + 1) * _DAY, end, _DAY), end]
    return [Window(a, b) for a, b in pairwise(edges) if a < b] or [Window(begin, end)]


class Sacct:
    """Asks for rows and for steps.

    Attributes:
        how: how its rows are read.
        size: rows of a batch.
        steps: whether steps are asked for too.
    """

    def __init__(self, slurm: Slurm, how: Layout, size: int, *, steps: bool = True) -> None:
        self._slurm = slurm
        self._asks: list[Ask] = [self._rows, self._steps] if steps else [self._rows]
        self.how = how
        self.size = size

    def windows(self, windows: Iterable[Window]) -> Generator[Fetched, None, None]:
        """Rows and steps of each window, and that it is done."""
        for window in windows:
            for ask in self._asks:
                yield from self._window(ask, window)
            yield Done(window)

    def jobs(self, numbers: Sequence[int]) -> Generator[Fetched, None, None]:
        """Rows and steps of some jobs, by JobIDRaw."""
        for first in range(0, len(numbers), _IDS_PER_CALL):
            ids = ",".join(map(str, numbers[first : first + _IDS_PER_CALL]))
            for ask in self._asks:
                yield from ask((f"--jobs={ids}",))

    def _window(self, ask: Ask, window: Window) -> Generator[Fetched, None, None]:
        begin, end = window
        try:
            yield from ask(("-S", f"uts{begin}", "-E", f"uts{end}"))
        except _HOPELESS:
            raise
        except SlurmError:
            if end - begin < 2 * _LEAST:
                raise
            middle = (begin + end) // 2  # too much for slurmdbd; rows that came come again
            yield from self._window(ask, Window(begin, middle))
            yield from self._window(ask, Window(middle, end))

    def _rows(self, selection: Sequence[str]) -> Generator[Fetched, None, None]:
        mark = record_mark()
        argv = sacct_argv(mark, *selection)
        # Closed at once on an interrupt, so that sacct does not run on.
        with closing(self._slurm.stream(argv, timeout=_PATIENCE)) as lines:
            yield from read_batches(lines, mark, self.how, self.size)

    def _steps(self, selection: Sequence[str]) -> Generator[Fetched, None, None]:
        mark = record_mark()
        argv = steps_argv(mark, *selection)
        with closing(self._slurm.stream(argv, timeout=_PATIENCE)) as lines:
            yield from read_steps(lines, mark, self.size)
