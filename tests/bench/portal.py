"""How long the server takes for each of the portal's pages on a ledger of ten million runs.

The runs are those of two years, by 1,000 people in 100 groups. With the database of
SLURMKIT_TEST_POSTGRES, which must be empty, they are there; else in a SQLite file.
"""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ingest.file import SacctFile, ingest_file
from slurmkit_accounting.ledger.database import Ledger, open_for_reading, open_for_writing
from slurmkit_accounting.people.model import Directory, GroupEntry, PersonEntry
from slurmkit_accounting.people.sync import PeopleData, sync_people
from slurmkit_accounting.portal.app import portal_application
from slurmkit_accounting.portal.context import Portal
from slurmkit_accounting.portal.listener import THREADS
from slurmkit_accounting.portal.login_limits import LoginLimits
from slurmkit_accounting.portal.sessions import SessionStore
from slurmkit_accounting.portal.settings import PortalSection
from slurmkit_accounting.portal.view_log import ViewLog
from slurmkit_accounting.sacct.query import SACCT_FIELDS
from slurmkit_accounting.service.listening import serving_on
from slurmkit_accounting.service.permissions import Permissions
from sqlalchemy import text

from slurmkit.testing import FakeSlurm
from tests.bench import ingest
from tests.bench.lab import Budget, median_ms, say
from tests.bench.reports import JOBS, RUNS, USERS, Shape, fill

HOST = "gpu.example.org"
OPERATOR = "daemon"  # an account of every host
NOW = int(dt.datetime(2026, 12, 20, 12, tzinfo=dt.UTC).timestamp())
YEARS = (2025, 2026)
GROUP = 10  # people of a group; the first is its PI
PI, MEMBER = "user10", "user11"
LIMIT = 200  # ms
PEOPLE, READING = 50, 20  # people who click, and the seconds that each looks at a page, on average
ROWS = 300_000  # of an ingest beside them
TIMES = 1.2
PAGES = {
    MEMBER: {
        "Home": "/",
        "Runs": "/report/explain",
        "Job": "/job/{job}",
        "Run": "/run/{job}",
        "Account": "/account",
    },
    PI: {
        "Home": "/",
        "GPU-hours by user": "/report/usage?by=user",
        "GPU-hours of two years by month and user": (
            "/report/usage?by=month,user&from=2025-01-01&to=2026-12-20"
        ),
        "Runs": "/report/explain",
        "Efficiency": "/report/efficiency",
        "Wait": "/report/wait",
        "Budgets": "/report/budget",
    },
    OPERATOR: {
        "Home": "/",
        "GPU-hours by PI": "/report/usage",
        "GPU-hours of two years by month": "/report/usage?by=month&from=2025-01-01&to=2026-12-20",
        "Runs of a user": "/report/explain?user=user11",
        "Efficiency": "/report/efficiency",
        "Wait": "/report/wait",
        "Capacity": "/report/capacity",
        "Nodes": "/report/nodes",
        "Idle GPUs": "/report/reclaimed",
        "Idle now": "/idle",
        "Statements": "/statements",
    },
}


def budgets(jobs: int = JOBS) -> Iterator[Budget]:
    """Measure each page, as the request of a browser without the network."""
    with tempfile.TemporaryDirectory() as folder:
        url = os.environ.get("SLURMKIT_TEST_POSTGRES") or f"sqlite:///{folder}/ledger.db"
        make_ledger(url, jobs)
        with open_for_reading(url) as ledger:
            job = (jobs // USERS - 1) * USERS + 11  # one of the last ones of the MEMBER
            for who, path, name in _pages():
                yield _measured(ledger, Path(folder), who, name, path.format(job=job))
        yield from _beside_an_ingest(url, Path(folder))


def make_ledger(url: str, jobs: int) -> None:
    """Fill an empty ledger with people and their runs of two years."""
    say(f"making a ledger of {jobs:,} runs in two years")
    months = tuple(
        int(dt.datetime(year, month, 1, tzinfo=dt.UTC).timestamp())
        for year in YEARS
        for month in range(1, 13)
    )
    with open_for_writing(url) as ledger:
        sync_people(ledger, PeopleData(_directory()), now=1)
        with ledger.transaction() as connection:
            running = (100, NOW - 7 * 86400)
            fill(connection, jobs, Shape((*months, NOW // 86400 * 86400), 4, running))
            connection.execute(text("ANALYZE"))


def _directory() -> Directory:
    people = tuple(
        PersonEntry(
            dn=f"uid=user{at}", directory_id=f"p{at}", username=f"user{at}", uid=10_000 + at,
            display_name=f"User {at}", mail=f"user{at}@example.org", active=True,
        )
        for at in range(USERS)
    )  # fmt: skip
    groups = tuple(
        GroupEntry(
            dn=f"cn=account{at}", directory_id=f"g{at}", name=f"account{at}",
            members=tuple(f"uid=user{each}" for each in range(at * GROUP, (at + 1) * GROUP)),
            owners=(f"uid=user{at * GROUP}",),
        )
        for at in range(USERS // GROUP)
    )  # fmt: skip
    return Directory(people, groups)


def _pages() -> Iterator[tuple[str, str, str]]:
    for who, pages in PAGES.items():
        role = {OPERATOR: "operator", PI: "PI", MEMBER: "researcher"}[who]
        for name, path in pages.items():
            yield who, path, f"portal, {name}, {role}"


def _measured(ledger: Ledger, folder: Path, who: str, name: str, path: str) -> Budget:
    client = _application(lambda: nullcontext(ledger), folder).test_client()
    seconds = []
    for _ in range(RUNS + 1):  # the first compiles the templates and logs in
        begun = time.perf_counter()
        answer = client.get(path, base_url=f"https://{HOST}", headers={"X-Remote-User": who})
        seconds.append(time.perf_counter() - begun)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
    took = median_ms(seconds[1:])
    return Budget(name, took, f"{LIMIT} ms", None, took < LIMIT)


def _beside_an_ingest(url: str, folder: Path) -> Iterator[Budget]:
    """The ingest, the pages and the people are a process each."""
    ingest.write(folder / "dump.txt", ROWS)
    say(f"ingesting {ROWS:,} rows, alone and beside {PEOPLE} people")
    alone = _ingest(url, folder, "alone")
    path = str(folder / "portal.sock")
    context = multiprocessing.get_context("spawn")
    ready, stop, times = context.Barrier(3), context.Event(), context.Queue()
    left = context.Event()
    pages = context.Process(target=_serve, args=(url, folder, path, ready, left))
    people = context.Process(target=_click, args=(path, ready, stop, times))
    pages.start()
    people.start()
    ready.wait()
    beside = _ingest(url, folder, "beside")
    stop.set()
    seconds = times.get()
    people.join()
    left.set()
    pages.join()
    what = f"portal, ingest of {ROWS:,} rows beside {PEOPLE} people"
    holds = beside <= TIMES * alone
    yield Budget(what, beside * 1000, f"{TIMES} × the same alone", alone * 1000, holds)
    took = median_ms(seconds)
    yield Budget(f"the same, their {len(seconds)} pages", took, f"{LIMIT} ms", None, took < LIMIT)


def _serve(url: str, folder: Path, path: str, ready: Any, left: Any) -> None:
    app = _application(lambda: open_for_reading(url), folder)
    with serving_on(f"unix:{path}", app, THREADS):
        ready.wait()
        left.wait()


def _ingest(url: str, folder: Path, cluster: str) -> float:
    """Read the dump as the runs of a cluster of its own; return the seconds."""
    with open_for_writing(url) as ledger, (folder / "dump.txt").open("rb") as stream:
        begun = time.perf_counter()
        file = SacctFile(cluster, stream, cluster, SACCT_FIELDS, "|", find_zone("UTC"))
        ingest_file(ledger, file)
        return time.perf_counter() - begun


def _click(path: str, ready: Any, stop: Any, times: Any) -> None:
    """Load pages as many people do, until `stop`; put the seconds of each page into `times`."""
    ready.wait()
    seconds: list[float] = []
    everybody = [
        threading.Thread(target=_click_as, args=(number, path, stop, seconds))
        for number in range(PEOPLE)
    ]
    for each in everybody:
        each.start()
    for each in everybody:
        each.join()
    times.put(seconds)


def _click_as(number: int, path: str, stop: Any, seconds: list[float]) -> None:
    """Of ten people, eight are members of groups, and one is a PI; one of all is an operator."""
    chance = random.Random(number)
    role = OPERATOR if number == 0 else PI if number % 10 == 1 else MEMBER
    user = {OPERATOR: OPERATOR, PI: f"user{number // 10 * 10}"}.get(role, f"user{number * 10 + 1}")
    pages = [page for page in PAGES[role].values() if "{job}" not in page]
    wait = chance.random() * READING
    while not stop.wait(wait):
        connection = HTTPConnection(HOST)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(path)
        begun = time.perf_counter()
        connection.request("GET", chance.choice(pages), headers={"X-Remote-User": user})
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:  # not: too many pages at a time
            seconds.append(time.perf_counter() - begun)
        connection.close()
        wait = chance.expovariate(1 / READING)


def _application(open_ledger: Callable[[], AbstractContextManager[Ledger]], folder: Path) -> Any:
    section = PortalSection(
        login=("header",), listen="unix:/run/portal.sock", url=f"https://{HOST}"
    )
    slurm = FakeSlurm({"sacctmgr": lambda *_: ""})
    log = _no_log
    return portal_application(
        Portal(
            section=section,
            open_ledger=open_ledger,
            open_to_change=open_ledger,
            permissions=Permissions(ServiceSection(operators=(OPERATOR,)), slurm, log),
            sessions=SessionStore(
                folder / "sessions", idle_seconds=3600, session_seconds=3600, clock=lambda: NOW
            ),
            limits=LoginLimits(lambda: NOW),
            views=ViewLog(open_ledger, log, 30),
            check_password=lambda *_: None,  # type: ignore[arg-type, return-value]
            proxy_secret="",
            zone=find_zone("Europe/Berlin"),
            log=log,
            clock=lambda: NOW,
        )
    )


def _no_log(what: str, **facts: object) -> None:
    if what == "failed":
        raise AssertionError(facts)


if __name__ == "__main__":
    for each in budgets(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS):
        print(each.row(), flush=True)
