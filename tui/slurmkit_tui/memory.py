"""Garbage is looked for seldom: to look through all that a large cluster's rows are would stall."""

from __future__ import annotations

import gc

# Of objects, and of looks: the usual (700, 10, 10) goes through all rows again and again while
# they are read. What goes away is mostly not waited for: no cycle holds it. The second is small,
# since so many times the first are looked at together: at 100,000 that takes longer than a frame.
_SELDOM = (10_000, 2, 250)


def calm() -> None:
    """Look for garbage seldom, and in what is there now never again."""
    gc.set_threshold(*_SELDOM)
    gc.freeze()
