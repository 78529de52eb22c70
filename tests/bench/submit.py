"""Submitting: the library beside a loop of sbatch in the shell, and beside PySlurm alone."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.lab import RUNS, Budget, Lab, median_ms, say

JOBS = 1000


def budgets(lab: Lab) -> Iterator[Budget]:
    """Submit the same script a thousand times both ways, in turn; the jobs are held, then gone."""
    say(f"submitting {JOBS:,} jobs {RUNS} times, by slurmkit and by sbatch")
    yield _beside(lab, "an sbatch loop", 1.1)


def by_pyslurm(lab: Lab) -> Iterator[Budget]:
    """The same in process; on Slurm 26.05, whose image has PySlurm."""
    say(f"submitting {JOBS:,} jobs {RUNS} times, by slurmkit's backend pyslurm and by PySlurm")
    yield _beside(lab, "PySlurm alone", 1.2, "pyslurm")


def _beside(lab: Lab, peer: str, times: float, *by: str) -> Budget:
    found = lab.measure("submit", str(RUNS), str(JOBS), *by)
    theirs, ours = median_ms(found["peer"]), median_ms(found["slurmkit"])
    what = " ".join([f"{JOBS:,} submits", *(f"by {each}" for each in by)])
    return Budget(what, ours, f"{times} × {peer}", theirs, ours <= times * theirs)
