"""GPUs held, measured and in use, by type and hour or day."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from gpu_lab import steady, store_running, use_of
from slurmkit_accounting import read
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.gpu_use.samples import GpuName, GpuReading
from slurmkit_accounting.gpu_use.store import load_measured_gpus, store_uses
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.ledger.schema.gpu_use import gpu_curves
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.remote.served import find_remote_function
from slurmkit_accounting.reports.gpu_use_over_time import GpuUseInTime, load_gpu_use_over_time
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from sqlalchemy import delete, insert
from stored_runs import ran, store_runs

from slurmkit.errors import BadInput

HOUR, DAY = 3600, 86400
MIDNIGHT = 1_793_491_200  # 2026-11-01 UTC
NOW = MIDNIGHT + 10 * HOUR + 1800
ONE = {"gpus": 1, "alloc_tres": "cpu=4,gres/gpu:a100=1,gres/gpu=1,mem=8G,node=1"}


def measured(ledger: Any, run_id: int | None, *uses: GpuUse) -> None:
    with ledger.transaction() as connection:
        store_uses(connection, uses, run_id=run_id)


def two(start: int, seconds: int, *, job: int = 1, busy: tuple[float, float] = (100, 50)) -> Any:
    return [
        use_of(*steady(start, seconds, busy=each), start=start, job=job,
               gpu=GpuName(f"GPU-{number}", "", number))
        for number, each in enumerate(busy)
    ]  # fmt: skip


def asked(ledger: Any, span: str = "24h", **other: Any) -> dict[tuple[int, str], GpuUseInTime]:
    """The rows by hour or day since MIDNIGHT, and type."""
    facts = {"cluster": "lab", "zone": find_zone("UTC"), "scope": EVERYTHING, "now": NOW} | other
    found = load_gpu_use_over_time(ledger, span, **facts)
    return {((row.begin - MIDNIGHT) // found.step, row.gpu_type): row for row in found.rows}


def values(row: GpuUseInTime) -> tuple[float, float, float | None]:
    return tuple(value if value is None else round(value, 3)
                 for value in (row.held, row.measured, row.used))  # fmt: skip


def test_a_run_within_an_hour(ledger):
    store_runs(ledger, ran(MIDNIGHT + 600, 1800))
    measured(ledger, 1, *two(MIDNIGHT + 600, 1800))
    rows = asked(ledger)
    assert {key: values(row) for key, row in rows.items()} == {(0, "a100"): (1, 1, 0.75)}
    assert rows[0, "a100"].seconds == HOUR
    assert rows[0, "a100"].measured_share == 1


def test_what_was_not_measured_is_not_used_and_says_so(ledger):
    store_runs(ledger, ran(MIDNIGHT, 3600), ran(MIDNIGHT + HOUR, 3600))
    (half, _) = two(MIDNIGHT, 1800)
    measured(ledger, 1, half)
    rows = asked(ledger)
    assert values(rows[0, "a100"]) == (2, 0.5, 0.5)
    assert rows[0, "a100"].measured_share == 0.25
    assert values(rows[1, "a100"]) == (2, 0, None)
    assert rows[1, "a100"].measured_share == 0


def test_of_a_long_run_the_curve_says_when_it_worked(ledger):
    store_runs(ledger, ran(MIDNIGHT + 1800, 3 * HOUR, **ONE))
    readings = [
        GpuReading(at=at, utilization=100.0 * (at <= MIDNIGHT + 5400))
        for at in range(MIDNIGHT + 1830, MIDNIGHT + 1800 + 3 * HOUR + 1, 30)
    ]
    measured(ledger, 1, use_of(*readings, start=MIDNIGHT + 1800))
    rows = asked(ledger)
    assert [rows[hour, "a100"].held for hour in range(4)] == [0.5, 1, 1, 0.5]
    known = [rows[hour, "a100"].measured for hour in range(4)]
    assert known == pytest.approx([0.5, 1, 1, 0.5], abs=0.01)
    assert sum(known) == pytest.approx(3)
    used = [rows[hour, "a100"].used for hour in range(4)]
    assert used == pytest.approx([0.5, 0.5, 0, 0], abs=0.03)
    with ledger.transaction() as connection:  # curves are deleted after some time
        connection.execute(delete(gpu_curves))
    used = [row.used for row in asked(ledger).values()]
    assert used == pytest.approx([1 / 6, 1 / 3, 1 / 3, 1 / 6], abs=0.01)


@pytest.mark.sql
def test_a_gap_of_the_service_is_not_measured(ledger):
    store_runs(ledger, ran(MIDNIGHT, 3 * HOUR, **ONE))
    readings = [each for each in steady(MIDNIGHT, 3 * HOUR)
                if not MIDNIGHT + HOUR < each.at <= MIDNIGHT + 2 * HOUR]  # fmt: skip
    measured(ledger, 1, use_of(*readings, start=MIDNIGHT))
    rows = asked(ledger)
    assert rows[0, "a100"].used == pytest.approx(0.8, abs=0.02)
    assert rows[1, "a100"].measured == pytest.approx(0, abs=0.02)
    assert rows[2, "a100"].used == pytest.approx(0.8, abs=0.02)


@pytest.mark.sql
def test_a_run_that_goes_on(ledger):
    start = NOW - 3 * HOUR
    store_runs(ledger, ran(start, 1, **ONE) | {"end": None, "state": "RUNNING"})
    stored = use_of(*steady(start, 3 * HOUR - 1200, busy=100), start=start)
    store_running(ledger, (stored, steady(NOW - 1800, 1800, busy=0)))
    rows = asked(ledger)
    assert set(rows) == {(hour, "a100") for hour in range(7, 11)}
    assert rows[10, "a100"].seconds == 1800
    # Until twenty minutes ago it was stored as busy; samples that are older count once.
    assert values(rows[9, "a100"])[1:] == pytest.approx((1, 1), abs=0.02)
    assert values(rows[10, "a100"]) == pytest.approx((1, 1, 1 / 3), abs=0.02)
    found = load_gpu_use_over_time(ledger, "24h", "lab", find_zone("UTC"), EVERYTHING, NOW)
    assert found.last_sample == NOW


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        # Which of two types was measured is unknown.
        ({"gpus": 2, "alloc_tres": "gres/gpu:a100=1,gres/gpu:h100=1,gres/gpu=2,node=1"},
         {"a100": (0.5, 0, None), "h100": (0.5, 0, None)}),
        # More were measured than the run held: some are not its own.
        (ONE, {"a100": (0.5, 0, None)}),
    ],
)  # fmt: skip
def test_samples_whose_gpu_is_in_doubt_are_not_counted(ledger, run, expected):
    store_runs(ledger, ran(MIDNIGHT, 1800, **run))
    measured(ledger, 1, *two(MIDNIGHT, 1800))
    assert {name: values(row) for (_, name), row in asked(ledger).items()} == expected


def test_the_best_source_of_a_run_counts(ledger):
    store_runs(ledger, ran(MIDNIGHT, 3600, **ONE))
    (whole, _) = two(MIDNIGHT, 3600)
    other = use_of(*steady(MIDNIGHT, 600, busy=10), start=MIDNIGHT, source="prometheus")
    measured(ledger, 1, whole, other)
    assert values(asked(ledger)[0, "a100"]) == (1, 1, 1)


@pytest.mark.parametrize("interim_first", [True, False])
@pytest.mark.parametrize(("missing", "busy"), [(0, 80), (60, 80), (1200, 20)])
def test_what_was_read_in_the_run_counts_only_where_it_covers_more(
    ledger, interim_first, missing, busy
):
    """Both are there for two hours after the end, and mostly cover the same."""
    store_runs(ledger, ran(MIDNIGHT, 3600, **ONE))
    interim = use_of(
        *steady(MIDNIGHT, 3600, busy=20, watts=100), start=MIDNIGHT, source="prometheus_running"
    )
    final = use_of(*steady(MIDNIGHT, 3600 - missing, busy=80), start=MIDNIGHT, source="prometheus")
    measured(ledger, 1, *((interim, final) if interim_first else (final, interim)))
    hour = asked(ledger)[0, "a100"]
    assert hour.used / hour.measured == pytest.approx(busy / 100)
    (run,) = read.gpu_use_of(ledger, "1")
    assert [gpu.utilization for gpu in run.gpus] == [pytest.approx(busy)]
    with ledger.transaction() as connection:
        found = load_measured_gpus(connection, [1])[1]
    assert found.mean == pytest.approx(busy)
    assert found.joules / found.energy_seconds == pytest.approx(300 if busy == 80 else 100)


@pytest.mark.sql
def test_parts_of_a_gpu(ledger, configure):
    configure("[gpu.a100]\nshard_weight = 0.25\n")
    store_runs(ledger, ran(MIDNIGHT, 3600, gpus=0, alloc_tres="cpu=1,gres/shard:a100=2,node=1"))
    measured(ledger, 1, use_of(*steady(MIDNIGHT, 3600, busy=25), start=MIDNIGHT, shared=True))
    (row,) = asked(ledger).values()
    assert values(row) == (0.5, 0.5, 0.25)


def test_days_begin_where_the_reader_is(ledger):
    store_runs(ledger, ran(MIDNIGHT - HOUR, 2 * HOUR, **ONE))
    (use, _) = two(MIDNIGHT - HOUR, 2 * HOUR)
    measured(ledger, 1, use)
    by_day = asked(ledger, "30d")
    assert {day: values(row)[1] for (day, _), row in by_day.items()} == {
        -1: round(1 / 24, 3), 0: round(1 / 10.5, 3),
    }  # fmt: skip
    local = load_gpu_use_over_time(
        ledger, "30d", "lab", find_zone("Europe/Berlin"), EVERYTHING, NOW
    )
    (row,) = local.rows
    assert row.begin == MIDNIGHT - HOUR


def test_hours_of_a_zone_that_begins_them_at_half_past(ledger):
    store_runs(ledger, ran(MIDNIGHT, 3600, **ONE))
    found = load_gpu_use_over_time(ledger, "24h", "lab", find_zone("Asia/Kolkata"), EVERYTHING, NOW)
    assert {row.begin % HOUR for row in found.rows} == {1800}


def test_only_what_the_reader_may_see(ledger):
    store_runs(ledger, ran(MIDNIGHT, 3600, uid=7), ran(MIDNIGHT, 3600, uid=8, user="bob"))
    measured(ledger, 1, *two(MIDNIGHT, 3600))
    measured(ledger, 2, *two(MIDNIGHT, 3600, job=2))
    mine = Scope(frozenset(), frozenset(), frozenset((7,)))
    assert values(asked(ledger, scope=mine)[0, "a100"]) == (2, 2, 1.5)
    assert values(asked(ledger)[0, "a100"]) == (4, 4, 3)
    found = load_gpu_use_over_time(ledger, "24h", "lab", find_zone("UTC"), mine, NOW)
    assert not found.everybody


def test_each_cluster_has_its_own(ledger):
    with pytest.raises(BadInput, match="it has none yet"):
        read.gpu_use_over_time(ledger)
    store_runs(ledger, ran(MIDNIGHT, 3600))
    assert read.gpu_use_over_time(ledger).cluster == "lab"
    with ledger.transaction() as connection:
        connection.execute(insert(clusters), {"name": "other"})
    with pytest.raises(BadInput, match="name a cluster: it has lab, other"):
        read.gpu_use_over_time(ledger)
    with pytest.raises(BadInput, match="no cluster 'x'"):
        read.gpu_use_over_time(ledger, cluster="x")
    with pytest.raises(BadInput, match="span must be 24h, 7d, 30d; not '1h'"):
        read.gpu_use_over_time(ledger, "1h")
    assert asked(ledger, cluster="other") == {}


def test_the_service_answers_the_same(file_ledger):
    start = int(time.time()) - 7200
    store_runs(file_ledger, ran(start, 600))
    measured(file_ledger, 1, *two(start, 600))
    remote = find_remote_function("gpu_use_over_time")
    given = {"span": "7d", "cluster": "lab", "timezone": "UTC"}
    sent = msgspec.json.encode(remote.answer(file_ledger, given, EVERYTHING))
    found = msgspec.json.decode(sent, type=remote.returns)
    assert found == read.gpu_use_over_time(file_ledger, "7d", cluster="lab", timezone="UTC")
    assert sum(row.used * row.seconds for row in found.rows) == pytest.approx(1.5 * 600)
