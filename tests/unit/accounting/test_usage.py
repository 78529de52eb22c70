"""GPU-hours: counts times overlap, split exactly at the edges of the window."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest
from click.testing import CliRunner
from fake_sacct import FakeSacct, job
from slurmkit_accounting import read, render
from slurmkit_accounting.cli.report import report_group
from slurmkit_accounting.ingest import ingest
from slurmkit_accounting.report import Report, usage_report
from slurmkit_accounting.zones import zone

from slurmkit.errors import BadInput

DAY = 86400
UTC = zone("UTC")
BEGIN = UTC.epoch("2026-11-10")
END = BEGIN + DAY
LATER = END + 30 * DAY


def report(ledger, *jobs, by="user", now=LATER, window=("2026-11-10", "2026-11-11"), in_zone=UTC):
    ingest(ledger, FakeSacct(*jobs), since=BEGIN - 400 * DAY)
    return usage_report(ledger, window, by=by, zone=in_zone, now=now)


def numbers(found: Report) -> list[tuple[str, int, int | None, int]]:
    return [(row.key, row.jobs, row.gpu_seconds, row.cpu_seconds) for row in found.rows]


@pytest.mark.parametrize(
    ("start", "end", "seconds"),
    [
        (BEGIN + 100, BEGIN + 160, 60),
        (BEGIN - 50, BEGIN + 10, 10),
        (END - 10, END + 50, 10),
        (BEGIN - 50, END + 50, DAY),
        (BEGIN, END, DAY),
        (BEGIN, BEGIN, 0),
    ],
)
def test_a_run_counts_for_its_overlap_with_the_window(ledger, start, end, seconds):
    found = report(ledger, job(1, start - 5, start, end))
    assert numbers(found) == [("alice", 1, 2 * seconds, 4 * seconds)]


@pytest.mark.parametrize(
    ("start", "end"),
    [(BEGIN - 50, BEGIN), (END, END + 50), (BEGIN - 50, BEGIN - 10), (None, None), (None, BEGIN)],
)
def test_a_run_outside_the_window_or_never_started_does_not(ledger, start, end):
    assert numbers(report(ledger, job(1, BEGIN - 60, start, end))) == []


def test_a_run_cancelled_before_it_started_does_not_even_if_it_has_a_start(ledger):
    cancelled = job(1, BEGIN, BEGIN + 9, BEGIN + 9, AllocTRES="", AllocCPUS=0, AllocNodes=0)
    assert numbers(report(ledger, cancelled)) == []


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED by 7", "PREEMPTED", "REQUEUED", "NEW_ONE"])
def test_it_counts_whatever_became_of_it(ledger, state):
    found = report(ledger, job(1, BEGIN, BEGIN, BEGIN + 10, State=state))
    assert numbers(found) == [("alice", 1, 20, 40)]


@pytest.mark.parametrize(("now", "seconds"), [(BEGIN + 30, 30), (LATER, DAY), (BEGIN - 5, 0)])
def test_a_running_job_counts_up_to_now(ledger, now, seconds):
    found = report(ledger, job(1, BEGIN, BEGIN, None, State="RUNNING"), now=now)
    assert numbers(found) == [("alice", 1, 2 * seconds, 4 * seconds)]
    assert found.meta.running == 1
    assert found.meta.running_until == UTC.show(min(now, END))


def test_all_runs_of_a_requeued_job_count(ledger):
    first = job(1, BEGIN, BEGIN, BEGIN + 10, DBIndex=1, State="REQUEUED")
    second = job(1, BEGIN + 20, BEGIN + 30, BEGIN + 40, DBIndex=2)
    assert numbers(report(ledger, first, second)) == [("alice", 2, 40, 80)]


def test_typed_only_tres_and_cpu_jobs(ledger):
    typed = job(1, BEGIN, BEGIN, BEGIN + 10, AllocTRES="cpu=1,gres/gpu:a100=2,gres/gpu:h100=1")
    cpu = job(2, BEGIN, BEGIN, BEGIN + 10, AllocTRES="cpu=2,mem=1G", User="bob")
    assert numbers(report(ledger, typed, cpu)) == [("alice", 1, 30, 10), ("bob", 1, 0, 20)]


@pytest.mark.parametrize(
    ("day", "after", "hours"), [("03-29", "03-30", 23), ("10-25", "10-26", 25)]
)
def test_days_on_which_the_clocks_change(ledger, day, after, hours):
    begin = UTC.epoch(f"2026-{day}") - 2 * DAY
    found = report(
        ledger,
        job(1, begin, begin, begin + 5 * DAY),
        window=(f"2026-{day}", f"2026-{after}"),
        in_zone=zone("Europe/Berlin"),
    )
    assert numbers(found) == [("alice", 1, 2 * hours * 3600, 4 * hours * 3600)]


def test_windows_that_meet_add_up(ledger):
    whole = report(ledger, job(1, BEGIN - 7, BEGIN - 7, BEGIN + 1003))
    edges = ("2026-11-01", "2026-11-10T00:05:01", "2026-11-10T00:07:13", "2026-11-20")
    parts = [
        usage_report(ledger, (one, other), by="user", zone=UTC, now=LATER).rows[0].gpu_seconds
        for one, other in pairwise(edges)
    ]
    assert sum(parts) == 2 * 1010
    assert whole.rows[0].gpu_seconds == 2 * 1003


def test_by_account_largest_first(ledger):
    found = report(
        ledger,
        job(1, BEGIN, BEGIN, BEGIN + 10, Account="small"),
        job(2, BEGIN, BEGIN, BEGIN + 50, Account="large"),
        job(3, BEGIN, BEGIN, BEGIN + 5, Account="small", User="bob"),
        by="account",
    )
    assert numbers(found) == [("large", 1, 100, 200), ("small", 2, 30, 60)]


def test_a_cluster_that_does_not_track_gpus_is_told_so_and_never_shown_as_zero(ledger):
    slurm = FakeSacct(job(1, BEGIN, BEGIN, BEGIN + 3600, AllocTRES="cpu=4,mem=1G"))
    slurm.tracked = "cpu,mem,node,billing"
    ingest(ledger, slurm, since=BEGIN)
    found = usage_report(ledger, ("2026-11-10", "2026-11-11"), by="user", zone=UTC, now=LATER)
    assert numbers(found) == [("alice", 1, None, 4 * 3600)]
    assert found.meta.gpus_not_tracked == ("lab",)
    assert json.loads(render.as_json(found))["rows"][0]["gpu_hours"] is None
    assert "not tracked" in render.as_csv(found)
    assert any("AccountingStorageTRES lacks gres/gpu" in line for line in render.footer(found.meta))


@pytest.mark.parametrize(
    ("begin", "end"), [("2026-11-11", "2026-11-11"), ("2026-11-12", "2026-11-11")]
)
def test_an_empty_window_is_bad_input(ledger, begin, end):
    with pytest.raises(BadInput, match="--to 2026-11-11 must be after --from"):
        usage_report(ledger, (begin, end), by="user", zone=UTC)


def test_the_footer_says_what_the_numbers_rest_on(ledger):
    found = report(
        ledger,
        job(1, BEGIN, BEGIN, None, State="RUNNING"),
        job(2, BEGIN, "soon", None),
        in_zone=zone("Europe/Berlin"),
        by="pi",
    )
    said = "\n".join(render.footer(found.meta))
    for words in (
        "2026-11-10 00:00:00+01:00 to 2026-11-11 00:00:00+01:00 (not included), Europe/Berlin",
        f"source: ledger {ledger.source}, lab; last ingest",
        "counted: 1 run, 1 rejected line, 1 run unmapped, 1 still running, counted up to 2026-11-1",
        "no people yet",
    ):
        assert words in said


def test_a_ledger_without_an_ingest_says_so(ledger):
    found = usage_report(ledger, ("2026-11-10", "2026-11-11"), by="user", zone=UTC)
    assert found.rows == ()
    assert any("run: slurmkit ledger ingest" in line for line in render.footer(found.meta))


def test_a_frame_has_the_same_numbers(ledger):
    found = report(ledger, job(1, BEGIN, BEGIN, BEGIN + 1))
    frame = found.frame()
    assert list(frame.columns) == ["user", "jobs", "gpu_hours", "cpu_hours"]
    assert frame.to_dict("records") == found.records()
    assert frame.gpu_hours[0] == 2 / 3600


def test_the_read_api_gives_the_same_report_and_never_imports_pandas(ledger):
    ingest(ledger, FakeSacct(job(1, BEGIN, BEGIN, BEGIN + 10)), since=BEGIN)
    with read.ledger() as books:
        found = read.usage(books, "2026-11-10", "2026-11-11", by="user", timezone="UTC")
    assert numbers(found) == [("alice", 1, 20, 40)]
    code = "import sys, slurmkit_accounting.read; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=os.environ).returncode == 0


def usage(*options: str):
    words = ["usage", "--from", "2026-11-10", "--to", "2026-11-11", "--timezone", "UTC", *options]
    done = CliRunner().invoke(report_group, words, catch_exceptions=False)
    assert done.exit_code == 0
    return done


def test_table_csv_and_json_carry_the_same_numbers(ledger):
    ingest(ledger, FakeSacct(job(1, BEGIN, BEGIN, BEGIN + 1, User="eve\x1b[2J")), since=BEGIN)
    table = usage("--by", "user")
    assert [line.split() for line in table.stdout.splitlines()] == [
        ["USER", "JOBS", "GPU_HOURS", "CPU_HOURS"],
        ["eve\\x1b[2J", "1", "0.0006", "0.0011"],
    ]
    assert "window: 2026-11-10" in table.stderr
    csv = usage("--by", "user", "--format", "csv")
    assert csv.stdout == "user,jobs,gpu_hours,cpu_hours\neve\\x1b[2J,1,0.0006,0.0011\n"
    whole = json.loads(usage("--by", "user", "--format", "json").stdout)
    assert whole["rows"] == [
        {"user": "eve\x1b[2J", "jobs": 1, "gpu_hours": 2 / 3600, "cpu_hours": 4 / 3600}
    ]
    assert whole["meta"]["source"] == f"ledger {ledger.source}"
    assert whole["meta"]["timezone"] == "UTC"
    assert (whole["meta"]["runs"], whole["meta"]["rejects"]) == (1, 0)


def test_one_job_or_all_tasks_of_one_array_can_be_asked_for(ledger):
    tasks = [job(n, BEGIN - 5, BEGIN, BEGIN + 10) | {"JobID": f"12_{n}"} for n in (13, 14)]
    mixed = [job(n, BEGIN - 5, BEGIN, BEGIN + 10) | {"JobID": f"30+{n - 30}"} for n in (30, 31)]
    alone = [job(n, BEGIN - 5, BEGIN, BEGIN + 10) for n in (12, 120, 1)]
    ingest(ledger, FakeSacct(*tasks, *mixed, *alone), since=BEGIN - DAY)
    window = ("2026-11-10", "2026-11-11")

    def jobs(asked: str) -> int:
        found = usage_report(ledger, window, by="user", zone=UTC, job=asked, now=LATER)
        return sum(row.jobs for row in found.rows)

    asked = {"12": 3, "12_13": 1, "120": 1, "2": 0, "30": 2, "30+1": 1}
    assert {one: jobs(one) for one in asked} == asked


@pytest.mark.parametrize("asked", ["abc", "foo bar", "", "%", "12_", "12;"])
def test_what_is_no_job_id_is_bad_input_and_no_empty_report(ledger, asked):
    with pytest.raises(BadInput, match="is not a job id"):
        usage_report(ledger, ("2026-11-10", "2026-11-11"), by="user", zone=UTC, job=asked)


def test_a_run_that_sacct_does_not_show_any_more_counts_up_to_when_it_last_did(ledger, monkeypatch):
    gone = job(1, BEGIN, BEGIN, None, State="RUNNING")
    there = job(2, BEGIN, BEGIN, None, State="RUNNING", User="bob")
    slurm = FakeSacct(gone, there)
    for hour, jobs in enumerate(([gone, there], [gone, there], [there], [there]), 1):
        monkeypatch.setattr(
            "slurmkit_accounting.ingest.time.time", lambda at=hour: BEGIN + 3600 * at
        )
        slurm.jobs = jobs
        done = ingest(ledger, slurm, since=BEGIN)
        assert done.entered.changed == 0
    found = usage_report(ledger, ("2026-11-10", "2026-11-11"), by="user", zone=UTC, now=LATER)
    assert numbers(found) == [("bob", 1, 2 * DAY, 4 * DAY), ("alice", 1, 2 * 7200, 4 * 7200)]
    assert (found.meta.running, found.meta.unseen) == (1, 1)
    said = "\n".join(render.footer(found.meta))
    assert "1 still running, counted up to 2026-11-11" in said
    assert "1 open but gone from sacct, counted up to when it last showed them" in said


@pytest.mark.parametrize("shown", [True, False])
def test_an_interrupted_ingest_does_not_tell_what_is_gone(ledger, monkeypatch, shown):
    slurm = FakeSacct(job(1, BEGIN, BEGIN, None, State="RUNNING"))
    monkeypatch.setattr("slurmkit_accounting.ingest.time.time", lambda: BEGIN + 60)
    ingest(ledger, slurm, since=BEGIN)
    slurm.jobs = slurm.jobs if shown else []
    monkeypatch.setattr("slurmkit_accounting.ingest.time.time", lambda: BEGIN + 120)
    monkeypatch.setattr("slurmkit_accounting.ingest._finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ingest(ledger, slurm, since=BEGIN)
    found = usage_report(ledger, ("2026-11-10", "2026-11-11"), by="user", zone=UTC, now=LATER)
    assert (found.meta.running, found.meta.unseen) == (1, 0)


@pytest.mark.parametrize("index", [{}, {"DBIndex": ""}])
def test_a_rejected_line_does_not_count_once_its_run_could_be_read(ledger, index):
    window = ("2026-11-10", "2026-11-11")

    def rejected(start: object) -> int:
        slurm = FakeSacct(job(1, BEGIN, start, BEGIN + 10, **index))
        ingest(ledger, slurm, since=BEGIN)
        return usage_report(ledger, window, by="user", zone=UTC).meta.rejects

    ingest(ledger, FakeSacct(job(2, BEGIN, "later", BEGIN + 10, **index)), since=BEGIN)
    assert [rejected(start) for start in ("soon", BEGIN, "soon")] == [2, 1, 2]


def test_another_clusters_run_of_the_same_number_does_not_settle_a_reject(ledger):
    ingest(ledger, FakeSacct(job(1, BEGIN, "soon", BEGIN + 10)), since=BEGIN)
    other = FakeSacct(job(1, BEGIN, BEGIN, BEGIN + 10))
    other.cluster = "other"
    ingest(ledger, other, since=BEGIN)
    found = usage_report(ledger, ("2026-11-10", "2026-11-11"), by="user", zone=UTC)
    assert (found.meta.runs, found.meta.rejects) == (1, 1)


def test_a_window_that_begins_before_the_books_says_so(ledger):
    ingest(ledger, FakeSacct(job(1, BEGIN, BEGIN, BEGIN + 10)), since=BEGIN)

    def said(begin: str) -> str:
        found = usage_report(ledger, (begin, "2026-11-12"), by="user", zone=UTC, now=LATER)
        return "\n".join(render.footer(found.meta))

    assert "the books begin at 2026-11-10 00:00:00+00:00, so what ran before" in said("2026-11-09")
    assert "the books begin" not in said("2026-11-10")
