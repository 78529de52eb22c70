"""Times as cron has them; tasks one at a time; what was missed, cut off or failed runs again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.schema.notices import task_runs
from slurmkit_accounting.service import schedule
from slurmkit_accounting.service.schedule import (
    Schedule,
    ScheduledTask,
    every_seconds,
    months_before,
    parse_cron,
    times_passed,
)
from sqlalchemy import update
from waiting import PATIENCE, wait_until

from slurmkit.errors import BadConfig, DirectoryError, NotSent

BERLIN = find_zone("Europe/Berlin")
HOURLY, NEVER = "0 * * * *", "0 0 29 2 mon"


def at(text: str) -> int:
    return BERLIN.epoch(text)


def times(cron: str, after: str, until: str) -> list[str]:
    return [
        f"{t:%m-%d %H:%M}"
        for t in times_passed(parse_cron("x", cron, BERLIN), at(after), at(until))
    ]


@pytest.mark.parametrize(
    ("cron", "after", "until", "expected"),
    [
        ("0 6 3 * *", "2026-10-01", "2026-12-04", ["10-03 06:00", "11-03 06:00", "12-03 06:00"]),
        # 2026-11-01 is a Sunday: 0 and 7 for cron, 6 for APScheduler.
        ("0 8 * * 0", "2026-10-31", "2026-11-07", ["11-01 08:00"]),
        ("0 8 * * 7", "2026-10-31", "2026-11-07", ["11-01 08:00"]),
        ("0 8 * * 1-3/2", "2026-10-31", "2026-11-07", ["11-02 08:00", "11-04 08:00"]),
        ("0 8 * * sat", "2026-10-31T12:00", "2026-11-07T08:00", ["11-07 08:00"]),
        # Half past two comes twice; where the clock skips it, an hour later by the clock.
        ("30 * * * *", "2026-10-25T01:45", "2026-10-25T03:45",
         ["10-25 02:30", "10-25 02:30", "10-25 03:30"]),
        ("30 2 * * *", "2026-03-28T12:00", "2026-03-30T12:00",
         ["03-29 02:30", "03-30 02:30"]),
    ],
)  # fmt: skip
def test_times(cron: str, after: str, until: str, expected: list[str]) -> None:
    assert times(cron, after, until) == expected


def test_a_time_is_passed_from_its_second_on() -> None:
    when = parse_cron("x", HOURLY, BERLIN)
    assert not any(times_passed(when, at("2026-10-03T06:00"), at("2026-10-03T06:59:59")))
    assert any(times_passed(when, at("2026-10-03T06:00"), at("2026-10-03T07:00")))


def test_months_before() -> None:
    when = parse_cron("close", "0 6 3 * *", BERLIN)
    assert months_before(when, at("2026-10-04"), at("2027-01-03T06:00")) == [
        "2026-10", "2026-11", "2026-12",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "hourly", "61 * * * *", "* * * *", "0 0 * * 5-1"])
def test_no_time(text: str) -> None:
    with pytest.raises(BadConfig, match=r"\[ledger.schedule\] ingest: .* is not a valid schedule"):
        parse_cron("ingest", text, BERLIN)


class Lines(list[str]):
    def __call__(self, what: str, **facts: object) -> None:
        self.append(f"{what} {facts['task']}")


@contextmanager
def running(*tasks: ScheduledTask, retry: float = 600) -> Iterator[tuple[Schedule, Lines]]:
    lines = Lines()
    schedule = Schedule(list(tasks), open_for_writing, lines, retry_seconds=retry)
    schedule.start()
    try:
        yield schedule, lines
    finally:
        schedule.stop()


class Doing:
    """A task's work: counts its runs, and what it was told."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.runs: list[list[str]] = []
        self.error = error

    def __call__(self, months: list[str]) -> str:
        self.runs.append(months)
        if self.error:
            raise self.error
        return "well"


def task(run: Callable[[list[str]], str], name: str = "ingest", **other: object) -> ScheduledTask:
    return ScheduledTask(name=name, when=parse_cron(name, NEVER, BERLIN), run=run, **other)  # type: ignore[arg-type]


def row(ledger: Ledger, name: str = "ingest") -> schedule.TaskRun:
    with ledger.transaction() as connection:
        return schedule.last_runs(connection)[name]


def change(ledger: Ledger, **values: object) -> None:
    with ledger.transaction() as connection:
        connection.execute(update(task_runs).values(**values))


def test_the_first_start_runs_what_may_and_no_more(ledger: Ledger) -> None:
    ingest, mail = Doing(), Doing()
    with running(task(ingest), task(mail, "mail", at_first=False)) as (_, lines):
        wait_until(lambda: lines == ["done ingest"])
    assert (len(ingest.runs), len(mail.runs)) == (1, 0)
    kept = row(ledger)
    assert kept.well is not None
    assert kept.error is None
    again = Doing()
    with running(task(again)):
        time.sleep(0.1)
    assert again.runs == []


@pytest.mark.sql
def test_what_was_missed_runs_once(ledger: Ledger) -> None:
    with running(task(Doing())) as (_, lines):
        wait_until(lambda: lines)
    change(ledger, due=at("2026-08-20"))
    doing = Doing()
    mailed = ScheduledTask(
        name="ingest", when=parse_cron("x", "0 6 3 9,10 *", BERLIN), run=doing, monthly=True
    )
    with running(mailed) as (_, lines):
        wait_until(lambda: lines)
    assert [run[:2] for run in doing.runs] == [["2026-08", "2026-09"]]
    assert row(ledger).due > at("2026-10-03")


@pytest.mark.sql
def test_what_was_cut_off_runs_again(ledger: Ledger) -> None:
    with running(task(Doing())) as (_, lines):
        wait_until(lambda: lines)
    change(ledger, ended=None)
    doing = Doing()
    with running(task(doing)) as (_, lines):
        wait_until(lambda: lines)
    assert len(doing.runs) == 1


@pytest.mark.parametrize("error", [DirectoryError("LDAP is away"), KeyError("odd")])
def test_what_failed_is_tried_again_and_still_due(ledger: Ledger, error: Exception) -> None:
    doing = Doing(error)
    with running(task(doing), retry=0.05) as (schedule, _):
        wait_until(lambda: len(doing.runs) > 1)
        assert schedule.failures["ingest"] > 0
        due = row(ledger).due
        assert str(error) in (row(ledger).error or "")
        doing.error = None
        wait_until(lambda: row(ledger).well)
    assert row(ledger).error is None
    assert row(ledger).due >= due


@pytest.mark.sql
def test_what_failed_before_runs_again_at_the_next_start(ledger: Ledger) -> None:
    with running(task(Doing(DirectoryError("wrong password")))) as (_, lines):
        wait_until(lambda: lines == ["failed ingest"])
    mended = Doing()
    with running(task(mended)) as (_, lines):
        wait_until(lambda: lines == ["done ingest"])
    assert row(ledger).error is None


def test_it_stops_while_its_thread_starts_a_task(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = threading.Event()
    with running(task(Doing())) as (schedule, lines):
        wait_until(lambda: lines == ["done ingest"])
        remove = schedule._scheduler.remove_job

        def remove_slowly(*args: Any) -> None:
            starting.set()
            time.sleep(0.3)
            remove(*args)

        monkeypatch.setattr(schedule._scheduler, "remove_job", remove_slowly)
        schedule._scheduler.add_job(schedule._run, args=[schedule.tasks[0]])
        assert starting.wait(PATIENCE)
    assert row(ledger).error is None


def test_what_goes_on_failing_is_tried_less_and_less_often(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    doing, began = Doing(NotSent("no such user")), time.monotonic()
    with running(task(doing), retry=0.1) as (schedule, _):
        wait_until(lambda: len(doing.runs) == 5)
        assert time.monotonic() - began > 0.1 + 0.2 + 0.4 + 0.8
        doing.error = None
        wait_until(lambda: row(ledger).well)
        doing.error = NotSent("no such user")
        add, pauses = schedule._scheduler.add_job, []

        def note_pause(*args: Any, run_date: datetime, **options: Any) -> None:
            pauses.append((run_date - datetime.now(UTC)).total_seconds())
            add(*args, run_date=run_date, **options)

        monkeypatch.setattr(schedule._scheduler, "add_job", note_pause)
        add(schedule._run, args=[schedule.tasks[0]])
        wait_until(lambda: pauses)
        assert pauses[0] <= 0.1  # hasty again


def test_never_two_at_a_time(ledger: Ledger) -> None:
    inside: list[int] = [0]
    most: list[int] = []

    def work(_: list[str]) -> str:
        inside[0] += 1
        most.append(inside[0])
        time.sleep(0.05)
        inside[0] -= 1
        return ""

    names = ("ingest", "people", "budgets")
    with running(*(task(work, name) for name in names)) as (_, lines):
        wait_until(lambda: len(lines) == 3)
    assert most == [1, 1, 1]


def test_a_stop_waits_for_the_edge_of_a_batch(ledger: Ledger) -> None:
    began = threading.Event()
    batches: list[int] = []

    def work(_: list[str]) -> str:
        for number in range(1000):
            batches.append(number)
            began.set()
            time.sleep(0.02)
            schedule.check()
        return ""

    schedule = Schedule([task(work), task(Doing(), "people")], open_for_writing, lines := Lines())
    schedule.start()
    assert began.wait(PATIENCE)
    schedule.stop()
    assert lines == ["task stopped ingest"]  # and people, which was waiting, did not begin
    assert len(batches) < 100
    assert row(ledger).ended is None  # so the next start goes on with it


def test_a_task_that_is_apart_waits_for_no_other_and_is_logged_once(file_ledger) -> None:
    ended, apart = threading.Event(), Doing()

    def slow(_: list[str]) -> str:
        ended.wait(PATIENCE)
        return "slow"

    often = ScheduledTask(name="gpu_use", when=every_seconds(1), run=apart, apart=True)
    with running(task(slow), often) as (schedule_, lines):
        wait_until(lambda: len(apart.runs) >= 3, lambda: repr(lines))
        assert schedule_.running == "ingest"
        assert lines == ["done gpu_use"]
        apart.error = NotSent("away")
        wait_until(lambda: len(lines) == 2)
        assert lines == ["done gpu_use", "failed gpu_use"]
        ended.set()
        wait_until(lambda: "done ingest" in lines)
    assert row(file_ledger, "gpu_use").error == "away"


def test_a_task_beside_the_others_waits_for_none_and_runs_again_when_it_fails(file_ledger) -> None:
    ended, digest = threading.Event(), Doing()
    digest.error = NotSent("away")

    def slow(_: list[str]) -> str:
        ended.wait(PATIENCE)
        return "slow"

    daily = ScheduledTask(
        name="digest", when=parse_cron("x", NEVER, BERLIN), run=digest, own_thread=True
    )
    with running(task(slow), daily, retry=0.1) as (schedule_, lines):
        wait_until(lambda: len(digest.runs) >= 2, lambda: repr(lines))
        assert schedule_.running == "ingest"
        assert "failed digest" in lines
        digest.error = None
        wait_until(lambda: "done digest" in lines, lambda: repr(lines))
        ended.set()
        wait_until(lambda: "done ingest" in lines)
    assert row(file_ledger, "digest").error is None


@pytest.mark.usefixtures("file_ledger")
def test_a_task_that_is_apart_does_not_wait_for_another_one() -> None:
    ended, often = threading.Event(), Doing()

    def slow(_: list[str]) -> str:
        ended.wait(PATIENCE)
        return "slow"

    tasks = [
        ScheduledTask(name=name, when=every_seconds(1), run=run, apart=True)
        for name, run in (("job_mail", slow), ("gpu_use", often))
    ]
    with running(*tasks) as (_, lines):
        wait_until(lambda: len(often.runs) >= 2, lambda: repr(lines))
        ended.set()
