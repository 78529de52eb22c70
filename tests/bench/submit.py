"""Submitting: the library beside a loop of sbatch in the shell."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.lab import RUNS, Budget, Lab, median_ms, say

JOBS = 1000


def budgets(lab: Lab) -> Iterator[Budget]:
    """Submit the same script a thousand times both ways, in turn; the jobs are held, then gone."""
    say(f"submitting {JOBS:,} jobs {RUNS} times, by slurmkit and by sbatch")
    found = lab.measure("submit", str(RUNS), str(JOBS))
    loop, ours = median_ms(found["sbatch"]), median_ms(found["slurmkit"])
    yield Budget(f"{JOBS:,} submits", ours, "1.1 × an sbatch loop", loop, ours <= 1.1 * loop)
