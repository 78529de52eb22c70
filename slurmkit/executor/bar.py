"""A progress bar on standard error, while somebody waits for calls."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from typing import Any

from slurmkit.executor.future import CallFuture

_SOON = 0.3  # seconds in which no bar is shown
_EVERY = 0.2  # seconds


class Bar:
    """Waits for calls, and shows how many are done.

    Args:
        asked: whether it is shown; None: where standard error is a terminal.
    """

    def __init__(self, *, asked: bool | None) -> None:
        self._asked = asked

    def wait(
        self,
        waited: Sequence[CallFuture],
        every: Sequence[CallFuture],
        timeout: float | None = None,
    ) -> None:
        """Block until some calls are done, or the time is over.

        Args:
            waited: for these.
            every: those that the bar is about; one alone has none.
            timeout: seconds; None for ever.
        """
        asked = sys.stderr.isatty() if self._asked is None else self._asked
        if not asked or len(every) < 2:
            wait(waited, timeout)
            return
        end = float("inf") if timeout is None else time.monotonic() + timeout
        soon = min(_SOON, end - time.monotonic())
        if wait(waited, max(0, soon)).not_done and end > time.monotonic():
            _draw(waited, every, end)


def _draw(waited: Sequence[CallFuture], every: Sequence[CallFuture], end: float) -> None:
    from rich.console import Console  # noqa: PLC0415 - 100 ms, and many wait for nothing
    from rich.progress import (  # noqa: PLC0415 - as above
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeElapsedColumn,
    )

    columns = ("calls", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    shown = Progress(
        *columns,
        console=console,
        transient=console.is_terminal,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with shown:
        bar = shown.add_task("", total=len(every))
        while wait(waited, max(0, min(_EVERY, end - time.monotonic()))).not_done:
            shown.update(bar, completed=sum(future.done() for future in every))
            if time.monotonic() > end:
                return


class Ordered:
    """Results in the order of their calls; one that raised does not end them.

    Args:
        futures: in order.
        bar: what waits.
        timeout: seconds from now in which each result must be there; None for ever.
    """

    def __init__(self, futures: Sequence[CallFuture], bar: Bar, timeout: float | None) -> None:
        self._futures = futures
        self._bar = bar
        self._end = None if timeout is None else time.monotonic() + timeout
        self._next = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next result, or the exception in its place.

        Raises:
            TimeoutError: when the time is over first; it can be asked for once more.
        """
        if self._next == len(self._futures):
            raise StopIteration
        future = self._futures[self._next]
        if not future.done():
            left = None if self._end is None else max(0.0, self._end - time.monotonic())
            self._bar.wait([future], self._futures, left)
        if not future.done():
            raise TimeoutError(f"call {future.index} of job {future.job_id} has no result yet")
        self._next += 1
        return future.result()
