"""Ingest live, beside sacct printing the same rows and steps of the same windows, in turn."""

import json
import os
import subprocess
import sys
import tempfile
import time

from slurmkit_accounting.ingest import ingest
from slurmkit_accounting.ledger import open_for_writing
from slurmkit_accounting.sacct_rows import sacct_argv
from slurmkit_accounting.steps_rows import steps_argv
from slurmkit_accounting.windows import days

from slurmkit.queue.rows import record_mark
from slurmkit.slurm import LocalSlurm, environment_for

RUNS, DAYS = int(sys.argv[1]), int(sys.argv[2])
OURS = environment_for(["sacct"], os.environ)


def alone(begin: int, end: int) -> float:
    """Seconds that sacct takes to print all windows into memory."""
    began = time.perf_counter()
    for window in days(begin, end):
        when = ("-S", f"uts{window.begin}", "-E", f"uts{window.end}")
        for argv in (sacct_argv(record_mark(), *when), steps_argv(record_mark(), *when)):
            subprocess.run(argv, check=True, stdout=subprocess.PIPE, env=OURS)
    return time.perf_counter() - began


def ours(begin: int) -> tuple[float, int]:
    """Seconds that an ingest into a new ledger takes, and how many rows it read."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with open_for_writing(f"sqlite:///{folder}/ledger.db") as ledger:
            done = ingest(ledger, LocalSlurm(), since=begin)
        return time.perf_counter() - began, done.entered.read


found = {"sacct": [], "ingest": [], "rows": 0, "windows": 0}
for _ in range(RUNS):
    now = int(time.time())
    since = now - DAYS * 86400
    found["sacct"].append(alone(since, now))
    seconds, found["rows"] = ours(since)
    found["ingest"].append(seconds)
    found["windows"] = len(days(since, now))
print(json.dumps(found))
