"""Health: the worst first; of the same weight what goes on now, then the settings."""

from __future__ import annotations

import pytest
from fake_queue import NOW, until
from slurmkit_tui.feed.composed import ClusterHealth
from slurmkit_tui.views.health import _NOW
from stub_feed import StubFeed

from slurmkit.doctor import activity
from slurmkit.doctor.case import Diagnosis
from slurmkit.doctor.checks import CHECKS

FOUND = (
    Diagnosis("enforce", "warning", "limits are not enforced"),
    Diagnosis("scheduler", "ok", "main scheduler: last cycle 2.0 ms"),
    Diagnosis("slurmctld", "ok", "slurmctld answers"),
    Diagnosis("gpu-tres", "error", "AccountingStorageTRES lacks gres/gpu"),
    Diagnosis("jobs-waiting", "warning", "3 pending for ever\x1b[2J"),
)


@pytest.mark.parametrize("columns", [80, 160])
async def test_the_order_and_what_each_is_about(columns: int) -> None:
    app = StubFeed(health=ClusterHealth(FOUND, NOW)).app("health")
    async with app.run_test(size=(columns, 24)) as pilot:
        await until(pilot, lambda: app.view.table.count == 5)
        assert [row.check for row in app.view.table.rows_shown] == [
            "gpu-tres", "jobs-waiting", "enforce", "slurmctld", "scheduler"
        ]  # fmt: skip
        await pilot.press("slash", *"about", "colon", *"now", "enter")
        await until(pilot, lambda: app.view.table.count == 3)


def test_all_that_passes_is_known_to_the_view() -> None:
    assert {check.name for check in activity.CHECKS} <= set(_NOW)
    assert set(_NOW) <= {check.name for check in (*activity.CHECKS, *CHECKS)}
