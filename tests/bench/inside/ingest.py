"""Ingest live, beside sacct printing the same rows and steps of the same windows, in turn.

The last ledger stays in a folder, for the reports that are measured on it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.sacct.query import build_sacct_argv, split_into_days
from slurmkit_accounting.sacct.steps import build_steps_argv

from slurmkit.slurm.commands import LocalSlurmCommands, environment_for
from slurmkit.slurm.records import record_mark

ROUNDS, SINCE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
OURS = environment_for(["sacct"], os.environ)


def alone(begin: int, end: int) -> float:
    """Seconds that sacct takes to print all windows into memory."""
    began = time.perf_counter()
    for window in split_into_days(begin, end):
        when = ("-S", f"uts{window.begin}", "-E", f"uts{window.end}")
        for argv in (
            build_sacct_argv(record_mark(), *when),
            build_steps_argv(record_mark(), *when),
        ):
            subprocess.run(argv, check=True, stdout=subprocess.PIPE, env=OURS)
    return time.perf_counter() - began


def ours(begin: int) -> tuple[float, float, int]:
    """Seconds that an ingest into a new ledger takes, those of CPU, and how many rows it read."""
    for left in FOLDER.glob("ledger.db*"):
        left.unlink()
    began, worked = time.perf_counter(), time.process_time()
    with open_for_writing(f"sqlite:///{FOLDER}/ledger.db") as ledger:
        done = ingest(ledger, LocalSlurmCommands(), since=begin)
    return time.perf_counter() - began, time.process_time() - worked, done.entered.read


FOLDER.mkdir(parents=True, exist_ok=True)
found = {"sacct": [], "ingest": [], "cpu": [], "rows": 0, "windows": 0}
for number in range(ROUNDS):
    now = int(time.time())
    print(f"  round {number + 1} of {ROUNDS}: sacct alone", file=sys.stderr, flush=True)
    found["sacct"].append(alone(SINCE, now))
    print(f"  {found['sacct'][-1]:.0f} s; and our ingest", file=sys.stderr, flush=True)
    seconds, cpu, found["rows"] = ours(SINCE)
    print(f"  {seconds:.0f} s, {cpu:.0f} s of CPU", file=sys.stderr, flush=True)
    found["ingest"].append(seconds)
    found["cpu"].append(cpu)
    found["windows"] = len(split_into_days(SINCE, now))
print(json.dumps(found))
