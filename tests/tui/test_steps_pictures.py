"""The steps of a job as they are drawn; `pytest --snapshot-update` after looking at the change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_queue import NOW, Scene, job, text, until, view
from slurmkit_tui.feed import Answer, Ask
from textual.pilot import Pilot

from slurmkit.jobs.steps import Steps, Use, merged, parse_sacct, parse_sstat

RECORDED = Path(__file__).parents[1] / "recorded" / "24.11"


def steps() -> Steps:
    live = parse_sstat((RECORDED / "uses-sstat.txt").read_text())
    live["207.2"] = Use(2, 77.0, 3350528.0, 71)
    rows = parse_sacct((RECORDED / "uses-running.txt").read_text(), "\x1frecorded")
    return Steps(merged(rows, live), "", "sacct and sstat", NOW, 0.3)


@pytest.mark.parametrize("columns", [80, 120])
def test_steps(columns: int, snap_compare: Callable[..., bool]) -> None:
    app = Scene([job("207", UserName="alice")]).app()
    live = app.session.feed.fetch

    def fetch(ask: Ask) -> Answer:
        return Answer(steps(), "sacct", NOW, 0.3) if ask.what == "steps" else live(ask)

    app.session.feed.fetch = fetch  # type: ignore[method-assign]

    async def opened(pilot: Pilot[Any]) -> None:
        shown: Any = pilot.app
        await until(pilot, lambda: view(shown).table.count > 0)
        await pilot.press("enter", "T")
        await until(pilot, lambda: "evil" in text(shown))

    assert snap_compare(app, terminal_size=(columns, 24), run_before=opened)
