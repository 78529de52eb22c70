"""The steps of a job as they are drawn; `pytest --snapshot-update` after looking at the change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_queue import NOW, Scene, expect_text, job, until, view
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from textual.pilot import Pilot

from slurmkit.jobs.steps import StepMetrics, StepsSnapshot, merge_live_use, parse_sacct, parse_sstat

RECORDED = Path(__file__).parents[2] / "recorded" / "24.11"


def steps() -> StepsSnapshot:
    live = parse_sstat((RECORDED / "uses-sstat.txt").read_text())
    live["207.2"] = StepMetrics(2, 77.0, 3350528.0, 71)
    rows = parse_sacct((RECORDED / "uses-running.txt").read_text(), "\x1frecorded")
    return StepsSnapshot(merge_live_use(rows, live), "", "sacct and sstat", NOW, 0.3)


@pytest.mark.parametrize("columns", [80, 120])
def test_steps(columns: int, snap_compare: Callable[..., bool]) -> None:
    app = Scene([job("207", UserName="alice")]).app()
    live = app.session.feed.fetch

    def fetch(ask: FeedQuestion) -> FeedAnswer:
        return FeedAnswer(steps(), "sacct", NOW, 0.3) if ask.what == "steps" else live(ask)

    app.session.feed.fetch = fetch  # type: ignore[method-assign]

    async def opened(pilot: Pilot[Any]) -> None:
        shown: Any = pilot.app
        await until(pilot, lambda: view(shown).table.count > 0)
        await pilot.press("enter", "T")
        await expect_text(pilot, "evil")

    assert snap_compare(app, terminal_size=(columns, 24), run_before=opened)
