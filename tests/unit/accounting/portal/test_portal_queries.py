"""What the pages of the portal ask the database: never all runs, and nothing twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from portal_lab import NOW, OPERATOR, PortalLab
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.database import (
    Ledger,
    once,
    open_for_reading,
    open_for_writing,
    reading_once,
)
from slurmkit_accounting.ledger.schema.runs import clusters, runs
from slurmkit_accounting.ledger.schema.types import begins_with
from slurmkit_accounting.usage.closed_months import close_month
from slurmkit_accounting.usage.partial import is_of_job
from sqlalchemy import event, insert, select
from sqlalchemy.dialects import postgresql

HOUR = 3600
# Partial indices: few runs are in them, so all of them may be read.
FEW = "runs_open|runs_long|runs_suspended|runs_doubtful|runs_gone|runs_retracted|runs_cut_short"
PATHS = (
    "/", "/account", "/run/1", "/report/explain", "/report/usage", "/report/efficiency",
    "/report/wait", "/report/capacity", "/report/budget", "/report/nodes", "/report/reclaimed",
    "/report/explain?state=FAILED", "/report/explain?user=alice", "/report/explain?runs=lost",
    "/report/explain?runs=started", "/report/explain?runs=measured", "/report/explain?runs=waiting",
    "/report/benchmark", "/statements", "/statements/2026-10", "/idle", "/?of=",
    "/report/usage?user=alice", "/report/wait?user=alice", "/report/efficiency?user=alice",
)  # fmt: skip
OF_A_JOB = (
    "/job/1", "/job/12", "/job/1?cluster=lab", "/report/explain?job=1&from=1970-01-02",
    "/report/usage?job=1&from=1970-01-02", "/report/efficiency?job=1&from=1970-01-02",
    "/report/explain?job=sCM1M8QBT2BE00,1&from=1970-01-02",
)  # fmt: skip


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with open_for_writing(f"sqlite:///{tmp_path_factory.mktemp('books')}/ledger.db") as ledger:
        jobs = [
            run("alice", BEGIN + DAY, BEGIN + DAY + HOUR, gpus={"a100": 2}, state="FAILED"),
            run("alice", NOW - 2 * HOUR, None, gpus={"a100": 2}, state="RUNNING", last_seen=NOW),
            run("bob", BEGIN, BEGIN + HOUR, gpus={"a100": 1}),
        ]
        jobs += [
            run("bob", BEGIN, BEGIN + HOUR, other={"job_id": each})
            for each in ("12", "12_3", "12+1", "120", "12`", "12,", "120_3", "112_3", "12a")
        ]
        write_books(ledger, jobs)
        close_month(ledger, "2026-10", find_zone("UTC"), NOW)
        yield ledger


class Watched:
    """The statements that a page sends."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.sent: list[tuple[str, Any]] = []
        event.listen(ledger.engine, "before_cursor_execute", self._note)

    def _note(self, _: Any, __: Any, statement: str, given: Any, *___: Any) -> None:
        self.sent.append((statement, given))

    def plans(self) -> set[str]:
        """How SQLite finds the runs."""
        reads = [each for each in self.sent if each[0].lstrip().startswith("SELECT")]
        raw = self.ledger.engine.raw_connection()
        try:
            steps = [
                row[3]
                for statement, given in reads
                for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}", given).fetchall()
            ]
        finally:
            raw.close()
        return {each for each in steps if re.match(r"(SCAN|SEARCH) (runs|one)\b", each)}


# Whose GPU-hours Home shows can be chosen; not everybody has each choice.
CHOICES = (
    ("alice", "/?of=own"), ("vogel", "/?of=own"), ("vogel", "/?of=group"), (OPERATOR, "/?of=site"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("user", "path"),
    [
        *((user, path) for path in (*PATHS, *OF_A_JOB) for user in ("alice", "vogel", OPERATOR)),
        *CHOICES,
    ],
)
def test_no_page_reads_all_runs(books: Ledger, tmp_path: Path, user: str, path: str) -> None:
    browser = PortalLab(books, tmp_path).browser(user)
    browser.get("/account")
    watched = Watched(books)
    answer = browser.get(path)
    assert answer.status_code == (404 if path == "/job/12" and user != OPERATOR else 200)
    for plan in watched.plans():
        assert not plan.startswith("SCAN") or re.search(rf"USING INDEX ({FEW})\b", plan), plan
        # Of a user or of the cluster, only runs of the window, or without an end.
        assert not re.search(r"runs_by_(user|end) \((user=\?|end<\?)\)", plan), plan
        if path in OF_A_JOB:
            assert not re.search(r"end[<>]\?", plan), plan
    if path in OF_A_JOB:
        assert any("runs_by_job_id" in plan for plan in watched.plans())


@pytest.mark.parametrize("user", ["alice", "vogel", OPERATOR])
def test_home_reads_people_and_keys_once(books: Ledger, tmp_path: Path, user: str) -> None:
    browser = PortalLab(books, tmp_path).browser(user)
    browser.get("/account")
    watched = Watched(books)
    assert browser.get("/").status_code == 200
    statements = [" ".join(statement.split()) for statement, _ in watched.sent]
    all_keys = re.compile(r"SELECT usage_keys\.id.* FROM usage_keys$")
    assert sum(" FROM memberships" in each for each in statements) == 1
    assert sum(all_keys.match(each) is not None for each in statements) <= 1
    assert len(statements) < 170


def test_what_is_read_once_is_read_again_by_the_next_page(books: Ledger) -> None:
    def read(value: int) -> int:
        with books.transaction() as connection:
            return once(connection, "n", lambda: value)

    assert [read(1), read(2)] == [1, 2]
    with reading_once(books):
        assert [read(3), read(4)] == [3, 3]
    with reading_once(books):
        assert read(5) == 5


def test_a_page_sees_the_ledger_as_it_was_when_it_began(tmp_path: Path) -> None:
    """An ingest may end a run between two reports of a page, which would count it twice."""

    def names(ledger: Ledger) -> list[str]:
        with ledger.transaction() as connection:
            return list(connection.scalars(select(clusters.c.name)))

    url = f"sqlite:///{tmp_path}/ledger.db"
    with open_for_writing(url) as writer, open_for_reading(url) as ledger:
        with reading_once(ledger):
            assert names(ledger) == []
            with writer.transaction() as connection:
                connection.execute(insert(clusters).values(name="new"))
            assert names(ledger) == []
        assert names(ledger) == ["new"]


def test_a_job_is_itself_and_its_parts(books: Ledger) -> None:
    def jobs(asked: str) -> set[str]:
        with books.transaction() as connection:
            return set(connection.scalars(select(runs.c.job_id).where(is_of_job(asked))))

    assert jobs("12") == {"12", "12_3", "12+1"}
    assert jobs("12_3") == {"12_3"}
    assert jobs("12,120") == {"12", "12_3", "12+1", "120", "120_3"}
    assert jobs("7777") == set()
    assert len(jobs(",".join(map(str, range(1, 201))))) > 5


def test_postgresql_finds_the_begin_of_a_text_by_like() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    compiled = begins_with(runs.c.job_id, "12_").compile(dialect=dialect)
    assert str(compiled).startswith("(runs.job_id LIKE ")
    assert "12/_%" in compiled.params.values()
