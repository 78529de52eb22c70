"""Windows that are parted: how, and how often at most."""

from __future__ import annotations

import time

import pytest
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.calendar import MOST_PARTS, find_zone, month_span, split_window
from slurmkit_accounting.ledger.database import Ledger

from slurmkit.errors import BadInput

UTC = find_zone("UTC")
EVER = (UTC.epoch("0001-01-01"), UTC.epoch("9999-12-31"))


@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_centuries_are_not_parted(unit: str) -> None:
    begun = time.process_time()
    with pytest.raises(BadInput, match=f"more than {MOST_PARTS} {unit}s; choose a shorter window"):
        split_window(EVER, UTC, {unit})
    assert time.process_time() - begun < 5


def test_centuries_as_a_whole_are_one_part() -> None:
    begun = time.process_time()
    assert len(split_window(EVER, UTC, ())) == 1
    assert time.process_time() - begun < 1


def test_ten_years_of_days_are_no_more_than_that() -> None:
    window = (UTC.epoch("2020-01-01"), UTC.epoch("2030-01-01"))
    found = split_window(window, UTC, {"day"})
    assert len(found) == 3653
    assert found[-1].labels == {"day": "2029-12-31", "week": "2030-W01", "month": "2029-12"}


def test_hours_of_a_day_on_which_clocks_go_back() -> None:
    berlin = find_zone("Europe/Berlin")
    window = (berlin.epoch("2026-10-25"), berlin.epoch("2026-10-26"))
    found = split_window(window, berlin, {"hour"})
    assert len(found) == 25
    assert [part.labels["hour"] for part in found][1:4] == [
        "2026-10-25 01:00", "2026-10-25 02:00", "2026-10-25 02:00 again",
    ]  # fmt: skip
    assert {part.end - part.begin for part in found} == {3600}
    assert {part.labels["day"] for part in found} == {"2026-10-25"}


@pytest.mark.parametrize(("name", "at"), [("Asia/Kolkata", 1800), ("Asia/Kathmandu", 900)])
def test_hours_begin_where_the_zone_says(name: str, at: int) -> None:
    there = find_zone(name)
    window = (there.epoch("2026-10-05T10:20:30"), there.epoch("2026-10-05T12:30"))
    found = split_window(window, there, {"hour"})
    assert [part.begin % 3600 for part in found][1:] == [at, at]
    assert [part.labels["hour"][-5:] for part in found] == ["10:00", "11:00", "12:00"]


def test_31_days_by_hour_are_the_most() -> None:
    october = (UTC.epoch("2026-10-01"), UTC.epoch("2026-11-01"))
    assert len(split_window(october, UTC, {"hour"})) == 31 * 24
    with pytest.raises(
        BadInput, match="2026-10-01 to 2026-11-02 is longer than 31 days, the most for"
    ):
        split_window((october[0], UTC.epoch("2026-11-02")), UTC, {"hour", "day"})
    with pytest.raises(BadInput, match="choose a shorter window, or split by day"):
        split_window(EVER, UTC, {"hour"})


@pytest.mark.parametrize("text", ["2026-1", "2026", "2026-13", "9999-12", "2026-01-01", "", "x"])
def test_no_month(text: str) -> None:
    # One that is written otherwise than reports do would be the same month and match none of them.
    with pytest.raises(BadInput, match="is not a month: write YYYY-MM"):
        month_span(text, UTC)


@pytest.fixture
def books(ledger: Ledger) -> Ledger:
    write_books(ledger, [run("alice", BEGIN + DAY, BEGIN + 2 * DAY)])
    return ledger


def test_a_window_of_centuries_by_day_is_one_line(books: Ledger) -> None:
    assert not read.usage(books, "9999-12-01", "9999-12-31", by="user", timezone="UTC").rows
    with pytest.raises(BadInput, match="0001-01-01 to 9999-12-31 has more than"):
        read.usage(books, "0001-01-01", "9999-12-31", by="day,pi", timezone="UTC")


@pytest.mark.sql
@pytest.mark.parametrize("suspended", ["charge", "skip"])
def test_hours_add_up_to_their_days(ledger: Ledger, suspended: str) -> None:
    write_books(
        ledger,
        [
            run("alice", BEGIN + 1234, BEGIN + DAY + 5000),
            run("alice", BEGIN + DAY // 2 + 1, BEGIN + DAY // 2 + 7205),
            run("alice", BEGIN + 3 * DAY - 60, BEGIN + 3 * DAY + 60),
        ],
    )
    asked = {"timezone": "UTC", "suspended": suspended}
    hours = read.usage(ledger, "2026-11-01", "2026-12-01", by="hour,pi", **asked).rows
    days = read.usage(ledger, "2026-11-01", "2026-12-01", by="day,pi", **asked).rows
    assert len(hours) > 24
    assert days
    for day in days:
        of_day = [row for row in hours if row["hour"].startswith(day["day"])]
        for name in ("gpu_hours", "cpu_hours"):
            assert sum(row[name] for row in of_day) == pytest.approx(day[name], abs=1e-9)
        assert max(row["gpu_hours"] for row in of_day) <= day["gpu_hours"]
    one = read.usage(
        ledger, "2026-11-01", "2026-12-01", filters={"hour": [hours[3]["hour"]]}, **asked
    )
    assert one.meta.total["gpu_hours"] == hours[3]["gpu_hours"]


@pytest.mark.sql
def test_a_name_given_often_is_one_column(books: Ledger) -> None:
    report = read.usage(books, "2026-11-01", "2026-12-01", by=["pi"] * 1000, timezone="UTC")
    assert [column.name for column in report.columns].count("pi") == 1
    assert report.meta.by == ("pi",)


@pytest.mark.parametrize("now", [-1, 2**40, 10**30])
def test_no_time_to_count_up_to(books: Ledger, now: int) -> None:
    with pytest.raises(BadInput, match="now must be in epoch seconds"):
        read.usage(books, "2026-11-01", "2026-12-01", now=now)
