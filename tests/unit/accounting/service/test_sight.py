"""Who sees everything, and who the directory knows by a number."""

from __future__ import annotations

import grp
import os
import pwd
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from entries import person
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.people.model import Directory
from slurmkit_accounting.people.sync import PeopleData, sync_people
from slurmkit_accounting.service.permissions import Operators, Permissions, parse_admins
from waiting import PATIENCE

from slurmkit.errors import DatabaseDown
from slurmkit.testing import FakeSlurm

ADMINS = "root|Administrator\nalice|None\nodd|name|Operator\n|Operator\n"
DAEMON = pwd.getpwnam("daemon")
NOBODY_ELSE = 54321


class Slurmdbd:
    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)

    def __call__(self, *_: object) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def operators(said: Slurmdbd, **settings: object) -> Operators:
    section = ServiceSection(**settings)  # type: ignore[arg-type]
    return Operators(section, FakeSlurm({"sacctmgr": said}), lambda *_, **__: None)


def test_admin_levels() -> None:
    assert list(parse_admins(ADMINS)) == ["root", "odd|name", ""]
    assert list(parse_admins("")) == []


def test_operators_by_name_by_group_and_by_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: NOBODY_ELSE)
    group = grp.getgrgid(DAEMON.pw_gid).gr_name
    nobody = Slurmdbd("")
    assert not operators(nobody).include(DAEMON.pw_uid, "daemon")
    assert operators(Slurmdbd(""), operators=("daemon",)).include(DAEMON.pw_uid, "daemon")
    assert operators(Slurmdbd(""), operator_groups=(group,)).include(DAEMON.pw_uid, "daemon")
    assert not operators(Slurmdbd(""), operator_groups=("no-such",)).include(7, "no-such")
    assert operators(Slurmdbd("daemon|Operator\n")).include(DAEMON.pw_uid, "daemon")
    assert operators(Slurmdbd("")).include(NOBODY_ELSE, "")  # the service itself


def test_slurm_that_is_silent_makes_nobody_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmkit_accounting.service.permissions._CACHED_SECONDS", -1)
    said = Slurmdbd(DatabaseDown("away"), "daemon|Operator\n", DatabaseDown("away"), "")
    who = operators(said)
    assert [who.include(DAEMON.pw_uid, "daemon") for _ in range(4)] == [False, True, True, False]


def test_an_operator_is_one_also_while_slurm_is_being_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: NOBODY_ELSE)
    asked, answer = threading.Event(), threading.Event()

    def slow(*_: object) -> str:
        asked.set()
        answer.wait(PATIENCE)
        return "daemon|Operator\n"

    who = Operators(ServiceSection(), FakeSlurm({"sacctmgr": slow}), lambda *_, **__: None)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(who.include, DAEMON.pw_uid, "daemon")
        assert asked.wait(PATIENCE)
        second = pool.submit(who.include, DAEMON.pw_uid, "daemon")
        time.sleep(0.05)
        answer.set()
        assert (first.result(PATIENCE), second.result(PATIENCE)) == (True, True)
        # Later nobody waits: what was known a minute ago will do.
        monkeypatch.setattr("slurmkit_accounting.service.permissions._CACHED_SECONDS", -1)
        asked.clear()
        answer.clear()
        third = pool.submit(who.include, DAEMON.pw_uid, "daemon")
        assert asked.wait(PATIENCE)
        assert who.include(DAEMON.pw_uid, "daemon")
        answer.set()
        assert third.result(PATIENCE)


def test_a_number_of_two_people_or_of_one_who_left_is_nobodys(ledger: Ledger) -> None:
    alice, bob = person("alice", uid=7), person("bob", uid=8)
    sync_people(ledger, PeopleData(Directory((alice, bob), ())), now=10)
    sync_people(ledger, PeopleData(Directory((alice,), ())), now=20)
    sights = Permissions(
        ServiceSection(), FakeSlurm({"sacctmgr": lambda *_: ""}), lambda *_, **__: None
    )
    with ledger.transaction() as connection:
        known, left, never = (sights.of(connection, uid).scope for uid in (7, 8, NOBODY_ELSE))
    assert known.people is not None
    assert len(known.people) == 1
    assert known.pis == known.people
    for scope, uid in ((left, 8), (never, NOBODY_ELSE)):
        assert (scope.people, scope.pis, scope.uids) == (frozenset(), frozenset(), {uid})
