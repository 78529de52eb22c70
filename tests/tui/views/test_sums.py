"""The views of fairshare, usage and health."""

from __future__ import annotations

from fairshare_lines import FACTORS, SHARES
from fake_queue import NOW, expect_text, text
from slurmkit_tui.feed.composed import (
    ClusterHealth,
    FairshareAnswer,
    LedgerUsage,
)
from stub_feed import StubFeed

from slurmkit.doctor.case import Diagnosis
from slurmkit.errors import LedgerError


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
