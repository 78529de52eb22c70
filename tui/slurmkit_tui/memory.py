"""Garbage is looked for seldom: to look through all that a large cluster's rows are would stall."""

from __future__ import annotations

import gc

# Of objects, and of looks: the usual (700, 10, 10) goes through all rows again and again while
# they are read. What goes away is mostly not waited for: no cycle holds it.
_SELDOM = (10_000, 10, 50)


def calm() -> None:
    """Look for garbage seldom, and in what is there now never again."""
    gc.set_threshold(*_SELDOM)
    gc.freeze()
