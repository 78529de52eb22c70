"""The views of fairshare, usage and health."""

from __future__ import annotations

import math

from fake_queue import NOW, text, until
from slurmkit_tui.feed.pictures import Fairness, Health, Now, Usage, Utilization
from slurmkit_tui.views.utilization import bar
from stub_feed import StubFeed

from slurmkit.doctor.model import Diagnosis
from slurmkit.errors import LedgerError
from slurmkit.fairshare import Factors, Share

SHARES = (
    Share(depth=0, account="root", usage=1.0, raw_usage=100),
    Share(depth=1, account="vision", raw_shares=40, shares=0.4, raw_usage=90, usage=0.9,
          effective_usage=0.9, level=0.444),
    Share(depth=2, account="vision", user="alice", raw_shares=1, shares=0.5, raw_usage=90,
          usage=0.9, effective_usage=1.0, level=0.5, factor=0.25),
    Share(depth=2, account="vision", user="bob", raw_shares=1, shares=0.5, raw_usage=0, usage=0.0,
          effective_usage=0.0, level=math.inf),
)  # fmt: skip
FACTORS = Factors(
    job_id="12", partition="gpu", priority=1250, site=0, age=250, association=0, fairshare=1000,
    job_size=0, partition_factor=0, qos=0, nice=0, tres="",
)  # fmt: skip


async def shown(feed: StubFeed, view: str, *words: str) -> str:
    app = feed.app(view)
    async with app.run_test(size=(140, 30)) as pilot:
        await until(pilot, lambda: all(word in text(app) for word in words))
        return text(app)


async def test_fairshare_says_where_one_stands_and_what_priority_is_made_of() -> None:
    found = Fairness(SHARES, (FACTORS,), "", "7-00:00:00", NOW)
    screen = await shown(StubFeed(fairshare=found), "fairshare", "    alice", "my factor 0.250")
    assert "the fairshare factor of alice in vision is 0.25" in screen
    assert "half of it counts after 7-00:00:00" in screen
    assert "job 12 in gpu: priority 1250 = fairshare 1000, age 250" in screen
    assert "no use" in screen
    assert next(line for line in screen.splitlines() if "    bob" in line).split()[-1] == "?"


async def test_without_shares_and_factors_it_says_so() -> None:
    found = Fairness((), (), "sprio: not multifactor", "", NOW)
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
    found = Usage(rows, (budget,), ("ledger of the site; ingested 60 s before",), NOW)
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
    app = StubFeed(health=Health(rows, NOW)).app("health")
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: "1 error" in text(app))
        assert text(app).index("gpu-tres") < text(app).index("all is well")
        await pilot.press("enter")
        await until(pilot, lambda: "nobody counts GPUs" in text(app))


def utilization(by: str, *rows: dict, missing: str = "") -> Utilization:
    now = Now({"a100": 8, "": 2}, {"a100": 5, "": 0}, 3, 64, 10)
    return Utilization(now, rows, by, 30.0, missing, NOW)


async def test_utilization_by_day_with_bars_and_by_type() -> None:
    days = ({"day": "2026-11-20", "jobs": 2, "gpu_hours": 120.0, "gpu_hours_lost": 1.0},
            {"day": "2026-11-21", "jobs": 1, "gpu_hours": None})  # fmt: skip
    feed = StubFeed(utilization=utilization("day", *days))
    app = feed.app("utilization")
    async with app.run_test(size=(140, 30)) as pilot:
        await until(pilot, lambda: "2026-11-20" in text(app))
        line = next(line for line in text(app).splitlines() if "2026-11-20" in line)
        assert "50.0%" in line
        assert line.count("█") == 20
        assert "5 of 10 GPUs held (5 of 8 a100, 0 of 2 untyped), 3 more wanted" in text(app)
        feed.values["utilization"] = utilization(
            "gpu-type", {"gpu-type": "a100", "gpu_hours": 2880.0}
        )
        await pilot.press("b")
        await until(pilot, lambda: "by gpu-type" in text(app))
        await until(pilot, lambda: "50.0%" in text(app))


async def test_utilization_by_hour_and_by_day_again() -> None:
    days = utilization("day", {"day": "2026-11-20", "jobs": 2, "gpu_hours": 120.0})
    hours = utilization("hour", {"hour": "2026-11-20 13:00", "jobs": 2, "gpu_hours": 5.0})
    feed = StubFeed(utilization=days)
    app = feed.app("utilization")
    async with app.run_test(size=(140, 30)) as pilot:
        await until(pilot, lambda: "by day  ·" in text(app))
        feed.values["utilization"] = hours
        await pilot.press("h")
        await until(pilot, lambda: "2026-11-20 13:00" in text(app) and "50.0%" in text(app))
        assert "by hour  ·  5 GPU-hours" in text(app)
        assert "can give in an hour" in text(app)
        feed.values["utilization"] = days
        await pilot.press("h")
        await until(pilot, lambda: "by day  ·" in text(app))
        await pilot.press("h", "b")
        await until(pilot, lambda: "by gpu-type" in text(app))


async def test_without_a_ledger_the_present_is_there() -> None:
    feed = StubFeed(utilization=utilization("day", missing="there is no ledger"))
    screen = await shown(feed, "utilization", "no history: there is no ledger")
    assert "5 of 10 GPUs held" in screen


def test_a_share_beyond_all_there_is_is_marked() -> None:
    assert bar(1.5) == "█" * 40 + "+"
    assert bar(None) == "?"
    assert bar(0.0) == ""
