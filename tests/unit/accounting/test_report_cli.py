"""`slurmkit report` as a person sees it."""

from __future__ import annotations

import io
import json

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
    header, first, second = said.out.splitlines()
    assert header.split()[:5] == ["PI", "GPU-TYPE", "JOBS", "USERS", "GPU_HOURS"]
    assert first.split()[:5] == ["vogel", "a100", "1", "1", "2.00"]
    assert second.split()[0] == "garcia"
    assert "window: 2026-11-01 00:00:00+00:00 to 2026-12-01" in said.err
    assert "sreport may differ: these GPU-hours include" in said.err


def test_columns_are_those_that_were_named(books, capsys):
    said = report(capsys, "usage", *NOVEMBER, "--columns", "gpu_hours_lost,jobs")
    assert said.out.splitlines()[0].split() == ["PI", "GPU_HOURS_LOST", "JOBS"]
    assert "no column 'x'" in report(capsys, "usage", "--columns", "x", code=2).err


def test_a_table_says_what_it_does_not_show(books, capsys):
    said = report(capsys, "usage", *NOVEMBER)
    assert "GPU_HOURS_FAILED" not in said.out
    hidden = next(line for line in said.err.splitlines() if line.startswith("not shown: "))
    assert "gpu_hours_failed" in hidden
    assert "--columns all shows them" in hidden
    whole = report(capsys, "usage", *NOVEMBER, "--columns", "all")
    assert "GPU_HOURS_FAILED" in whole.out
    assert "not shown" not in whole.err


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
    said = report(capsys, "explain", "--row", "1").out
    assert "start              2026-11-01 00:00:00 UTC\n" in said
    for name in ("cancelled_by", "gone_since", "retracted"):  # newcomer polish 8
        assert f"{name:17}  no\n" in said


def test_who_has_no_ledger_is_told_who_reconciles(monkeypatch, tmp_path, capsys):
    (tmp_path / "x.toml").write_text('[ledger.service]\nurl = "http://ledger:6830"\nuser = "0"\n')
    monkeypatch.setattr("slurmkit.config.files.config_paths", lambda: [tmp_path / "x.toml"])
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("SLURMKIT_DB", raising=False)
    said = report(capsys, "reconcile", code=1).err
    assert "run it on the host of the service, as the service's account" in said


def test_columns_of_an_explanation_are_those_that_were_named(books, capsys):
    said = report(capsys, "explain", *NOVEMBER, "--columns", "job,gpu_hours,row")
    assert said.out.splitlines()[0].split() == ["JOB", "GPU_HOURS", "ROW"]


def test_a_filter_that_matches_nothing_is_named(books, capsys):
    """Finding newcomer polish 4."""
    said = report(capsys, "usage", *NOVEMBER, "--user", "nosuch", "--partition", "x")
    assert "nothing matches user nosuch, partition x; to see the names" in said.err
    assert "slurmkit report usage --by user,partition" in said.err
    assert "nothing matches" not in report(capsys, "usage", *NOVEMBER, "--user", "bob").err


def test_nothing_to_show_hides_nothing(file_ledger, capsys):
    write_books(file_ledger, [])
    assert "not shown" not in report(capsys, "usage", *NOVEMBER).err
