"""Windows that are parted: how, and how often at most."""

from __future__ import annotations

import time

import pytest
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.reports.periods import MOST, month, parts
from slurmkit_accounting.zones import zone

from slurmkit.errors import BadInput

UTC = zone("UTC")
EVER = (UTC.epoch("0001-01-01"), UTC.epoch("9999-12-31"))


@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_centuries_are_not_parted(unit: str) -> None:
    begun = time.monotonic()
    with pytest.raises(BadInput, match=f"more than {MOST} {unit}s; ask for a shorter window"):
        parts(EVER, UTC, {unit})
    assert time.monotonic() - begun < 2


def test_centuries_as_a_whole_are_one_part() -> None:
    begun = time.monotonic()
    assert len(parts(EVER, UTC, ())) == 1
    assert time.monotonic() - begun < 0.2


def test_ten_years_of_days_are_no_more_than_that() -> None:
    window = (UTC.epoch("2020-01-01"), UTC.epoch("2030-01-01"))
    found = parts(window, UTC, {"day"})
    assert len(found) == 3653
    assert found[-1].labels == {"day": "2029-12-31", "week": "2030-W01", "month": "2029-12"}


@pytest.mark.parametrize("text", ["2026-1", "2026", "2026-13", "9999-12", "2026-01-01", "", "x"])
def test_no_month(text: str) -> None:
    # One that is written otherwise than reports do would be the same month and match none of them.
    with pytest.raises(BadInput, match="is not a month: write YYYY-MM"):
        month(text, UTC)


@pytest.fixture
def books(ledger: Ledger) -> Ledger:
    write_books(ledger, [run("alice", BEGIN + DAY, BEGIN + 2 * DAY)])
    return ledger


def test_a_window_of_centuries_by_day_is_one_line(books: Ledger) -> None:
    with pytest.raises(BadInput, match="0001-01-01 to 9999-12-31 has more than"):
        read.usage(books, "0001-01-01", "9999-12-31", by="day,pi", timezone="UTC")


def test_a_name_given_often_is_one_column(books: Ledger) -> None:
    report = read.usage(books, "2026-11-01", "2026-12-01", by=["pi"] * 1000, timezone="UTC")
    assert [column.name for column in report.columns].count("pi") == 1
    assert report.meta.by == ("pi",)


@pytest.mark.parametrize("now", [-1, 2**40, 10**30])
def test_no_time_to_count_up_to(books: Ledger, now: int) -> None:
    with pytest.raises(BadInput, match="now is a time in epoch seconds"):
        read.usage(books, "2026-11-01", "2026-12-01", now=now)
