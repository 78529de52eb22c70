"""Reports of what GPUs did: idle ones, smaller ones that would do, and what there is to buy."""

from __future__ import annotations

from typing import Any

import pytest
from fake_sacct import FakeSacct, job, lately
from gpu_lab import steady, use_of
from slurmkit_accounting import read
from slurmkit_accounting.gpu_use.capacity import (
    gpu_seconds_there,
    load_capacity,
    read_capacity,
    record_capacity,
)
from slurmkit_accounting.gpu_use.samples import GpuName, GpuReading
from slurmkit_accounting.gpu_use.store import store_uses
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ingest.steps import update_measured_use
from slurmkit_accounting.reports.question import Scope
from stored_runs import ran, store_runs

from slurmkit.errors import ControllerDown
from slurmkit.testing import FakeSlurm

HOUR, DAY = 3600, 86400
BEGIN = 1_793_491_200  # 2026-11-01 UTC
NOW = BEGIN + 20 * DAY
A100 = {"gpus": 1, "alloc_tres": "cpu=4,gres/gpu:a100=1,gres/gpu=1,mem=8G,node=1"}
A30 = {"gpus": 1, "alloc_tres": "cpu=4,gres/gpu:a30=1,gres/gpu=1,mem=8G,node=1"}
NOVEMBER = {"timezone": "UTC", "now": NOW}


def measured(ledger: Any, *stored: tuple[dict[str, Any], float, int, int]) -> None:
    """Store runs of ten minutes on one GPU each: the run, its use, memory, and the GPU's memory."""
    store_runs(ledger, *(run for run, *_ in stored))
    with ledger.transaction() as connection:
        for number, (run, busy, memory, total) in enumerate(stored, start=1):
            readings = [
                GpuReading(
                    at=each.at, utilisation=busy, memory_mib=memory, memory_total_mib=total,
                    watts=each.watts, joules=each.joules,
                )
                for each in steady(run["start"], 600)
            ]  # fmt: skip
            use = use_of(*readings, start=run["start"], job=number, gpu=GpuName(f"GPU-{number}"))
            store_uses(connection, [use], run_id=number)
        update_measured_use(connection, list(range(1, len(stored) + 1)))


def by_user(ledger: Any, by: str = "user") -> dict[str, dict[str, Any]]:
    rows = read.efficiency(ledger, "2026-11-01", "2026-12-01", by=by, **NOVEMBER).rows
    return {row[by.replace("-", "_")]: row for row in rows}


def test_who_holds_gpus_that_do_nothing(ledger):
    measured(
        ledger,
        (ran(BEGIN, 600, **A100), 0.0, 20_000, 81_920),
        (ran(BEGIN, 600, **A100), 0.8, 20_000, 81_920),
        (ran(BEGIN, 600, **A100, user="bob"), 0.5, 20_000, 81_920),
    )
    rows = by_user(ledger)
    assert rows["alice"]["gpu_hours_idle"] == pytest.approx(1 / 6)
    assert rows["alice"]["gpu_efficiency"] == pytest.approx(0.4)
    assert rows["bob"]["gpu_hours_idle"] == 0
    assert by_user(ledger, "gpu-type")["a100"]["gpu_hours_idle"] == pytest.approx(1 / 6)


def test_which_runs_would_have_fitted_on_a_smaller_gpu(ledger):
    measured(
        ledger,
        (ran(BEGIN, 600, **A100, user="small"), 0.5, 16_000, 81_920),
        (ran(BEGIN, 600, **A100, user="large"), 0.5, 22_000, 81_920),  # and 20 % more is too much
        (ran(BEGIN, 600, **A30, user="there"), 0.5, 1_000, 24_576),
    )
    rows = by_user(ledger)
    assert {user: row["smaller_gpu"] for user, row in rows.items()} == {
        "small": "a30", "large": None, "there": None,
    }  # fmt: skip
    assert rows["small"]["gpu_memory_gib"] == 15.625


def test_a_run_that_was_not_measured_says_nothing_about_gpus(ledger):
    measured(ledger, (ran(BEGIN, 600, **A30, user="there"), 0.5, 1_000, 24_576))
    store_runs(
        ledger,
        ran(BEGIN, 600, **A100, user="alice", job_id_raw=8, job_id="8", cpu_used_ms=1000),
    )
    row = by_user(ledger)["alice"]
    assert (row["gpu_hours_idle"], row["gpu_memory_gib"], row["smaller_gpu"]) == (None, None, None)


def capacity(ledger: Any, *dates: str, **other: Any) -> dict[tuple[str, str], dict[str, Any]]:
    found = read.capacity(ledger, *dates, **{**NOVEMBER, **other})
    return {(row["month"], row["gpu_type"]): row for row in found.rows}


def test_capacity_is_what_was_there_beside_what_was_held_used_and_waited_for(ledger):
    waited = {"submit": BEGIN - 1800}
    measured(
        ledger,
        (ran(BEGIN, 600, **A100) | waited, 0.5, 20_000, 81_920),
        (ran(BEGIN, 600, **A100) | waited, 0.5, 20_000, 81_920),
        (ran(BEGIN + DAY, 600, **A30), 0.0, 20_000, 24_576),
    )
    with ledger.transaction() as connection:
        record_capacity(connection, 1, {"a100": 4}, BEGIN - DAY)
        record_capacity(connection, 1, {"a100": 4}, BEGIN)  # no change
        record_capacity(connection, 1, {"a100": 8, "a30": 2}, BEGIN + 10 * DAY)
        assert len(load_capacity(connection)[1, "a100"]) == 2
    rows = capacity(ledger, "2026-11-01", "2026-12-01")
    row = rows["2026-11", "a100"]
    assert row["capacity_gpu_hours"] == (4 * 10 + 8 * 10) * 24
    assert (row["gpu_hours"], row["gpu_hours_used"]) == pytest.approx((1 / 3, 1 / 6))
    assert row["held"] == pytest.approx(1 / 3 / 2880)
    assert (row["jobs"], row["wait_hours"], row["wait_hours_mean"]) == (2, 1.0, 0.5)
    # Nobody knows since when there are A30s: not since the month began.
    assert rows["2026-11", "a30"]["capacity_gpu_hours"] is None
    assert rows["2026-11", "a30"]["held"] is None
    assert rows["2026-11", "a30"]["gpu_hours_used"] == 0
    assert ("2026-11", "none") not in rows


def test_capacity_is_of_twelve_months_without_dates(ledger):
    store_runs(ledger, ran(BEGIN - 300 * DAY, 600, **A100), ran(BEGIN - 400 * DAY, 600, **A100))
    assert set(capacity(ledger)) == {("2026-01", "a100")}
    assert set(capacity(ledger, filters={"month": ["2025-09"]})) == {("2025-09", "a100")}


def test_a_reader_sees_the_use_of_own_runs_only(ledger):
    store_runs(ledger, ran(BEGIN, 600, **A100, uid=7), ran(BEGIN, 600, **A100, uid=8))
    mine = Scope(frozenset(), frozenset(), frozenset((7,)))
    assert capacity(ledger, scope=mine)["2026-11", "a100"]["jobs"] == 1
    assert capacity(ledger)["2026-11", "a100"]["jobs"] == 2


def test_gpus_that_were_taken_away_are_there_no_longer(ledger):
    store_runs(ledger, ran(BEGIN, 600, **A100))
    with ledger.transaction() as connection:
        record_capacity(connection, 1, {"a100": 4}, BEGIN)
        record_capacity(connection, 1, {}, BEGIN + DAY)
    rows = capacity(ledger, "2026-11-01", "2026-12-01")
    assert rows["2026-11", "a100"]["capacity_gpu_hours"] == 4 * 24


@pytest.mark.parametrize(
    ("begin", "end", "seconds"),
    [(0, 10, None), (10, 20, 40), (15, 35, 20 + 80 + 0), (30, 40, 0)],
)
def test_gpu_seconds(begin, end, seconds):
    assert gpu_seconds_there([(10, 4), (20, 8), (30, 0)], begin, end) == seconds


def test_an_ingest_notes_the_capacity(ledger):
    now = lately()
    slurm = FakeSacct(job(1, now - 90, now - 90, now - 50))
    ingest(ledger, slurm)
    with ledger.transaction() as connection:
        assert load_capacity(connection) == {}  # no nodes, no answer: unknown
    slurm.nodes = "".join(
        f"NodeName=c{number} CPUTot=8 TmpDisk=0 RealMemory=1000 Sockets=1 Boards=1 CoresPerSocket=8"
        f" ThreadsPerCore=1 State={state} Gres={gres} Partitions=gpu CfgTRES=cpu=8 AllocTRES=\n"
        for number, (state, gres) in enumerate(
            (("IDLE", "gpu:a100:4"), ("DOWN", "gpu:a100:2,gpu:a30:1"))
        )
    )
    ingest(ledger, slurm)
    with ledger.transaction() as connection:
        found = {kind: each[-1][1] for (_, kind), each in load_capacity(connection).items()}
    assert found == {"a100": 6, "a30": 1}


def test_a_controller_that_is_away_is_no_capacity():
    def away(*_: object) -> str:
        raise ControllerDown("slurmctld is down")

    assert read_capacity(FakeSlurm({"scontrol": away})) is None
