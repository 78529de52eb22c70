"""A ledger with one month of several people's jobs."""

from __future__ import annotations

import pytest
from entries import group, person
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.people.model import Directory
from slurmkit_accounting.people.sync import PeopleData, sync_people
from stored_runs import ran, store_runs

OCTOBER, NOVEMBER = (find_zone("UTC").epoch(f"2025-{month}-15") for month in (10, 11))
HOUR, DAY = 3600, 86400


@pytest.fixture(name="books")
def month_books(ledger: Ledger) -> Ledger:
    names = ("alice", "bob", "vogel", "garcia", "chen", "lost")
    mails = {"vogel": "vogel@lab.example", "chen": "", "garcia": "garcia@lab.example"}
    everybody = [person(name, mail=mails.get(name, f"{name}@lab.example")) for name in names]
    groups = (
        group("vision", "uid=alice", "uid=vogel", owners=("vogel",)),
        group("genomics", "uid=bob", "uid=garcia", owners=("garcia",)),
        group("climate", "uid=chen", owners=("chen",)),
        group("idle", "uid=lost", owners=("lost",)),
    )
    sync_people(ledger, PeopleData(Directory(tuple(everybody), groups)), now=1)
    store_runs(
        ledger,
        ran(OCTOBER, 2 * HOUR, user="alice", account="vision"),
        ran(OCTOBER, 3 * HOUR, user="bob", account="genomics", name="\x1b[2J<b>"),
        ran(OCTOBER, HOUR, user="chen", account="climate"),
        ran(NOVEMBER, HOUR, user="alice", account="vision"),
        ran(NOVEMBER, HOUR, user="stranger", account="nowhere"),
    )
    return ledger
