"""Every test of the app starts from the same surroundings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fake_queue import NOW
from slurmkit_tui.screens import preview
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from slurmkit.state import gpumap as gpus
from slurmkit.state import nodes, queue


@pytest.fixture(autouse=True)
def still_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """squeue is always asked at the same moment and takes no time; no variable sets a colour.

    The preview, which comes some time after the rows, has its own tests.
    """
    monkeypatch.setattr(preview, "TALL", 1000)
    clock = SimpleNamespace(time=lambda: NOW, perf_counter=lambda: 0.0)
    for module in (queue, gpus, nodes):
        monkeypatch.setattr(module, "time", clock)
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_COLOR_SYSTEM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def snap_compare(snap_compare: Callable[..., bool]) -> Callable[..., bool]:
    """Compare a picture of the app whose cursors stay: on a busy machine they are just off."""

    def compare(
        app: Any,
        *,
        terminal_size: tuple[int, int],
        run_before: Callable[[Pilot[Any]], Awaitable[None]],
    ) -> bool:
        async def then_still(pilot: Pilot[Any]) -> None:
            await run_before(pilot)
            for kind in (Input, TextArea):
                for field in pilot.app.screen.query(kind):
                    field.cursor_blink = False
            await pilot.pause()

        return snap_compare(app, terminal_size=terminal_size, run_before=then_still)

    return compare
