"""The views of fairshare, usage and health."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from fairshare_lines import FACTORS, SHARES
from fake_queue import NOW, expect_text, text
from slurmkit_tui.feed import composed
from slurmkit_tui.feed.composed import (
    ClusterHealth,
    CurrentUse,
    FairshareAnswer,
    LedgerUsage,
    Utilization,
)
from slurmkit_tui.views.utilization import share_bar, utilization_rows
from stub_feed import StubFeed

from slurmkit.cluster.cluster import Cluster
from slurmkit.doctor.case import Diagnosis
from slurmkit.errors import LedgerError
from slurmkit.testing import FakeSlurm


async def shown(feed: StubFeed, view: str, *words: str) -> str:
    app = feed.app(view)
    async with app.run_test(size=(140, 30)) as pilot:
        await expect_text(pilot, *words)
        return text(app)


async def test_fairshare_says_where_one_stands_and_what_priority_is_made_of() -> None:
    found = FairshareAnswer(SHARES, (FACTORS,), "", "7-00:00:00", NOW)
    screen = await shown(StubFeed(fairshare=found), "fairshare", "    alice", "my factor 0.250")
    assert "the fairshare factor of alice in vision is 0.25" in screen
    assert "half of it still counts after 7-00:00:00" in screen
    assert "job 12 in gpu: priority 1250 = fairshare 1000, age 250" in screen
    assert "unused" in screen
    assert next(line for line in screen.splitlines() if "    bob" in line).split()[-1] == "?"


async def test_without_shares_and_factors_it_says_so() -> None:
    found = FairshareAnswer((), (), "sprio: not multifactor", "", NOW)
    screen = await shown(StubFeed(fairshare=found), "fairshare", "no share of alice")
    assert "priority factors are unknown: sprio: not multifactor" in screen


async def test_usage_shows_both_months_and_the_budget() -> None:
    rows = (
        {"month": "2026-10", "pi": "vogel", "user": "alice", "jobs": 3, "gpu_hours": 1234.567,
         "gpu_hours_lost": 0.001},
        {"month": "2026-11", "pi": "vogel", "user": "alice", "jobs": 2, "gpu_hours": 5.0},
        {"month": "2026-11", "pi": "vogel", "user": "bob[/]", "jobs": 1, "gpu_hours": None},
    )  # fmt: skip
    budget = {
        "pi": "vogel", "from": "2026-01-01", "to": "2027-01-01", "runs_out": "2026-12-24",
        "gpu_hours_budget": 2000.0, "gpu_hours_used": 1239.6, "gpu_hours_left": 760.4,
    }  # fmt: skip
    found = LedgerUsage(rows, (budget,), ("ledger of the site; ingested 60 s before",), NOW)
    screen = await shown(StubFeed(usage=found), "usage", "vogel", "2026-11: 5 and some unknown")
    assert "mine 5" in screen
    assert "1,234.57" in screen
    assert "<0.01" in screen
    assert "1,239.6 of 2,000 GPU-hours used, 760.4 left; runs out 2026-12-24" in screen
    assert "bob[/]" in screen


async def test_without_a_ledger_the_view_says_what_is_missing() -> None:
    feed = StubFeed(usage=LedgerError("there is no ledger yet; make one: slurmkit ledger ingest"))
    screen = await shown(feed, "usage", "make one: slurmkit ledger ingest")
    assert "ledger has not answered yet" in screen


async def test_health_shows_the_worst_first_and_how_it_is_mended() -> None:
    rows = (
        Diagnosis("fine", "ok", "all is well"),
        Diagnosis("gpu-tres", "error", "no gres/gpu", "nobody counts GPUs", "add it"),
    )
    app = StubFeed(health=ClusterHealth(rows, NOW)).app("health")
    async with app.run_test(size=(120, 30)) as pilot:
        await expect_text(pilot, "1 error")
        assert text(app).index("gpu-tres") < text(app).index("all is well")
        await pilot.press("enter")
        await expect_text(pilot, "nobody counts GPUs")


def utilization(by: str, *rows: dict, missing: str = "") -> Utilization:
    now = CurrentUse({"a100": 8, "": 2}, {"a100": 5, "": 0}, 3, 64, 10)
    return Utilization(now, rows, by, 30.0, missing, NOW)


async def test_utilization_by_day_with_bars_and_by_type() -> None:
    days = ({"day": "2026-11-20", "jobs": 2, "gpu_hours": 120.0, "gpu_hours_lost": 1.0},
            {"day": "2026-11-21", "jobs": 1, "gpu_hours": None})  # fmt: skip
    feed = StubFeed(utilization=utilization("day", *days))
    app = feed.app("utilization")
    async with app.run_test(size=(140, 30)) as pilot:
        await expect_text(pilot, "2026-11-20")
        line = next(line for line in text(app).splitlines() if "2026-11-20" in line)
        assert "50.0%" in line
        assert line.count("█") == 20
        assert (
            "5 of 10 GPUs held (5 of 8 a100, 0 of 2 untyped), pending jobs request 3 more"
            in text(app)
        )
        feed.values["utilization"] = utilization(
            "gpu-type", {"gpu-type": "a100", "gpu_hours": 2880.0}
        )
        await pilot.press("b")
        await expect_text(pilot, "by gpu-type")
        await expect_text(pilot, "50.0%")


async def test_utilization_by_hour_and_by_day_again() -> None:
    days = utilization("day", {"day": "2026-11-20", "jobs": 2, "gpu_hours": 120.0})
    hours = utilization("hour", {"hour": "2026-11-20 13:00", "jobs": 2, "gpu_hours": 5.0})
    feed = StubFeed(utilization=days)
    app = feed.app("utilization")
    async with app.run_test(size=(140, 30)) as pilot:
        await expect_text(pilot, "by day  ·")
        feed.values["utilization"] = hours
        await pilot.press("h")
        await expect_text(pilot, "2026-11-20 13:00", "50.0%")
        assert "by hour  ·  5 GPU-hours" in text(app)
        assert "present GPUs give in an hour" in text(app)
        feed.values["utilization"] = days
        await pilot.press("h")
        await expect_text(pilot, "by day  ·")
        await pilot.press("h", "b")
        await expect_text(pilot, "by gpu-type")


async def test_without_a_ledger_the_present_is_there() -> None:
    feed = StubFeed(utilization=utilization("day", missing="there is no ledger"))
    screen = await shown(feed, "utilization", "no history: there is no ledger")
    assert "5 of 10 GPUs held" in screen


def test_a_share_beyond_all_there_is_is_marked() -> None:
    assert share_bar(1.5) == "█" * 40 + "+"
    assert share_bar(None) == "?"
    assert share_bar(0.0) == ""


def test_utilization_by_gpu_type_reads_the_ledgers_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding newcomer polish 9: the ledger spells the column `gpu_type`."""
    rows = ({"gpu_type": "a100", "jobs": 1, "gpu_hours": 2.0},)
    ledger = SimpleNamespace(ledger=nullcontext, usage=lambda *_, **__: SimpleNamespace(rows=rows))
    monkeypatch.setattr(composed, "_import_ledger", lambda: ledger)
    monkeypatch.setattr(composed, "_current_use", lambda _: CurrentUse({}, {}, None, 0, 0))
    found = composed.read_utilization(Cluster(FakeSlurm({})), "gpu-type")
    assert [row.name for row in utilization_rows(found)] == ["a100"]
