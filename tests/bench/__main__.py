"""`make bench`: each budget beside its peer or limit, in one run on a Docker cluster of its own.

A module for each budget; `budgets` of a module measures and yields its lines of the table. Timing
fails nothing: the last column says what holds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from tests.bench import (
    executor,
    gpu_use,
    ingest,
    portal,
    queue,
    reports,
    ssh,
    start,
    submit,
    tui,
    views,
)
from tests.bench.history import JOBS
from tests.bench.lab import RUNS, Budget, Lab, say
from tests.bench.load import fill

PARTS = (
    "start", "executor", "queue", "submit", "ssh", "tui", "views", "report", "portal", "gpu_use",
    "ledger", "ingest",
)  # fmt: skip
_WITHOUT_CLUSTER = {"views", "report", "portal", "gpu_use", "ledger"}
ASKED = (*PARTS, "pyslurm")  # only by name: it needs a cluster of 26.05
_HEAD = "| what | measured | limit | of that | holds |\n|---|---|---|---|---|"


def measure(lab: Lab, parts: list[str], sizes: list[int], history: int) -> Iterator[Budget]:
    """Every budget asked for, on a queue that grows: empty, then each of the sizes.

    Submits come after the first size, so that slurmctld has forgotten those jobs by the next.
    """
    yield from _on_this_machine(parts)
    if "ledger" in parts:
        peer = yield from ingest.from_a_file()
        yield from ingest.long_runs(peer)
    yield from _on_an_empty_queue(lab, parts)
    read = sizes if "queue" in parts else []
    for jobs in sorted({*read, *([tui.JOBS] if "tui" in parts else [])}):
        fill(lab, jobs)
        if jobs in read:
            yield from queue.budgets(lab, jobs)
        if read[:1] == [jobs]:
            yield from queue.commands(lab)
        if jobs == tui.JOBS and "tui" in parts:
            yield from tui.budgets(lab)
        if read[:1] == [jobs] and "submit" in parts:
            yield from submit.budgets(lab)
    if "submit" in parts and "queue" not in parts:
        yield from submit.budgets(lab)
    yield from _last(lab, parts, history)


def _on_this_machine(parts: list[str]) -> Iterator[Budget]:
    modules = {"report": reports, "portal": portal, "gpu_use": gpu_use, "views": views}
    for part, module in modules.items():
        if part in parts:
            yield from module.budgets()


def _on_an_empty_queue(lab: Lab, parts: list[str]) -> Iterator[Budget]:
    if "start" in parts:
        yield from start.budgets(lab)
    if "executor" in parts:
        yield from executor.budgets(lab)


def _last(lab: Lab, parts: list[str], history: int) -> Iterator[Budget]:
    if "ssh" in parts:
        yield from ssh.budgets(lab)
    if "pyslurm" in parts:
        yield from submit.by_pyslurm(lab)
    if "ingest" in parts:
        yield from ingest.live(lab, history)


@contextmanager
def cluster(name: str, slurm: str | None, *, keep: bool) -> Iterator[Lab]:
    """A cluster of our own, removed with its data in the end; or one that is there and stays."""
    lab = Lab(name)
    there = lab.exists()
    if there and not keep:
        raise SystemExit(
            f"bench: cluster {name} is there: measure on it with --keep, which leaves it as it is"
            f" but for its jobs, or remove it: docker/cluster down --volumes --name {name}"
        )
    try:
        lab.cluster("up", *(["--slurm", slurm] if slurm else []))
        if there:
            lab.cluster("reload")
        yield lab
    finally:
        if not keep:
            lab.cluster("down", "--volumes")


def main() -> None:
    """Print a table of what was measured, its limit, and whether it holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--name", default="bench", help="Docker cluster to make and remove")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="use it if it is up, and leave it up, with all jobs made there",
    )
    parser.add_argument("--slurm", help="release; 26.05 for --only pyslurm")
    parser.add_argument("--only", nargs="+", choices=ASKED, default=list(PARTS))
    parser.add_argument("--jobs", nargs="+", type=int, default=list(queue.SIZES))
    parser.add_argument(
        "--history", type=int, default=JOBS, help="ended jobs to make in slurmdbd, for ingest"
    )
    given = parser.parse_args()
    slurm = not set(given.only) <= _WITHOUT_CLUSTER
    up = (
        cluster(given.name, given.slurm, keep=given.keep) if slurm else nullcontext(Lab(given.name))
    )
    with up as lab:
        budgets = []
        for budget in measure(lab, given.only, sorted(given.jobs), given.history):
            say(budget.row())
            budgets.append(budget)
        release = f"Slurm {lab.run('scontrol', '--version').split()[1]}, " if slurm else ""
    say("done")
    print(f"{time.strftime('%Y-%m-%d')}, {release}{os.cpu_count()} cores, median of {RUNS}\n")
    print(_HEAD)
    for budget in budgets:
        print(budget.row())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
