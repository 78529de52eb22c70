"""Balances where members look: Open OnDemand, the terminal app, Home of the portal."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from allocation_lab import ENDED_JOBS, NOW, grant, stopped_clock
from portal_lab import OPERATOR, PortalLab, links_of, tables_of, words_of, writing
from report_books import BEGIN, DAY, write_books
from slurmkit_accounting import read
from slurmkit_accounting.allocations.balance import balances
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli.balance import ood_balances
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.portal.home import balance_tiles
from slurmkit_accounting.reports.question import Scope
from slurmkit_tui.feed.budgets import read_budgets

from slurmkit.cli.main import cli, run_to_exit_code

ALICE = {"uid": 2001, "scope": Scope(frozenset((1,)), frozenset((1,)))}
BUDGETS = "".join(
    f'[[budget]]\npi = "{pi}"\ngpu_hours = 10\nfrom = 2026-01-01\nto = 2030-01-01\n'
    for pi in ("vogel", "garcia")
)


assert stopped_clock  # a fixture


def write(ledger: Ledger) -> None:
    """20 GPU-hours of alice and 10 of vogel in vision."""
    write_books(ledger, ENDED_JOBS[:2], read_to=NOW)


@pytest.fixture
def books(ledger: Ledger) -> Ledger:
    write(ledger)
    return ledger


# --- Open OnDemand --------------------------------------------------------------------------------


def test_open_ondemand_gets_a_row_for_each_member(books: Ledger) -> None:
    grant(books)
    grant(books, 50, holder_kind="pi", holder="garcia")
    grant(books, 7, unit="billing")
    content, left_out = ood_balances(balances(books, everything=True, members=True))
    assert content == {
        "version": 1,
        "timestamp": NOW,
        "config": {"unit": "GPU-hours", "project_type": "project"},
        "balances": [
            {"user": "alice", "project": "vision", "value": 70.0},
            {"user": "vogel", "project": "vision", "value": 70.0},
            {"user": "bob", "project": "PI garcia", "value": 50.0},
            {"user": "garcia", "project": "PI garcia", "value": 50.0},
        ],
    }
    assert left_out == 1


def test_only_operators_learn_who_the_members_are(books: Ledger) -> None:
    grant(books)
    found = balances(books, members=True, **ALICE)
    assert found.rows[0].members is None
    me = pwd.getpwuid(os.getuid()).pw_name
    content, _ = ood_balances(found)
    assert content["balances"] == [{"user": me, "project": "vision", "value": 70.0}]


def test_the_command_prints_balances_json(file_ledger: Ledger, capsys) -> None:
    write(file_ledger)
    grant(file_ledger)
    assert run_to_exit_code(cli, ["balance", "--all", "--format", "ood"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["user"] for one in printed["balances"]] == ["alice", "vogel"]
    assert run_to_exit_code(cli, ["balance", "--format", "ood", "--json"]) == 2


# --- the terminal app -----------------------------------------------------------------------------


def seen_by_alice() -> SimpleNamespace:
    return SimpleNamespace(
        balances=lambda books: balances(books, **ALICE),
        budget=lambda books: read.budget(books, timezone="UTC", now=NOW),
        BUDGETS_LAST_RELEASE=read.BUDGETS_LAST_RELEASE,
    )


def test_the_terminal_app_shows_balances_before_budgets(
    books: Ledger, configure: Callable[[str], None], tmp_path
) -> None:
    (tmp_path / "budgets.toml").write_text(BUDGETS)
    configure(f'[ledger]\nbudgets = "{tmp_path}/budgets.toml"\n')
    rows, notes = read_budgets(seen_by_alice(), books)
    assert [row["pi"] for row in rows] == ["vogel", "garcia"]
    assert ["slurmkit allocation import" in note for note in notes] == [True]
    grant(books)
    grant(books, 60, holder_kind="pi", holder="vogel", finish=NOW + DAY)
    rows, _ = read_budgets(seen_by_alice(), books)
    assert [row.get("holder") or row["pi"] for row in rows] == [
        "account vision", "PI vogel", "garcia",
    ]  # fmt: skip
    first = rows[0]
    amounts = ("gpu_hours_budget", "gpu_hours_used", "gpu_hours_left", "mine")
    assert [first[name] for name in amounts] == [100, 30, 70, 20]
    assert (first["unit"], first["to"]) == ("GPU-hours", "open")


def test_without_budgets_nothing_is_said_about_them(books: Ledger) -> None:
    grant(books)
    rows, notes = read_budgets(seen_by_alice(), books)
    assert ([row["holder"] for row in rows], notes) == (["account vision"], [])


# --- Home of the portal ---------------------------------------------------------------------------


def test_home_has_the_readers_share_of_the_balance(books: Ledger) -> None:
    grant(books, finish=NOW + 3 * DAY)
    (tile,) = balance_tiles(balances(books, **ALICE), find_zone("UTC"))
    assert (tile.name, tile.value) == ("account vision left", "70.00")
    assert tile.note == "of 100.0 GPU-hours; used 30.00, 20.00 by you; ends 2026-11-24"


def test_an_overdrawn_balance(books: Ledger) -> None:
    grant(books, 10)
    (tile,) = balance_tiles(balances(books, **ALICE), find_zone("UTC"))
    assert tile.value.startswith(("-20", "−20"))
    assert tile.note.endswith("used up")


def test_home_shows_it_to_members_only(file_ledger: Ledger, tmp_path) -> None:
    write(file_ledger)
    grant(file_ledger)
    with writing(PortalLab(file_ledger, tmp_path)) as lab:
        pages = {user: lab.browser(user).get("/").text for user in ("alice", "bob")}
        lab.views.wait_until_written()
    assert "account vision left" in pages["alice"]
    assert "used 30.00, 20.00 by you" in pages["alice"]
    assert "account vision" not in pages["bob"]
    assert "/allocations" in links_of(pages["alice"])


# --- the page of the portal -----------------------------------------------------------------------


def pages_of(ledger: Ledger, folder: Path, *users: str) -> dict[str, str]:
    with writing(PortalLab(ledger, folder)) as lab:
        pages = {user: lab.browser(user).get("/allocations").text for user in users}
        lab.views.wait_until_written()
    return pages


def test_the_page_shows_each_the_balances_that_they_may_see(
    file_ledger: Ledger, tmp_path: Path
) -> None:
    write(file_ledger)
    grant(file_ledger, finish=NOW + 3 * DAY)
    grant(file_ledger, 5, holder_kind="pi", holder="garcia")
    pages = pages_of(file_ledger, tmp_path, "alice", "vogel", "bob", OPERATOR)
    tables = {user: tables_of(page) for user, page in pages.items()}
    vision = [
        "account vision", "GPU-hours", "100.00", "30.00", "0.00", "70.00", "70%", "20.00",
        "2026-11-24",
    ]  # fmt: skip
    assert [row[:9] for row in tables["alice"][0][1:]] == [vision]
    assert tables["alice"][1][1:] == [
        ["alice", "20.00", "66.7%"], ["others, not shown to you", "10.00", "33.3%"],
    ]  # fmt: skip
    assert tables["alice"][0][1][9] == "? (less than four weeks of use)"
    assert tables["vogel"][0][1][7] == "10.00"
    assert tables["vogel"][1][1:] == [["alice", "20.00", "66.7%"], ["vogel", "10.00", "33.3%"]]
    assert [row[0] for row in tables["bob"][0][1:]] == ["PI garcia"]
    assert "vision" not in pages["bob"]
    assert [row[0] for row in tables[OPERATOR][0][1:]] == ["account vision", "PI garcia"]
    assert "charged to none" not in pages["alice"]


def test_used_amounts_open_what_they_are_made_of(file_ledger: Ledger, tmp_path: Path) -> None:
    write(file_ledger)
    grant(file_ledger)
    with writing(PortalLab(file_ledger, tmp_path)) as lab:
        for user, shown in (("vogel", {"30.00", "10.00", "20.00"}), ("alice", {"20.00"})):
            browser = lab.browser(user)
            links = [one for one in links_of(browser.get("/allocations").text) if "account=" in one]
            found = {
                next(row[1] for row in tables_of(browser.get(link).text)[0] if row[0] == name)
                for link in links
                for name in [link.partition("user=")[2].partition("&")[0] or "total"]
            }
            assert found == shown
        lab.views.wait_until_written()


def test_who_has_no_allocation_is_told_whom_to_ask(
    file_ledger: Ledger, tmp_path: Path, configure: Callable[[str], None]
) -> None:
    write(file_ledger)
    pages = pages_of(file_ledger, tmp_path, "vogel", OPERATOR)
    assert "You have no allocation." in words_of(pages["vogel"])
    assert "ask your administrators" in words_of(pages["vogel"])
    assert "slurmkit allocation grant" in words_of(pages[OPERATOR])
    assert "/report/budget" not in links_of(pages["vogel"])
    (tmp_path / "budgets.toml").write_text(BUDGETS)
    configure(f'[ledger]\nbudgets = "{tmp_path}/budgets.toml"\n')
    pages = pages_of(file_ledger, tmp_path / "again", "vogel", "alice")
    assert "/report/budget" in links_of(pages["vogel"])
    assert "/report/budget" not in links_of(pages["alice"])


# --- the commands ---------------------------------------------------------------------------------


def test_the_import_says_what_to_do_and_goes_on(file_ledger: Ledger, tmp_path, capsys) -> None:
    write(file_ledger)
    file = tmp_path / "some-budgets.toml"
    file.write_text(BUDGETS.replace('"vogel"', '"Vogel"'))

    def imported(*more: str) -> tuple[int, str, str]:
        code = run_to_exit_code(cli, ["allocation", "import", str(file), *more])
        return code, *capsys.readouterr()

    code, out, err = imported()
    assert code == 1
    assert out == "entry 1: grant of +10.00 GPU-hours, allocation 1 (PI garcia)\n"
    assert "the budget of Vogel from 2026-01-01 to 2030-01-01 was not granted" in err
    assert "did you mean 'vogel'?" in err
    assert "1 of 2 budgets are not granted in full" in err
    file.write_text(BUDGETS)
    assert imported()[0] == 0
    code, out, err = imported("--json")
    printed = json.loads(out)
    assert (code, printed["rows"], printed["known"], printed["problems"]) == (0, [], 2, [])


def test_commands_refuse_unknown_names_and_print_notes(file_ledger: Ledger, capsys) -> None:
    write(file_ledger)
    words = ["allocation", "grant", "5", "--account", "visoin", "--why", "call 3"]
    assert run_to_exit_code(cli, words) == 2
    assert "did you mean 'vision'? If the name is right" in capsys.readouterr().err
    assert run_to_exit_code(cli, [*words, "--new"]) == 0
    grant(file_ledger, 50, finish=BEGIN + 10 * DAY)
    capsys.readouterr()
    assert run_to_exit_code(cli, ["allocation", "refund", "1", "--why", "node died"]) == 0
    assert "so the refund releases nothing; to let account vision" in capsys.readouterr().err
