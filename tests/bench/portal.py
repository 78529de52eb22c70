"""How long the server takes for each of the portal's pages on a ledger of ten million runs.

The runs are those of two years, by 1,000 people in 100 groups. With the database of
SLURMKIT_TEST_POSTGRES, which must be empty, they are there; else in a SQLite file.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ledger.database import Ledger, open_for_reading, open_for_writing
from slurmkit_accounting.people.model import Directory, GroupEntry, PersonEntry
from slurmkit_accounting.people.sync import PeopleData, sync_people
from slurmkit_accounting.portal.app import portal_application
from slurmkit_accounting.portal.context import Portal
from slurmkit_accounting.portal.login_limits import LoginLimits
from slurmkit_accounting.portal.sessions import SessionStore
from slurmkit_accounting.portal.settings import PortalSection
from slurmkit_accounting.portal.view_log import ViewLog
from slurmkit_accounting.service.permissions import Permissions
from sqlalchemy import text

from slurmkit.testing import FakeSlurm
from tests.bench.lab import Budget, median_ms, say
from tests.bench.reports import JOBS, RUNS, USERS, Shape, fill

HOST = "gpu.example.org"
OPERATOR = "daemon"  # an account of every host
NOW = int(dt.datetime(2026, 12, 20, 12, tzinfo=dt.UTC).timestamp())
YEARS = (2025, 2026)
GROUP = 10  # people of a group; the first is its PI
PI, MEMBER = "user10", "user11"
LIMIT = 200  # ms
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
    client = _application(ledger, folder).test_client()
    seconds = []
    for _ in range(RUNS + 1):  # the first compiles the templates and logs in
        begun = time.perf_counter()
        answer = client.get(path, base_url=f"https://{HOST}", headers={"X-Remote-User": who})
        seconds.append(time.perf_counter() - begun)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
    took = median_ms(seconds[1:])
    return Budget(name, took, f"{LIMIT} ms", None, took < LIMIT)


def _application(ledger: Ledger, folder: Path) -> Any:
    section = PortalSection(
        login=("header",), listen="unix:/run/portal.sock", url=f"https://{HOST}"
    )
    slurm = FakeSlurm({"sacctmgr": lambda *_: ""})
    log = _no_log
    return portal_application(
        Portal(
            section=section,
            open_ledger=lambda: nullcontext(ledger),
            open_to_change=lambda: nullcontext(ledger),
            permissions=Permissions(ServiceSection(operators=(OPERATOR,)), slurm, log),
            sessions=SessionStore(
                folder / "sessions", idle_seconds=3600, session_seconds=3600, clock=lambda: NOW
            ),
            limits=LoginLimits(lambda: NOW),
            views=ViewLog(lambda: nullcontext(ledger), log, 30),
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
