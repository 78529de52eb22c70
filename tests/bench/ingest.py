"""How fast rows come into the ledger: from a file, beside slurm2sql; live, beside sacct."""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurmkit_accounting.dump_ingest import File, ingest_file
from slurmkit_accounting.ledger import open_for_writing
from slurmkit_accounting.sacct_rows import FIELDS
from slurmkit_accounting.zones import zone

from tests.bench.lab import Budget, Lab, median_ms, say

ROWS = 1_000_000
PEER_ROWS = 200_000
MEGABYTES = 300
PER_SECOND = 60_000
LIVE_RUNS, LIVE_DAYS = 3, 12
_BEGIN, _MONTH = 1_793_491_200, 30 * 86400
_STATES = ("COMPLETED", "FAILED", "CANCELLED by 7", "TIMEOUT", "OUT_OF_MEMORY", "REQUEUED")
_INSIDE = Path(__file__).parent / "inside"


def from_a_file() -> Iterator[Budget]:
    """A month of a million runs, new and once more unchanged."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say(f"writing {ROWS:,} rows")
        write(folder / "dump.txt", ROWS)
        for what in ("new", "again, unchanged"):
            say(f"reading them: {what}")
            found = _apart(folder)
            speed = found["rows"] / found["cpu"]
            yield Budget(
                f"{ROWS:,} rows from a file, {what}, on one core", speed,
                f"at least {PER_SECOND:,} rows/s", None, speed >= PER_SECOND, "rows/s",
            )  # fmt: skip
            size = found["megabytes"]
            holds = size < MEGABYTES
            yield Budget("the same, memory", size, f"{MEGABYTES} MB", None, holds, "MB")
        yield from _beside_peer(folder, speed)


def live(lab: Lab) -> Iterator[Budget]:
    """What slurmdbd has of the last days, steps included."""
    found = lab.measure("ingest", str(LIVE_RUNS), str(LIVE_DAYS))
    alone, ours = median_ms(found["sacct"]), median_ms(found["ingest"])
    what = f"live ingest of {found['rows']:,} rows in {found['windows']} windows"
    yield Budget(what, ours, "1.1 × sacct of the same", alone, ours <= 1.1 * alone)


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


def read(folder: Path) -> dict[str, float]:
    """Rows, seconds of CPU and megabytes that reading the dump takes this process."""
    with (
        open_for_writing(f"sqlite:///{folder}/ledger.db") as ledger,
        (folder / "dump.txt").open("rb") as stream,
    ):
        began = time.process_time()
        done = ingest_file(ledger, File("dump", stream, "lab", FIELDS, "|", zone("UTC")))
        cpu = time.process_time() - began
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": done.entered.read, "cpu": cpu, "megabytes": most}


def _apart(folder: Path) -> dict[str, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(read, (folder,))


def _beside_peer(folder: Path, speed: float) -> Iterator[Budget]:
    with (folder / "dump.txt").open() as rows, (folder / "some.txt").open("w") as some:
        some.writelines(line for line, _ in zip(rows, range(PEER_ROWS), strict=False))
    found = _peer(folder)
    if found is None:
        say("slurm2sql could not be installed: not measured")
        return
    theirs = found["rows"] / found["seconds"]
    holds = speed > theirs
    yield Budget("the same", speed, "more than slurm2sql of PyPI", theirs, holds, "rows/s")


def _peer(folder: Path) -> dict[str, Any] | None:
    python = folder / "peer" / "bin" / "python"
    try:
        subprocess.run([sys.executable, "-m", "venv", folder / "peer"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "slurm2sql"], check=True)
    except subprocess.CalledProcessError:
        return None
    argv = [python, _INSIDE / "peer.py", folder / "some.txt", ",".join(FIELDS), folder]
    found: dict[str, Any] = json.loads(
        subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout
    )
    return found
