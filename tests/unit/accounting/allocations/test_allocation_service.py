"""Allocations through the ledger's service: MUNGE says who asks, and that decides."""

from __future__ import annotations

import pwd
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from allocation_lab import hours, posting
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting.allocations import apply, balance, changes
from slurmkit_accounting.allocations.apply import (
    LimitFacts,
    limit_facts,
    record_limit,
    record_limit_outcome,
)
from slurmkit_accounting.allocations.balance import Balances, allocation_history, balances
from slurmkit_accounting.allocations.changes import (
    expire_allocation,
    grant_allocation,
    refund_job,
    top_up_allocation,
    transfer_allocation,
)
from slurmkit_accounting.allocations.limits import LastLimit, WantedLimit
from slurmkit_accounting.allocations.model import Holder
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ledger.database import Ledger, open_for_reading, open_for_writing
from slurmkit_accounting.remote.protocol import ServiceQuery
from slurmkit_accounting.service.permissions import Permissions
from slurmkit_accounting.service.queries import QueryAnswerer

from slurmkit import errors
from slurmkit.errors import BadInput
from slurmkit.testing import FakeSlurm

HOUR = 3600
NOW = BEGIN + 20 * DAY
ALICE, BOB, VOGEL, MALLORY, OPERATOR = 2001, 2002, 2003, 9999, 0
LIMIT = WantedLimit(
    holder=Holder("account", "vision"), unit="gpu", target_kind="account", target="vision",
    tres="gres/gpu", after=60, last_entry=1,
)  # fmt: skip


class Asker:
    """A user at the service: takes the place of `RemoteLedger`, without the network."""

    def __init__(self, answers: QueryAnswerer, uid: int) -> None:
        self._answers = answers
        self._uid = uid

    def ask(self, name: str, arguments: dict[str, Any], wanted: type[Any]) -> Any:
        sent = msgspec.json.encode(ServiceQuery(name, msgspec.to_builtins(arguments)))
        answer = self._answers(self._uid, msgspec.json.decode(sent, type=ServiceQuery))
        if answer.fault:
            raise getattr(errors, answer.fault.kind)(answer.fault.message)
        return msgspec.json.decode(answer.value, type=wanted)


@pytest.fixture
def site(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """A service whom users ask; root is an operator of Slurm."""
    jobs = [
        run("alice", BEGIN + DAY, BEGIN + DAY + 10 * HOUR, gpus={"a100": 2}),
        run("vogel", BEGIN + DAY, BEGIN + DAY + 5 * HOUR, gpus={"a100": 2}),
    ]
    write_books(ledger, jobs, read_to=NOW)
    for module in (changes, balance, apply):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: NOW))

    def log(what: str, **facts: object) -> None:
        print(what, facts)  # shown where a test fails

    asked = FakeSlurm({"sacctmgr": lambda *_: "root|Administrator\nalice|None\n"})
    sights = Permissions(ServiceSection(), asked, log)
    answers = QueryAnswerer(
        partial(open_for_reading, None), sights, log, partial(open_for_writing, None)
    )
    return partial(Asker, answers)


def test_an_operator_grants_and_everybody_sees_what_is_theirs(site: Callable[[int], Any]) -> None:
    operator = site(OPERATOR)
    posted = grant_allocation(operator, "account", "vision", hours(100), BEGIN, posting())
    assert posted.entries[0].who == pwd.getpwuid(OPERATOR).pw_name
    top_up_allocation(operator, 1, hours(5), posting())
    grant_allocation(operator, "account", "genomics", hours(1), BEGIN, posting())
    transfer_allocation(operator, 1, 2, hours(4), posting())
    refund_job(operator, "1", posting("node died"), allocation=1)
    seen = {}
    for uid in (ALICE, BOB, VOGEL, MALLORY, OPERATOR):
        found = balances(site(uid), everything=True)
        seen[uid] = [(row.holder.name, row.left_ms, len(row.users)) for row in found.rows]
    vision, genomics = hours(100 + 5 - 4 + 20 - 30), hours(1 + 4)
    assert seen == {
        ALICE: [("vision", vision, 1)],
        BOB: [("genomics", genomics, 0)],
        VOGEL: [("vision", vision, 2)],
        MALLORY: [],
        OPERATOR: [("genomics", genomics, 0), ("vision", vision, 2)],
    }
    (alice,) = balances(site(ALICE)).rows
    assert alice.mine_ms == hours(20)
    assert (alice.accounts, alice.shared) == ((), ())
    history = allocation_history(site(ALICE)).rows
    assert [one.id for one in history] == [1]
    assert [entry.job_id for entry in history[0].entries] == [None] * 4


@pytest.mark.parametrize("uid", [ALICE, VOGEL, MALLORY])
def test_nobody_else_changes_anything(site: Callable[[int], Any], uid: int) -> None:
    grant_allocation(site(OPERATOR), "account", "vision", hours(100), BEGIN, posting())
    books = site(uid)
    calls: list[Callable[[], object]] = [
        lambda: grant_allocation(books, "account", "vision", 1, BEGIN, posting()),
        lambda: top_up_allocation(books, 1, 1, posting()),
        lambda: transfer_allocation(books, 1, 1, 1, posting()),
        lambda: refund_job(books, "1", posting()),
        lambda: expire_allocation(books, 1, posting()),
        lambda: limit_facts(books, "lab"),
        lambda: record_limit(books, "lab", LIMIT),
        lambda: record_limit_outcome(books, 1, "set", ""),
    ]
    for call in calls:
        with pytest.raises(BadInput, match="only operators"):
            call()
    (row,) = balances(site(OPERATOR), everything=True).rows
    assert row.granted_ms == hours(100)


def test_nobody_asks_as_another(site: Callable[[int], Any]) -> None:
    books = site(MALLORY)
    for name, value in (("uid", ALICE), ("scope", {})):
        with pytest.raises(BadInput, match=f"has no argument '{name}'"):
            books.ask("balances", {name: value}, Balances)


def test_a_change_that_is_sent_again_is_entered_once(site: Callable[[int], Any]) -> None:
    operator = site(OPERATOR)
    for repeated in (False, True):
        posted = grant_allocation(
            operator, "account", "vision", hours(1), BEGIN, posting(identity="ticket 9")
        )
        assert posted.repeated is repeated
    (row,) = balances(operator, everything=True).rows
    assert row.granted_ms == hours(1)


def test_limits_are_recorded(site: Callable[[int], Any]) -> None:
    operator = site(OPERATOR)
    number = record_limit(operator, "lab", LIMIT)
    cut_off = LastLimit("account", "vision", "gres/gpu", 60, 1, NOW, "unknown")
    assert limit_facts(operator, "lab") == LimitFacts((cut_off,), 2, (), NOW)
    record_limit_outcome(operator, number, "set", "")
    assert [one.outcome for one in limit_facts(operator, "lab").last] == ["set"]
    assert limit_facts(operator, "big").last == ()
    with pytest.raises(BadInput, match="has no cluster 'other'"):
        record_limit(operator, "other", LIMIT)
