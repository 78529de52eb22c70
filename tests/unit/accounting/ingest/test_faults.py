"""Whatever happens to jobs, to sacct and to the ingest: the books say what slurmdbd says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from itertools import chain
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from databases import KINDS, emptied
from examples import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    rule,
    run_state_machine_as_test,
)
from slurmdbd import HOUR, Slurmdbd
from slurmkit_accounting.audit.verify import verify
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ingest import ingest as module
from slurmkit_accounting.ingest.file import SacctFile, ingest_file
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.schema.runs import clusters, runs, suspensions
from slurmkit_accounting.sacct.query import SACCT_FIELDS
from slurmkit_accounting.usage.query import SUM_INDEX, UsageQuery, query_usage
from sqlalchemy import func, select

pytestmark = pytest.mark.sql

DAY = 86400
T = 1_793_300_000 // DAY * DAY  # before a clock change of Berlin's
GPUS = ("cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G,node=1", "cpu=1,gres/gpu=1,mem=1G,node=1",
        "cpu=2,gres/shard=3,mem=1G,node=1", "cpu=8,mem=9G,node=1")  # fmt: skip
NAMES = st.sampled_from(["train", "a\nb", "pipe|\x1f", "é\x1b[2J", ""])
USERS = st.sampled_from(["alice", "bob"])


class Killed(BaseException):
    """As if by a signal: nothing of ours may catch it and go on."""


class Cluster(RuleBasedStateMachine):
    """Two clusters with the same job ids, and a ledger that reads them now and then."""

    waiting = Bundle("waiting")
    running = Bundle("running")
    arrays = Bundle("arrays")

    def __init__(self, url: str) -> None:
        super().__init__()
        self.now = T
        self.stack = ExitStack()
        self.ledger = self.stack.enter_context(open_for_writing(url))
        self.clusters = [Slurmdbd("one", 1), Slurmdbd("two", 1)]
        self.stack.enter_context(mock.patch.object(module, "FIRST_DAYS", 1))
        self.stack.enter_context(mock.patch.object(module.time, "time", self.clock))

    def teardown(self) -> None:
        """In the end everything is read once more, and nothing is left to say."""
        try:
            if self.ready():
                self.later(1)  # sacct's windows leave out their last second
                for which in (0, 1):
                    self.read(which, since=T - DAY)
                self.check()
                assert self.verify() == self.afresh()
        finally:
            self.stack.close()

    def ready(self) -> bool:
        return any(one.rows for one in self.clusters)

    def clock(self) -> int:
        return self.now

    def later(self, seconds: int) -> int:
        self.now += seconds
        return self.now

    # What happens to jobs.

    @rule(target=waiting, which=st.integers(0, 1), user=USERS, name=NAMES)
    def submit(self, which: int, user: str, name: str) -> tuple[int, dict]:
        return which, self.clusters[which].submit(self.later(7), User=user, JobName=name)

    @rule(target=arrays, which=st.integers(0, 1), user=USERS)
    def submit_array(self, which: int, user: str) -> tuple[int, dict, list[int]]:
        return which, self.clusters[which].array(self.later(5), 2, User=user), [1, 2]

    @rule(target=running, array=arrays)
    def start_task(self, array: tuple[int, dict, list[int]]) -> tuple[int, dict]:
        which, meta, left = array
        if not left:
            return which, meta
        task = left.pop(0)
        row = self.clusters[which].split(meta, task, ",".join(map(str, left)))
        self.clusters[which].start(row, self.later(60))
        return which, row

    @rule(which=st.integers(0, 1), user=USERS)
    def het_job(self, which: int, user: str) -> None:
        parts = self.clusters[which].het(self.later(3), 2, User=user)
        for row, tres in zip(parts, GPUS, strict=False):
            self.clusters[which].start(row, self.later(9), tres)
        end = self.later(HOUR)
        for row in parts:
            self.clusters[which].end(row, end)

    @rule(target=running, job=consumes(waiting), tres=st.sampled_from(GPUS))
    def start(self, job: tuple[int, dict], tres: str) -> tuple[int, dict]:
        which, row = job
        self.clusters[which].start(row, self.later(600), tres)
        return job

    @rule(job=consumes(waiting))
    def cancel_waiting(self, job: tuple[int, dict]) -> None:
        self.clusters[job[0]].end(job[1], self.later(20), "CANCELLED by 7")

    @rule(job=consumes(running), state=st.sampled_from(
        ["COMPLETED", "FAILED", "TIMEOUT", "NEWFANGLED", "CANCELLED by 12"]
    ), length=st.sampled_from([0, 1, HOUR, 30 * HOUR]))  # fmt: skip
    def end(self, job: tuple[int, dict], state: str, length: int) -> None:
        if job[1]["End"] == "Unknown":
            self.clusters[job[0]].end(job[1], self.later(length), state)

    @rule(target=waiting, job=consumes(running), state=st.sampled_from(["NODE_FAIL", "PREEMPTED"]))
    def requeue(self, job: tuple[int, dict], state: str) -> tuple[int, dict]:
        which, row = job
        if row["End"] != "Unknown":
            return self.submit_plain(which)
        return which, self.clusters[which].requeue(row, self.later(900), state)

    def submit_plain(self, which: int) -> tuple[int, dict]:
        return which, self.clusters[which].submit(self.later(1))

    @rule(target=running, job=consumes(running), tres=st.sampled_from(GPUS))
    def resize(self, job: tuple[int, dict], tres: str) -> tuple[int, dict]:
        which, row = job
        if row["End"] != "Unknown":
            return job
        return which, self.clusters[which].resize(row, self.later(800), tres)

    @rule(job=running, length=st.sampled_from([16, 900, 20 * HOUR]))
    def suspend(self, job: tuple[int, dict], length: int) -> None:
        if job[1]["End"] == "Unknown":
            begin = self.now
            self.clusters[job[0]].suspend(job[1], begin, self.later(length))

    # What happens to slurmdbd.

    @rule(job=consumes(running))
    def end_comes_late(self, job: tuple[int, dict]) -> None:
        if job[1]["End"] == "Unknown":
            begun = max([int(job[1]["Start"]), *(b for _, b in job[1].get("halts", ()))])
            self.clusters[job[0]].end(job[1], min(begun + 60, self.now), "FAILED")

    @rule(job=consumes(running))
    def runaway(self, job: tuple[int, dict]) -> None:
        if job[1]["End"] == "Unknown" and "halts" not in job[1]:
            self.clusters[job[0]].fix_runaway(job[1])

    @rule(which=st.integers(0, 1), data=st.data())
    def correct(self, which: int, data: st.DataObject) -> None:
        """An operator changes what the newest rows say they held."""
        ended = [row for row in self.clusters[which].rows if row["End"] != "Unknown"]
        recent = [row for row in ended if int(row["End"]) > self.now - DAY and row["AllocTRES"]]
        if recent:
            data.draw(st.sampled_from(recent))["AllocTRES"] = data.draw(st.sampled_from(GPUS))

    @rule(which=st.integers(0, 1))
    def ids_begin_again(self, which: int) -> None:
        self.clusters[which].wrap(1)
        self.later(400)  # longer than what makes two runs one job's

    @rule(hours=st.sampled_from([1, 5, 24, 70]))
    def time_goes_by(self, hours: int) -> None:
        self.later(hours * HOUR)

    # What happens to the ingest.

    @rule(which=st.integers(0, 1), size=st.sampled_from([1, 3, 1000]))
    def read(self, which: int, size: int = 1000, since: int | None = None) -> None:
        with mock.patch.object(module, "_BATCH", size):
            ingest(self.ledger, self.clusters[which].sacct, since=since)

    @rule(which=st.integers(0, 1), line=st.integers(0, 40))
    def read_and_be_killed(self, which: int, line: int) -> None:
        """At a line of sacct, in the reading or in the middle of a transaction."""
        one = self.clusters[which]
        with mock.patch.object(module, "_BATCH", 2), dying(one, line), suppress(Killed):
            ingest(self.ledger, one.sacct)
        self.verify()

    @rule(which=st.integers(0, 1), times=st.sampled_from(["UTC", "Europe/Berlin"]))
    def read_a_dump(self, which: int, times: str, tmp: str = "") -> None:
        """All rows as a file, read in between."""
        one = self.clusters[which]
        mark = "\x1f|"
        shown = "\n".join(mark.join(row[field] for field in SACCT_FIELDS) for row in one.rows)
        file = SacctFile(
            "dump", BytesIO(shown.encode()), one.sacct.cluster, SACCT_FIELDS, mark, find_zone(times)
        )
        ingest_file(self.ledger, file)

    def verify(self, ledger: Ledger | None = None) -> str:
        with (ledger or self.ledger).transaction() as connection:
            found = verify(connection)
        assert found.wrong == []
        return found.checksum

    def afresh(self) -> str:
        """The checksum of new books, in SQLite, that read everything once."""
        with TemporaryDirectory() as folder, open_for_writing(f"sqlite:///{folder}/b.db") as new:
            for one in reversed(self.clusters):
                ingest(new, one.sacct, since=T - DAY)
            return self.verify(new)

    def check(self) -> None:
        """The books beside slurmdbd, run by run and second by second."""
        for one in self.clusters:
            for row in one.rows:
                assert stored(self.ledger, one.sacct.cluster, row) == said(row)
        expected = oracle(self.clusters)
        for width in (HOUR, DAY):
            assert gpu_seconds(self.ledger, width) == binned(expected, width)
        assert halted_seconds(self.ledger) == sum(
            b - a
            for row in chain.from_iterable(one.rows for one in self.clusters)
            for a, b in row.get("halts", ())
        )


@contextmanager
def dying(cluster: Slurmdbd, line: int) -> Iterator[None]:
    """Kill the ingest at a line that sacct prints."""
    left = [line]
    whole = cluster.sacct.stream

    def stream(argv, *, timeout=None):
        for text in whole(argv):
            if not left[0]:
                raise Killed
            left[0] -= 1
            yield text

    with mock.patch.object(cluster.sacct, "stream", stream):
        yield


def said(row: dict) -> tuple:
    times = [None if row[name] == "Unknown" else int(row[name]) for name in ("Start", "End")]
    return (*times, row["State"].partition(" ")[0], row["AllocTRES"], row["User"], row["JobID"])


def stored(ledger: Ledger, cluster: str, row: dict) -> tuple | None:
    names = ("start", "end", "state", "alloc_tres", "user", "job_id")
    query = select(*(runs.c[name] for name in names)).join(clusters)
    where = (clusters.c.name == cluster, runs.c.db_index == int(row["DBIndex"]))
    with ledger.transaction() as connection:
        found = connection.execute(query.where(*where)).first()
    return found and tuple(found)


def oracle(both: list[Slurmdbd]) -> list[tuple[int, int, int]]:
    """Start, end and GPUs of every run that has ended, straight from slurmdbd."""
    found = []
    for row in chain.from_iterable(one.rows for one in both):
        if "Unknown" not in (row["Start"], row["End"]):
            tres = dict(item.split("=") for item in row["AllocTRES"].split(","))
            gpus = int(tres.get("gres/gpu", tres.get("gres/shard", 0)))
            found.append((int(row["Start"]), int(row["End"]), gpus))
    return found


def binned(held: list[tuple[int, int, int]], width: int) -> dict[int, int]:
    sums: dict[int, int] = defaultdict(int)
    for start, end, gpus in held:
        at = start
        while at < end:  # from edge to edge
            edge = min((at // width + 1) * width, end)
            sums[at // width * width] += gpus * (edge - at)
            at = edge
    return {begin: seconds for begin, seconds in sums.items() if seconds}


def gpu_seconds(ledger: Ledger, width: int) -> dict[int, int]:
    """By hour or day, of the runs that have ended."""
    with ledger.transaction() as connection:
        last = connection.scalar(select(func.max(runs.c.end))) or T
        edges = tuple(range(T - DAY, last + 2 * width, width))
        sums: dict[int, int] = defaultdict(int)
        for (part, _), held in query_usage(connection, UsageQuery(edges, 0)).items():
            sums[edges[part]] += held[SUM_INDEX["gpu_seconds"]]
    return {begin: seconds for begin, seconds in sums.items() if seconds}


def halted_seconds(ledger: Ledger) -> int:
    with ledger.transaction() as connection:
        return int(connection.scalar(select(func.sum(suspensions.c.seconds))) or 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_books_say_what_slurmdbd_says(kind: str, tmp_path) -> None:
    numbers = iter(range(10**6))

    def cluster() -> Cluster:
        if kind == "postgresql":
            return Cluster(emptied())
        return Cluster(f"sqlite:///{tmp_path}/ledger{next(numbers)}.db")

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        cluster,
        settings=settings(
            max_examples=examples(5 if kind == "postgresql" else 20),
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
