"""Waiting for another thread or process, with patience for a loaded machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 300.0
"""Seconds after which something is taken to hang; 50 tests at once on two cores are slow."""
_Seen = TypeVar("_Seen")


def wait_until(true: Callable[[], object], report: Callable[[], str] | None = None) -> None:
    """Wait until something is true.

    Args:
        true: the condition, called every 10 ms.
        report: makes the text of the error.

    Raises:
        AssertionError: when it is still not true after `PATIENCE`.
    """
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, report() if report else ""
        time.sleep(0.01)


def wait_for(
    look: Callable[[], _Seen],
    good: Callable[[_Seen], object] = bool,
    seconds: float = PATIENCE,
    every: float = 0.5,
) -> _Seen:
    """Look at a cluster until what is seen is good; return it.

    Args:
        look: asks the cluster.
        good: whether what it returned is what is waited for.
        seconds: after which it is taken to hang.
        every: seconds between two looks.

    Raises:
        AssertionError: with what was seen last, when it is still not good then.
    """
    end = time.monotonic() + seconds
    while not good(seen := look()):
        assert time.monotonic() < end, f"it did not come to that: {seen}"
        time.sleep(every)
    return seen
