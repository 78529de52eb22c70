"""What a job waits for, and who waits for it."""

from __future__ import annotations

from fake_queue import Scene, expect_text, job, running, text, waiting
from slurmkit_tui.screens.facts import waiter_facts

JOBS = [
    job("12", UserName="alice"),
    waiting("13", UserName="alice", Dependency="afterok:12(unfulfilled)"),
    waiting("14", UserName="bob", Dependency="afterany:11:12_*(unfulfilled),after:2(failed)"),
    waiting("15", UserName="bob", Dependency="afterok:120(unfulfilled)"),
]


async def test_both_ways() -> None:
    app = Scene(JOBS).app()
    async with running(app, size=(140, 40)) as pilot:
        await pilot.press("enter")
        await expect_text(pilot, "Waited for by")
        assert "13 of alice, 14 of bob (squeue at" in text(app)
        await pilot.press("escape", "j", "enter")
        await expect_text(pilot, "afterok:12(unfulfilled)")
        assert "Waited for by" not in text(app)
        rows = app.view.table.rows_shown
    assert waiter_facts("12_3", rows)  # a task of the array that is waited for
    assert not waiter_facts("2", rows[:3][:2])
    assert [value for _, value in waiter_facts("120", rows)] == ["15 of bob"]
