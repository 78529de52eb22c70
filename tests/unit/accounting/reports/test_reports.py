"""Budgets, waits, efficiency, explanations, closed months, idle GPUs, and sreport."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.cli.report import report_group
from slurmkit_accounting.ledger.schema.runs import ingests, revisions, runs
from slurmkit_accounting.reports.dimensions import KEY_DIMENSIONS
from slurmkit_accounting.reports.idle import IdleBound, idle_report
from slurmkit_accounting.reports.reconcile import reconcile_report
from slurmkit_accounting.sacct.sreport import RollupTime, end_of_sreport_data, parse_rollup_time
from slurmkit_accounting.usage import tables
from slurmkit_accounting.usage.closed_months import close_month
from sqlalchemy import insert, update

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import BadConfig, BadInput
from slurmkit.state.gpu_metrics import GpuSample
from slurmkit.state.gpumap_model import Gpu, GpuMap, GpuShare, GpuSharing
from slurmkit.testing import FakeSlurm

HOUR = 3600
UTC = find_zone("UTC")
LATER = BEGIN + 40 * DAY
NOVEMBER = {"begin": "2026-11-01", "end": "2026-12-01", "timezone": "UTC", "now": LATER}
A100 = {"a100": 2}


@pytest.fixture
def budgets(tmp_path, monkeypatch):
    """Writes budgets.toml beside the configuration."""
    path = tmp_path / "config" / "budgets.toml"
    path.parent.mkdir(exist_ok=True)
    monkeypatch.setattr(
        "slurmkit_accounting.reports.budget.config_paths", lambda: [path.with_name("x.toml")]
    )
    return path.write_text


def budget(pi: str, hours: float, begin: str = "2026-11-01", end: str = "2027-01-01") -> str:
    return f'[[budget]]\npi = "{pi}"\ngpu_hours = {hours}\nfrom = {begin}\nto = {end}\n'


def test_a_budget_says_what_is_used_and_when_it_runs_out(ledger, budgets):
    budgets(
        budget("vogel", 200) + budget("garcia", 50) + budget("other", 9, "2025-01-01", "2026-01-01")
    )
    jobs = [
        run("alice", BEGIN, BEGIN + 60 * HOUR, gpus=A100),
        run("alice", BEGIN + 10 * DAY, BEGIN + 10 * DAY + 15 * HOUR, gpus=A100),
        run("bob", BEGIN, BEGIN + 30 * HOUR, gpus=A100),
    ]
    write_books(ledger, jobs)
    found = read.budget(ledger, timezone="UTC", now=BEGIN + 20 * DAY)
    garcia, vogel = found.rows
    assert (garcia["pi"], garcia["gpu_hours_used"], garcia["runs_out"]) == (
        "garcia",
        60.0,
        "used up",
    )
    assert garcia["notice"] == "100% reached"
    assert (vogel["gpu_hours_used"], vogel["gpu_hours_left"]) == (150.0, 50.0)
    assert vogel["gpu_hours_per_day"] == 7.5
    assert vogel["runs_out"] == "2026-11-27"  # 50 hours at 7.5 a day, from the 21st
    assert vogel["notice"] == ""
    (line,) = [panel for panel in found.panels if "vogel" in panel.title]
    assert line.series[0].values[0] == 200 - 2 * 24
    assert line.series[0].values[-1] == 50.0
    assert "2 of 3" in found.meta.notes[0]


@pytest.mark.parametrize(
    ("hours", "notice"), [(79, ""), (80, "80% reached"), (99, "80% reached"), (100, "100% reached")]
)
def test_notices_come_at_80_and_at_100_percent(ledger, budgets, hours, notice):
    budgets(budget("vogel", 100))
    write_books(ledger, [run("alice", BEGIN, BEGIN + hours * HOUR, gpus={"a100": 1})])
    (row,) = read.budget(ledger, timezone="UTC", now=BEGIN + 20 * DAY).rows
    assert row["notice"] == notice


def test_budgets_are_added_up_unless_they_count_hours_twice(ledger, budgets):
    budgets(budget("vogel", 200) + budget("garcia", 50))
    write_books(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])
    found = read.budget(ledger, timezone="UTC", now=BEGIN + DAY)
    hours = {"gpu_hours_budget": 250.0, "gpu_hours_used": 2.0, "gpu_hours_left": 248.0}
    assert found.sums == {**hours, "gpu_hours_per_day": 2.0}
    budgets(budget("vogel", 200) + budget("vogel", 50))
    assert read.budget(ledger, timezone="UTC", now=BEGIN + DAY).sums == {}


def test_a_budget_that_lasts_has_no_day(ledger, budgets):
    budgets(budget("vogel", 1e6) + budget("garcia", 5))
    write_books(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])
    rows = read.budget(ledger, timezone="UTC", now=BEGIN + DAY).rows
    assert [(row["pi"], row["runs_out"]) for row in rows] == [("vogel", ""), ("garcia", "")]


def test_a_usage_page_has_the_burn_down_of_the_budgets_it_is_about(ledger, budgets):
    budgets(budget("vogel", 200) + budget("garcia", 50))
    write_books(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])
    for filters, count in (({}, 2), ({"pi": ["vogel"]}, 1), ({"pi": ["other"]}, 0)):
        found = read.usage(ledger, filters=filters, panels=True, **NOVEMBER)
        lines = [panel for panel in found.panels if panel.kind == "lines"]
        assert len(lines) == count
    (line,) = [
        panel
        for panel in read.usage(ledger, filters={"pi": ["vogel"]}, panels=True, **NOVEMBER).panels
        if panel.kind == "lines"
    ]
    assert line.series[0].values == (198.0,) * 30
    begin, end = (
        find_zone("UTC").epoch(text) for text in line.title.split(" ", 3)[3].split(" to ")
    )
    evenly = [200 * (1 - (BEGIN + n * DAY - begin) / (end - begin)) for n in range(1, 31)]
    assert line.series[1].values == pytest.approx(evenly)


def test_a_pi_sees_their_own_budget_and_a_member_none(ledger, budgets):
    budgets(budget("vogel", 10) + budget("garcia", 5))
    write_books(ledger, [])
    for person, seen in ((3, ["vogel"]), (1, [])):
        me = frozenset((person,))
        found = read.budget(ledger, scope=read.Scope(me, me), timezone="UTC", now=BEGIN + DAY)
        assert [row["pi"] for row in found.rows] == seen


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[budget]]\npi = 1\n", "budget"),
        (budget("x", -1), "gpu_hours"),
        (budget("x", 1, "2027-01-01", "2026-01-01"), "ends before it begins"),
        ("budget", "cannot read the budgets"),
        (budget("x", 1) + "colour = 1\n", "colour"),
    ],
)
def test_budgets_that_cannot_be_are_one_line(ledger, budgets, text, words):
    budgets(text)
    with pytest.raises(BadConfig, match=words):
        read.budget(ledger)


def test_wait_times_are_those_of_runs_that_started_in_the_window(ledger):
    jobs = [
        run("alice", BEGIN + n, BEGIN + DAY, submit=BEGIN + n - n * HOUR, gpus=A100)
        for n in range(1, 11)
    ]
    jobs.append(run("bob", BEGIN - 1, BEGIN + DAY, submit=BEGIN - 99 * HOUR, gpus=A100))
    write_books(ledger, jobs)
    (row,) = read.wait(ledger, **NOVEMBER).rows
    assert row == {
        "partition": "gpu",
        "gpu_type": "a100",
        "jobs": 10,
        "wait_hours_mean": 5.5,
        "wait_hours_median": 5.0,
        "wait_hours_90": 9.0,
        "wait_hours_longest": 10.0,
    }
    with pytest.raises(BadInput, match="no dimension 'day'"):
        read.wait(ledger, by="day")


@pytest.mark.sql
def test_what_is_unknown_of_a_row_is_unknown_of_all(ledger):
    """Of what was not measured there is no sum, of no GPU the waste is 0."""
    use = {"cpu_used_ms": HOUR * 1000, "other": {"mem_peak_mib": 512, "gpu_used_permille": 500}}
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, gpus=A100, cpus=4, mem=1024, **use),
        run("bob", BEGIN, BEGIN + HOUR, cpus=4, mem=1024, cpu_used_ms=HOUR * 1000),
    ]
    write_books(ledger, jobs)
    sums = read.efficiency(ledger, **NOVEMBER).sums
    assert (sums["jobs"], sums["gpu_hours"], sums["gpu_hours_wasted"]) == (2, 2.0, 1.0)
    assert sums["cpu_hours_wasted"] == 6.0
    assert sums["memory_gib_hours_wasted"] is None
    assert "cpu_efficiency" not in sums
    assert read.wait(ledger, **NOVEMBER).sums == {"jobs": 2}
    assert read.explain(ledger, **NOVEMBER).sums == {"gpu_hours": 2.0, "cpu_hours": 8.0}


@pytest.mark.sql
@pytest.mark.parametrize("by", KEY_DIMENSIONS)
@pytest.mark.parametrize("filters", [{}, {"pi": ["vogel"]}, {"gpu_type": ["h100"]}])
def test_waits_are_those_of_usage_whatever_they_are_by(ledger, by, filters):
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, submit=BEGIN - 5, gpus={"a100": 1, "h100": 3}),
        run("alice", BEGIN, BEGIN + 3 * DAY, gpus=A100, other={"partition": "long"}),
        run("alice", BEGIN + 5, None, gpus=A100, state="RUNNING", last_seen=LATER),
        run("bob", BEGIN, BEGIN + HOUR, state="FAILED"),
        run("stranger", BEGIN + DAY, BEGIN + DAY + HOUR, submit=BEGIN, gpus=A100),
        run("stranger", BEGIN - 1, BEGIN + HOUR, gpus=A100),
    ]
    write_books(ledger, jobs)
    found = read.wait(ledger, by=by, filters=filters, **NOVEMBER)
    if not filters:
        assert sum(row["jobs"] for row in found.rows) == 5
    usage = read.usage(ledger, by=by, filters=filters, **NOVEMBER).rows
    waited = {row[by]: row["wait_hours"] for row in usage if row["wait_hours"]}
    assert {
        row[by]: pytest.approx(row["jobs"] * row["wait_hours_mean"])
        for row in found.rows
        if row["wait_hours_mean"]
    } == waited


@pytest.mark.sql
def test_efficiency_names_the_request_that_would_have_fitted(ledger):
    held = {"gpus": {"a100": 4}, "cpus": 16, "mem": 64 * 1024}
    use = {"mem_peak_mib": 10 * 1024, "gpu_used_permille": 250, "time_limit": "1440"}
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, **held, cpu_used_ms=2 * HOUR * 1000, other=dict(use)),
        run("alice", BEGIN, BEGIN + 2 * HOUR, **held, cpu_used_ms=6 * HOUR * 1000, other=dict(use)),
        run("bob", BEGIN, BEGIN + HOUR, gpus=A100),
    ]
    write_books(ledger, jobs)
    (row,) = read.efficiency(ledger, **NOVEMBER).rows
    assert row["user"] == "alice"
    assert row["asked"] == "--cpus-per-task=16 --gpus-per-node=4 --mem=64G --time=1-00:00:00"
    assert row["would_have_fitted"] == (
        "--cpus-per-task=4 --mem=12G --gpus-per-node=1 --time=2:24:00"
    )
    assert (row["jobs"], row["gpu_hours"], row["gpu_hours_wasted"]) == (2, 12.0, 9.0)
    assert (row["gpu_efficiency"], row["cpu_efficiency"]) == (0.25, 8 / 48)


@pytest.mark.sql
def test_a_cell_is_explained_by_runs_that_add_up_to_it(ledger):
    jobs = [
        run("alice", BEGIN - HOUR, BEGIN + HOUR, gpus={"a100": 1, "h100": 3}),
        run("alice", BEGIN, None, gpus=A100, state="RUNNING", last_seen=LATER),
        run("alice", BEGIN, BEGIN + HOUR, gpus=A100, state="FAILED"),
        run("bob", BEGIN, BEGIN + HOUR, gpus=A100),
    ]
    write_books(ledger, jobs)
    for filters in (
        {"pi": ["vogel"], "gpu_type": ["a100"]},
        {"day": ["2026-11-01"]},
        {"state": ["FAILED"]},
    ):
        cell = read.usage(ledger, by="", filters=filters, **NOVEMBER)
        found = read.explain(ledger, filters=filters, **NOVEMBER)
        assert sum(row["gpu_hours"] for row in found.rows) == cell.rows[0]["gpu_hours"]
        assert len(found.rows) == cell.rows[0]["jobs"]
    assert {row["pi_by"] for row in found.rows} == {"group"}


@pytest.mark.sql
def test_the_runs_of_a_requeued_job_are_listed_in_their_order(ledger):
    """Each with its end, its nodes and its GPU-hours; what was cut short and done again is told."""

    def one(at, hours, state, nodes, job_id="12", **more):
        other = {"job_id": job_id, "job_id_raw": int(job_id.replace("_", "")), "node_list": nodes}
        span = (BEGIN + at * HOUR, BEGIN + (at + hours) * HOUR)
        return run("alice", *span, gpus={"a100": 1}, state=state, other=other, **more)

    write_books(
        ledger,
        [
            one(9, 1, "COMPLETED", "c[1-2]", submit=BEGIN + 8 * HOUR),
            one(0, 2, "REQUEUED", "c1"),
            one(3, 5, "NODE_FAIL", "c2", submit=BEGIN + 2 * HOUR),
            one(0, 9, "TIMEOUT", "c3", "12_10"),
            one(0, 1, "COMPLETED", "c3", "12_2"),
        ],
    )
    found = read.explain(ledger, job="12", **NOVEMBER)
    shown = [(r["job"], r["state"], r["redone"], r["nodes"], r["gpu_hours"]) for r in found.rows]
    assert shown == [
        ("12", "REQUEUED", "yes", "c1", 2.0),
        ("12", "NODE_FAIL", "yes", "c2", 5.0),
        ("12", "COMPLETED", "", "c[1-2]", 1.0),
        ("12_2", "COMPLETED", "", "c3", 1.0),
        ("12_10", "TIMEOUT", "", "c3", 9.0),
    ]
    assert found.rows[1]["start"] == BEGIN + 3 * HOUR
    (told,) = (note for note in found.meta.notes if note.startswith("redone"))
    assert "2 runs with 7.00 GPU-hours" in told
    biggest = read.explain(ledger, **NOVEMBER)
    assert [row["gpu_hours"] for row in biggest.rows] == [9.0, 5.0, 2.0, 1.0, 1.0]
    last = read.explain(ledger, filters={"state": ["COMPLETED"]}, **NOVEMBER)
    assert not any(note.startswith("redone") for note in last.meta.notes)


def test_a_row_is_explained_by_what_sacct_said_then_and_now(ledger):
    write_books(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])
    with ledger.transaction() as connection:
        old = {"run_id": 1, "ingest_id": 1, "old": '{"state": "RUNNING", "end": null}'}
        connection.execute(insert(revisions).values(**old))
        number = update(runs).values(db_index=14557473182063114240)
        connection.execute(number)
    found = read.evidence(ledger, 1)
    assert found.row["sluid"] == "sCM1M8QBT2BE00"
    said = dict(zip(found.fields, found.line.split("|"), strict=True))
    assert (said["JobID"], said["User"], said["End"]) == ("1", "alice", str(BEGIN + HOUR))
    assert found.revisions == ((LATER, {"state": "RUNNING", "end": None}),)
    assert found.command.startswith(
        "SLURM_TIME_FORMAT=%s sacct -D -X -P --noconvert -j 1 --format=DBIndex,"
    )
    bob = read.Scope(frozenset((2,)), frozenset((2,)))
    for number, scope in ((9, read.Scope()), (1, bob)):
        with pytest.raises(BadInput, match=f"no row {number}"):
            read.evidence(ledger, number, scope=scope)


def test_reports_by_sluid_and_the_one_that_knows_none(ledger):
    write_books(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])
    with ledger.transaction() as connection:
        connection.execute(update(runs).values(db_index=14557473182063114240))
    for report in (read.usage, read.wait, read.explain):
        assert len(report(ledger, job="sCM1M8QBT2BE00", **NOVEMBER).rows) == 1
        assert len(report(ledger, job="sCM1M8QBT2BE01", **NOVEMBER).rows) == 0
    with pytest.raises(BadInput, match="give the id, not a SLUID"):
        read.reclaimed(ledger, job="12,sCM1M8QBT2BE00", **NOVEMBER)


def correct(ledger, number, **values):
    """What a later ingest says of a run."""
    with ledger.transaction() as connection:
        times = {"started": LATER, "ended": LATER, "window_from": 0, "window_to": LATER}
        later = connection.execute(insert(ingests).values(cluster_id=1, **times))
        (ingest,) = later.inserted_primary_key
        connection.execute(insert(revisions).values(run_id=number, ingest_id=ingest, old="{}"))
        connection.execute(update(runs).where(runs.c.id == number).values(**values))
        tables.rebuild_usage(connection)


@pytest.mark.sql
def test_a_closed_month_stays_and_corrections_stand_apart(ledger):
    jobs = [
        run("alice", BEGIN, BEGIN + 4 * HOUR, gpus=A100),
        run("bob", BEGIN, BEGIN + HOUR, gpus=A100),
        run("bob", BEGIN + 29 * DAY, None, gpus=A100, state="RUNNING", last_seen=LATER),
    ]
    write_books(ledger, jobs)
    closed = close_month(ledger, "2026-11", UTC, LATER)
    assert [one.new for one in closed] == [True, True]
    before = read.usage(ledger, **NOVEMBER)
    assert "correction" not in before.rows[0]
    correct(
        ledger, 3, end=BEGIN + 35 * DAY, state="COMPLETED"
    )  # no correction: it held what was said
    assert [row["gpu_hours"] for row in read.usage(ledger, **NOVEMBER).rows] == [50.0, 8.0]
    assert read.usage(ledger, **NOVEMBER).meta.closed[1].jobs == ()
    correct(ledger, 1, end=BEGIN + HOUR)
    found = read.usage(ledger, **NOVEMBER)
    assert [(row["pi"], row["correction"], row["gpu_hours"]) for row in found.rows] == [
        ("garcia", "", 50.0),
        ("vogel", "", 8.0),
        ("vogel", "2026-11", -6.0),
    ]
    assert found.meta.total["gpu_hours"] == 52.0
    (lab,) = [one for one in found.meta.closed if one.cluster == "lab"]
    assert (lab.gpu_hours, lab.corrected, lab.jobs) == (58.0, -6.0, ("1", "3"))
    year = read.usage(ledger, "2026-01-01", "2027-01-01", by="month", timezone="UTC", now=LATER)
    assert year.rows[0]["gpu_hours"] == 58.0
    assert year.rows[-1]["gpu_hours"] == -6.0
    days = read.usage(ledger, by="day", **NOVEMBER)  # not kept by day: as the books say now
    assert sum(row["gpu_hours"] for row in days.rows) == 52.0


@pytest.mark.sql
def test_a_month_is_closed_once(ledger):
    write_books(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])
    (first, *_) = close_month(ledger, "2026-11", UTC, LATER)
    correct(ledger, 1, end=BEGIN + 2 * HOUR)
    (again, *_) = close_month(ledger, "2026-11", UTC, LATER + 9)
    assert (again.at, again.checksum, again.new) == (first.at, first.checksum, False)


@pytest.mark.parametrize(
    ("month", "now", "words"),
    [
        ("2026-12", LATER, "not over yet"),
        ("2027-01", LATER + 99 * DAY, "not all of 2027-01 has been read from"),
        ("May", LATER, "not a month"),
    ],
)
def test_a_month_that_cannot_be_closed_is_one_line(ledger, month, now, words):
    write_books(ledger, [])
    with pytest.raises(BadInput, match=words):
        close_month(ledger, month, UTC, now)


STATS = """Internal DBD rollup last ran Sat Nov 21 07:00:00 2026 (1795244400)
\tLast cycle:   5813

Cluster 'lab' rollup statistics
Hour  last ran Sat Nov 21 08:00:00 2026 (1795248000)
\tLast cycle:   0

Cluster 'big' rollup statistics
"""


def test_how_far_usage_is_rolled_up():
    assert parse_rollup_time(STATS, "lab") == RollupTime(
        1795248000, "sacctmgr show stats, of this cluster"
    )
    assert parse_rollup_time(STATS, "big") == RollupTime(
        1795244400, "sacctmgr show stats, of slurmdbd"
    )
    assert parse_rollup_time("", "lab") is None


def test_sreport_tells_of_this_hour_only_alone():
    hour, now = 1793491200, 1793491200 + 1300
    assert end_of_sreport_data((hour - 7200, hour + 3600), now) == hour
    assert end_of_sreport_data((hour, hour + 7200), now) == hour + 3600
    assert end_of_sreport_data((hour - 7200, hour - 3600), now) == hour - 3600


def sreport(used: int, idle: int = 0, at: int = LATER, reservations: str = "") -> FakeSlurm:
    """A slurmdbd that has rolled up everything until `at`."""

    def answer(argv, _):
        if "reservation" in argv:
            return f"lab|maint|gres/gpu|{idle}\n"
        if "clusters=big" in argv:
            return ""
        assert "Start=uts1793491200" in argv
        return (
            f"lab|root||gres/gpu|{used}\nlab|vision||gres/gpu|{used}\nlab|vision|alice|gres/gpu|7\n"
        )

    stats = f"Internal DBD rollup last ran Sat Nov 21 07:00:00 2026 ({at})\n"
    return FakeSlurm(
        {
            "sreport": answer,
            "sacctmgr": lambda argv, _: reservations if "reservation" in argv else stats,
        }
    )


def reconciled_rows(ledger, slurm, **other):
    window = {"window": (BEGIN, BEGIN + 30 * DAY), "zone": UTC, "tres": "gres/gpu", "now": LATER}
    found = reconcile_report(ledger, slurm, **{**window, **other})
    return {row["what"]: row for row in found.rows if row["cluster"] == "lab"}


def reconciled(ledger, slurm, **other):
    return {what: row["seconds"] for what, row in reconciled_rows(ledger, slurm, **other).items()}


def notes_of_unexplained(ledger, slurm):
    return reconciled_rows(ledger, slurm)["unexplained"]["why"]


def test_the_difference_to_sreport_is_split_by_cause(ledger):
    jobs = [
        run("alice", BEGIN, BEGIN + 1000, gpus={"a100": 1}, suspended=((BEGIN, 900, 100),)),
        run("alice", BEGIN, BEGIN + 50, gpus={"shard": 4}),
        run("alice", BEGIN, BEGIN + 70, gpus={"a100": 1}, other={"account": ""}),
        run("alice", BEGIN, BEGIN + 30, gpus={"a100": 1}, retracted=5),
    ]
    write_books(ledger, jobs)
    found = reconciled(ledger, sreport(used=1000 + 30 + 400, idle=400))
    assert found == {
        "ledger": 1070,
        "reservations": 400,
        "suspended": 0,
        "running": 0,
        "requeued": 0,
        "unmapped": -70,
        "retracted": 30,
        "rounding": 0,
        "unexplained": 0,
        "sreport": 1430,
    }
    assert reconciled(ledger, sreport(used=1433, idle=400))["unexplained"] == 3


@pytest.mark.parametrize("left", [-5, -10])
def test_sreport_drops_remainders_of_idle_time_in_reservations(ledger, left):
    """How much at most is said, but taken off nothing."""
    write_books(ledger, [run("alice", BEGIN, BEGIN + 1000, gpus={"a100": 1})])
    # Three hours of three associations, in each of which 2 s are dropped, and one of a single one.
    spans = ((0, 2, "2,7,9"), (0, 1, ",4,"), (9, 10, "1,2,3"))
    rows = "".join(
        f"{ids}|{BEGIN + first * HOUR}|{BEGIN + last * HOUR}\n" for first, last, ids in spans
    )
    for idle, words in (
        (400, "sreport may lack up to 6 s of idle time in reservations; "),
        (0, ""),
    ):
        slurm = sreport(used=1000 + idle + left, idle=idle, reservations=rows)
        assert reconciled(ledger, slurm)["unexplained"] == left
        assert notes_of_unexplained(ledger, slurm).startswith(f"{words}possible causes: ")
    assert notes_of_unexplained(ledger, sreport(used=1400, idle=400, reservations=rows)) == ""


def test_for_cpus_the_suspended_time_of_running_jobs_is_no_exact_cause(ledger):
    write_books(ledger, [run("alice", BEGIN, BEGIN + 1000, cpus=1)])
    rows = "lab|root||cpu|990\nlab|vision|alice|cpu|990\n"
    slurm = FakeSlurm(
        {
            "sreport": lambda argv, _: (
                "" if "reservation" in argv or "clusters=big" in argv else rows
            ),
            "sacctmgr": lambda *_: f"Internal DBD rollup last ran Sat Nov 21 07:00:00 ({LATER})\n",
        }
    )
    row = reconciled_rows(ledger, slurm, tres="cpu")["unexplained"]
    assert row["seconds"] == -10
    assert row["why"].startswith("when a job was suspended is known exactly only once it has ended")


@pytest.mark.sql
def test_sreport_knows_running_jobs_to_the_end_of_its_hour(ledger):
    now = BEGIN + 1800
    write_books(
        ledger,
        [run("alice", BEGIN + 600, None, gpus={"a100": 2}, state="RUNNING", last_seen=LATER)],
    )
    found = reconciled(ledger, sreport(used=2 * 3000, at=BEGIN + HOUR), now=now)
    assert (found["ledger"], found["running"], found["unexplained"]) == (2400, 3600, 0)


def test_a_window_that_sreport_does_not_know_yet_is_refused(ledger):
    write_books(ledger, [])
    with pytest.raises(BadInput, match="has no full hour of this window for big yet"):
        reconciled(ledger, sreport(0, at=BEGIN + 5))
    with pytest.raises(BadInput, match="--tres 'mem' cannot be compared"):
        reconciled(ledger, sreport(0), tres="mem")


@pytest.fixture
def gpus(monkeypatch):
    """Three held GPUs and a free one."""
    held = {"state": "held", "type": "a100", "user": "alice", "account": "vision", "since": 0}
    found = tuple(Gpu(node="c1", index=n, job_id=str(n), **held) for n in range(3))
    free = Gpu(node="c1", index=3, type="a100", state="free")
    whole = GpuMap((*found, free), (), (), 9990.0, 0.1)
    monkeypatch.setattr("slurmkit_accounting.reports.idle.read_gpus", lambda slurm: whole)


class Metrics:
    """GPU 0 did nothing for an hour, 1 was busy once, 2 nothing for a minute."""

    def read(self, nodes, *, seconds=0):
        assert (list(nodes), seconds) == (["c1"], 1800)
        spans = {0: ((8000, 0.0), (9990, 1.0)), 1: ((8000, 0.0), (9000, 70.0)), 2: ((9940, 0.0),)}
        return {
            "c1": tuple(
                GpuSample(index=index, taken=taken, utilization=busy)
                for index, samples in spans.items()
                for taken, busy in samples
            )
        }


def test_gpus_that_did_nothing_for_long_are_idle(gpus, monkeypatch):
    monkeypatch.setattr("slurmkit_accounting.reports.idle.load_plugin", lambda kind, name: Metrics)
    found = idle_report(FakeSlurm({}), "dcgm", IdleBound(5, 1800), now=10_000)
    assert [(row["gpu"], row["idle"]) for row in found.rows] == [(0, "yes"), (2, None), (1, "no")]
    assert found.meta.notes[0] == "idle GPUs: 1 of 3 that are allocated, 1 unknown"


@pytest.mark.parametrize(
    ("taken", "idle", "minutes"),
    [
        ((8200, 9700), None, 25),  # five minutes without samples are not measured
        ((8000, 9720), "yes", 1720 / 60),
        ((8000, 9690), None, 1690 / 60),
        ((8000, 8200), None, 200 / 60),
    ],
)
def test_samples_that_ended_long_ago_do_not_make_a_gpu_idle(
    gpus, monkeypatch, taken, idle, minutes
):
    samples = tuple(GpuSample(index=0, taken=at, utilization=0.0) for at in taken)
    metrics = SimpleNamespace(read=lambda nodes, seconds: {"c1": samples})
    monkeypatch.setattr(
        "slurmkit_accounting.reports.idle.load_plugin", lambda kind, name: lambda: metrics
    )
    rows = idle_report(FakeSlurm({}), "dcgm", IdleBound(5, 1800), now=10_000).rows
    (row,) = (row for row in rows if row["gpu"] == 0)
    assert (row["idle"], row["measured_minutes"]) == (idle, pytest.approx(minutes))


def test_without_a_name_the_source_counts_that_knows_most(gpus, monkeypatch):
    """The ledger measured all that slurm did not."""
    known = {"site": (0,), "ledger": (0, 1, 2), "slurm": (1,)}
    asked = []

    def load(kind, name):
        asked.append(name)
        samples = tuple(GpuSample(index=n, taken=9990, utilization=50.0) for n in known[name])
        return lambda: SimpleNamespace(read=lambda nodes, seconds: {"c1": samples})

    monkeypatch.setattr("slurmkit_accounting.reports.idle.load_plugin", load)
    sources = "slurmkit_accounting.reports.idle.gpu_sources"
    monkeypatch.setattr(sources, lambda: ["site", "ledger"])
    found = idle_report(FakeSlurm({}), None, IdleBound(5, 1800), now=10_000)
    assert {row["idle"] for row in found.rows} == {"no"}
    assert found.meta.source == "slurmctld, and ledger"
    assert asked == ["site", "ledger"]
    monkeypatch.setattr(sources, list)
    found = idle_report(FakeSlurm({}), None, IdleBound(5, 1800), now=10_000)
    assert (found.meta.source, found.rows[0]["gpu"]) == ("slurmctld, and slurm", 0)


def test_a_blank_is_neither_busy_nor_idle(gpus, monkeypatch):
    """Sources write numbers such as 2619 % where the driver does not know."""
    seen = {0: (0.0, 2619.0, 0.0), 1: (2619.0, -1.0, 4294967295.0)}
    samples = tuple(
        GpuSample(index=index, taken=at, utilization=use)
        for index, uses in seen.items()
        for at, use in zip((8000, 9000, 9990), uses, strict=True)
    )
    metrics = SimpleNamespace(read=lambda nodes, seconds: {"c1": samples})
    monkeypatch.setattr(
        "slurmkit_accounting.reports.idle.load_plugin", lambda kind, name: lambda: metrics
    )
    rows = idle_report(FakeSlurm({}), "dcgm", IdleBound(5, 1800), now=10_000).rows
    found = {row["gpu"]: (row["busiest"], row["idle"]) for row in rows}
    assert found == {0: (0, "yes"), 1: (None, None), 2: (None, None)}


@pytest.mark.parametrize(
    ("used", "amounts", "shown"),
    [
        (3, (1, 2), ("1, 2", "user1, user2", None)),
        (3, (3,), ("1", "user1", 1.0)),
        (3, (1, 1), ("?", "?", None)),  # a third job, which Slurm hides (PrivateData=jobs)
        (3, (1,), ("?", "?", None)),
        (None, (1, 1), ("?", "?", None)),
        (3, (1, None), ("?", "?", None)),
        (3, (), ("?", "?", None)),
    ],
)
def test_a_shared_gpu_of_which_slurm_hides_a_job_is_nobodys(monkeypatch, used, amounts, shown):
    by = tuple(
        GpuShare(str(number), f"user{number}", "vision", amount, 6400)
        for number, amount in enumerate(amounts, start=1)
    )
    only = {"job_id": "1", "user": "user1", "account": "vision", "since": 6400}
    one = Gpu(
        node="c1", index=0, type="a100", state="shared", shard=GpuSharing(used, 4, by),
        mps=GpuSharing(0, 100), **(only if len(by) == 1 else {}),
    )  # fmt: skip
    whole = GpuMap((one,), (), (), 9990.0, 0.1)
    monkeypatch.setattr("slurmkit_accounting.reports.idle.read_gpus", lambda slurm: whole)
    (row,) = idle_report(FakeSlurm({}), None, IdleBound(5, 1800), now=10_000).rows
    assert (row["job"], row["user"], row["held_hours"]) == shown
    assert row["account"] == ("vision" if shown[2] else "?")


def test_without_a_source_it_is_unknown_what_gpus_do(gpus):
    found = idle_report(FakeSlurm({}), None, IdleBound(5, 1800), now=10_000)
    assert {row["idle"] for row in found.rows} == {None}
    assert any(note.startswith("GPU utilization is unknown") for note in found.meta.notes)
    with pytest.raises(BadInput, match="no plugin 'dcgm'"):
        idle_report(FakeSlurm({}), "dcgm", IdleBound(5, 1800))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["wait", "--month", "2026-11"], "PARTITION"),
        (["efficiency", "--month", "2026-11"], "USER"),
        (["explain", "--month", "2026-11", "--pi", "vogel"], "alice"),
        (["explain", "--row", "1"], "sacct line"),
        (["budget"], "PI"),
    ],
)
def test_commands_show_reports(file_ledger, capsys, words, shown):
    write_books(file_ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])
    assert run_to_exit_code(report_group, words) == 0
    assert shown in capsys.readouterr().out
    assert run_to_exit_code(report_group, [*words, "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_close_says_what_it_closed(file_ledger, capsys):
    write_books(file_ledger, [])
    for said in ("2026-03 of big (UTC) closed; checksum", "2026-03 of big (UTC) was closed at"):
        assert run_to_exit_code(ledger_group, ["close", "2026-03", "--timezone", "UTC"]) == 0
        assert said in capsys.readouterr().out


def test_every_report_has_help_with_examples(capsys):
    for name in report_group.commands:
        assert run_to_exit_code(report_group, [name, "--help"]) == 0
        assert "Examples:\n" in capsys.readouterr().out


@pytest.mark.sql
def test_a_report_takes_a_limited_number_of_job_ids_and_filter_values(ledger):
    write_books(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])
    most = ",".join(map(str, range(1, read.MOST_JOBS + 1)))
    for report in (read.usage, read.wait, read.efficiency, read.explain):
        report(ledger, job=f"{most},1,1", **NOVEMBER)
        with pytest.raises(BadInput, match="201 job ids are too many; at most 200 are allowed"):
            report(ledger, job=f"{most},201", **NOVEMBER)
        users = tuple(f"user{number}" for number in range(read.MOST_FILTER_VALUES))
        report(ledger, filters={"user": users}, **NOVEMBER)
        with pytest.raises(BadInput, match="filters have 1,001 values; at most 1,000 are allowed"):
            report(ledger, filters={"user": users, "pi": ["vogel"]}, **NOVEMBER)


@pytest.mark.parametrize(("people", "last"), [(13, "user12"), (14, "2 others")])
def test_no_bar_stands_for_one_other_person(ledger, people, last):
    """It said `1 others`."""
    jobs = [run(f"user{n:02}", BEGIN, BEGIN + (50 - n) * HOUR, gpus=A100) for n in range(people)]
    write_books(ledger, jobs)
    found = read.usage(ledger, panels=True, **NOVEMBER)
    (bars,) = [panel for panel in found.panels if panel.title == "GPU-hours by person"]
    assert bars.labels[-1] == last
    assert sum(bars.series[0].values) == found.meta.total["gpu_hours"]
