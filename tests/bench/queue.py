"""The queue snapshot: typed rows beside squeue's text and JSON; commands on a long queue."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from slurmkit.slurm.records import record_mark
from slurmkit.state.queue_rows import squeue_format
from tests.bench.lab import RUNS, Budget, Lab, median_ms, say

SIZES = (20_000, 100_000)
JSON_UP_TO = 20_000  # squeue --json of more takes minutes
MEGABYTES = 150
STALL_MS = 50


def budgets(lab: Lab, jobs: int) -> Iterator[Budget]:
    """Measure a queue of that many distinct jobs."""
    with_json = jobs <= JSON_UP_TO
    say(f"reading {jobs:,} jobs" + (", also as JSON" if with_json else ""))
    found = lab.measure("queue", str(RUNS), str(RUNS if with_json else 0))
    raw, typed = median_ms(found["raw"]), median_ms(found["typed"])
    what = f"queue of {found['rows']:,} jobs"
    limit = f"1.5 × squeue -O of the same {found['fields']} fields"
    yield Budget(f"{what}, into typed rows", typed, limit, raw, typed <= 1.5 * raw)
    if with_json:
        json = median_ms(found["json"])
        yield Budget(
            f"{what}, the same", typed, "squeue --json / 50", json / 50, typed <= json / 50
        )
    wait = median_ms(found["waits"])
    yield Budget(
        f"{what}, longest wait of another thread", wait, f"{STALL_MS} ms", None, wait < STALL_MS
    )
    size = statistics.median([found["megabytes"]])
    yield Budget(f"{what}, memory", size, f"{MEGABYTES} MB", None, size < MEGABYTES, "MB")


# The jobs that hold GPUs, their details and the nodes, as one would ask Slurm for them.
_GPUS = """
squeue --all --states=RUNNING,SUSPENDED,COMPLETING --noheader \\
    -O JobID:.20,UserName:.20,tres-alloc:.200 >/tmp/bench-held
while read -r job _; do echo "show job $job"; done </tmp/bench-held | scontrol --details --quiet
scontrol --details --oneliner show node
"""
_HOLDING = 8  # jobs that hold a GPU meanwhile


def commands(lab: Lab) -> Iterator[Budget]:
    """Measure whole commands while that many jobs wait."""
    jobs = lab.jobs()
    say(f"commands with {jobs:,} jobs in the queue")
    submit = ("sbatch", "--parsable", "--chdir=/tmp", "--gres=gpu:a100:1", "--time=60")
    own = [lab.run(*submit, "--wrap", "sleep 3600").strip() for _ in range(_HOLDING)]
    held = (*submit, "--hold")
    waiting = lab.run(*held, "--wrap", "true").strip()
    request = ("--gpus-per-node=a100:1", "--time=10", "--", "true")
    jobs_raw = ("squeue", "--all", "--noheader", "-O", squeue_format(record_mark()))
    pairs = (
        ("gpus", ("bash", "-c", _GPUS), ("slurmkit", "gpus"), 1.5, 0),
        ("queue", jobs_raw, ("slurmkit", "queue"), 1.0, 350),
        ("why", jobs_raw, ("slurmkit", "why", waiting), 1.0, 400),
        ("plan", (*submit, "--test-only", "--wrap=true"), ("slurmkit", "plan", *request), 1.0, 400),
        ("submit", (*held, "--wrap=true"), ("slurmkit", "submit", "--hold", *request), 1.0, 350),
    )
    for name, raw, ours, times, more in pairs:
        theirs, measured = lab.median_ms(raw, ours)
        limit = f"{times:g} × what Slurm takes" + (f" + {more} ms" if more else "")
        what = f"slurmkit {name}, {jobs:,} jobs in the queue"
        yield Budget(what, measured, limit, theirs, measured <= times * theirs + more)
    lab.run("scancel", *own, waiting)
    lab.run("scancel", "--me", "--name=wrap,true", "--state=PENDING")
