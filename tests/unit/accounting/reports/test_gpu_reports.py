"""Reports of what GPUs did: idle ones, smaller ones that would do, and what there is to buy."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import Counter, defaultdict
from typing import Any
from zoneinfo import ZoneInfo

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
from slurmkit_accounting.ledger.schema.runs import clusters, spans
from slurmkit_accounting.reports.question import Scope
from sqlalchemy import insert, select, update
from stored_runs import ran, store_runs

from slurmkit.errors import ControllerDown
from slurmkit.testing import FakeSlurm

HOUR, DAY = 3600, 86400
BEGIN = 1_793_491_200  # 2026-11-01 UTC
NOW = BEGIN + 20 * DAY
A100 = {"gpus": 1, "alloc_tres": "cpu=4,gres/gpu:a100=1,gres/gpu=1,mem=8G,node=1"}
A30 = {"gpus": 1, "alloc_tres": "cpu=4,gres/gpu:a30=1,gres/gpu=1,mem=8G,node=1"}
UNTYPED = {"gpus": 1, "alloc_tres": "cpu=4,gres/gpu=1,mem=8G,node=1"}
NOVEMBER = {"timezone": "UTC", "now": NOW}


def measured(ledger: Any, *stored: tuple[dict[str, Any], float, int, int]) -> None:
    """Store runs of ten minutes on one GPU each: the run, its use, memory, and the GPU's memory."""
    store_runs(ledger, *(run for run, *_ in stored))
    with ledger.transaction() as connection:
        for number, (run, busy, memory, total) in enumerate(stored, start=1):
            readings = [
                GpuReading(
                    at=each.at, utilization=busy, memory_mib=memory, memory_total_mib=total,
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


@pytest.mark.sql
def test_a_type_of_another_vendor_is_a_name(ledger):
    """As slurmdbd 26.05 wrote it of a node with gpu:mi300x:8."""
    tres = "billing=49,cpu=1,gres/gpu:mi300x=3,gres/gpu=3,mem=1G,node=1"
    store_runs(ledger, ran(BEGIN, HOUR, gpus=3, alloc_tres=tres), ran(BEGIN, HOUR, **A100))
    [row] = read.usage(
        ledger, "2026-11-01", "2026-12-01", by="gpu-type", filters={"gpu_type": ["mi300x"]},
        **NOVEMBER,
    ).rows  # fmt: skip
    assert (row["gpu_type"], row["gpu_hours"]) == ("mi300x", 3)


@pytest.mark.sql
def test_who_holds_gpus_that_do_nothing(ledger):
    measured(
        ledger,
        (ran(BEGIN, 600, **A100), 0, 20_000, 81_920),
        (ran(BEGIN, 600, **A100), 80, 20_000, 81_920),
        (ran(BEGIN, 600, **A100, user="bob"), 50, 20_000, 81_920),
    )
    rows = by_user(ledger)
    assert rows["alice"]["gpu_hours_idle"] == pytest.approx(1 / 6)
    assert rows["alice"]["gpu_efficiency"] == pytest.approx(0.4)
    assert rows["bob"]["gpu_hours_idle"] == 0
    assert by_user(ledger, "gpu-type")["a100"]["gpu_hours_idle"] == pytest.approx(1 / 6)


@pytest.mark.sql
def test_which_runs_would_have_fitted_on_a_smaller_gpu(ledger):
    measured(
        ledger,
        (ran(BEGIN, 600, **A100, user="small"), 50, 16_000, 81_920),
        (ran(BEGIN, 600, **A100, user="large"), 50, 22_000, 81_920),  # and 20 % more is too much
        (ran(BEGIN, 600, **A30, user="there"), 50, 1_000, 24_576),
    )
    rows = by_user(ledger)
    assert {user: row["smaller_gpu"] for user, row in rows.items()} == {
        "small": "a30", "large": "", "there": "",
    }  # fmt: skip
    assert rows["small"]["gpu_memory_gib"] == 15.625


@pytest.mark.sql
def test_a_run_that_was_not_measured_says_nothing_about_gpus(ledger):
    measured(ledger, (ran(BEGIN, 600, **A30, user="there"), 50, 1_000, 24_576))
    store_runs(
        ledger,
        ran(BEGIN, 600, **A100, user="alice", job_id_raw=8, job_id="8", cpu_used_ms=1000),
    )
    row = by_user(ledger)["alice"]
    assert (row["gpu_hours_idle"], row["gpu_memory_gib"], row["smaller_gpu"]) == (None, None, None)


@pytest.mark.sql
def test_untyped_gpus_have_the_type_of_their_partition(ledger, configure):
    store_runs(
        ledger,
        *(
            ran(BEGIN, 600, **UNTYPED, partition=partition, gpu_used_permille=0, db_index=number)
            for number, partition in enumerate(("old", "new", "new"))
        ),
    )
    assert {kind: row["jobs"] for kind, row in by_user(ledger, "gpu-type").items()} == {
        "untyped": 3
    }
    configure('[partition.new]\ngpu_type = "h100"\n')
    assert {kind: row["jobs"] for kind, row in by_user(ledger, "gpu-type").items()} == {
        "untyped": 1, "h100": 2,
    }  # fmt: skip


@pytest.mark.sql
@pytest.mark.parametrize("by", ["user", "gpu-type", "partition", "cluster"])
def test_efficiency_is_what_adding_up_runs_gives(ledger, by):
    chance = random.Random(3)
    stored = [
        ran(
            BEGIN + chance.randrange(9 * DAY), chance.randrange(90_000),
            **chance.choice((A100, A30)),
            user=chance.choice("abc"), partition=chance.choice("xyz"), db_index=number,
            gpu_used_permille=chance.choice([None, chance.randrange(1001)]), cpu_used_ms=0,
            gpu_idle_seconds=chance.choice([None, 500]),
            gpu_mem_peak_mib=chance.choice([None, chance.randrange(80_000)]),
        )
        for number in range(300)
    ]  # fmt: skip
    store_runs(ledger, *stored)
    wanted: dict[tuple[object, ...], list[dict[str, Any]]] = defaultdict(list)
    for run in stored:
        kind = run["alloc_tres"].split(":")[1].split("=")[0]
        own = {"gpu-type": kind, "cluster": "lab"}.get(by) or run[by]
        wanted[own, kind].append(run)
    rows = read.efficiency(ledger, "2026-11-01", "2026-12-01", by=by, **NOVEMBER).rows
    found = {}
    for row in rows:  # shapes of both types read the same in `asked`
        found[row[by.replace("-", "_")], row["jobs"], row["gpu_hours"]] = row
    assert len(found) == len(wanted)
    for (own, _), runs_of in wanted.items():
        seconds = {number: run["end"] - run["start"] for number, run in enumerate(runs_of)}
        measured = {n: s for n, s in seconds.items() if runs_of[n]["gpu_used_permille"] is not None}
        used = sum(runs_of[n]["gpu_used_permille"] * s / 1000 for n, s in measured.items())
        row = found[own, len(runs_of), sum(seconds.values()) / HOUR]
        assert row["gpu_hours_wasted"] == pytest.approx((sum(measured.values()) - used) / HOUR)
        assert row["gpu_efficiency"] == pytest.approx(used / sum(measured.values()))
        idle = [run["gpu_idle_seconds"] or 0 for run in runs_of]
        assert row["gpu_hours_idle"] == pytest.approx(sum(idle) / HOUR)
        assert row["gpu_memory_gib"] == max(run["gpu_mem_peak_mib"] or 0 for run in runs_of) / 1024
    wasted = [-row["gpu_hours_wasted"] for row in rows]
    assert wasted == sorted(wasted)


def charts(report: read.Report) -> dict[str, dict[str, dict[str, float]]]:
    """The bars of each chart: title, name of the bar, series, value."""
    return {
        panel.title: {
            label: {one.name: one.values[at] or 0 for one in panel.series}
            for at, label in enumerate(panel.labels)
        }
        for panel in report.panels
        if panel.kind == "bars"
    }


@pytest.mark.sql
def test_a_chart_shows_what_was_used_beside_what_was_held_and_what_nobody_knows(ledger):
    """alice used 1.5 of 3 hours; of bob nothing was measured; carol's run began long before."""
    half = {"gpu_used_permille": 500, "gpu_idle_seconds": 600, "gpu_mem_peak_mib": 1000}
    store_runs(
        ledger,
        ran(BEGIN, 3 * HOUR, **A100, **half),
        ran(BEGIN, 2 * HOUR, **A30, user="bob", cpu_used_ms=1000),
        ran(BEGIN - 99 * HOUR, 100 * HOUR, **A100, user="carol", **half),
    )
    november = ("2026-11-01", "2026-12-01")
    found = charts(read.usage(ledger, *november, by="pi", panels=True, **NOVEMBER))
    by_person = found["GPU-hours held and used, by person"]
    assert by_person == {
        "alice": {"used": 1.5, "not used": 1.5, "not measured": 0},
        "bob": {"used": 0, "not used": 0, "not measured": 2},
        "carol": {"used": 0.5, "not used": 0.5, "not measured": 0},
    }
    by_type = found["GPU-hours held and used, by GPU type"]
    assert by_type["a30"] == {"used": 0, "not used": 0, "not measured": 2}
    assert by_type["a100"] == {"used": 2, "not used": 2, "not measured": 0}

    wasted = read.efficiency(ledger, *november, by="user", **NOVEMBER)
    found = charts(wasted)
    assert found["GPU-hours held and used"] == {
        "alice": {"used": 1.5, "not used": 1.5, "not measured": 0},
        "bob": {"used": 0, "not used": 0, "not measured": 2},
        "carol": {"used": 50, "not used": 50, "not measured": 0},
    }
    assert list(found["GPU-hours in which GPUs did nothing"]) == ["alice", "carol"]
    assert wasted.meta.notes == ("GPU-hours in which GPUs did nothing: alice 0.17, carol 0.17",)


@pytest.mark.sql
def test_where_nothing_is_measured_there_is_no_chart_of_it(ledger):
    store_runs(ledger, ran(BEGIN, 3 * HOUR, **A100, cpu_used_ms=1000))
    november = ("2026-11-01", "2026-12-01")
    found = charts(read.usage(ledger, *november, by="pi", panels=True, **NOVEMBER))
    assert found["GPU-hours by person"] == {"alice": {"GPU-hours": 3}}
    assert not [title for title in found if "used" in title]
    assert read.efficiency(ledger, *november, by="user", **NOVEMBER).panels == ()


def test_who_could_have_had_a_smaller_gpu_is_said(ledger):
    people = ["ada", "bea", "cyd", "dan", "eve", "fay", "gus"]
    measured(
        ledger,
        *((ran(BEGIN, 600, **A100, user=user), 50, 1_000, 81_920) for user in people),
        (ran(BEGIN, 600, **A30, user="there"), 50, 1_000, 24_576),
    )
    (note,) = read.efficiency(ledger, "2026-11-01", "2026-12-01", by="user", **NOVEMBER).meta.notes
    assert note == (
        "GPU-hours of runs that GPUs with less memory would have held: ada 0.17, bea 0.17,"
        " cyd 0.17, dan 0.17, eve 0.17, 2 others 0.33"
    )


@pytest.mark.sql
def test_runs_that_would_have_fitted_count_one_by_one(ledger):
    """All runs on A100s are one row, which one of them would have fitted on no smaller GPU."""
    h100 = A100 | {"alloc_tres": A100["alloc_tres"].replace("a100", "h100")}
    measured(
        ledger,
        (ran(BEGIN, 600, **A100, user="a"), 50, 16_000, 81_920),
        (ran(BEGIN, 1200, **A100, user="b"), 50, 20_480, 81_920),  # with 20 % more just the A30's
        (ran(BEGIN, 600, **A100, user="c"), 50, 20_481, 81_920),
        (ran(BEGIN, 600, **A30, user="d"), 50, 100, 24_576),
        # An H100 has hardly more memory than an A100, which is no smaller GPU.
        (ran(BEGIN, 600, **h100, user="e"), 50, 60_000, 82_500),
        (ran(BEGIN, 600, **h100, user="f"), 50, 100, 82_500),
    )
    rows = by_user(ledger, "gpu-type")
    found = {kind: (row["gpu_hours_smaller"], row["smaller_gpu"]) for kind, row in rows.items()}
    assert found == {"a100": (0.5, ""), "a30": (0, ""), "h100": (pytest.approx(1 / 6), "")}
    assert {user: row["smaller_gpu"] for user, row in by_user(ledger).items() if user in "abc"} == {
        "a": "a30", "b": "a30", "c": "",
    }  # fmt: skip


def capacity(ledger: Any, *dates: str, **other: Any) -> dict[tuple[str, str], dict[str, Any]]:
    found = read.capacity(ledger, *dates, **{**NOVEMBER, **other})
    return {(row["month"], row["gpu_type"]): row for row in found.rows}


def test_capacity_is_what_was_there_beside_what_was_held_used_and_waited_for(ledger):
    waited = {"submit": BEGIN - 1800}
    measured(
        ledger,
        (ran(BEGIN, 600, **A100) | waited, 50, 20_000, 81_920),
        (ran(BEGIN, 600, **A100) | waited, 50, 20_000, 81_920),
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
    # The ingests before saw no A30s, so there were none.
    assert rows["2026-11", "a30"]["capacity_gpu_hours"] == 2 * 10 * 24
    assert rows["2026-11", "a30"]["held"] == pytest.approx(1 / 6 / 480)
    assert rows["2026-11", "a30"]["gpu_hours_used"] == 0
    found = charts(read.capacity(ledger, "2026-11-01", "2026-12-01", **NOVEMBER))
    assert found["GPU-hours there and held"] == {
        "a100": pytest.approx({"held": 1 / 3, "free": 2880 - 1 / 3}),
        "a30": pytest.approx({"held": 1 / 6, "free": 480 - 1 / 6}),
    }
    assert found["GPU-hours held and used"]["a100"] == pytest.approx(
        {"used": 1 / 6, "not used": 1 / 6, "not measured": 0}
    )
    assert found["Mean wait"] == {"a100": {"hours": 0.5}, "a30": {"hours": 0}}
    assert "GPU-hours there and held, by month" not in found
    assert ("2026-11", "none") not in rows


def test_waits_are_of_runs_that_started_and_the_report_says_so(ledger):
    cancelled = ran(BEGIN, 600, **A100) | {"start": None, "state": "CANCELLED", "submit": BEGIN}
    store_runs(ledger, ran(BEGIN + 1800, 600, **A100) | {"submit": BEGIN}, cancelled)
    report = read.capacity(ledger, "2026-11-01", "2026-12-01", **NOVEMBER)
    assert [row["wait_hours"] for row in report.rows] == [0.5]
    (said,) = (each for each in report.meta.definitions if each.startswith("wait_hours"))
    assert "jobs that still wait, or were cancelled before they started, are not in it" in said


def test_capacity_is_of_twelve_months_without_dates(ledger):
    store_runs(ledger, ran(BEGIN - 300 * DAY, 600, **A100), ran(BEGIN - 400 * DAY, 600, **A100))
    assert set(capacity(ledger)) == {("2026-01", "a100")}
    assert set(capacity(ledger, filters={"month": ["2025-09"]})) == {("2025-09", "a100")}


def test_months_of_which_nothing_is_known_have_no_row(ledger):
    """They had 0.00 GPU-hours and 0 jobs."""
    store_runs(ledger, ran(BEGIN + DAY, 600, **A100))
    with ledger.transaction() as connection:
        record_capacity(connection, 1, {"a100": 4, "h100": 2}, BEGIN)
    assert set(capacity(ledger)) == {("2026-11", "a100"), ("2026-11", "h100")}
    with ledger.transaction() as connection:
        connection.execute(insert(spans).values(cluster_id=1, begin=BEGIN - DAY, finish=BEGIN))
    rows = capacity(ledger)
    assert {month for month, _ in rows} == {"2026-10", "2026-11"}
    assert rows["2026-10", "h100"]["capacity_gpu_hours"] is None


def test_a_chart_shows_what_was_held_of_what_was_there_by_month(ledger):
    store_runs(ledger, ran(BEGIN - HOUR, 2 * HOUR, **A100), ran(BEGIN + DAY, HOUR, **A30))
    with ledger.transaction() as connection:
        record_capacity(connection, 1, {"a100": 4}, BEGIN - DAY)
        record_capacity(connection, 1, {"a100": 4, "a30": 2}, BEGIN)
    found = charts(read.capacity(ledger, "2026-10-31", "2026-11-03", **NOVEMBER))
    assert found["GPU-hours there and held, by month"] == {
        "2026-10": pytest.approx({"held": 1, "free": 4 * 24 - 1}),
        "2026-11": pytest.approx({"held": 2, "free": 6 * 48 - 2}),
    }


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
    [(0, 10, None), (4, 12, None), (5, 12, 8), (10, 20, 40), (15, 35, 20 + 80 + 0), (30, 40, 0)],
)
def test_gpu_seconds(begin, end, seconds):
    """Ingests have seen GPUs since second 5, of this type since second 10."""
    assert gpu_seconds_there([(10, 4), (20, 8), (30, 0)], 5, begin, end) == seconds


def other_cluster(ledger: Any, *, tracks_gpus: bool | None = None) -> int:
    with ledger.transaction() as connection:
        connection.execute(insert(clusters), {"name": "other", "tracks_gpus": tracks_gpus})
        return connection.scalars(select(clusters.c.id).where(clusters.c.name == "other")).one()


def test_where_runs_have_no_types_capacity_has_none_either(ledger):
    """With gres/gpu alone in AccountingStorageTRES no type would be held, though all GPUs are."""
    store_runs(ledger, ran(BEGIN, DAY, **UNTYPED))
    with ledger.transaction() as connection:
        record_capacity(connection, 1, {"a100": 4, "h100": 2}, BEGIN)
    november = ("2026-11-01", "2026-12-01")
    rows = capacity(ledger, *november)
    assert set(rows) == {("2026-11", "untyped")}
    row = rows["2026-11", "untyped"]
    assert (row["capacity_gpu_hours"], row["gpu_hours"]) == (6 * 20 * 24, 24)
    assert row["held"] == pytest.approx(24 / 2880)
    assert capacity(ledger, *november, filters={"gpu_type": ["a100"]}) == {}
    # Of another cluster, the types are known.
    there = other_cluster(ledger)
    store_runs(
        ledger,
        ran(BEGIN, DAY, **UNTYPED, db_index=11),
        ran(BEGIN, DAY, **A100, db_index=12, cluster_id=there),
    )
    with ledger.transaction() as connection:
        record_capacity(connection, there, {"a100": 1}, BEGIN)
    rows = capacity(ledger, *november)
    assert {kind: row["gpu_hours"] for (_, kind), row in rows.items()} == {
        "a100": 24, "untyped": 48,
    }  # fmt: skip


def test_untyped_gpus_of_nodes_are_a_type_of_their_own(ledger):
    store_runs(ledger, ran(BEGIN, DAY, **UNTYPED), ran(BEGIN, DAY, **A100))
    with ledger.transaction() as connection:
        record_capacity(connection, 1, {"": 1, "a100": 1}, BEGIN)
    rows = capacity(ledger, "2026-11-01", "2026-12-01")
    assert {kind: row["held"] for (_, kind), row in rows.items()} == {"a100": 0.05, "untyped": 0.05}


@pytest.mark.sql
def test_what_is_not_tracked_is_unknown_and_not_0(ledger):
    store_runs(ledger)
    there = other_cluster(ledger, tracks_gpus=False)
    with ledger.transaction() as connection:
        record_capacity(connection, there, {"a100": 4}, BEGIN)
    row = capacity(ledger, "2026-11-01", "2026-12-01")["2026-11", "a100"]
    assert row["capacity_gpu_hours"] == 4 * 20 * 24
    assert (row["gpu_hours"], row["held"], row["jobs"], row["wait_hours"]) == (None,) * 4
    with ledger.transaction() as connection:
        connection.execute(update(clusters).values(tracks_gpus=True))
    row = capacity(ledger, "2026-11-01", "2026-12-01")["2026-11", "a100"]
    assert (row["gpu_hours"], row["held"], row["jobs"], row["wait_hours"]) == (0, 0, 0, 0)


def test_parts_of_gpus_count_for_their_type(ledger, configure):
    configure("[gpu.h100]\nshard_weight = 0.25\n")
    shards = {"gpus": 0, "alloc_tres": "cpu=4,gres/shard:h100=2,mem=8G,node=1"}
    store_runs(ledger, ran(BEGIN, DAY, **shards))
    with ledger.transaction() as connection:
        record_capacity(connection, 1, {"h100": 1}, BEGIN)
    rows = capacity(ledger, "2026-11-01", "2026-12-01")
    assert {of: row["gpu_hours"] for of, row in rows.items()} == {("2026-11", "h100"): 12}


def test_capacity_takes_the_filters_of_place_and_time(ledger):
    store_runs(ledger, ran(BEGIN, DAY, **A100))
    there = other_cluster(ledger)
    with ledger.transaction() as connection:
        record_capacity(connection, 1, {"a100": 4}, BEGIN - 70 * DAY)
        record_capacity(connection, there, {"a100": 2}, BEGIN - 70 * DAY)
    dates = ("2026-09-01", "2026-12-01")
    lab = capacity(ledger, *dates, filters={"cluster": ["lab"]})
    assert {month: row["capacity_gpu_hours"] for (month, _), row in lab.items()} == {
        "2026-09": 4 * 30 * 24, "2026-10": 4 * 31 * 24, "2026-11": 4 * 20 * 24,
    }  # fmt: skip
    some = capacity(ledger, *dates, filters={"month": ["2026-09", "2026-11"]})
    assert {month: row["capacity_gpu_hours"] for (month, _), row in some.items()} == {
        "2026-09": 6 * 30 * 24, "2026-11": 6 * 20 * 24,
    }  # fmt: skip


QUARTER = 900
BERLIN = ZoneInfo("Europe/Berlin")
Counts = dict[tuple[str, str], Counter[str]]


def month_of(at: int) -> str:
    return f"{dt.datetime.fromtimestamp(at, BERLIN):%Y-%m}"


def some_changes(chance: random.Random, begin: int, now: int) -> list[tuple[int, dict[str, int]]]:
    """GPUs of a cluster, by type, that come and go."""
    times = (begin - DAY, *sorted(chance.sample(range(begin, now, QUARTER), 5)))
    return [(at, {kind: chance.randrange(5) for kind in ("a100", "a30", "h100")}) for at in times]


def some_run(chance: random.Random, number: int, begin: int, now: int) -> dict[str, Any]:
    start = chance.randrange(begin - 9 * DAY, now, QUARTER)
    end = min(start + QUARTER * chance.randrange(1, 900), now)
    kind, gpus = chance.choice(["a100", "a30", "h100", ""]), chance.randrange(1, 9)
    held = f"gres/gpu:{kind}={gpus}"
    if kind in {"a30", "h100"} and chance.random() < 0.3:  # of two types
        held, gpus = f"gres/gpu:a100=1,{held}", gpus + 1
    return ran(
        start, end - start, submit=start - QUARTER * chance.randrange(90), db_index=number,
        cluster_id=chance.choice([1, 2]), gpus=gpus if kind else 0,
        gpu_used_permille=chance.choice([None, 0, 400, 1000]) if kind else None,
        alloc_tres=f"cpu=4,{held},gres/gpu={gpus}" if kind else "cpu=4",
    )  # fmt: skip


def count_capacity(counts: Counts, changes: Any, begin: int, now: int) -> None:
    for at in range(begin, now, QUARTER):
        newest = [gpus for since, gpus in changes if since <= at][-1]
        for kind, gpus in newest.items():
            counts[month_of(at), kind]["capacity_gpu_hours"] += gpus * QUARTER


def count_run(counts: Counts, run: dict[str, Any], begin: int, until: int) -> None:
    types = re.findall(r"gres/gpu:(\w+)=(\d+)", run["alloc_tres"])
    start, permille = run["start"], run["gpu_used_permille"]
    held = [month_of(at) for at in range(start, run["end"], QUARTER) if begin <= at < until]
    for month in held:
        for kind, gpus in types:
            sums = counts[month, kind]
            sums["gpu_hours"] += int(gpus) * QUARTER
            if permille is not None:
                sums["measured"] += int(gpus) * QUARTER
                sums["gpu_hours_used"] += int(gpus) * QUARTER * permille // 1000
    if not types:
        return
    kind, _ = types[0]  # a run counts once
    for month in set(held):
        counts[month, kind]["jobs"] += 1
    if begin <= start < until:
        counts[month_of(start), kind] += Counter(wait_hours=start - run["submit"], started=1)


def share(part: int, whole: int) -> Any:
    return pytest.approx(part / whole) if whole else None


@pytest.mark.sql
@pytest.mark.parametrize("seed", range(3))
def test_capacity_is_what_counting_quarters_of_hours_gives(ledger, seed):
    """Three months with the end of summer time, two clusters, GPUs that come and go."""
    chance, wanted = random.Random(seed), defaultdict[tuple[str, str], Counter[str]](Counter)
    begin = int(dt.datetime(2026, 9, 1, tzinfo=BERLIN).timestamp())
    now = int(dt.datetime(2026, 11, 20, 12, tzinfo=BERLIN).timestamp())
    store_runs(ledger)
    for cluster in (1, other_cluster(ledger)):
        changes = some_changes(chance, begin, now)
        with ledger.transaction() as connection:
            for at, gpus in changes:
                record_capacity(connection, cluster, gpus, at)
        count_capacity(wanted, changes, begin, now)
    stored = [some_run(chance, number, begin, now) for number in range(60)]
    store_runs(ledger, *stored)
    for run in stored:
        count_run(wanted, run, begin, now)

    rows = capacity(ledger, "2026-09-01", "2026-12-01", now=now, timezone="Europe/Berlin")
    assert set(rows) == {of for of, sums in wanted.items() if any(sums.values())}
    for of, row in rows.items():
        sums = wanted[of]
        there, started, measured = (
            sums[name] for name in ("capacity_gpu_hours", "started", "measured")
        )
        assert row["capacity_gpu_hours"] == (there / HOUR if there else None)
        assert row["gpu_hours"] == pytest.approx(sums["gpu_hours"] / HOUR)
        assert row["held"] == share(sums["gpu_hours"], there)
        assert row["jobs"] == sums["jobs"]
        assert row["wait_hours"] == pytest.approx(sums["wait_hours"] / HOUR)
        assert row["wait_hours_mean"] == share(sums["wait_hours"], started * HOUR)
        assert row["gpu_hours_used"] == share(sums["gpu_hours_used"], HOUR if measured else 0)
        assert row["gpu_efficiency"] == share(sums["gpu_hours_used"], measured)

    # 1.28 GPU-hours were held, and 1.91 used.
    for _ in range(4):
        first = dt.date(2026, 9, 1) + dt.timedelta(chance.randrange(60))
        last = first + dt.timedelta(chance.randrange(1, 20))
        edges = [
            int(dt.datetime(day.year, day.month, day.day, tzinfo=BERLIN).timestamp())
            for day in (first, last)
        ]
        some = defaultdict[tuple[str, str], Counter[str]](Counter)
        for run in stored:
            count_run(some, run, *edges)
        rows = capacity(ledger, str(first), str(last), now=now, timezone="Europe/Berlin")
        for of, row in rows.items():
            used = share(some[of]["gpu_hours_used"], HOUR if some[of]["measured"] else 0)
            held = row["gpu_hours"] or 0  # of a cluster without runs nobody knows whether it counts
            assert held == pytest.approx(some[of]["gpu_hours"] / HOUR)
            assert row["gpu_hours_used"] == used
            assert (row["gpu_hours_used"] or 0) <= held + 1e-9


def test_the_total_of_capacity_is_of_what_was_measured_as_that_of_usage(ledger):
    """It was unknown as soon as one type was not measured."""
    measured(ledger, (ran(BEGIN, 600, **A100), 50, 20_000, 81_920))
    store_runs(ledger, ran(BEGIN, 600, **A30, db_index=77))
    asked = ("2026-11-01", "2026-12-01")
    found, usage = (each(ledger, *asked, **NOVEMBER) for each in (read.capacity, read.usage))
    assert [row["gpu_hours_used"] for row in found.rows] == [pytest.approx(1 / 12), None]
    names = ("gpu_hours", "gpu_hours_used", "jobs")
    assert [found.meta.total[name] for name in names] == [usage.meta.total[name] for name in names]


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
