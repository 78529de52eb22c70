"""Names as a directory may have them: 60 letters of any script, wide ones, and hostile ones."""

from __future__ import annotations

import pytest
from fake_queue import NOW, Scene, job, running, text, until
from slurmkit_tui.feed.composed import LedgerUsage
from slurmkit_tui.screens.job import JobScreen
from stub_feed import StubFeed

NAMES = {
    "cyrillic": "Константинопольский-Вознесенский Александр Владимирович мл. х",
    "wide": "数据预处理与训练平台" * 6,
    "arabic": "عبد الرحمن بن محمد بن عبد العزيز آل سعود الكبير المحترم جدا جد",
    "combining": "Z\u0308o\u0308e\u0301 " * 15,
    "hostile": "[red]not[/] \x1b[2J\u202e\n" * 5,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("size", [(80, 24), (120, 30), (40, 10)])
async def test_usage_and_its_notes(name: str, size: tuple[int, int]) -> None:
    row = {"month": "2026-11", "pi": name, "user": name, "jobs": 1, "gpu_hours": 2.0}
    budget = {"pi": name, "from": "2026-01-01", "to": "2027-01-01"}
    app = StubFeed(usage=LedgerUsage((row,), (budget,), (name,), NOW)).app("usage")
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.session.last_answer(app.view.ask).prepared is not None)
        await pilot.pause()
        shown = text(app)  # which checks that every line is as wide as the screen
        assert "2026-11" in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        await pilot.press("right", "end", "slash", *"x", "escape")
        await pilot.pause()
        assert text(app)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
async def test_queue_and_job(name: str) -> None:
    app = Scene([job("11", UserName=name, Account=name, Name=name)]).app()
    async with running(app, size=(80, 24)) as pilot:
        assert "11" in text(app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen) and "squeue at" in text(app))
        assert "\x1b" not in text(app)
        await pilot.press("escape", "c")
        await until(pilot, lambda: "refused" in text(app) or "scancel" in text(app))
