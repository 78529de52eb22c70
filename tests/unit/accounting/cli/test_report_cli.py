"""`slurmkit report` as a person sees it."""

from __future__ import annotations

import io
import json
import sys

import pytest
from openpyxl import load_workbook
from report_books import BEGIN, run, write_books
from slurmkit_accounting.cli.report import report_group

from slurmkit.cli.main import run_to_exit_code

NOVEMBER = ["--from", "2026-11-01", "--to", "2026-12-01", "--timezone", "UTC"]


@pytest.fixture
def books(file_ledger):
    jobs = [
        run("alice", BEGIN, BEGIN + 3600, gpus={"a100": 2}),
        run("bob", BEGIN, BEGIN + 3600, gpus={"a100": 1}, state="FAILED"),
    ]
    write_books(file_ledger, jobs)


def report(capsys, *words, code=0):
    assert run_to_exit_code(report_group, list(words)) == code
    return capsys.readouterr()


def test_a_table_shows_rows_on_stdout_and_what_they_rest_on_beside(books, capsys):
    said = report(capsys, "usage", *NOVEMBER, "--by", "pi,gpu-type")
    header, first, second, last = said.out.splitlines()
    assert header.split() == [
        *("PI", "GPU_TYPE", "GPU_HOURS", "GPU_HOURS_LOST", "JOBS", "USERS", "CPU_HOURS"),
        "WAIT_HOURS",
    ]
    assert first.split()[:6] == ["vogel", "a100", "2.00", "0.00", "1", "1"]
    assert second.split()[0] == "garcia"
    assert last.split()[:4] == ["total", "3.00", "1.00", "2"]
    assert "window: 2026-11-01 00:00:00+00:00 to 2026-12-01" in said.err


def test_little_stands_below_a_table_unless_one_asks(books, capsys):
    brief = report(capsys, "usage", *NOVEMBER, "--by", "user").err.splitlines()
    untracked = "GPUs of big are not tracked"
    assert [line.partition(":")[0] for line in brief] == ["window", "source", untracked, "more"]
    assert brief[-1].endswith("columns with --columns all, how this is counted with --notes")
    whole = report(capsys, "usage", *NOVEMBER, "--notes").err
    for words in (
        "suspended time counts, as in sreport",
        "counted: 2 runs, 0 rejected lines, unmapped 0 runs with 0.00 GPU-hours",
        "prices: none are configured",
        "sreport may differ: these GPU-hours include 0.00 while suspended",
        "gpu_hours_failed",
    ):
        assert words in whole
    assert "efficiency: only of runs" not in report(capsys, "efficiency", *NOVEMBER).err
    assert "efficiency: only of runs" in report(capsys, "efficiency", *NOVEMBER, "--notes").err


def test_what_is_not_zero_stands_below_a_table_unasked(file_ledger, capsys):
    jobs = [
        run("alice", BEGIN, None, gpus={"a100": 1}, state="RUNNING", last_seen=BEGIN + 7200),
        run("stranger", BEGIN, BEGIN + 3600, gpus={"a100": 1}, suspended=((BEGIN, 1800, 1800),)),
    ]
    write_books(file_ledger, jobs)
    words = report(capsys, "usage", *NOVEMBER, "--suspended", "skip").err
    assert "unmapped 1 run with" in words
    assert "1 still running, counted up to" in words
    assert "rejected" not in words
    assert "suspended time does not count (--suspended skip)" in words
    assert "of requeued runs" not in words


def test_columns_are_those_that_were_named(books, capsys):
    said = report(capsys, "usage", *NOVEMBER, "--columns", "gpu_hours_lost,jobs")
    assert said.out.splitlines()[0].split() == ["PI", "GPU_HOURS_LOST", "JOBS"]
    said = report(capsys, "usage", "--columns", "x", code=2).err
    assert "no column 'x'" in said
    assert said.endswith("or all\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["usage", "--columns", "user,gpu_hours"], "; to have it, add --by user\n"),
        (["usage", "--columns", "gpu-type"], "; to have it, add --by gpu-type\n"),
        (["usage", "--columns", "day"], "; to have it, add --by day\n"),
        (["wait", "--columns", "user"], "; to have it, add --by user\n"),
        (["wait", "--columns", "day"], "or all\n"),
        (["explain", "--columns", "department"], "or all\n"),
    ],
)
def test_a_column_of_names_is_had_with_by(books, capsys, words, hint):
    assert report(capsys, *words, *NOVEMBER, code=2).err.endswith(hint)


def test_a_table_says_what_it_does_not_show(books, capsys):
    said = report(capsys, "usage", *NOVEMBER)
    assert "GPU_HOURS_FAILED" not in said.out
    assert "columns with --columns all" in said.err
    whole = report(capsys, "usage", *NOVEMBER, "--columns", "all")
    assert "GPU_HOURS_FAILED" in whole.out
    assert "--columns all" not in whole.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--csv"], "No such option"),
        (["--columns", "jobs", "--format", "csv"], "csv has all columns, so leave it out"),
        (
            ["--output", "november.txt"],
            "the ending of november.txt is not a known format; use one of",
        ),
        (["--output", "november"], "csv, html, json, xlsx, or choose one with --format"),
        (["--output", "x.csv", "--format", "table"], "a table is for the terminal"),
        (["--format", "pdf"], "no plugin 'pdf' of slurmkit.renderers"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_ledger_is_asked(capsys, words, why):
    assert why in report(capsys, "usage", *words, code=2).err


@pytest.mark.parametrize("words", [["--json"], ["--format", "json"]])
def test_json_is_all_there_is_on_stdout(books, capsys, words):
    said = report(capsys, "usage", *NOVEMBER, "--by", "user", "--by", "state", *words)
    found = json.loads(said.out)
    assert [(row["user"], row["state"], row["gpu_hours"]) for row in found["rows"]] == [
        ("alice", "COMPLETED", 2.0),
        ("bob", "FAILED", 1.0),
    ]
    assert found["meta"]["by"] == ["user", "state"]
    assert said.err == ""


def test_filters_are_options_of_the_same_names(books, capsys):
    words = ["--by", "user", "--pi", "vogel", "--pi", "garcia", "--state", "FAILED", "--json"]
    found = json.loads(report(capsys, "usage", *NOVEMBER, *words).out)
    assert [row["user"] for row in found["rows"]] == ["bob"]


@pytest.mark.parametrize("ending", ["html", "xlsx", "csv", "json"])
def test_a_files_ending_says_its_format(books, capsys, tmp_path, ending):
    path = tmp_path / f"november.{ending}"
    said = report(capsys, "usage", *NOVEMBER, "--output", str(path))
    assert said.out == ""
    assert f"written to {path}" in said.err
    content = path.read_bytes()
    if ending == "xlsx":
        assert load_workbook(io.BytesIO(content))["usage"]["A2"].value == "vogel"
    else:
        assert b"vogel" in content
    assert (b"<svg" in content) == (ending == "html")


def test_a_file_that_cannot_be_written_is_one_line(books, capsys, tmp_path):
    said = report(capsys, "usage", "--output", str(tmp_path / "no" / "x.csv"), code=1)
    assert "No such file or directory; name another --output" in said.err


def test_a_runs_times_are_in_words(books, capsys):
    """Also finding newcomer polish 8."""
    said = report(capsys, "explain", "--row", "1").out
    assert "start              2026-11-01 00:00:00 UTC\n" in said
    for name in ("cancelled_by", "gone_since", "retracted", "doubt", "redone"):
        assert f"{name:17}  no\n" in said
    assert f"{'last_seen':17}  \n" in said
    assert f"{'energy_joules':17}  ?\n" in said


def test_what_has_not_happened_yet_is_not_unknown(file_ledger, capsys):
    cancelled = run("bob", BEGIN, BEGIN + 60, state="CANCELLED", other={"start": None})
    write_books(
        file_ledger,
        [run("alice", BEGIN, None, state="RUNNING", last_seen=BEGIN + 60), cancelled],
    )
    said = report(capsys, "explain", "--row", "1").out
    assert f"{'end':17}  not yet\n" in said
    assert f"{'sluid':17}  none before Slurm 24.11\n" in said
    assert f"{'start':17}  never\n" in report(capsys, "explain", "--row", "2").out
    table = report(capsys, "explain", *NOVEMBER, "--columns", "job,end,gpu_hours").out
    assert "?" not in table


def test_who_has_no_ledger_is_told_who_reconciles(monkeypatch, tmp_path, capsys):
    (tmp_path / "x.toml").write_text(
        '[ledger.service]\nurl = "http://ledger:6830"\nuser = "54321"\n'
    )
    monkeypatch.setattr("slurmkit.config.files.config_paths", lambda: [tmp_path / "x.toml"])
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("SLURMKIT_DB", raising=False)
    said = report(capsys, "reconcile", code=1).err
    assert "run it on the host of the service, as the service's account" in said


def test_columns_of_an_explanation_are_those_that_were_named(books, capsys):
    said = report(capsys, "explain", *NOVEMBER, "--columns", "job,gpu_hours,row")
    assert said.out.splitlines()[0].split() == ["JOB", "GPU_HOURS", "ROW"]


def test_a_filter_that_matches_nothing_is_named(books, capsys):
    said = report(capsys, "usage", *NOVEMBER, "--user", "nosuch", "--partition", "x")
    assert "nothing matches user nosuch, partition x; to see the names" in said.err
    assert "the ledger has no user 'nosuch'\n" in said.err
    assert "the ledger has no partition 'x'\n" in said.err
    near = report(capsys, "usage", *NOVEMBER, "--user", "alise").err
    assert "the ledger has no user 'alise'; did you mean 'alice'?" in near
    other = ["--from", "2026-01-01", "--to", "2026-02-01", "--user", "alice"]
    assert "the ledger has no" not in report(capsys, "usage", *other).err
    dates = " ".join(NOVEMBER)
    assert f"slurmkit report usage --by user,partition {dates}\n" in said.err
    assert "nothing matches" not in report(capsys, "usage", *NOVEMBER, "--user", "bob").err
    of_job = report(capsys, "efficiency", "--job", "987654").err
    assert "nothing of job 987654 in this window (another: --from DATE)" in of_job


@pytest.mark.parametrize("ending", ["html", "xlsx", "csv", "json"])
def test_a_file_without_rows_is_named(books, capsys, tmp_path, ending):
    output = ["--output", str(tmp_path / f"x.{ending}")]
    said = report(capsys, "usage", "--month", "2026-11", "--gpu-type", "nosuch", *output).err
    assert "nothing matches" in said
    assert "slurmkit report usage --by gpu-type --month 2026-11\n" in said
    only_month = report(capsys, "usage", "--month", "2025-01", *output).err
    assert "nothing matches month 2025-01\n" in only_month
    assert "nothing matches" not in report(capsys, "usage", *NOVEMBER, *output).err


def test_nothing_to_show_hides_nothing(file_ledger, capsys):
    write_books(file_ledger, [])
    assert "more:" not in report(capsys, "usage", *NOVEMBER).err


def on_terminal(monkeypatch, columns):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("columns", [80, 120])
def test_an_explanation_keeps_its_gpu_hours_on_a_terminal(books, capsys, monkeypatch, columns):
    on_terminal(monkeypatch, columns)
    header, *rows = report(capsys, "explain", *NOVEMBER).out.splitlines()
    assert {"JOB", "STATE", "GPU_HOURS", "START", "ROW"} <= set(header.split())
    assert rows[-1].split()[0] == "total"
    assert "3.00" in rows[-1].split()


def test_requests_are_shown_whole_on_a_terminal(file_ledger, capsys, monkeypatch):
    use = {"mem_peak_mib": 1024, "gpu_used_permille": 250, "time_limit": "1440"}
    held = {"gpus": {"a100": 4}, "cpus": 16, "mem": 64 * 1024, "cpu_used_ms": 10**6}
    write_books(file_ledger, [run("alice", BEGIN, BEGIN + 3600, **held, other=use)])
    (row,) = json.loads(report(capsys, "efficiency", *NOVEMBER, "--json").out)["rows"]
    on_terminal(monkeypatch, 80)
    table = report(capsys, "efficiency", *NOVEMBER).out
    assert "…" not in table.replace("…\n", "", 1)
    for option in (*row["asked"].split(), *row["would_have_fitted"].split()):
        assert option in table


def test_csv_has_a_total_for_who_asks(books, capsys):
    plain = report(capsys, "usage", *NOVEMBER, "--format", "csv").out.splitlines()
    asked = report(capsys, "usage", *NOVEMBER, "--format", "csv", "--total").out.splitlines()
    assert asked[:-1] == plain
    assert asked[-1].startswith("total,2,,3.0,")
    table = report(capsys, "usage", *NOVEMBER, "--no-total").out
    assert "total" not in table


def test_costs_have_their_currency_in_the_header(books, capsys, configure):
    price = '[[gpu.a100.prices]]\nsince = 2026-01-01\ncurrency = "EUR"\non_premises = 1.0\n'
    configure(price)
    said = report(capsys, "usage", *NOVEMBER)
    assert "COST_EUR" in said.out.splitlines()[0].split()
    assert "prices in EUR" in said.err
    assert "cost" in report(capsys, "usage", *NOVEMBER, "--format", "csv").out.split("\n")[0].split(
        ","
    )


@pytest.mark.parametrize("name", ["gpu-type", "gpu_type"])
def test_a_gpu_type_is_one_column_however_it_is_asked_for(books, capsys, name):
    words = ["usage", *NOVEMBER, "--by", name, "--gpu-type", "a100"]
    found = json.loads(report(capsys, *words, "--json").out)
    assert [row["gpu_type"] for row in found["rows"]] == ["a100"]
    assert report(capsys, *words, "--columns", f"{name},jobs").out.split()[:2] == [
        "GPU_TYPE",
        "JOBS",
    ]
