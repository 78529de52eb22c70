"""Files for Open XDMoD: its own formats, and the people of the ledger."""

from __future__ import annotations

import csv
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from report_books import BEGIN, run, write_books
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.people import people
from slurmkit_accounting.people.xdmod import load_xdmod_files
from sqlalchemy import update

from slurmkit.cli.main import run_to_exit_code


@pytest.fixture
def books(ledger: Ledger) -> Ledger:
    jobs = [
        run("alice", BEGIN, BEGIN + 60),
        run("bob", BEGIN, BEGIN + 60),
        run("mallory", BEGIN, BEGIN + 60),
        run("alice", BEGIN, BEGIN + 60, other={"account": "bob"}),
    ]
    write_books(ledger, jobs)
    return ledger


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_the_files_fit_together(books: Ledger, tmp_path: Path) -> None:
    folder = tmp_path / "of" / "xdmod"
    with books.transaction() as connection:
        load_xdmod_files(connection, "Example University", BEGIN).write(folder)
    names, hierarchy, groups = (
        rows(folder / name) for name in ("names.csv", "hierarchy.csv", "group-to-hierarchy.csv")
    )
    assert names == [
        ["alice", "", "Alice"],
        ["bob", "", "Bob"],  # a user, though an account is named so, too
        ["garcia", "", "Garcia"],
        ["genomics", "", "Garcia"],
        ["vision", "", "Vogel"],
        ["vogel", "", "Vogel"],
    ]
    assert hierarchy == [
        ["unit", "Example University", ""],
        ["department Biology", "Biology", "unit"],
        ["department No department", "No department", "unit"],
        ["department Physics", "Physics", "unit"],
        ["no pi", "No PI", "department No department"],
        ["pi garcia", "Garcia", "department Biology"],
        ["pi vogel", "Vogel", "department Physics"],
    ]
    assert groups == [
        ["bob", "no pi"],
        ["genomics", "pi garcia"],
        ["nobody", "no pi"],
        ["vision", "pi vogel"],
    ]
    # XDMoD takes groups at the lowest of three levels, and each parent before its children.
    levels: dict[str, int] = {}
    for key, _, parent in hierarchy:
        levels[key] = levels[parent] + 1 if parent else 1
    assert {levels[key] for _, key in groups} == {3}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in folder.iterdir())
    assert len(list(folder.iterdir())) == 3


@pytest.mark.sql
@pytest.mark.parametrize(
    ("display_name", "row"),
    [
        ("Vera van der Vogel", ["Vera van der", "Vogel"]),
        ("van der Vogel, Vera", ["Vera", "van der Vogel"]),
        ("", ["", "vogel"]),  # a row without a name would delete the one that XDMoD has
    ],
)
def test_how_a_name_is_split(books: Ledger, display_name: str, row: list[str]) -> None:
    with books.transaction() as connection:
        connection.execute(update(people).where(people.c.id == 3).values(display_name=display_name))
        names = load_xdmod_files(connection, "Uni", BEGIN).names
    assert {name: [*more] for name, *more in names}["vogel"] == row


@pytest.mark.sql
def test_the_command(
    books: Ledger,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    configure: Callable[..., None],
) -> None:
    words = ["people", "xdmod", str(tmp_path / "out"), "--unit", "Uni"]
    assert run_to_exit_code(ledger_group, words) == 0
    shown = capsys.readouterr()
    assert "wrote names.csv (6 names), hierarchy.csv (7 rows)" in shown.out
    assert "accounts without a PI: bob, nobody; see slurmkit ledger people unmapped" in shown.err
    assert "xdmod-import-csv -t group-to-hierarchy -i group-to-hierarchy.csv" in shown.err
    assert run_to_exit_code(ledger_group, [*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["names"], row["accounts"], row["without_pi"]) == (6, 4, ["bob", "nobody"])
    (tmp_path / "file").write_text("")
    words[2] = str(tmp_path / "file" / "below")
    assert run_to_exit_code(ledger_group, words) == 2
    assert "cannot write" in capsys.readouterr().err
