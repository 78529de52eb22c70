"""Jobs of every kind in the ledger, second by second what sacct says, read while they run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from cluster_lab import Lab
from waiting import wait_for

pytestmark = pytest.mark.cluster

KEEPER = "slurmkit"
WHO = "trent"  # who runs nothing else
PYTHON = "/opt/slurmkit/venv/bin/python"
# GPU-seconds, shard-seconds and CPU-seconds of all that one person's ended runs held.
SUMS = """
import sqlite3, sys, json
books = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"))
sql = '''SELECT gpu_type, sum(gpu_seconds), sum(cpu_seconds), sum(started) FROM usage_months
JOIN usage_keys ON usage_keys.id = key_id WHERE "user" = ? GROUP BY gpu_type'''
print(json.dumps({row[0]: row[1:] for row in books.execute(sql, [sys.argv[2]])}))
"""


@pytest.fixture
def signal(lab: Lab, who: str) -> Iterator[str]:
    """Path of a file that jobs may wait for, which is not there yet."""
    folder = lab.run("mktemp", "-d", "-p", "/home", user="").stdout.strip()
    lab.run("chown", who, folder, user="")
    yield f"{folder}/go-on"
    lab.run("rm", "-r", folder, user="")


@pytest.fixture
def who(lab: Lab) -> Iterator[str]:
    """A person who may run jobs for this test alone."""
    lab.run("sacctmgr", "-i", "add", "user", WHO, "account=vision", user="")
    yield WHO
    lab.run("scancel", "--user", WHO, user="")
    wait_for(lambda: over(lab))
    lab.run("sacctmgr", "-i", "delete", "user", WHO, user="")


def keep(lab: Lab, *words: str, db: str) -> str:
    return lab.run("slurmkit", "ledger", *words, "--db", db, user=KEEPER).stdout


def submit(lab: Lab, *request: str, command: str = "sleep 4") -> str:
    words = ["sbatch", "--parsable", "--output=/dev/null", "--mem=64", *request]
    return lab.run(*words, f"--wrap={command}", user=WHO).stdout.strip()


def rows(lab: Lab) -> list[dict[str, str]]:
    """Every run of theirs, asked for without slurmkit."""
    fields = ("JobIDRaw", "JobID", "State", "Start", "End", "AllocTRES", "Suspended")
    asked = ["env", "SLURM_TIME_FORMAT=%s", "sacct", "-X", "-D", "-n", "-P", "-u", WHO]
    words = [*asked, "-S", "2020-01-01", f"--format={','.join(fields)}"]
    lines = lab.run(*words, user="").stdout.splitlines()
    return [dict(zip(fields, line.split("|"), strict=True)) for line in lines]


def wait(lab: Lab, job: str, *states: str) -> None:
    wait_for(
        lambda: {row["State"].split()[0] for row in rows(lab) if row["JobID"].startswith(job)},
        lambda found: found & set(states),
    )


def by_hand(lab: Lab) -> dict[str, list[int]]:
    """GPU-seconds, CPU-seconds and runs by type of GPU."""
    found: dict[str, list[int]] = {}
    for row in rows(lab):
        tres = dict(item.split("=") for item in row["AllocTRES"].split(",") if "=" in item)
        if not row["End"].isdigit() or "cpu" not in tres:
            continue
        seconds = int(row["End"]) - int(row["Start"])
        typed = [name for name in tres if name.startswith(("gres/gpu:", "gres/shard:"))]
        plain = [name for name in tres if name in ("gres/gpu", "gres/shard")]
        name = (typed or plain or [""])[0]
        kind = name.removeprefix("gres/").removeprefix("gpu").removeprefix(":") if name else "-"
        sums = found.setdefault(kind, [0, 0, 0])
        sums[0] += int(tres.get(name, 0)) * seconds
        sums[1] += int(tres["cpu"]) * seconds
        sums[2] += 1
    return found


def in_the_books(lab: Lab, db: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = json.loads(
        lab.run(PYTHON, "-c", SUMS, db, WHO, user=KEEPER).stdout
    )
    return found


def over(lab: Lab) -> bool:
    return not lab.run("squeue", "-h", "-u", WHO, user="").stdout.strip()


def test_runs_of_every_kind(lab: Lab, books: str, who: str, signal: str) -> None:
    last = f"until test -e {signal}; do sleep 0.3; done"
    timed = submit(lab, "--gres=gpu:1", "-p", "untyped", "--time=10", command="sleep 1000")
    suspended = submit(lab, "--gres=gpu:a100:2", "-p", "gpu", command=last)
    requeued = submit(lab, "--gres=gpu:a100:1", "-p", "gpu", "--requeue", command=last)
    submit(lab, "--gres=shard:2", "-p", "gpu")
    submit(lab, "--array=0-1", "--gres=gpu:a100:1", "-p", "gpu")
    submit(lab, "--gres=gpu:h100:1", "-p", "gpu", command="exit 3")
    het = ["--gres=gpu:a100:1", "-p", "gpu", ":", "--mem=64", "-p", "cpu"]
    submit(lab, *het)
    wait(lab, suspended, "RUNNING")
    wait(lab, requeued, "RUNNING")
    wait(lab, timed, "RUNNING")
    # The end need not be as far as its limit; Slurm looks twice a minute.
    lab.run("scontrol", "update", f"JobId={timed}", "EndTime=now+5", user=WHO)
    cancelled = submit(lab, "--gres=gpu:a100:8", "-p", "gpu", "--nodes=2")  # more than is free
    keep(lab, "ingest", db=books)  # while they run
    lab.run("scontrol", "suspend", suspended, user="")
    lab.run("scontrol", "requeue", requeued, user=WHO)
    lab.run("scancel", cancelled, user=WHO)
    time.sleep(3)
    lab.run("scontrol", "resume", suspended, user="")
    lab.run("touch", signal, user=WHO)
    keep(lab, "ingest", db=books)
    wait(lab, timed, "TIMEOUT")
    wait_for(lambda: over(lab))
    # slurmdbd hears of it a moment later.
    wait_for(lambda: rows(lab), lambda runs: all(row["End"].isdigit() for row in runs))
    keep(lab, "ingest", db=books)

    expected = by_hand(lab)
    states = {row["State"].split()[0] for row in rows(lab)}
    assert states >= {"TIMEOUT", "COMPLETED", "FAILED", "CANCELLED", "REQUEUED"}
    assert any(row["Suspended"] != "00:00:00" for row in rows(lab))
    assert {kind: sums for kind, sums in expected.items() if kind != "-"}
    assert in_the_books(lab, books) == expected
    status = json.loads(keep(lab, "status", "--json", db=books))["rows"][0]
    assert status["rejects"] == 0

    # Read once more, and all at once into new books: the same.
    first = keep(lab, "verify", db=books).split()[0]
    other = books.replace("ledger.db", "other.db")
    keep(lab, "ingest", db=books)
    keep(lab, "ingest", db=other)
    assert {keep(lab, "verify", db=one).split()[0] for one in (books, other)} == {first}
