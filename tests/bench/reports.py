"""How long a month's report takes over a ledger of ten million runs."""

# ruff: noqa: S608 - SQL of constants, for a database that is thrown away
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slurmkit_accounting import read
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.ledger.schema.usage import RATES, USAGE_COLUMNS
from slurmkit_accounting.usage import query
from sqlalchemy import Connection, text

from tests.bench.lab import Budget, median_ms, say

RUNS = 5
JOBS = 10_000_000
BEGIN = 1_793_491_200  # 2026-11-01 UTC
DAYS = 30
# 1,000 people who use 3 partitions each day, whose runs end in 4 ways.
USERS, PARTITIONS, STATES = 1000, 3, 4
_KEYS = USERS * PARTITIONS * STATES


def budgets(jobs: int = JOBS) -> Iterator[Budget]:
    """Measure the query and the whole command, in a month that needs hours at its edges too."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/ledger.db"
        say(f"making a ledger of {jobs:,} runs in one month")
        with open_for_writing(url) as ledger, ledger.transaction() as connection:
            fill(connection, jobs)
        say("reporting")
        what = f"month of {jobs:,} runs"
        queried, reported = _in_process(url)
        yield Budget(f"{what}, query", queried, "1,000 ms", None, queried < 1000)
        yield Budget(f"{what}, report by PI", reported, "2,000 ms", None, reported < 2000)
        command = _command(url, Path(folder))
        yield Budget(f"{what}, slurmkit report usage", command, "2,000 ms", None, command < 2000)


class Shape(NamedTuple):
    """How the runs of a ledger are spread over time.

    Attributes:
        months: begins of the UTC months, epoch seconds, and the end.
        every: usage of a key is in each so many days, and in each 8 times so many hours.
        running: one in so many runs still runs, of those that began since then (epoch seconds).
    """

    months: tuple[int, ...] = (BEGIN, BEGIN + DAYS * 86400)
    every: int = 1
    running: tuple[int, int] = (10_000, 0)


def fill(connection: Connection, jobs: int, shape: Shape = Shape()) -> None:  # noqa: B008
    """Runs, and the usage of as many: each key the same each hour, which sums up to the days'."""
    begin, end = shape.months[0], shape.months[-1]
    connection.execute(text("INSERT INTO clusters (id, name, tracks_gpus) VALUES (1, 'lab', true)"))
    connection.execute(
        text(
            "INSERT INTO ingests (cluster_id, started, ended, window_from, window_to)"
            f" VALUES (1, {end + 10 * 86400}, {end + 10 * 86400}, 0, 1)"
        )
    )
    of, since = shape.running
    spread = {"jobs": jobs, "begin": begin, "seconds": end - begin, "of": of, "since": since}
    connection.execute(text(_RUNS), spread)
    connection.execute(text(_KEYS_SQL), {"keys": _KEYS})
    per_hour = max(jobs * 3600 * shape.every // (_KEYS * (end - begin)), 1)
    bins = {
        "usage_hours": _every("bin", begin, end, 3600),
        "usage_days": _every("bin", begin, end, 86400),
        "usage_months": " UNION ALL ".join(f"SELECT {month} AS bin" for month in shape.months[:-1]),
    }
    for table, hours, some, change in _TABLES:
        sums = ", ".join(_number(name, per_hour * hours, change) for name in USAGE_COLUMNS)
        connection.execute(
            text(
                f"WITH RECURSIVE bins(bin) AS ({bins[table]}), {_counted('keys', _KEYS)}"
                f" INSERT INTO {table} (bin, key_id, {', '.join(USAGE_COLUMNS)})"
                f" SELECT bin, n, {sums} FROM bins, keys WHERE n > 0 {some} ORDER BY 1, 2"
            ),
            {"every": shape.every},
        )
    if (
        connection.dialect.name == "postgresql"
    ):  # whose counters know nothing of ids that were given
        for table in ("clusters", "usage_keys"):
            counter = f"pg_get_serial_sequence('{table}', 'id')"
            connection.execute(text(f"SELECT setval({counter}, max(id)) FROM {table}"))


# Of the hours only every eighth: nobody runs all day long. What is held at once changes by one.
_TABLES = (
    (
        "usage_hours", 1, "AND (bin / 3600 + n) % (8 * :every) = 0",
        "CASE (bin / 3600 + n) / (8 * :every) % 2 WHEN 0 THEN 1 ELSE -1 END",
    ),
    (
        "usage_days", 24, "AND (bin / 86400 + n) % :every = 0",
        "CASE (bin / 86400 + n) / :every % 2 WHEN 0 THEN 1 ELSE -1 END",
    ),
    ("usage_months", DAYS * 24, "", "0"),
)  # fmt: skip


def _every(name: str, begin: int, end: int, width: int) -> str:
    return (
        f"SELECT {begin} UNION ALL SELECT {name} + {width} FROM bins WHERE {name} + {width} < {end}"
    )


def _number(name: str, runs: int, change: str) -> str:
    if name.startswith("nodeless"):
        return "0"
    if name in RATES:
        return change
    return str(runs if name == "started" else runs * 3600)


def _counted(name: str, last: int) -> str:
    return f"{name}(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM {name} WHERE n < {last})"


_NAMES = (
    f"'user' || (n % {USERS}), 10000 + n % {USERS}, 'account' || (n % {USERS} / 10),"
    f" 'partition' || (n / {USERS} % {PARTITIONS}), 'normal'"
)
_KEYS_SQL = (
    "WITH RECURSIVE keys(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM keys WHERE n < :keys - 1)"
    ' INSERT INTO usage_keys (id, cluster_id, "user", uid, account, partition, qos, state, redone,'
    f" gpu_type, era) SELECT n + 1, 1, {_NAMES}, CASE n / {USERS * PARTITIONS} WHEN 0 THEN"
    " 'COMPLETED' WHEN 1 THEN 'FAILED' WHEN 2 THEN 'TIMEOUT' ELSE 'CANCELLED' END, false,"
    f" CASE n / {USERS} % {PARTITIONS} WHEN 0 THEN '-' WHEN 1 THEN 'a100' ELSE 'h100' END, 0"
    " FROM keys"
)
_START = ":begin + CAST(n AS BIGINT) * :seconds / :jobs"
_RUNS = (
    "WITH RECURSIVE runs_(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM runs_ WHERE n < :jobs)"
    ' INSERT INTO runs (cluster_id, db_index, job_id_raw, job_id, "user", uid, account, partition,'
    ' qos, state, submit, eligible, start, "end", nodes, cpus, gpus, alloc_tres, req_tres,'
    " time_limit, exit_code, node_list, name)"
    f" SELECT 1, n, n, n, {_NAMES}, 'COMPLETED', {_START} - 60, :begin, {_START},"
    f" CASE WHEN n % :of = 0 AND {_START} >= :since THEN NULL ELSE {_START} + n % 5000 END, 1,"
    " 4, 1, 'cpu=4,mem=8G,node=1,gres/gpu=1,gres/gpu:a100=1', '', '60', '0:0', 'c1', 'train'"
    " FROM runs_"
)


def _in_process(url: str) -> tuple[float, float]:
    """Milliseconds of the query alone, and of the report with everything it says."""
    queries, reports = [], []
    asked = query.UsageQuery((BEGIN + 3600, BEGIN + DAYS * 86400 - 3600), BEGIN + 40 * 86400)
    os.environ["SLURMKIT_DB"] = url
    with read.ledger(url) as books:
        assert isinstance(books, read.Ledger)
        for _ in range(RUNS):
            begun = time.perf_counter()
            with books.transaction() as connection:
                query.query_usage(connection, asked)
            queries.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            read.usage(books, "2026-11-01", "2026-12-01", by="pi", timezone="Europe/Berlin")
            reports.append(time.perf_counter() - begun)
    return median_ms(queries), median_ms(reports)


def _command(url: str, folder: Path) -> float:
    window = ["--from", "2026-11-01", "--to", "2026-12-01", "--timezone", "Europe/Berlin"]
    words = [sys.executable, "-m", "slurmkit", "report", "usage", *window, "--db", url]
    seconds = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        subprocess.run(words, check=True, capture_output=True, cwd=folder)
        seconds.append(time.perf_counter() - begun)
    return median_ms(seconds)


if __name__ == "__main__":
    for each in budgets(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS):
        print(each.row())
