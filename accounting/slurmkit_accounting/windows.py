"""What sacct is asked for, window by window, one command at a time, and what it answers."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice, pairwise
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
_LINES = 1000
# What no smaller window helps against.
_HOPELESS = (SlurmMissing, ControllerDown)


class Window(NamedTuple):
    """Epoch seconds [begin, end)."""

    begin: int
    end: int


class Done(NamedTuple):
    """All rows of a window have come."""

    window: Window


class Call(NamedTuple):
    """A command has started: its lines follow, some at a time, and then its end."""

    steps: bool
    mark: str


class End(NamedTuple):
    """A command has ended; not whole when it failed, and what is missing is asked for again."""

    whole: bool


Fetched: TypeAlias = "Call | list[str] | End | Done"


def days(begin: int, end: int) -> list[Window]:
    """Cut a window at the edges of UTC days."""
    edges = [begin, *range((begin // _DAY + 1) * _DAY, end, _DAY), end]
    return [Window(a, b) for a, b in pairwise(edges) if a < b] or [Window(begin, end)]


class Sacct:
    """Asks for rows and for steps.

    Its answers are no more than lines, so that whoever reads ahead is always quick to take them
    and the next command can start.
    """

    def __init__(self, slurm: Slurm, *, steps: bool = True, user: str = "") -> None:
        self._slurm = slurm
        self._whose = (f"--user={user}",) if user else ()
        self._asks = (False, True) if steps else (False,)

    def windows(self, windows: Iterable[Window]) -> Generator[Fetched, None, None]:
        """Rows and steps of each window, and that it is done."""
        for window in windows:
            for steps in self._asks:
                yield from self._window(steps, window)
            yield Done(window)

    def jobs(self, numbers: Sequence[int]) -> Generator[Fetched, None, None]:
        """Rows and steps of some jobs, by JobIDRaw."""
        for first in range(0, len(numbers), _IDS_PER_CALL):
            ids = ",".join(map(str, numbers[first : first + _IDS_PER_CALL]))
            for steps in self._asks:
                yield from self._ask(steps, f"--jobs={ids}")

    def _window(self, steps: bool, window: Window) -> Generator[Fetched, None, None]:  # noqa: FBT001
        begin, end = window
        try:
            yield from self._ask(steps, "-S", f"uts{begin}", "-E", f"uts{end}")
        except _HOPELESS:
            raise
        except SlurmError:
            if end - begin < 2 * _LEAST:
                raise
            middle = (begin + end) // 2  # too much for slurmdbd; rows that came come again
            yield from self._window(steps, Window(begin, middle))
            yield from self._window(steps, Window(middle, end))

    def _ask(self, steps: bool, *selection: str) -> Generator[Fetched, None, None]:  # noqa: FBT001
        call = Call(steps, record_mark())
        argv = (steps_argv if steps else sacct_argv)(call.mark, *self._whose, *selection)
        yield call
        # Closed at once on an interrupt, so that sacct does not run on.
        with closing(self._slurm.stream(argv, timeout=_PATIENCE)) as lines:
            try:
                while some := list(islice(lines, _LINES)):
                    yield some
            except SlurmError:
                yield End(whole=False)
                raise
        yield End(whole=True)


def batches(
    fetched: Iterator[Fetched], how: Layout, size: int
) -> Iterator[Batch | StepBatch | Done]:
    """Read what `Sacct` fetched, up to `size` rows or steps at a time."""
    for item in fetched:
        if isinstance(item, Done):
            yield item
        elif isinstance(item, Call):
            lines = _lines(fetched)
            try:
                if item.steps:
                    yield from read_steps(lines, item.mark, size)
                else:
                    yield from read_batches(lines, item.mark, how, size)
            except _BrokenOff:
                continue


class _BrokenOff(Exception):
    """Never leaves this module."""


def _lines(fetched: Iterator[Fetched]) -> Iterator[str]:
    """The lines of one command, to its end and no further."""
    for item in fetched:
        if isinstance(item, End):
            if not item.whole:
                raise _BrokenOff
            return
        if isinstance(item, list):
            yield from item
