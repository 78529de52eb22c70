"""How fast rows come into the ledger: from a file, beside slurm2sql; live, beside sacct."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from slurmkit_accounting import read as usage_reports
from slurmkit_accounting.audit.verify import verify
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ingest.file import SacctFile, ingest_file
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.people.sync import PeopleData, PiOverride, sync_people
from slurmkit_accounting.sacct.query import SACCT_FIELDS

from tests.bench import history
from tests.bench.lab import Budget, Lab, median_ms, say

ROWS = 1_000_000
PEER_ROWS = 200_000
MEGABYTES = 350  # of which malloc keeps the larger part, free
TIMES = 5.1  # as many as slurm2sql
FILE_ROUNDS = 3
LIVE_ROUNDS, LIVE_DAYS = 1, 10
REPORTS = 5
_FOLDER = "/tmp/bench-ledger"  # on the login node
_BEGIN, _MONTH = 1_793_491_200, 30 * 86400
LONG_ROWS, LONG_DAYS, LONG_TIMES = 200_000, 60, 3
POSTGRES_TIMES = 0.25  # as fast as SQLite: it checks each foreign key, row by row
LONG_BEGIN, LONG_SPAN = 1_767_225_600, 365 * 86400  # 2026
_STATES = ("COMPLETED", "FAILED", "CANCELLED by 7", "TIMEOUT", "OUT_OF_MEMORY", "REQUEUED")
_INSIDE = Path(__file__).parent / "inside"


def from_a_file() -> Generator[Budget, None, float | None]:
    """A month of a million runs, new and once more unchanged; beside a peer, in each round.

    Of each its fastest round counts: what else the machine does can only take time away.

    Returns:
        Rows that the peer reads in a second; None where it cannot be installed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say(f"writing {ROWS:,} rows")
        write(folder / "dump.txt", ROWS)
        peer = _peer(folder)
        found: dict[str, list[dict[str, float]]] = {
            what: [] for what in ("new", "again, unchanged")
        }
        theirs: list[float] = []
        for number in range(FILE_ROUNDS):
            say(f"reading them: round {number + 1} of {FILE_ROUNDS}")
            for file in (*folder.glob("ledger.db*"), *folder.glob("peer.db*")):
                file.unlink()
            for rounds in found.values():
                rounds.append(_apart(folder, _sqlite(folder)))
            if peer:
                theirs.append(_speed_of(peer, folder))
    fastest = max(theirs, default=None)
    for what, rounds in found.items():
        yield from _of_rounds(f"{ROWS:,} rows from a file, {what}, on one core", rounds, fastest)
    return fastest


def _of_rounds(what: str, rounds: list[dict[str, float]], peer: float | None) -> Iterator[Budget]:
    speeds = [found["rows"] / found["cpu"] for found in rounds]
    size = max(found["megabytes"] for found in rounds)
    say(f"{what}: {', '.join(f'{each:,.0f}' for each in speeds)} rows/s")
    yield _beside_peer(what, max(speeds), TIMES, peer)
    yield Budget("the same, memory", size, f"{MEGABYTES} MB", None, size < MEGABYTES, "MB")


def _beside_peer(what: str, speed: float, times: float, peer: float | None) -> Budget:
    limit, holds = f"{times} × slurm2sql of PyPI", None if peer is None else speed >= times * peer
    return Budget(what, speed, limit, peer, holds, "rows/s")


def long_runs(peer: float | None) -> Iterator[Budget]:
    """Runs of many weeks, each under a usage key of its own: usage must not grow with the hours.

    Args:
        peer: see `from_a_file`. Machines differ, so limits are told in rows of the peer.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say(f"writing {LONG_ROWS:,} rows of long runs")
        write_long_runs(folder / "dump.txt", LONG_ROWS)
        url = _sqlite(folder)
        found = _apart(folder, url)
        what = f"{LONG_ROWS:,} runs of up to {LONG_DAYS} days, each with a usage key of its own"
        speed, megabytes = found["rows"] / found["cpu"], found["megabytes"]
        yield _beside_peer(what, speed, LONG_TIMES, peer)
        yield Budget(
            "the same, memory", megabytes, f"{MEGABYTES} MB", None, megabytes < MEGABYTES, "MB"
        )
        size = (folder / "ledger.db").stat().st_size / 1e6
        yield Budget("the same, the ledger's file", size, "300 MB", None, size < 300, "MB")
        yield from _reports_of_long_runs(url, peer)
        if postgres := os.environ.get("SLURMKIT_TEST_POSTGRES"):
            yield from _on_postgresql(postgres, folder, found)
        say("giving an account another PI")
        begun = time.process_time()
        with open_for_writing(url) as ledger:
            since = LONG_BEGIN + LONG_SPAN // 2
            override = PiOverride(account="group001", pi="user001", valid_from=since)
            sync_people(ledger, PeopleData(overrides=(override,)))
        moved = (time.process_time() - begun) * 1000
        yield _in_rows_of_peer("another PI for half of it", moved, 60_000, peer)


def _reports_of_long_runs(url: str, peer: float | None) -> Iterator[Budget]:
    for what, rows, call in _LONG_CALLS:
        took = _median_of(url, call, time.process_time)
        yield _in_rows_of_peer(what, took, rows, peer)


def _in_rows_of_peer(what: str, took: float, rows: int, peer: float | None) -> Budget:
    """A time, beside the one that slurm2sql takes for that many rows."""
    theirs = None if peer is None else rows / peer * 1000
    limit, holds = f"slurm2sql of {rows:,} rows", None if theirs is None else took <= theirs
    return Budget(f"the same, {what}", took, limit, theirs, holds)


def _on_postgresql(url: str, folder: Path, sqlite: dict[str, float]) -> Iterator[Budget]:
    """The same runs in an empty database: its processes count, so this is not CPU time."""
    found = _apart(folder, url)
    speed, theirs = (each["rows"] / each["seconds"] for each in (found, sqlite))
    limit, holds = f"{POSTGRES_TIMES} × SQLite", speed >= POSTGRES_TIMES * theirs
    yield Budget("the same in PostgreSQL", speed, limit, theirs, holds, "rows/s")
    for what, _, call in _LONG_CALLS:
        took = _median_of(url, call, time.perf_counter)
        peer = _median_of(_sqlite(folder), call, time.perf_counter)
        named = f"the same in PostgreSQL, {what}"
        yield Budget(named, took, "2 × SQLite", peer, took <= 2 * peer)


def _median_of(
    url: str, call: Callable[[usage_reports.Ledger], object], clock: Callable[[], float]
) -> float:
    seconds = []
    with usage_reports.ledger(url) as books:
        for _ in range(REPORTS):
            begun = clock()
            call(books)
            seconds.append(clock() - begun)
    return median_ms(seconds)


def _report_by(by: str, first: str, last: str) -> Callable[[usage_reports.Ledger], object]:
    return lambda books: usage_reports.usage(books, first, last, by=by, timezone="Europe/Berlin")


def _verify(books: usage_reports.Ledger) -> object:
    with books.transaction() as connection:
        return verify(connection)


_LONG_CALLS = (
    ("report by day from 2026-07-01 to 2026-08-01", 12_000,
     _report_by("day", "2026-07-01", "2026-08-01")),
    ("report by pi from 2026-01-01 to 2027-01-01", 60_000,
     _report_by("pi", "2026-01-01", "2027-01-01")),
    ("verify", 200_000, _verify),
)  # fmt: skip


def live(lab: Lab, jobs: int) -> Iterator[Budget]:
    """The last days of a month of jobs in slurmdbd, steps included; reports of all of it."""
    month = history.fill(lab, jobs)
    since = month.end - LIVE_DAYS * 86400
    say(f"ingesting the last {LIVE_DAYS} days of the month, {LIVE_ROUNDS} times")
    found = lab.measure("ingest", str(LIVE_ROUNDS), str(since), _FOLDER)
    alone, ours = median_ms(found["sacct"]), median_ms(found["ingest"])
    what = f"live ingest of {found['rows']:,} rows and their steps in {found['windows']} windows"
    yield Budget(what, ours, "1.1 × sacct of the same", alone, ours <= 1.1 * alone)
    yield from _beside_sreport(lab, month, since)


def _beside_sreport(lab: Lab, month: history.Month, since: int) -> Iterator[Budget]:
    say("reading the rest of the month, then reporting")
    edges = map(str, (month.begin, since, month.end))
    found = lab.measure("usage", str(REPORTS), lab.name, *edges, _FOLDER)
    runs = f"month of {history.there(lab):,} runs"
    hours, theirs = (found[name] / 3600 for name in ("gpu_seconds", "sreport_gpu_seconds"))
    yield Budget(f"{runs}, GPU-hours", hours, "the same as sreport", theirs, hours == theirs, "h")
    query, report, command = (median_ms(found[name]) for name in ("query", "report", "command"))
    for name, tres in (("sreport", "CPUs"), ("sreport_gpu", "GPUs")):
        peer = median_ms(found[name])
        limit = f"sreport by user, {tres}"
        yield Budget(f"{runs}, query", query, limit, peer, query <= peer)
    yield Budget(f"{runs}, report by user", report, "2,000 ms", None, report < 2000)
    yield Budget(f"{runs}, slurmkit report usage", command, "2,000 ms", None, command < 2000)


def write(path: Path, rows: int) -> None:
    """Runs of 400 people in a month, as sacct -P prints them."""
    chance = random.Random(1)
    with path.open("w") as file:
        for number in range(rows):
            person = min(int(chance.expovariate(1 / 80)), 399)
            submit = _BEGIN + number * _MONTH // rows
            start = submit + int(chance.expovariate(1 / 600))
            end = start + int(chance.lognormvariate(7.5, 1.5))
            (state,) = chance.choices(_STATES, (80, 9, 6, 3, 1, 1))
            gpus, kind = chance.choice((0, 1, 1, 2, 4, 8)), chance.choice(("a100", "h100"))
            cpus = max(gpus, 1) * 8
            tres = f"billing={cpus},cpu={cpus},mem={cpus * 8192}M,node=1"
            tres += f",gres/gpu:{kind}={gpus},gres/gpu={gpus}" if gpus else ""
            partition = chance.choice(("gpu", "long")) if gpus else "cpu"
            row = (
                1000 + number, 5000 + number, 5000 + number, f"user{person:03}", 10000 + person,
                f"group{person % 60:02}", partition, "normal", state, submit, submit, start, end,
                "00:00:00", 1, cpus, tres, tres, 0, 1440, "0:0",
                f"node{chance.randrange(200):03}", "", f"train-{number % 1000}",
            )  # fmt: skip
            file.write("|".join(map(str, row)) + "\n")


def write_long_runs(path: Path, rows: int) -> None:
    """Runs of 1,000 people in 300 accounts, as sacct -P prints them."""
    chance = random.Random(1)
    with path.open("w") as file:
        for number in range(rows):
            submit = LONG_BEGIN + number * LONG_SPAN // rows
            start = submit + int(chance.expovariate(1 / 3600))
            end = start + chance.randrange(LONG_DAYS * 86400)
            gpus, kind = chance.choice((0, 1, 2, 4, 8)), chance.choice(("a100", "h100", "v100"))
            cpus, person = max(gpus, 1) * 8, chance.randrange(1000)
            tres = f"billing={cpus},cpu={cpus},mem={cpus * 8192}M,node=1"
            tres += f",gres/gpu:{kind}={gpus},gres/gpu={gpus}" if gpus else ""
            row = (
                1000 + number, 5000 + number, 5000 + number, f"user{person:03}", 10000 + person,
                f"group{chance.randrange(300):03}", chance.choice(("gpu", "long", "cpu", "big")),
                chance.choice(("normal", "high", "low")), chance.choice(_STATES[:5]), submit,
                submit, start, end, "00:00:00", 1, cpus, tres, tres, 0, 1440, "0:0",
                f"node{chance.randrange(200):03}", "", f"train-{number % 1000}",
            )  # fmt: skip
            file.write("|".join(map(str, row)) + "\n")


def read(folder: Path, url: str) -> dict[str, float]:
    """Rows, seconds, those of CPU, and megabytes that reading the dump takes this process."""
    with open_for_writing(url) as ledger, (folder / "dump.txt").open("rb") as stream:
        began, begun = time.process_time(), time.perf_counter()
        done = ingest_file(
            ledger, SacctFile("dump", stream, "lab", SACCT_FIELDS, "|", find_zone("UTC"))
        )
        cpu, seconds = time.process_time() - began, time.perf_counter() - begun
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": done.entered.read, "cpu": cpu, "seconds": seconds, "megabytes": most}


def _sqlite(folder: Path) -> str:
    return f"sqlite:///{folder}/ledger.db"


def _apart(folder: Path, url: str) -> dict[str, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(read, (folder, url))


def _peer(folder: Path) -> Path | None:
    """A Python that has slurm2sql, beside some of the rows; None where it cannot be installed."""
    with (folder / "dump.txt").open() as rows, (folder / "some.txt").open("w") as some:
        some.writelines(line for line, _ in zip(rows, range(PEER_ROWS), strict=False))
    python = folder / "peer" / "bin" / "python"
    try:
        subprocess.run([sys.executable, "-m", "venv", folder / "peer"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "slurm2sql"], check=True)
    except subprocess.CalledProcessError:
        say("slurm2sql could not be installed: not measured")
        return None
    return python


def _speed_of(python: Path, folder: Path) -> float:
    argv = [python, _INSIDE / "peer.py", folder / "some.txt", ",".join(SACCT_FIELDS), folder]
    said = subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, float] = json.loads(said)
    return found["rows"] / found["seconds"]
