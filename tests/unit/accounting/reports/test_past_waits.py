"""Waits by kind of job: counted again run by run, and told to whom."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import clusters, spans
from slurmkit_accounting.reports import past_waits
from slurmkit_accounting.reports.past_waits import load_past_waits
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from sqlalchemy import insert, update
from usage_oracle import Job

from slurmkit.state.past_waits import FEWEST_JOBS, JobKind, job_kind

NOW = BEGIN + 40 * DAY
HOUR = 3600
ALICE = Scope(frozenset((1,)), frozenset((1,)))


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    past_waits._answers.clear()
    yield
    past_waits._answers.clear()


def waited(seconds: int, at: int = NOW - DAY, user: str = "alice", **other) -> Job:
    """A run that waited so long."""
    return run(user, at, at + HOUR, submit=at - seconds, **other)


def kind_of(job: Job) -> JobKind:
    """The kind of a run as a plan has it: by its whole TRES."""
    tres = {f"gres/gpu:{name}" if name else "gres/gpu": n for name, n in job.gpus.items()}
    limit = job.other.get("time_limit", "60")
    seconds = int(limit) * 60 if limit.isdecimal() else None
    partition, qos = job.other.get("partition", "gpu"), job.other.get("qos", "normal")
    return job_kind(partition, qos, {**tres, "node": job.nodes}, seconds)


def test_every_kind_is_counted_as_run_by_run(ledger: Ledger) -> None:
    chosen = random.Random(7)
    types = ({}, {"a100": 2}, {"a100": 1}, {"": 4}, {"a100": 1, "h100": 3}, {"h100": 40})
    jobs = [
        waited(
            int(chosen.expovariate(1 / 3000)),
            NOW - chosen.randrange(40 * DAY),
            chosen.choice(["alice", "bob", "vogel", "garcia"]),
            gpus=chosen.choice(types),
            nodes=chosen.choice([1, 2, 9]),
            other={
                "partition": chosen.choice(["gpu", "long"]),
                "qos": chosen.choice(["normal", "high"]),
                "time_limit": chosen.choice(["10", "240", "1441", "UNLIMITED"]),
            },
        )
        for _ in range(800)
    ]
    write_books(ledger, jobs)
    found = load_past_waits(ledger, "lab", EVERYTHING, NOW)
    assert (found.begin, found.end) == (NOW - 30 * DAY, NOW)
    counted = [each for each in jobs if NOW - 30 * DAY <= (each.start or 0) < NOW]
    for told in found.kinds:
        waits = sorted((j.start or 0) - j.submit for j in counted if _is_of(told.kind, kind_of(j)))
        at = [waits[math.ceil(len(waits) * part) - 1] for part in (0.5, 0.9)]
        assert (told.jobs, told.half, told.nine_in_ten) == (len(waits), *at)
    # What is not told of are kinds with too few jobs.
    for job in counted:
        for kind in set(kind_of(job).wider()):
            alike = [each for each in counted if _is_of(kind, kind_of(each))]
            assert (found.find(kind) is not None and kind in {k.kind for k in found.kinds}) == (
                len(alike) >= FEWEST_JOBS
            )


def _is_of(wide: JobKind, exact: JobKind) -> bool:
    """Whether a run of one kind is also of a wider kind, field by field."""
    for name in ("partition", "qos", "gpu_type", "nodes", "limit"):
        if getattr(wide, name) not in (None, getattr(exact, name)):
            return False
    if wide.gpus == (1, None):
        return exact.gpus.least > 0
    return wide.gpus == exact.gpus


def test_a_job_waits_from_when_nothing_of_its_own_holds_it(ledger: Ledger) -> None:
    start = NOW - DAY
    cases = {
        "after": (start - 600, 600),  # its dependency ended late
        "wrong": (start + 600, 5 * HOUR),  # no time that it can have been
        "unknown": (None, 5 * HOUR),
    }
    jobs = [
        waited(5 * HOUR, other={"eligible": eligible, "partition": partition})
        for partition, (eligible, _) in cases.items()
        for _ in range(FEWEST_JOBS)
    ]
    write_books(ledger, jobs)
    told = {
        each.kind.partition: each.half
        for each in load_past_waits(ledger, "lab", EVERYTHING, NOW).kinds
    }
    assert told == {partition: wait for partition, (_, wait) in cases.items()}


@pytest.mark.sql
def test_what_waited_for_its_reservation_or_did_not_start_is_left_out(ledger: Ledger) -> None:
    usual = [waited(60) for _ in range(FEWEST_JOBS)]
    others = [
        waited(9 * HOUR, other={"reservation": "course"}),
        waited(9 * HOUR, retracted=NOW),
        waited(9 * HOUR, nodes=0, cpus=0),
        waited(9 * HOUR, cluster=2),
        Job(NOW - DAY, None, None, state="PENDING", last_seen=NOW),
    ]
    write_books(ledger, [*usual, *others])
    assert {each.jobs for each in load_past_waits(ledger, "lab", EVERYTHING, NOW).kinds} == {
        FEWEST_JOBS
    }


@pytest.mark.sql
def test_running_jobs_have_waited_too(ledger: Ledger) -> None:
    jobs = [waited(60) for _ in range(FEWEST_JOBS - 1)]
    running = run("bob", NOW - 60, None, submit=NOW - 120, state="RUNNING", last_seen=NOW)
    write_books(ledger, [*jobs, running])
    (told, *_) = load_past_waits(ledger, "lab", EVERYTHING, NOW).kinds
    assert (told.jobs, told.half, told.nine_in_ten) == (FEWEST_JOBS, 60, 60)


def test_who_may_not_see_totals_is_told_of_kinds_of_several_people(ledger: Ledger) -> None:
    """No user has more than half of the jobs of these, and one job more or less changes nothing."""
    own = [waited(60, gpus={"a100": 1}) for _ in range(2 * FEWEST_JOBS)]
    shared = [
        waited(90, user=user, gpus={"h100": 1})
        for user in ("alice", "bob", "garcia")
        for _ in range(FEWEST_JOBS + 3)
    ]
    mostly_one = [
        waited(90, user=user, gpus={"l40": 1})
        for user, jobs in (("alice", 100), ("bob", 30), ("garcia", 30))
        for _ in range(jobs)
    ]
    write_books(ledger, [*own, *shared, *mostly_one])
    for scope in (ALICE, Scope(ALICE.people, ALICE.pis, with_totals=True), read.Scope()):
        found = load_past_waits(ledger, "lab", scope, NOW)
        jobs = {each.kind.gpu_type: each.jobs for each in found.kinds if each.kind.limit}
        if scope.of_totals.is_everything:
            assert jobs == {"a100": 40, "h100": 69, "l40": 160, None: 269}
        else:
            assert jobs == {"h100": 60}


def test_parts_of_gpus_are_of_no_kind(ledger: Ledger) -> None:
    shards = [waited(60, gpus={"shard": 2}) for _ in range(FEWEST_JOBS)]
    write_books(ledger, [*shards, *(waited(90) for _ in range(FEWEST_JOBS))])
    kinds = load_past_waits(ledger, "lab", EVERYTHING, NOW).kinds
    assert {(each.kind.gpus, each.jobs) for each in kinds} == {((0, 0), FEWEST_JOBS)}


@pytest.mark.sql
def test_only_the_time_that_was_read_without_a_gap_is_told_of(ledger: Ledger) -> None:
    write_books(ledger, [waited(60, NOW - days * DAY) for days in range(1, 29) for _ in range(5)])
    with ledger.transaction() as connection:
        connection.execute(update(spans).values(finish=BEGIN))
        connection.execute(insert(spans).values(cluster_id=1, begin=NOW - 9 * DAY, finish=NOW))
        connection.execute(update(clusters).values(only_user="alice"))
    found = load_past_waits(ledger, "lab", EVERYTHING, NOW)
    assert (found.begin, found.end, found.only_user) == (NOW - 9 * DAY, NOW, "alice")
    assert {each.jobs for each in found.kinds} == {9 * 5}


def test_one_reading_serves_half_an_hour(ledger: Ledger) -> None:
    write_books(ledger, [waited(60) for _ in range(FEWEST_JOBS)])
    first = load_past_waits(ledger, "lab", EVERYTHING, NOW)
    assert load_past_waits(ledger, "lab", EVERYTHING, NOW + 1799) is first
    assert load_past_waits(ledger, "lab", ALICE, NOW).kinds == ()
    with past_waits._asking:  # another thread reads it again
        assert load_past_waits(ledger, "lab", EVERYTHING, NOW + 1801) is first
    assert load_past_waits(ledger, "lab", EVERYTHING, NOW + 1801) is not first


def test_a_cluster_that_the_ledger_does_not_have(ledger: Ledger) -> None:
    write_books(ledger, [])
    found = read.past_waits(ledger, "elsewhere")
    assert found.problem == "the ledger has no runs of cluster elsewhere"
    assert not past_waits._answers
