"""`report usage`: its rows, columns and meta."""

from __future__ import annotations

import re

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.reports.dimensions import KEY_DIMENSIONS
from usage_oracle import counted, fill, jobs_around

from slurmkit.errors import BadConfig, BadInput

NOVEMBER = {"begin": "2026-11-01", "end": "2026-12-01", "timezone": "UTC"}
LATER = BEGIN + 40 * DAY
A100 = {"a100": 2}
PRICES = """
[gpu.a100]
watts = 400
shard_weight = 0.25
[[gpu.a100.prices]]
since = 2026-01-01
currency = "EUR"
on_premises = 1.00
cloud = 3.00
[[gpu.a100.prices]]
since = 2026-11-11
currency = "EUR"
on_premises = 0.50
[gpu."a100_1g.5gb"]
part_of = "a100"
weight = 0.125
[partition.untyped]
gpu_type = "a100"
"""
HOUR = 3600


def report(ledger, jobs, by="pi", **more):
    write_books(ledger, jobs)
    return read.usage(ledger, by=by, **{**NOVEMBER, "now": LATER, **more})


def column(found, name):
    return [row[name] for row in found.rows]


def test_rows_are_by_pi_the_largest_first_and_what_is_unmapped_last(ledger):
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, gpus={"a100": 1}),
        run("bob", BEGIN, BEGIN + 2 * HOUR, gpus={"a100": 1}),
        run("stranger", BEGIN, BEGIN + 9 * HOUR, gpus={"a100": 1}),
    ]
    found = report(ledger, jobs)
    assert column(found, "pi") == ["garcia", "vogel", "unmapped"]
    assert column(found, "gpu_hours") == [2.0, 1.0, 9.0]
    assert (found.meta.unmapped.jobs, found.meta.unmapped.gpu_hours) == (1, 9.0)


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("group", {("vision",), ("genomics",), ("unmapped",)}),
        ("department", {("Physics",), ("Biology",), ("unmapped",)}),
        ("cluster,account", {("lab", "vision"), ("lab", "genomics"), ("lab", "nobody")}),
        (["gpu_type", "state"], {("a100", "COMPLETED"), ("none", "FAILED"), ("h100", "COMPLETED")}),
        ("partition,qos,user", {("gpu", "normal", name) for name in ("alice", "bob", "eve")}),
        ("month,week,day", {("2026-11", "2026-W44", "2026-11-01")}),
        ("", {()}),
    ],
)
def test_rows_have_a_key_for_each_name_that_they_are_by(ledger, by, keys):
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, gpus={"a100": 1}),
        run("bob", BEGIN, BEGIN + HOUR, state="FAILED"),
        run("eve", BEGIN, BEGIN + HOUR, gpus={"h100": 1}),
    ]
    found = report(ledger, jobs, by)
    names = by if isinstance(by, list) else [name for name in by.split(",") if name]
    assert {tuple(row[name] for name in names) for row in found.rows} == keys
    assert sum(column(found, "jobs")) == 3


@pytest.mark.sql
def test_all_columns_of_one_row(ledger, configure):
    configure(PRICES)
    job = run(
        "alice", BEGIN, BEGIN + 2 * HOUR, submit=BEGIN - HOUR, gpus=A100, cpus=4, nodes=2,
        mem=2048, energy=7_200_000, cpu_used_ms=HOUR * 4 * 1000,
        other={"mem_peak_mib": 512, "gpu_used_permille": 250},
    )  # fmt: skip
    (row,) = report(ledger, [job]).rows
    outcomes = {name: value for name, value in row.items() if name.startswith("gpu_hours_")}
    assert {name: value for name, value in row.items() if name not in outcomes} == {
        "pi": "vogel",
        "jobs": 1,
        "users": 1,
        "gpu_hours": 4.0,
        "cpu_hours": 8.0,
        "node_hours": 4.0,
        "wall_hours": 2.0,
        "memory_gib_hours": 4.0,
        "wait_hours": 1.0,
        "cpu_efficiency": 0.5,
        "memory_efficiency": 0.25,
        "gpu_efficiency": 0.25,
        "energy_kwh": 2.0,
        "energy_measured": 1.0,
        "gpu_energy_kwh": None,
        "energy_kwh_estimated": 1.6,
        "co2_kg": None,
        "cost": 4.0,
        "cloud_cost": 12.0,
    }
    measured = {"gpu_hours_used": 1.0, "gpu_hours_measured": 4.0}
    assert {name: value for name, value in outcomes.items() if value} == {
        "gpu_hours_completed": 4.0, **measured,
    }  # fmt: skip


GRID = """
[[grid.factors]]
since = 2000-01-01
kg_per_kwh = 0.5
[[grid.factors]]
since = 2100-01-01
kg_per_kwh = 0.1
"""


@pytest.mark.sql
def test_energy_that_gpus_measured_counts_where_slurm_measured_none(ledger, configure):
    configure(GRID)
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, gpus=A100, other={"gpu_energy_joules": 3_600_000}),
        run("alice", BEGIN, BEGIN + HOUR, gpus=A100, energy=7_200_000,
            other={"gpu_energy_joules": 3_600_000}),
    ]  # fmt: skip
    (row,) = report(ledger, jobs).rows
    assert (row["gpu_energy_kwh"], row["energy_kwh"], row["co2_kg"]) == (1.0, 2.0, 1.5)
    assert (row["gpu_hours_used"], row["gpu_hours_measured"]) == (None, None)
    assert row["gpu_hours"] == 4.0


def test_co2_of_a_day_without_a_factor_is_unknown(ledger, configure):
    configure("[[grid.factors]]\nsince = 2100-01-01\nkg_per_kwh = 0.1\n")
    job = run("alice", BEGIN, BEGIN + HOUR, gpus=A100, energy=7_200_000)
    (row,) = report(ledger, [job]).rows
    assert row["co2_kg"] is None


@pytest.mark.parametrize("factor", ["-1", "nan", "'x'"])
def test_a_factor_that_is_none(ledger, configure, factor):
    configure(f"[[grid.factors]]\nsince = 2000-01-01\nkg_per_kwh = {factor}\n")
    with pytest.raises(BadConfig):
        report(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])


STATES = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "TIMEOUT": "timeout",
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "out_of_memory",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "other",
    "DEADLINE": "other",
    "SOMETHING_NEW": "other",
}


def test_gpu_hours_are_told_apart_by_what_became_of_the_runs(ledger):
    jobs = [run("alice", BEGIN, BEGIN + HOUR, state=state, gpus=A100) for state in STATES]
    jobs.append(run("alice", LATER - 2 * HOUR, None, state="RUNNING", gpus=A100, last_seen=LATER))
    (row,) = report(ledger, jobs, end="2027-01-01").rows
    assert row["gpu_hours_running"] == 4.0
    assert row["gpu_hours_other"] == 6.0
    for outcome in set(STATES.values()) - {"other"}:
        assert row[f"gpu_hours_{outcome}"] == 2.0
    assert row["gpu_hours_lost"] == 2.0 * (len(STATES) - 1)
    outcomes = {*STATES.values(), "running"}
    assert row["gpu_hours"] == sum(row[f"gpu_hours_{outcome}"] for outcome in outcomes)


def test_what_was_requeued_and_completed_later_is_not_lost(ledger):
    first = {"state": "NODE_FAIL", "gpus": A100}
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, **first, other={"job_id_raw": 7}),
        run("alice", BEGIN + 2 * HOUR, BEGIN + 3 * HOUR, submit=BEGIN + HOUR + 9, gpus=A100,
            other={"job_id_raw": 7}),
        run("alice", BEGIN, BEGIN + HOUR, **first),
    ]  # fmt: skip
    (row,) = report(ledger, jobs).rows
    assert (row["gpu_hours_node_fail"], row["gpu_hours_lost"]) == (4.0, 2.0)


def test_parts_of_gpus_count_by_their_weights(ledger, configure):
    configure(PRICES)
    hour = (BEGIN, BEGIN + HOUR)
    jobs = [
        run("alice", *hour, gpus={"a100_1g.5gb": 4}),
        run("alice", *hour, gpus={"shard": 3}),
        run("alice", *hour, gpus={"": 1}, other={"partition": "untyped"}),
        run("alice", *hour, gpus={"": 1}),
    ]
    found = report(ledger, jobs, "gpu_type")
    assert {row["gpu_type"]: (row["gpu_hours"], row["cost"]) for row in found.rows} == {
        "a100": (1.0, 1.0),
        "a100_1g.5gb": (0.5, 0.5),
        "shard": (0.75, 0.75),
        "untyped": (1.0, None),
    }
    assert found.meta.weights == {"a100_1g.5gb": 0.125, "shard": 0.25}
    assert found.meta.prices.endswith("unknown for untyped")


def test_gpus_of_no_type_may_have_a_price_of_their_own(ledger, configure):
    price = 'since = 2026-01-01\ncurrency = "EUR"\non_premises = 1.00\n'
    configure(f"{PRICES}[[gpu.untyped.prices]]\n{price}")
    jobs = [run("alice", BEGIN, BEGIN + HOUR, gpus={"": 2})]
    found = report(ledger, jobs, "gpu_type")
    assert column(found, "gpu_type") == ["untyped"]
    assert column(found, "cost") == [2.0]
    assert found.meta.weights == {}


def test_shards_of_nobody_knows_what_count_nothing_and_the_report_says_so(ledger):
    found = report(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus={"shard": 3})])
    assert column(found, "gpu_hours") == [0.0]
    assert found.meta.weights == {"shard": None}
    assert column(found, "cost") == [None]


def test_hours_cost_what_they_cost_on_their_day(ledger, configure):
    configure(PRICES)
    eleventh = BEGIN + 10 * DAY
    jobs = [run("alice", eleventh - 3 * HOUR, eleventh + HOUR, gpus={"a100": 1})]
    (row,) = report(ledger, jobs).rows
    assert row["cost"] == 3 * 1.0 + 1 * 0.5
    assert row["cloud_cost"] is None  # nobody knows the cloud's price after the eleventh
    assert row["jobs"] == 1


def test_prices_in_two_currencies_are_refused(ledger, configure):
    configure(PRICES + '[[cpu.prices]]\nsince = 2026-01-01\ncurrency = "USD"\n')
    with pytest.raises(BadConfig, match="EUR and USD"):
        report(ledger, [])


def test_cpus_and_memory_cost_where_they_have_a_price(ledger, configure):
    price = 'since = 2026-01-01\ncurrency = "EUR"\non_premises = 0.01\n'
    configure(f"{PRICES}[[cpu.prices]]\n{price}[[memory.prices]]\n{price}")
    jobs = [run("alice", BEGIN, BEGIN + HOUR, cpus=4, mem=2048)]
    found = report(ledger, jobs)
    assert column(found, "cost") == [pytest.approx(0.06)]
    assert found.meta.prices.startswith("GPU and CPU and memory hours")


@pytest.mark.parametrize("by", [*KEY_DIMENSIONS, "day", "month", "user,day"])
def test_the_sums_are_those_of_the_rows(ledger, by):
    jobs = [
        run("alice", BEGIN - HOUR, BEGIN + 30 * HOUR, gpus={"a100": 1, "h100": 3}),
        run("bob", BEGIN, BEGIN + 2 * HOUR, gpus={"a100": 1}, state="FAILED"),
        run("stranger", BEGIN + HOUR, BEGIN + 2 * HOUR, submit=BEGIN),
    ]
    found = report(ledger, jobs, by, begin="2026-10-01")
    added = {
        name: sum(row[name] for row in found.rows if row[name] is not None) for name in found.sums
    }
    known = {name: value for name, value in found.sums.items() if value is not None}
    assert {name: added[name] for name in known} == pytest.approx(known)
    by_time = "day" in by or "month" in by
    assert ("jobs" in known) != by_time
    assert not known.keys() & {"users", "cpu_efficiency"}
    assert known["gpu_hours"] == 4 * 31 + 2


def test_names_of_dimensions_may_be_spelt_like_options(ledger):
    jobs = [run("alice", BEGIN, BEGIN + HOUR, gpus={"a100": 1})]
    found = report(ledger, jobs, ["gpu-type"], filters={"gpu-type": ["a100"]})
    assert column(found, "gpu_type") == ["a100"]
    assert found.meta.by == ("gpu_type",)
    assert list(found.frame().gpu_type) == ["a100"]


def test_a_cluster_that_does_not_track_gpus_has_none_to_report(ledger):
    jobs = [run("alice", BEGIN, BEGIN + HOUR, cluster=2), run("alice", BEGIN, BEGIN + HOUR)]
    found = report(ledger, jobs, "cluster")
    assert {row["cluster"]: row["gpu_hours"] for row in found.rows} == {"big": None, "lab": 0.0}
    assert found.meta.gpus_not_tracked == ("big",)


@pytest.mark.sql
@pytest.mark.parametrize(
    ("filters", "hours"),
    [
        ({"pi": ["vogel"]}, 1.0),
        ({"user": ["bob", "alice"]}, 3.0),
        ({"group": ["genomics"], "state": ["COMPLETED"]}, 0),
        ({"gpu_type": ["a100"], "state": ["FAILED"]}, 2.0),
        ({"month": ["2026-10"]}, 0.5),
        ({"day": ["2026-11-01"]}, 2.5),
    ],
)
def test_filters_leave_everything_else_out(ledger, filters, hours):
    jobs = [
        run("alice", BEGIN - HOUR // 2, BEGIN + HOUR // 2, gpus={"a100": 1}),
        run("bob", BEGIN, BEGIN + 2 * HOUR, gpus={"a100": 1}, state="FAILED"),
    ]
    found = report(ledger, jobs, "cluster", begin="2026-10-01", filters=filters)
    assert sum(column(found, "gpu_hours")) == hours
    assert found.meta.filters == {name: tuple(values) for name, values in filters.items()}
    assert found.meta.runs == sum(column(found, "jobs"))


def asked(ledger, by="pi", **more):
    return read.usage(ledger, by=by, **{**NOVEMBER, "now": LATER, **more})


def test_a_run_that_goes_on_into_the_months_asked_for_is_a_job_of_theirs(ledger):
    write_books(ledger, [run("alice", BEGIN - DAY, BEGIN + 40 * DAY, gpus={"a100": 1})])
    for months in (["2026-11"], ["2026-11", "2026-12"]):
        year = {"begin": "2026-10-01", "end": "2027-01-01"}
        found = asked(ledger, **year, filters={"month": months})
        assert column(found, "jobs") == [1]
        assert column(asked(ledger, "month", **year), "jobs") == [1, 1, 1]


def test_a_month_asked_for_is_the_window(ledger):
    write_books(ledger, [])
    found = asked(ledger, begin=None, end=None, filters={"month": ["2026-03", "2026-05"]})
    assert found.meta.window == ("2026-03-01 00:00:00+00:00", "2026-06-01 00:00:00+00:00")
    found = asked(ledger, begin=None, end=None)
    assert found.meta.window == ("2026-12-01 00:00:00+00:00", "2026-12-11 00:00:00+00:00")


@pytest.mark.parametrize(
    ("people", "pis", "uids", "seen"),
    [
        (None, None, None, {"alice", "bob", "vogel", "eve"}),
        ({1}, {1}, None, {"alice"}),
        ({3}, {3}, None, {"alice", "vogel"}),
        (set(), set(), {9999}, {"eve"}),
        (set(), set(), {2001}, set()),
        (set(), set(), None, set()),
        ({1}, None, None, {"alice"}),
    ],
)
def test_a_reader_sees_their_own_and_their_groups(ledger, people, pis, uids, seen):
    jobs = [run(user, BEGIN, BEGIN + HOUR, gpus=A100) for user in ("alice", "bob", "vogel", "eve")]
    write_books(ledger, jobs)
    parts = (None if part is None else frozenset(part) for part in (people, pis, uids))
    found = asked(ledger, "user", scope=read.Scope(*parts), panels=True)
    assert set(column(found, "user")) == seen
    assert found.meta.runs == len(seen)
    assert {label for panel in found.panels for label in panel.labels} & {
        "alice", "bob", "vogel", "eve"
    } == seen  # fmt: skip


def test_a_report_says_what_it_rests_on(ledger):
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, gpus=A100, other={"doubt": "?"}),
        run("alice", BEGIN, None, gpus=A100, state="RUNNING", last_seen=LATER),
        run("alice", BEGIN, BEGIN + 900, gpus=A100, suspended=((BEGIN, 900, 450),)),
        run("alice", BEGIN, BEGIN + HOUR, gpus=A100, state="REQUEUED"),
    ]
    write_books(ledger, jobs)
    meta = asked(ledger, begin="1970-01-01", now=BEGIN + HOUR).meta
    assert (meta.runs, meta.running, meta.doubtful) == (4, 1, 1)
    assert meta.missing_before == "1970-01-01 00:00:05+00:00"
    assert meta.clusters == ("big", "lab")
    assert (meta.sreport.suspended, meta.sreport.running, meta.sreport.requeued) == (0.25, 2.0, 2.0)
    assert meta.suspended == "charge"
    assert meta.data_age == 0
    skipped = asked(ledger, suspended="skip", now=BEGIN + HOUR)
    assert skipped.rows[0]["gpu_hours"] == 6.5 - 0.25


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"by": "colour"}, "no dimension 'colour'; choose from pi, group"),
        ({"filters": {"colour": ["red"]}}, "no dimension 'colour'"),
        ({"suspended": "half"}, "charge or skip"),
        ({"end": "2026-11-01"}, "--to 2026-11-01 00:00:00+00:00 must be after --from"),
        ({"filters": {"month": ["May"]}}, "'May' is not a month: write YYYY-MM"),
        ({"job": "abc"}, "'abc' is not a job id"),
        ({"timezone": "UCT+1"}, "time zone 'UCT+1'"),
    ],
)
def test_what_cannot_be_meant_is_refused(ledger, wrong, message):
    with pytest.raises(BadInput, match=re.escape(message)):
        asked(ledger, **wrong)


@pytest.mark.sql
def test_rows_are_what_a_count_run_by_run_says(ledger):
    write_books(ledger, [])

    @settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
    @given(jobs=jobs_around(BEGIN, BEGIN + 30 * DAY))
    def check(jobs):
        with ledger.transaction() as connection:
            fill(connection, jobs)
        expected = counted(jobs, (BEGIN, BEGIN + 30 * DAY), LATER)
        found = asked(ledger, "cluster,user,state,gpu_type")
        held = {
            (
                "lab" if key[0] == 1 else "big",
                key[1],
                key[2],
                {"-": "none", "": "untyped"}.get(key[4], key[4]),
            ): sums
            for key, sums in expected.items()
            if any(sums.values())
        }
        assert len(found.rows) == len(held)
        for row in found.rows:
            sums = held[row["cluster"], row["user"], row["state"], row["gpu_type"]]
            assert row["jobs"] == sums["runs"]
            assert row["cpu_hours"] == sums["cpu_seconds"] / HOUR
            assert row["wait_hours"] == sums["waited_seconds"] / HOUR
            if row["gpu_hours"] is not None and row["gpu_type"] != "shard":
                assert row["gpu_hours"] == pytest.approx(sums["gpu_seconds"] / HOUR, abs=1e-12)

    check()


ADDITIVE = ("gpu_hours", "cpu_hours", "wall_hours", "wait_hours", "gpu_hours_lost", "energy_kwh")


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kathmandu", "UTC"])
def test_a_year_is_the_sum_of_its_months(ledger, zone):
    write_books(ledger, [])
    year = {"begin": "2026-01-01", "end": "2027-01-01", "timezone": zone}
    begin = BEGIN - 304 * DAY

    @settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
    @given(jobs=jobs_around(begin, begin + 365 * DAY))
    def check(jobs):
        with ledger.transaction() as connection:
            fill(connection, jobs)
        months = asked(ledger, "month", **year)
        (whole,) = asked(ledger, "", **year).rows or [{}]
        for name in ADDITIVE:
            parts = [row[name] or 0 for row in months.rows]
            assert sum(parts) == pytest.approx(whole.get(name) or 0, abs=1e-9)
        single = [
            asked(
                ledger, "", filters={"month": [row["month"]]}, timezone=zone, begin=None, end=None
            )
            for row in months.rows
        ]
        for row, one in zip(months.rows, single, strict=True):
            assert {"month": row["month"], **one.rows[0]} == row

    check()


def test_charts_show_the_same_numbers(ledger):
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, gpus={"a100": 1, "h100": 3}),
        run("bob", BEGIN + 3 * DAY, BEGIN + 3 * DAY + HOUR, gpus=A100, state="FAILED"),
    ]
    write_books(ledger, jobs)
    found = asked(ledger, panels=True)
    time, person, lost, wait = found.panels
    assert time.kind == "stacked"
    assert time.labels == tuple(f"2026-11-{day:02}" for day in range(1, 31))
    assert {one.name: sum(one.values) for one in time.series} == {"a100": 3.0, "h100": 3.0}
    assert dict(zip(person.labels, person.series[0].values, strict=True)) == {
        "alice": 4.0,
        "bob": 2.0,
    }
    assert dict(zip(lost.labels, lost.series[0].values, strict=True)) == {"failed": 2.0}
    assert dict(zip(wait.labels, wait.series[0].values, strict=True)) == {"gpu": 1 / 60}
    assert sum(column(found, "gpu_hours")) == 6.0
