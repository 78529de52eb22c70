"""Which GPUs are idle is the same for all that say it: jobs, reports, screens and reclaim."""

from __future__ import annotations

import random
from datetime import UTC
from typing import Any

import pytest
from gpu_lab import store_running, use_of
from idle_lab import make_job
from slurmkit_accounting import read
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.gpu_use.samples import GpuName, GpuReading
from slurmkit_accounting.gpu_use.store import load_uses, store_uses
from slurmkit_accounting.ingest.steps import update_measured_use
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.reclaim.idleness import make_curves, next_step
from slurmkit_accounting.reclaim.policy import ReclaimPolicy
from slurmkit_tui.jobform.gpu_use import IDLE_SECONDS, is_idle
from sqlalchemy import select
from stored_runs import ran, store_runs

EVERY = 30  # seconds
DAY = 86400
NOW = 1_795_478_400  # 2026-11-24 00:00 UTC
JOBS = 80
ONE = {"gpus": 1, "alloc_tres": "cpu=4,gres/gpu:a100=1,gres/gpu=1,mem=8G,node=1"}
RUNNING = {"state": "RUNNING", "end": None, "uid": 7}


def random_curve(dice: random.Random) -> list[float]:
    """Percents of 20 to 55 minutes: of many GPUs all, or the last, are below 1."""
    count = dice.randint(40, 110)
    kind = dice.choice(("idle", "idle", "ends idle", "works", "flickers"))
    idle_from = {"idle": 0, "ends idle": count - dice.randint(1, 50), "works": count}
    return [
        dice.choice((0, 0, 0.5, 0.9))
        if at >= idle_from.get(kind, at) and (kind != "flickers" or dice.random() < 0.95)
        else dice.choice((1, 1.1, 3, 50, 100))
        for at in range(count)
    ]


def readings(percents: list[float], end: int) -> list[GpuReading]:
    begin = end - EVERY * len(percents)
    return [
        GpuReading(at=begin + EVERY * number + EVERY / 2, utilization=percent)
        for number, percent in enumerate(percents)
    ]


def store_jobs(ledger: Any, curves: list[list[float]]) -> None:
    """Store each curve as a job that ended a day ago, and as one that runs."""
    lengths = [EVERY * len(curve) for curve in curves]
    store_runs(
        ledger,
        *(ran(NOW - DAY - each, each, user=f"u{at}", **ONE) for at, each in enumerate(lengths)),
        *(ran(NOW - each, each, user="now", **ONE) | RUNNING for each in lengths),
    )
    with ledger.transaction() as connection:
        ids = list(connection.scalars(select(runs.c.id).order_by(runs.c.id)))
        for number, curve in enumerate(curves, start=1):
            gpu, start = GpuName(f"GPU-{number}", "", 0), NOW - DAY - EVERY * len(curve)
            use = use_of(*readings(curve, NOW - DAY), start=start, job=number, gpu=gpu)
            store_uses(connection, [use], run_id=number)
        update_measured_use(connection, ids)
    running = [
        (
            use_of(start=NOW - EVERY * len(curve), job=number, gpu=GpuName(f"GPU-{number}", "", 0)),
            readings(curve, NOW),
        )
        for number, curve in enumerate(curves, start=1 + len(curves))
    ]
    store_running(ledger, *running)


@pytest.mark.sql
@pytest.mark.parametrize("seed", range(3))
def test_everything_says_of_the_same_gpus_that_they_are_idle(ledger, monkeypatch, seed):
    monkeypatch.setattr("time.time", lambda: NOW + 5.0)
    dice = random.Random(seed)
    curves = [random_curve(dice) for _ in range(JOBS)]
    store_jobs(ledger, curves)
    november = {"timezone": "UTC", "now": NOW}
    report = read.efficiency(ledger, "2026-11-01", "2026-12-01", by="user", **november)
    by_user = {row["user"]: row for row in report.rows}
    found = read.gpu_use_now(ledger, seconds=3600)
    on_screen = {gpu.job_id: gpu for gpu in found}
    with ledger.transaction() as connection:
        uses = {use.job: use for use in load_uses(connection)}
    idle_throughout = idle_now = 0
    for number, curve in enumerate(curves, start=1):
        below = [percent < 1 for percent in curve]
        whole = all(below)
        (run,) = read.gpu_use_of(ledger, str(number))
        assert run.gpus[0].idle is whole
        assert run.gpus[0].idle_share == pytest.approx(sum(below) / len(below))
        row = by_user[f"u{number - 1}"]
        assert row["gpu_hours_idle"] == pytest.approx(EVERY * sum(below) / 3600, abs=1e-3)
        assert (row["gpu_hours_idle"] == pytest.approx(row["gpu_hours"])) is whole

        last = len(curve) if whole else below[::-1].index(False)
        gpu = on_screen[str(number + JOBS)]
        assert (gpu.busiest < 1) is whole  # for `report idle` and the portal
        assert gpu.idle_seconds == (EVERY * (last - 1) if last else None)
        long = EVERY * last >= IDLE_SECONDS
        assert acts(uses[number + JOBS], curve) is long
        # The screen marks it from nine tenths of the time on.
        assert is_idle(gpu) is (EVERY * (last - 1) >= 0.9 * IDLE_SECONDS)
        idle_throughout, idle_now = idle_throughout + whole, idle_now + long
    assert idle_throughout > JOBS / 8
    assert JOBS - idle_now > JOBS / 8


def acts(use: Any, curve: list[float]) -> bool:
    """Whether a policy would act that looks at as many minutes as the screen."""
    job = make_job(use.job, start=NOW - EVERY * len(curve))
    policy = ReclaimPolicy(minutes=IDLE_SECONDS // 60, skip_minutes=0, covered=0.8)
    step = next_step(make_curves([use], policy), job, policy, (), at=NOW, zone=Zone("UTC", UTC))
    return step is not None
