"""Usage over a window equals what a count run by run says, wherever its edges are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from databases import KINDS, emptied
from examples import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import structs
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.database import Ledger, reading_once
from slurmkit_accounting.ledger.schema.people import eras
from slurmkit_accounting.ledger.schema.runs import ingests
from slurmkit_accounting.ledger.schema.usage import (
    SUMS,
    USAGE_COLUMNS,
    closed_usage,
    closings,
    usage_keys,
)
from slurmkit_accounting.reports.counted import CountedUsage, Question
from slurmkit_accounting.reports.panels import usage_panels
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from slurmkit_accounting.usage import tables
from slurmkit_accounting.usage.bins import UsageKey, UsageRun
from slurmkit_accounting.usage.query import CARRIED, UsageQuery, query_usage
from slurmkit_accounting.usage.tables import USAGE_TABLES
from sqlalchemy import delete, func, insert, select
from usage_oracle import Job, counted, fill, jobs_around, new_books

DAY = 86400


@pytest.fixture(scope="module", params=KINDS)
def engine(request):
    """An empty ledger in each kind of database."""
    with new_books(emptied() if request.param == "postgresql" else None) as books:
        yield books


def asked(engine, jobs, edges, now=2_000_000_000, **other):
    """Per part: by cluster, user, state, redone and GPU type; the sums that are not 0."""
    with engine.begin() as connection:
        fill(connection, jobs)
        cells = query_usage(connection, UsageQuery(tuple(edges), now, **other))
    parts = [defaultdict(lambda: defaultdict(int)) for _ in pairwise(edges)]
    for (part, key), sums in cells.items():
        to = parts[part][key.cluster_id, key.user, key.state, key.redone, key.gpu_type]
        for name, amount in zip(SUMS, sums, strict=True):
            to[name] += amount
        to["runs"] += sums[SUMS.index("started")]
    return [without_zeros(part) for part in parts]


def without_zeros(found):
    plain = {
        key: {name: amount for name, amount in sums.items() if amount}
        for key, sums in found.items()
    }
    return {key: sums for key, sums in plain.items() if sums}


def expected(jobs, edges, now=2_000_000_000):
    return [without_zeros(counted(jobs, span, now)) for span in pairwise(edges)]


def midnights(zone: str, first: str, days: int) -> list[int]:
    day = datetime.fromisoformat(first).replace(tzinfo=ZoneInfo(zone))
    return [int((day + timedelta(days=n)).timestamp()) for n in range(days + 1)]


CALENDARS = {
    "summer time begins": midnights("Europe/Berlin", "2026-03-28", 3),
    "summer time ends": midnights("Europe/Berlin", "2026-10-24", 3),
    "45 minutes": midnights("Asia/Kathmandu", "2026-10-24", 3),
    "45 minutes and summer time": midnights("Pacific/Chatham", "2026-04-04", 3),
    "half an hour of summer time": midnights("Australia/Lord_Howe", "2026-04-04", 3),
    "UTC": midnights("UTC", "2026-10-24", 3),
    "a month": [midnights("America/New_York", "2026-11-01", 30)[n] for n in (0, 30)],
    "three months": [midnights("Asia/Kolkata", "2026-09-20", 100)[n] for n in (0, 11, 42, 72, 100)],
    "within an hour": [1_790_000_100, 1_790_000_101, 1_790_001_000],
    "the second half of a day": [1_790_035_200 + n for n in (12 * 3600 + 1, 86399, 86400)],
}


@pytest.mark.sql
@pytest.mark.parametrize("edges", CALENDARS.values(), ids=CALENDARS)
def test_usage_equals_a_count_run_by_run(engine, edges):
    @settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
    @given(jobs=jobs_around(edges[0], edges[-1]), now=st.integers(edges[0] - DAY, edges[-1] + DAY))
    def check(jobs, now):
        assert asked(engine, jobs, edges, now) == expected(jobs, edges, now)

    check()


BEGIN = CALENDARS["UTC"][0]
WINDOW = (BEGIN, BEGIN + DAY)


def test_a_run_sacct_no_longer_shows_counts_until_it_last_did(engine):
    open_run = {"state": "RUNNING", "submit": BEGIN, "start": BEGIN, "end": None}
    jobs = [
        Job(**open_run, user="there", last_seen=BEGIN + 900),
        Job(**open_run, user="unseen", last_seen=BEGIN + 100),
        Job(**open_run, user="gone", last_seen=BEGIN + 200, gone_since=BEGIN + 300),
    ]
    with engine.begin() as connection:
        fill(connection, jobs)
        times = {"started": BEGIN + 900, "window_from": 0, "window_to": BEGIN + 900}
        connection.execute(insert(ingests).values(cluster_id=1, ended=BEGIN + 950, **times))
        cells = query_usage(connection, UsageQuery(WINDOW, BEGIN + 1000))
    held = {key.user: dict(zip(SUMS, sums, strict=True)) for (_, key), sums in cells.items()}
    assert {user: sums["wall_seconds"] for user, sums in held.items()} == {
        "there": 1000,
        "unseen": 100,
        "gone": 200,
    }


def test_keys_tell_runs_apart_by_when_people_changed(engine):
    jobs = [Job(BEGIN + n, BEGIN + 10, BEGIN + 20) for n in (0, 5, 9)]
    with engine.begin() as connection:
        fill(connection, jobs, eras_at=(BEGIN + 5, BEGIN + 8))
        cells = query_usage(connection, UsageQuery(WINDOW, 0))
    assert {key.era for _, key in cells} == {0, BEGIN + 5, BEGIN + 8}


@pytest.mark.parametrize(
    ("edges", "kept"),
    [
        ((BEGIN, BEGIN + DAY), [1000 - 300]),
        ((BEGIN, BEGIN + 500, BEGIN + DAY), [500 - 100, 500 - 200]),
        # Of the last span the books know only how much of it was suspended: the part is even.
        ((BEGIN, BEGIN + 700, BEGIN + DAY), [700 - 100 - 100, 300 - 100]),
    ],
)
def test_suspended_time_is_taken_off_when_asked(engine, edges, kept):
    spans = ((BEGIN + 100, 100, 100), (BEGIN + 500, 400, 200))
    job = Job(BEGIN, BEGIN, BEGIN + 1000, gpus={"a100": 2, "h100": 1}, suspended=spans, energy=8)
    charged, skipped = (asked(engine, [job], edges, skip_suspended=skip) for skip in (False, True))
    key = (1, "alice", "COMPLETED", False)
    assert [part[*key, "a100"]["gpu_seconds"] for part in skipped] == [2 * n for n in kept]
    assert [part[*key, "h100"]["gpu_seconds"] for part in skipped] == kept
    assert [part[*key, "a100"]["cpu_seconds"] for part in skipped] == [4 * n for n in kept]
    assert sum(part[*key, "a100"]["wall_seconds"] for part in charged) == 1000
    for one, other in zip(charged, skipped, strict=True):
        for name in ("runs", "energy_millijoules", "waited_seconds"):
            assert one[*key, "a100"].get(name) == other[*key, "a100"].get(name)


@pytest.mark.sql
def test_suspended_time_of_a_run_without_an_end_is_taken_off_too(engine):
    job = Job(BEGIN, BEGIN, None, state="RUNNING", suspended=((BEGIN, 900, 400),))
    ((only,),) = [
        part.values() for part in asked(engine, [job], WINDOW, BEGIN + 900, skip_suspended=True)
    ]
    assert only["wall_seconds"] == 500


@pytest.mark.parametrize(
    ("wanted", "users"),
    [("12", {"whole", "task", "part"}), ("12_3", {"task"}), ("12+1", {"part"}), ("1", set()),
     ("sCM1M8QBT2BE00", {"task"}), ("sCM1M8QBT2BE00,120", {"task", "other"}),
     ("sCM1M8QBT2BE01", set())],
)  # fmt: skip
def test_one_job_with_all_its_parts(engine, wanted, users):
    numbers = {"task": {"db_index": 14557473182063114240}, "part": {"db_index": 7}}
    ids = {"whole": "12", "task": "12_3", "part": "12+1", "other": "120"}
    jobs = [
        Job(BEGIN, BEGIN, BEGIN + 7, user=user, other={"job_id": job_id} | numbers.get(user, {}))
        for user, job_id in ids.items()
    ]
    (part,) = asked(engine, jobs, WINDOW, job=wanted)
    assert {key[1] for key in part} == users
    assert all(sums["wall_seconds"] == 7 and sums["runs"] == 1 for sums in part.values())


@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(jobs=jobs_around(BEGIN, BEGIN + 30 * DAY), data=st.data())
def test_parts_add_up_to_the_whole(engine, jobs, data):
    inner = data.draw(st.sets(st.integers(BEGIN + 1, BEGIN + 30 * DAY - 1), max_size=4))
    edges = (BEGIN, *sorted(inner), BEGIN + 30 * DAY)
    with engine.begin() as connection:
        fill(connection, jobs)
        parted = query_usage(connection, UsageQuery(edges, edges[-1]))
        whole = query_usage(connection, UsageQuery((edges[0], edges[-1]), edges[-1]))
    added = defaultdict(lambda: [0] * len(SUMS))
    for (part, key), sums in parted.items():
        for place, amount in enumerate(sums):
            added[key][place] += amount if place != CARRIED or part == 0 else 0
    assert {key: tuple(sums) for key, sums in added.items() if any(sums)} == {
        key: sums for (_, key), sums in whole.items()
    }


def usage_rows(connection):
    """The rows of the usage tables by key, without its id, and without rows of zeros."""
    columns = [usage_keys.c[name] for name in UsageKey._fields]
    found = []
    for table in USAGE_TABLES:
        numbers = [table.c[name] for name in USAGE_COLUMNS]
        rows = connection.execute(
            select(table.c.bin, *columns, *numbers).join_from(table, usage_keys)
        )
        found.append(sorted(tuple(row) for row in rows if any(row[-len(numbers) :])))
    return found


def usage_runs(connection):
    known = tables.load_eras(connection)
    rows = connection.execute(select(*tables.USAGE_RUN_COLUMNS).where(tables.IS_COUNTED))
    return [run._replace(era=known.of(run.submit)) for run in (UsageRun(*row) for row in rows)]


@pytest.mark.sql
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck), deadline=None)
@given(one=jobs_around(BEGIN, BEGIN + DAY), other=jobs_around(BEGIN, BEGIN + DAY))
def test_runs_that_changed_leave_nothing_behind(engine, one, other):
    with engine.begin() as connection:
        fill(connection, one)
        before = usage_runs(connection)
        fill(connection, other)
        expected, after = usage_rows(connection), usage_runs(connection)
        tables.change_usage(connection, (), before)
        tables.change_usage(connection, after, after[::2])
        tables.change_usage(connection, before, after[1::2])
        assert usage_rows(connection) == expected
        tables.change_usage(connection, after, ())
        counts = [connection.scalar(select(func.count()).select_from(t)) for t in USAGE_TABLES]
    assert counts == [0, 0, 0]


@pytest.mark.sql
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck), deadline=None)
@given(
    jobs=jobs_around(BEGIN, BEGIN + DAY),
    moments=st.lists(st.integers(BEGIN - 50 * DAY, BEGIN + 2 * DAY), min_size=1, max_size=3),
    closed=st.booleans(),
)
def test_usage_under_new_eras_is_that_of_the_runs(engine, jobs, moments, closed):
    """A key that all its runs leave is renamed, and no row moves."""
    with engine.begin() as connection:
        connection.execute(delete(closed_usage))
        connection.execute(delete(closings))
        fill(connection, jobs)
        stays = close(connection) if closed else None
        for at in dict.fromkeys(moments):
            connection.execute(insert(eras).values(at=at))
            tables.rekey_usage(connection, at)
        moved = usage_rows(connection)
        tables.rebuild_usage(connection)
        assert moved == usage_rows(connection)
        if stays is not None:  # a closed month is shown with the people of its closing
            key = select(*(usage_keys.c[name] for name in UsageKey._fields))
            found = connection.execute(key.join_from(closed_usage, usage_keys)).all()
            assert [tuple(row) for row in found] == stays
        connection.execute(delete(closed_usage))
        connection.execute(delete(closings))
        connection.execute(delete(ingests))


def close(connection):
    """Close a month in which only the first key has usage; return that key."""
    number = connection.scalar(select(func.min(usage_keys.c.id)))
    if number is None:
        return None
    connection.execute(
        insert(ingests).values(id=1, cluster_id=1, started=1, window_from=0, window_to=1)
    )
    month = {"cluster_id": 1, "month": "2026-10", "timezone": "UTC", "at": 1}
    connection.execute(insert(closings).values(id=1, ingest_id=1, checksum="", **month))
    connection.execute(
        insert(closed_usage).values(closing_id=1, key_id=number, **dict.fromkeys(SUMS, 1))
    )
    key = select(*(usage_keys.c[name] for name in UsageKey._fields)).where(
        usage_keys.c.id == number
    )
    return [tuple(row) for row in connection.execute(key)]


@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck), deadline=None)
@given(jobs=jobs_around(BEGIN, BEGIN + 3 * DAY), skip=st.booleans())
def test_rows_of_a_report_are_the_same_rows_when_keys_are_counted_together(engine, jobs, skip):
    """A report by day need not tell 200,000 usage keys apart."""
    question = Question(
        window=(BEGIN, BEGIN + 3 * DAY),
        zone=find_zone("Asia/Kathmandu"),
        units=frozenset(("day",)),
        suspended="skip" if skip else "charge",
        now=BEGIN + DAY,
    )
    with engine.begin() as connection:
        fill(connection, jobs)
        apart = CountedUsage(connection, question)
        for by in ((), ("day",), ("user",), ("pi", "day"), ("gpu_type", "state"), ("cluster",)):
            together = CountedUsage(connection, question, by)
            expected, found = (
                {row: tally.values(one.rates, one.parts) for row, tally in one.rows(by).items()}
                for one in (apart, together)
            )
            assert found == expected
            assert together.total().values(together.rates, together.parts) == apart.total().values(
                apart.rates, apart.parts
            )


UIDS = {"alice": 1, "bob": 2}
FILTERS = ({}, {"user": ("alice",)}, {"state": ("FAILED",), "day": ("2026-10-25",)})


@pytest.mark.sql
@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck), deadline=None)
@given(jobs=jobs_around(BEGIN, BEGIN + 3 * DAY))
def test_what_a_page_remembers_is_only_for_the_same_reader_and_question(engine, jobs):
    window = (BEGIN, BEGIN + 3 * DAY)
    plain = Question(window=window, zone=find_zone("UTC"), now=BEGIN + DAY)
    questions = [
        structs.replace(plain, scope=scope, filters=filters, units=frozenset(units), now=now)
        for scope in (EVERYTHING, *(Scope(uids=frozenset((uid,))) for uid in UIDS.values()))
        for filters in FILTERS
        for units in ((), ("day",))
        for now in (BEGIN + DAY, BEGIN + DAY + 1)
    ]

    def rows(connection, question):
        by = ("user", *question.units)
        found = CountedUsage(connection, question, by)
        tallies = found.rows(by).items()
        return {row: tally.values(found.rates, found.parts) for row, tally in tallies}

    ledger = Ledger(engine)
    with ledger.transaction() as connection:
        fill(connection, [replace(job, other={"uid": UIDS[job.user]}) for job in jobs])
        alone = [rows(connection, question) for question in questions]
    for question, found in zip(questions, alone, strict=True):
        uids = question.scope.uids or UIDS.values()
        assert {UIDS[user] for user, *_ in found} <= set(uids)
    with reading_once(ledger), ledger.transaction() as connection:
        assert [rows(connection, question) for question in questions] == alone


@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck), deadline=None)
@given(jobs=jobs_around(BEGIN, BEGIN + 3 * DAY), only_alice=st.booleans())
@example(  # what is read of the minutes around a midnight of Kolkata must not add up to 0
    jobs=[
        Job(BEGIN, BEGIN + at - 600, BEGIN + at - 540, user=user)
        for at, user in ((66_600, "bob"), (66_600 + DAY, "alice"))
    ],
    only_alice=False,
)
@example(  # of two jobs of a user, only the second is in the window
    jobs=[
        Job(BEGIN, BEGIN - 9 * DAY, BEGIN - 8 * DAY),
        Job(BEGIN, BEGIN + 9, BEGIN + DAY, gpus={"a100": 1}),
    ],
    only_alice=True,
)
def test_charts_and_rows_add_up_to_the_same_gpu_hours(engine, jobs, only_alice):
    question = Question(
        window=(BEGIN + 1800, BEGIN + 3 * DAY - 7),
        zone=find_zone("Asia/Kolkata"),
        now=BEGIN + DAY,
        scope=Scope(uids=frozenset((1,))) if only_alice else EVERYTHING,
    )
    with engine.begin() as connection:
        fill(connection, [replace(job, other={"uid": UIDS[job.user]}) for job in jobs])
        for by in ((), ("pi",), ("user", "state"), ("day", "gpu_type")):
            asked_by_time = structs.replace(question, units=frozenset({"day"} & {*by}))
            counted_by = CountedUsage(connection, asked_by_time, by)
            hours = sum(each.gpu_hours(counted_by.rates) for each in counted_by.rows(by).values())
            panels = {
                panel.title: sum(map(sum, (series.values for series in panel.series)))
                for panel in usage_panels(connection, asked_by_time, counted_by, by)
            }
            assert panels["GPU-hours by GPU type"] == pytest.approx(float(hours))
            assert panels.get("GPU-hours by person", 0.0) == pytest.approx(float(hours))


@pytest.mark.sql
def test_an_ingest_sees_that_a_sync_renamed_usage_keys(engine):
    """An ingest remembers ids of keys over its transactions."""
    known = tables.KeyIds()
    with engine.begin() as connection:
        fill(connection, [Job(BEGIN, BEGIN, BEGIN + 50)])
        (run,) = usage_runs(connection)
        tables.change_usage(connection, (run,), (run,), known)
        connection.execute(insert(eras).values(at=BEGIN))
        tables.rekey_usage(connection, BEGIN)
        assert connection.scalars(select(usage_keys.c.era)).all() == [BEGIN]  # renamed
        earlier = run._replace(submit=BEGIN - 9)
        tables.change_usage(connection, (), (earlier,), known)
        months = usage_rows(connection)[2]
    assert [row[1 + UsageKey._fields.index("era")] for row in months] == [0, BEGIN]
