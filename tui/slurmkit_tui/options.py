"""How the app starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How the app starts.

    Attributes:
        interval: seconds between two questions.
        view: the one shown first.
        mine: start with only my jobs.
        read_only: refuse everything that changes the cluster.
        clock: tells epoch seconds.
    """

    interval: float = 10.0
    view: str = "queue"
    mine: bool = False
    read_only: bool = False
    clock: Callable[[], float] = time.time
