"""Allocations for tests, and a second way to work out what is left: second by second."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting.allocations import apply, balance, changes
from slurmkit_accounting.allocations.amounts import HOUR_MS
from slurmkit_accounting.allocations.changes import Posting, grant_allocation
from slurmkit_accounting.ledger.database import Ledger
from usage_oracle import Job

HOUR = 3600
NOW = BEGIN + 20 * DAY
A100 = {"a100": 2}
ENDED_JOBS = [
    run("alice", BEGIN + DAY, BEGIN + DAY + 10 * HOUR, gpus=A100),
    run("vogel", BEGIN + 2 * DAY, BEGIN + 2 * DAY + 5 * HOUR, gpus=A100),
    run("bob", BEGIN + 2 * DAY, BEGIN + 2 * DAY + 7 * HOUR, gpus=A100),
]
"""20 GPU-hours of alice and 10 of vogel in vision, 14 of bob in genomics."""

_NUMBERS = itertools.count()


@pytest.fixture(name="_now", autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is `NOW`, and nothing sleeps."""
    for module in (changes, balance, apply):
        still = SimpleNamespace(time=lambda: NOW, sleep=lambda _: None)
        monkeypatch.setattr(module, "time", still)


@pytest.fixture(name="books")
def books_of_ended_jobs(ledger: Ledger) -> Ledger:
    """A ledger with `ENDED_JOBS`."""
    write_books(ledger, ENDED_JOBS, read_to=NOW)
    return ledger


@pytest.fixture(name="books")
def books_of_two_users(ledger: Ledger) -> Ledger:
    """20 GPU-hours of alice in vision, 14 of bob in genomics, on the same day."""
    jobs = [
        run("alice", BEGIN + DAY, BEGIN + DAY + 10 * HOUR, gpus=A100),
        run("bob", BEGIN + DAY, BEGIN + DAY + 7 * HOUR, gpus=A100),
    ]
    write_books(ledger, jobs, read_to=NOW)
    return ledger


def grant(books: Ledger, amount: float = 100, *, known: bool = False, **other: object) -> int:
    """Grant hours to the account vision, or to another holder; the number of the allocation."""
    named = {"holder_kind": "account", "holder": "vision", "begin": BEGIN} | other
    why = posting(known=known)
    posted = grant_allocation(books, amount_ms=hours(amount), posting=why, **named)
    return posted.allocations[0].id


def posting(
    why: str = "call 3", *, again: bool = True, identity: str = "", known: bool = False
) -> Posting:
    """Who enters something, and why; each time with another identity."""
    name = identity or f"test {next(_NUMBERS)}"
    return Posting(why=why, identity=name, again=again, known=known)


class Purse(NamedTuple):
    """An allocation for the second implementation; `finish` None is open."""

    number: int
    begin: int
    finish: int | None
    amount: int


def spend(purses: Iterable[Purse], per_second: Sequence[int]) -> tuple[dict[int, int], int]:
    """Pay for each second in turn; what is left in each purse, and what nobody paid."""
    left = {purse.number: purse.amount for purse in purses}
    unpaid = 0
    for second, price in enumerate(per_second):
        open_now = [
            purse
            for purse in purses
            if purse.begin <= second and (purse.finish is None or second < purse.finish)
        ]
        if not open_now:
            unpaid += price
            continue
        # An open end is later than any other.
        ends = [
            (purse.finish is None, purse.finish, purse.begin, purse.number) for purse in open_now
        ]
        ordered = [open_now[n] for n in sorted(range(len(ends)), key=lambda n: _key(ends[n]))]
        owed = price
        for purse in ordered:
            pays = max(0, min(owed, left[purse.number]))
            left[purse.number] -= pays
            owed -= pays
        left[ordered[-1].number] -= owed
    return left, unpaid


def _key(end: tuple[bool, int | None, int, int]) -> tuple[bool, int, int, int]:
    is_open, finish, begin, number = end
    return is_open, finish or 0, begin, number


def gpu_hours_ms(jobs: Iterable[Job], account: str, span: tuple[int, int], now: int) -> int:
    """What an account's runs used within a span, job by job, every GPU counted as one."""
    total = 0
    for job in jobs:
        if job.start is None or job.retracted or job.other.get("account", "vision") != account:
            continue
        end = min(now if job.end is None else job.end, span[1])
        gpus = sum(count for kind, count in job.gpus.items() if kind != "shard")
        total += max(end - max(job.start, span[0]), 0) * gpus * 1000
    return total


def hours(number: float) -> int:
    """An amount in hours."""
    return int(number * HOUR_MS)
