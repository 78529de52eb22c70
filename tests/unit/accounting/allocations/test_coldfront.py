"""ColdFront: its own answers, recorded from 1.1.10, and what the ledger makes of them."""

from __future__ import annotations

import json
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from allocation_lab import NOW, books_of_ended_jobs, hours, posting, stopped_clock
from report_books import BEGIN
from slurmkit_accounting.allocations.balance import allocation_history, balances
from slurmkit_accounting.allocations.changes import refund_job, transfer_allocation
from slurmkit_accounting.allocations.coldfront import (
    ColdfrontAllocation,
    coldfront_grants,
    plan_steps,
    read_coldfront,
    take_step,
    usage_script,
)
from slurmkit_accounting.cli.allocation import allocation_group
from slurmkit_accounting.config import ColdfrontSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.reports.question import Scope
from sqlalchemy import select

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import BadConfig, BadInput, NotAllowed, ServiceError

assert stopped_clock  # fixtures
assert books_of_ended_jobs

RECORDED = Path(__file__).parents[3] / "recorded/coldfront"
TOKEN = "544638c30c45896ba8dd458e2efdfb0c86b7d468"
Answer = tuple[int, bytes]


class Site:
    """A stand-in for ColdFront's web server, which gives its recorded answers."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {
            f"/api/{name}/?{more}=true": (200, (RECORDED / f"{name}.json").read_bytes())
            for name, more in (
                ("allocations", "allocation_attributes"),
                ("projects", "allocations"),
            )
        }
        self.seen: list[tuple[str, str]] = []

    def all(self, status: int, body: bytes = b"{}") -> None:
        self.answers = dict.fromkeys(self.answers, (status, body))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Site, ColdfrontSection]]:
    lab = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lab.seen.append((self.path, self.headers["Authorization"]))
            status, body = lab.answers.get(self.path, (404, b"<html>"))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "http://127.0.0.1:9/")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    url = f"http://127.0.0.1:{server.server_port}/"
    yield lab, ColdfrontSection(url=url, token_file=str(token))
    server.shutdown()
    server.server_close()


def test_recorded_answers_are_read(site: tuple[Site, ColdfrontSection]) -> None:
    lab, section = site
    found = read_coldfront(section)
    assert [one.number for one in found] == [1, 2, 3, 4, 5, 6]
    assert found[1] == ColdfrontAllocation(
        number=2, project="Angular momentum in QGP holography", in_force=True,
        accounts=("cgray",), pi="cgray", hours=("1200",),
    )  # fmt: skip
    assert (found[4].accounts, found[4].pi, found[4].hours) == ((), "sfoster", ("50",))
    assert [one.number for one in found if not one.hours] == [1, 3, 4, 6]
    assert {token for _, token in lab.seen} == {f"Token {TOKEN}"}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b'{"detail":"Invalid token."}', "refuses the token (HTTP 401)"),
        (404, b"<html>", "answers with HTTP 404; ColdFront needs its plugin"),
        (302, b"", "answers with HTTP 302"),
        (200, b"<html>", "does not answer as ColdFront's API does"),
        (200, b'{"results": []}', "does not answer as ColdFront's API does"),
        (200, b'["\xff"]', "does not answer as ColdFront's API does"),
        (200, b'[{"id": 1}]', "does not answer as ColdFront's API does"),
    ],
)
def test_another_answer_is_an_error(
    site: tuple[Site, ColdfrontSection], status: int, body: bytes, words: str
) -> None:
    lab, section = site
    lab.all(status, body)
    with pytest.raises(ServiceError, match=r"^http://127") as error:
        read_coldfront(section)
    assert words in str(error.value)
    assert TOKEN not in str(error.value)


def test_what_cannot_be_asked_is_a_wrong_configuration(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("")
    token.chmod(0o600)
    for url in ("", "http://coldfront.example.org", "https://a:b@example.org", "ftp://x"):
        with pytest.raises(BadConfig, match="not the address of a ColdFront"):
            read_coldfront(ColdfrontSection(url=url, token_file=str(token)))
    with pytest.raises(BadConfig, match="has no token"):
        read_coldfront(ColdfrontSection(url="https://example.org", token_file=str(token)))
    token.write_text("abc")
    with pytest.raises(ServiceError, match="does not answer"):
        read_coldfront(ColdfrontSection(url="http://127.0.0.1:9", token_file=str(token)))


# --- what the ledger makes of it


def there(number: int = 7, *, hours: str | None = "100", **more: Any) -> ColdfrontAllocation:
    usual: dict[str, Any] = {"in_force": True, "accounts": ("vision",), "project": "QGP"}
    usual["hours"] = () if hours is None else tuple(hours.split())
    return ColdfrontAllocation(number=number, **usual | more)


def pull(books: Ledger, *found: ColdfrontAllocation, today: int = BEGIN) -> list[str]:
    """Take all steps; what each was, in words."""
    done = []
    for step in plan_steps(found, coldfront_grants(books), today):
        if step.kind != "problem":
            take_step(books, step, ColdfrontSection())
        amount = f" {step.amount_ms / hours(1):g}" if step.amount_ms else ""
        done.append(f"{step.kind}{amount}{' to ' + str(step.holder) if step.holder else ''}")
    return done


def problem(books: Ledger, *found: ColdfrontAllocation) -> str:
    (step,) = plan_steps(found, coldfront_grants(books), BEGIN)
    return step.problem


def left(books: Ledger) -> dict[str, float]:
    rows = balances(books, everything=True, now=NOW).rows
    return {str(row.holder): row.left_ms / hours(1) for row in rows if row.granted_ms}


def test_the_life_of_an_allocation(books: Ledger) -> None:
    assert pull(books, there()) == ["grant 100 to account vision"]
    assert pull(books, there()) == []
    assert left(books) == {"account vision": 70}  # 30 were used before, today is their day
    assert pull(books, there(hours="150.5")) == ["top-up 50.5"]
    assert pull(books, there(hours="150.5")) == []
    assert "granted with allocation 1. No grant is taken back" in problem(books, there())
    assert pull(books, there(hours="150.5", in_force=False)) == ["expiry"]
    assert pull(books, there(hours="150.5", in_force=False)) == []
    assert left(books) == {}
    # In force again: what was used in its first turn is not given again.
    assert pull(books, there(hours="150.5")) == ["grant 120.5 to account vision"]
    assert pull(books, there(hours="150.5")) == []
    assert pull(books, there(hours="160.5")) == ["top-up 10"]
    assert [(one.turn, one.is_over) for one in coldfront_grants(books).rows] == [
        (1, True),
        (2, False),
    ]
    whys = {entry.why for one in allocation_history(books).rows for entry in one.entries}
    assert whys == {"ColdFront allocation 7", "ColdFront allocation 7 is not in force"}


def test_what_cannot_be_entered_is_said(books: Ledger) -> None:
    cases: Sequence[tuple[dict[str, Any], str]] = (
        ({"accounts": ("vision", "genomics")}, "several accounts: vision, genomics"),
        ({"accounts": ()}, "does not show the PI of its project"),
        ({"hours": "many"}, "'many' is not an amount"),
        ({"hours": "-5"}, "'-5' is not an amount"),
        ({"hours": "5 6"}, "hours several times: 5, 6"),
        ({"hours": "1e400"}, "'1e400' is not an amount"),
    )
    for values, words in cases:
        assert words in problem(books, there(**values)), values
    assert pull(books, there(hours=None), there(8, hours="0"), there(9, in_force=False)) == []
    assert pull(books, there(8, accounts=(), pi="vogel")) == ["grant 100 to PI vogel"]
    assert pull(books, there()) == ["problem", "grant 100 to account vision"][::-1]
    assert "no longer shows it" in problem(books, there())
    eight = there(8, accounts=(), pi="vogel")
    assert "ColdFront now names account genomics" in problem(
        books, there(accounts=("genomics",)), eight
    )
    assert pull(books, there(hours=None), eight) == ["problem"]
    assert pull(books, there(in_force=False), eight) == ["expiry"]
    assert "or given away before; raise its hours" in problem(books, there(hours="30"), eight)


def test_what_was_moved_or_refunded_counts_in_the_next_turn(books: Ledger) -> None:
    """100 granted, 30 used of which 20 were refunded, 50 given away: 40 are there for turn 2."""
    assert pull(books, there(), there(8, accounts=("genomics",))) == [
        "grant 100 to account vision", "grant 100 to account genomics",
    ]  # fmt: skip
    refund_job(books, books_job(books), posting(), amount_ms=hours(20))
    transfer_allocation(books, 1, 2, hours(50), posting())
    assert used(books)[7] == 10
    eight = there(8, accounts=("genomics",))
    assert pull(books, there(in_force=False), eight) == ["expiry"]
    assert pull(books, there(), eight) == ["grant 40 to account vision"]
    assert pull(books, there(), eight) == []
    assert pull(books, there(hours="101"), eight) == ["top-up 1"]


def books_job(books: Ledger) -> str:
    """Alice's job of 20 GPU-hours."""
    with books.transaction() as connection:
        return str(connection.scalar(select(runs.c.job_id).order_by(runs.c.id).limit(1)))


def used(books: Ledger) -> dict[int, float]:
    return {one.number: one.used_ms / hours(1) for one in coldfront_grants(books).rows}


def test_a_ledger_that_has_not_read_the_last_jobs_grants_no_further_turn(books: Ledger) -> None:
    pull(books, there())
    pull(books, there(in_force=False))
    known = coldfront_grants(books)
    old = type(known)(known.rows, NOW - 1)
    (step,) = plan_steps([there()], old, BEGIN)
    assert "run: slurmkit ledger ingest, and pull again" in step.problem
    (step,) = plan_steps([there()], type(known)(known.rows, None), BEGIN)
    assert "add --old-ledger" in step.problem
    (step,) = plan_steps([there()], old, BEGIN, old_ledger=True)
    assert (step.kind, step.turn) == ("grant", 2)


def test_two_operators_who_saw_different_hours_grant_none_twice(books: Ledger) -> None:
    pull(books, there())
    known = coldfront_grants(books)
    (to_150,) = plan_steps([there(hours="150")], known, BEGIN)
    (to_200,) = plan_steps([there(hours="200")], known, BEGIN)
    take_step(books, to_150, ColdfrontSection())
    with pytest.raises(BadInput, match="names another entry"):
        take_step(books, to_200, ColdfrontSection())
    assert pull(books, there(hours="200")) == ["top-up 50"]
    assert take_step(books, to_150, ColdfrontSection()).repeated


def test_the_unit_of_a_grant_stays(books: Ledger) -> None:
    pull(books, there())
    (step,) = plan_steps([there()], coldfront_grants(books), BEGIN, "billing")
    assert "it was granted in GPU-hours as allocation 1" in step.problem
    pull(books, there(in_force=False))
    grants = coldfront_grants(books)
    (step,) = plan_steps([there()], grants, BEGIN, "billing")
    assert "it was granted in GPU-hours as allocation 1" in step.problem
    assert "7:" not in usage_script(grants.rows, ColdfrontSection(unit="billing"), "now")


@pytest.mark.parametrize("seed", range(5))
def test_any_history_is_followed(books: Ledger, seed: int) -> None:
    """Second way: granted in all is the most hours so far, less what is left of ended turns."""
    chance = random.Random(seed)
    most, used, is_on, wanted = 0, 0, False, 0
    for _ in range(12):
        amount, in_force = chance.choice([0, 10, 40, 90, 200]), chance.random() < 0.7
        pull(books, there(hours=str(amount), in_force=in_force), today=NOW)
        if not in_force:
            most, is_on = 0, False
        elif amount > 0 and (is_on or amount > used):
            most, is_on = max(most, amount), True
        wanted = most if is_on else 0
        assert left(books) == ({"account vision": wanted} if wanted else {})
        assert pull(books, there(hours=str(amount), in_force=in_force), today=NOW) in (
            [], ["problem"],
        )  # fmt: skip


def test_only_operators_see_what_coldfront_granted(books: Ledger) -> None:
    pull(books, there())
    scope = Scope(frozenset((1,)), frozenset((1,)))
    with pytest.raises(NotAllowed, match="only operators"):
        coldfront_grants(books, scope=scope)
    step = next(iter(plan_steps([there(hours="200")], coldfront_grants(books), BEGIN)))
    with pytest.raises(BadInput, match="no allocation 99"):
        take_step(books, type(step)(**{**as_dict(step), "allocation": 99}), ColdfrontSection())


def as_dict(step: Any) -> dict[str, Any]:
    return {name: getattr(step, name) for name in step.__struct_fields__}


def test_usage_is_set_by_numbers_only(books: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    pull(books, there(), there(8, accounts=("genomics",)))
    section = ColdfrontSection(hours="Hours'); import os #\n")
    script = usage_script(coldfront_grants(books).rows, section, "now")
    told: dict[int, tuple[str, float]] = {}

    class Allocation:
        objects = types.SimpleNamespace(
            filter=lambda pk: [
                types.SimpleNamespace(
                    set_usage=lambda name, value: told.update({pk: (name, value)})
                )
            ]
        )

    for name in ("coldfront", "coldfront.core", "coldfront.core.allocation"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    models = types.ModuleType("models")
    models.Allocation = Allocation  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "coldfront.core.allocation.models", models)
    exec(compile(script, "usage.py", "exec"), {})  # noqa: S102 - as `coldfront shell` does
    assert told == {7: (section.hours, 30.0), 8: (section.hours, 14.0)}


# --- the commands


@pytest.fixture
def configured(
    site: tuple[Site, ColdfrontSection], books: Ledger, monkeypatch: pytest.MonkeyPatch,
    configure: Callable[[str], None],
) -> Callable[..., int]:  # fmt: skip
    _, section = site
    configure(f'[coldfront]\nurl = "{section.url}"\ntoken_file = "{section.token_file}"\n')
    url = books.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SLURMKIT_DB", url)
    return lambda *words: run_to_exit_code(allocation_group, ["coldfront", *words])


def test_a_dry_run_enters_nothing(
    configured: Callable[..., int], books: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert configured("pull", "--dry-run") == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == (
        "ColdFront allocation 2 (Angular momentum in QGP holography): grant of 1,200.00 GPU-hours"
        " to account cgray"
    )
    assert "entries to make; dry run, nothing was changed: 2" in shown.err
    assert coldfront_grants(books).rows == ()


def test_unknown_holders_need_to_be_named_new(
    configured: Callable[..., int], books: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert configured("pull", "--json") == 1
    shown = capsys.readouterr()
    rows = json.loads(shown.out)["rows"]
    assert [(row["coldfront"], row["allocation"]) for row in rows] == [(2, None), (5, None)]
    assert all("does not know" in row["problem"] for row in rows)
    assert "2 of them are not as in ColdFront" in shown.err
    assert configured("pull", "--new") == 0
    assert "entries made: 2" in capsys.readouterr().err
    assert [one.number for one in coldfront_grants(books).rows] == [2, 5]
    assert configured("usage") == 0
    assert "    2: 0.00,\n    5: 0.00,\n" in capsys.readouterr().out
