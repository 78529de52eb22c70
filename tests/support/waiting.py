"""Waiting for another thread or process, with patience for a loaded machine."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds after which something is taken to hang; 50 tests at once on two cores are slow."""


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
