"""How the app starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmkit_tui.config import Look


@dataclass(frozen=True)
class Options:
    """How the app starts.

    Attributes:
        interval: seconds between two questions.
        view: the one shown first.
        mine: start with only my jobs.
        read_only: refuse everything that changes the cluster.
        theme: `dark`, `light` or `no-colour`.
        columns: shown in a view at first, where those are not its usual ones.
        keys: other keys of actions, as Textual names them.
        keep_columns: keeps the columns of a view for the next start.
        keep_drafts: whether a job that was not sent is there again at the next start.
        trouble: said at the start.
        clock: tells epoch seconds.
    """

    interval: float = 10.0
    view: str = "queue"
    mine: bool = False
    read_only: bool = False
    theme: Look = "dark"
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    keep_columns: Callable[[str, Sequence[str]], None] = lambda _view, _columns: None
    keep_drafts: bool = False
    trouble: str = ""
    clock: Callable[[], float] = time.time
