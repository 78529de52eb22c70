"""Health: the worst first; of the same weight what goes on now, then the settings."""

from __future__ import annotations

from typing import Any

import pytest
from fake_queue import NOW, until
from slurmkit_tui.feed.composed import ClusterHealth, describe_outages
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


def outage(node: str, outages: int, repeated: int, lost: float | None) -> dict[str, Any]:
    numbers = {"outages": outages, "repeated": repeated, "gpu_hours_lost": lost}
    return {"node": node, "checks": "ecc", **numbers}


@pytest.mark.parametrize(
    ("rows", "severity", "said"),
    [
        ([], "ok", "no node was down or drained in the last 30 days"),
        ([outage("c1", 1, 0, 2.4)], "note", "30 days: 1 outage of 1 node, 2 GPU-hours lost"),
        (
            [outage("c1", 2, 1, 12), outage("c2", 4, 3, 0), outage("c3", 1, 0, 0)],
            "warning",
            "30 days: 7 outages of 3 nodes, 12 GPU-hours lost; again and again: c2 (ecc), c1 (ecc)",
        ),
        ([outage("c1", 1, 0, None)], "note", "30 days: 1 outage of 1 node"),
    ],
)
def test_outages_of_nodes_are_one_line(rows: list[Any], severity: str, said: str) -> None:
    found = describe_outages(rows)
    assert (found.check, found.severity, found.message) == ("node-history", severity, said)


async def test_outages_are_history() -> None:
    found = (*FOUND, describe_outages([outage("c1", 2, 1, 12)]))
    app = StubFeed(health=ClusterHealth(found, NOW)).app("health")
    async with app.run_test(size=(160, 24)) as pilot:
        await until(pilot, lambda: app.view.table.count == 6)
        await pilot.press("slash", *"about", "colon", *"history", "enter")
        await until(pilot, lambda: app.view.table.count == 1)


def test_all_that_passes_is_known_to_the_view() -> None:
    assert {check.name for check in activity.CHECKS} <= set(_NOW)
    assert set(_NOW) <= {check.name for check in (*activity.CHECKS, *CHECKS)}
