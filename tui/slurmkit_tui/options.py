"""Start options of the app."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

ThemeName = Literal["dark", "light", "no-colour"]


@dataclass(frozen=True)
class AppOptions:
    """Start options of the app.

    Attributes:
        interval: seconds between two questions.
        view: name of the first view.
        mine: start with only my jobs.
        read_only: refuse everything that changes the cluster.
        theme: `dark`, `light` or `no-colour`.
        columns: names of the first columns by view, where they differ from its default.
        keys: other keys of actions, in Textual's names.
        keep_columns: saves the columns of a view for the next start.
        keep_drafts: whether an unsent draft is saved for the next start.
        keep_history: whether numbers of GPUs by hour are saved for the next start.
        trouble: warning shown at the start.
        clock: returns epoch seconds.
        pause: waits some seconds: the time without a key after which the form is planned.
    """

    interval: float = 10.0
    view: str = "home"
    mine: bool = False
    read_only: bool = False
    theme: ThemeName = "dark"
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    keep_columns: Callable[[str, Sequence[str]], None] = lambda _view, _columns: None
    keep_drafts: bool = False
    keep_history: bool = False
    trouble: str = ""
    clock: Callable[[], float] = time.time
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
