"""Rejects that nobody wants are dismissed: kept, but no longer counted."""

from __future__ import annotations

import json

import pytest
from fake_sacct import FakeSacct, job
from slurmkit_accounting import read
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ingest.rejects import (
    RejectSelection,
    dismiss_rejects,
    load_rejects,
    restore_rejects,
)
from slurmkit_accounting.ingest.retry import retry_rejects
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import rejects
from sqlalchemy import func, select

from slurmkit.cli.main import run_to_exit_code

FIELDS = "JobIDRaw,User,Submit,Start,End,State"


def unread(ledger: Ledger) -> int | None:
    report = read.usage(ledger, begin="2026-11-01", end="2026-12-01")
    return report.meta.rejects


@pytest.fixture
def noisy(tmp_path, monkeypatch, capsys):
    """Two files without a readable line in a ledger."""
    monkeypatch.setenv("SLURMKIT_DB", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("TZ", "UTC")
    for name in ("noise.txt", "other.txt"):
        path = tmp_path / name
        path.write_text(f"{name}|broken\n{name}|too\n")
        argv = ["ingest", "--file", str(path), "--cluster", "lab", "--fields", FIELDS]
        assert run_to_exit_code(ledger_group, argv) == 0
    capsys.readouterr()
    return str(tmp_path / "noise.txt")


def shown(capsys, *argv: str) -> list[dict]:
    assert run_to_exit_code(ledger_group, ["rejects", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["rows"]


def test_the_lines_of_a_wrong_file_are_dismissed_and_put_back(noisy, capsys):
    """Finding newcomer A7."""
    left = shown(capsys, "--source", noisy, "--dismiss", "not a file of sacct")
    assert left == []
    assert len(shown(capsys)) == 2
    every = shown(capsys, "--all")
    assert len(every) == 4
    assert {row["dismissed_because"] for row in every} == {"not a file of sacct", None}
    assert run_to_exit_code(ledger_group, ["status", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["rows"]
    assert one["rejects"] == 2
    assert run_to_exit_code(ledger_group, ["rejects", "--all"]) == 0
    assert "not a file of sacct" in capsys.readouterr().out
    assert len(shown(capsys, "--source", noisy, "--undo")) == 2
    assert len(shown(capsys)) == 4


def test_lines_are_chosen_by_id_and_by_day(noisy, capsys):
    first = shown(capsys)[0]["id"]
    assert [row["id"] for row in shown(capsys, "--id", str(first))] == [first]
    assert shown(capsys, "--from", "2090-01-01") == shown(capsys, "--to", "2020-01-01") == []
    assert len(shown(capsys, "--from", "2020-01-01", "--to", "2090-01-01")) == 4


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--dismiss", "x"], "say which lines, with --id, --source, --from or --to"),
        (["--undo"], "say which lines"),
        (["--id", "1", "--undo", "--dismiss", "x"], "opposites"),
        (["--id", "1", "--dismiss", " "], "needs a reason"),
    ],
)
def test_what_cannot_be_dismissed(noisy, capsys, argv, words):
    assert run_to_exit_code(ledger_group, ["rejects", *argv]) == 2
    assert words in capsys.readouterr().err


def test_reports_no_longer_count_dismissed_lines_and_neither_does_the_next_ingest(ledger):
    """Finding newcomer A7."""
    slurm = FakeSacct(job(1, 1_793_500_000, "soon", 1_793_500_300))
    since = 1_793_490_000
    ingest(ledger, slurm, since=since)
    assert unread(ledger) == 1
    chosen = RejectSelection(source="sacct")
    with ledger.transaction() as connection:
        assert dismiss_rejects(connection, chosen, now=5, who="root", because="known") == 1
        assert dismiss_rejects(connection, chosen, now=6, who="eve", because="again") == 0
    assert unread(ledger) == 0
    ingest(ledger, slurm, since=since)
    assert retry_rejects(ledger).read == 0
    with ledger.transaction() as connection:
        assert connection.scalar(select(func.count()).select_from(rejects)) == 1
        (one,) = load_rejects(connection, all_=True)
        facts = (one.dismissed, one.dismissed_by, one.dismissed_because, one.read)
        assert facts == (5, "root", "known", False)
        assert restore_rejects(connection, chosen) == 1
    assert unread(ledger) == 1


def test_what_is_not_there_is_not_dismissed(noisy, tmp_path, capsys):
    argv = ["rejects", "--dismiss", "wrong file"]
    assert run_to_exit_code(ledger_group, [*argv, "--id", "77"]) == 2
    assert "there are no such lines" in capsys.readouterr().err
    missing = tmp_path / "none.db"
    assert run_to_exit_code(ledger_group, [*argv, "--id", "1", "--db", f"sqlite:///{missing}"]) != 0
    assert not missing.exists()
