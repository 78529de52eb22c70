"""Rejects that nobody wants are dismissed: kept, but no longer counted."""

from __future__ import annotations

import io
import json

import pytest
from fake_sacct import FakeSacct, job
from slurmkit_accounting import read
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.ingest.file import SacctFile, ingest_file
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
from slurmkit_accounting.sacct.query import SACCT_FIELDS
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


@pytest.mark.sql
def test_reports_no_longer_count_dismissed_lines_and_neither_does_the_next_ingest(ledger):
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


def two_lines_that_can_be_read_now(tmp_path, monkeypatch) -> None:
    """Two lines of a file whose times an old release could not read, say."""
    monkeypatch.setenv("SLURMKIT_DB", f"sqlite:///{tmp_path}/ledger.db")
    path = tmp_path / "dump.txt"
    path.write_text("".join(f"{n}|al|2026-11-01T10:00:00|9|9|OK\n" for n in (1, 2)))
    argv = ["ingest", "--file", str(path), "--cluster", "lab", "--fields", FIELDS]

    def broken(self, text):
        raise ValueError(text)

    with monkeypatch.context() as patch:
        patch.setattr("slurmkit_accounting.sacct.local_times.LocalTimes.__call__", broken)
        assert run_to_exit_code(ledger_group, [*argv, "--timezone", "UTC"]) == 0


def test_only_the_named_line_is_tried_again_and_a_dry_run_changes_nothing(
    tmp_path, monkeypatch, capsys
):
    two_lines_that_can_be_read_now(tmp_path, monkeypatch)
    capsys.readouterr()
    first, second = (row["id"] for row in shown(capsys))
    named = ["rejects", "--retry", "--id", str(second)]
    assert run_to_exit_code(ledger_group, [*named, "--dry-run"]) == 0
    words = "1 lines tried again, 1 of them can now be read"
    assert f"{words}; dry run, nothing was changed\n" in capsys.readouterr().err
    assert len(shown(capsys)) == 2
    assert run_to_exit_code(ledger_group, named) == 0
    assert f"{words}\n" in capsys.readouterr().err
    assert [row["id"] for row in shown(capsys)] == [first]


def test_a_dry_run_dismisses_nothing(noisy, capsys):
    argv = ["rejects", "--source", noisy, "--dismiss", "wrong file", "--dry-run"]
    assert run_to_exit_code(ledger_group, argv) == 0
    said = capsys.readouterr().err
    assert "2 lines dismissed; reports no longer count them; dry run, nothing was changed" in said
    assert len(shown(capsys)) == 4


def test_a_run_counts_once_its_line_can_be_read_though_it_was_dismissed(ledger):
    bad = job(1, 1_793_500_000, "soon", 1_793_500_300)
    slurm = FakeSacct(bad)
    since = 1_793_490_000
    ingest(ledger, slurm, since=since)
    with ledger.transaction() as connection:
        dismiss_rejects(connection, RejectSelection(ids=(1,)), now=5, who="root", because="known")
    slurm.jobs = [bad | {"Start": "1793500100"}]
    assert ingest(ledger, slurm, since=since).entered.new == 1
    with ledger.transaction() as connection:
        (one,) = load_rejects(connection, all_=True)
    assert (one.read, one.dismissed) == (True, 5)
    (row,) = read.usage(ledger, begin="2026-11-01", end="2026-12-01").rows
    assert row["jobs"] == 1


@pytest.mark.sql
def test_a_line_of_a_file_that_was_dismissed_counts_again_once_sacct_itself_prints_it(ledger):
    """It is no line of a wrong file then."""
    bad = job(1, 1_793_500_000, "soon", 1_793_500_300)
    text = "\x1f".join(bad[name] for name in SACCT_FIELDS) + "\n"
    stream = io.BytesIO(text.encode())
    file = SacctFile("dump.txt", stream, "lab", SACCT_FIELDS, "\x1f", find_zone("UTC"))
    assert ingest_file(ledger, file).entered.rejected == 1
    with ledger.transaction() as connection:
        dismiss_rejects(connection, RejectSelection(ids=(1,)), now=5, who="root", because="wrong")
    assert unread(ledger) == 0
    ingest(ledger, FakeSacct(bad), since=1_793_490_000)
    assert unread(ledger) == 1
    with ledger.transaction() as connection:
        (one,) = load_rejects(connection)
    assert (one.source, one.dismissed, one.dismissed_by) == ("sacct", None, None)
