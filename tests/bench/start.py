"""How long commands take to start."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.lab import PYTHON, Budget, Lab, say


def budgets(lab: Lab) -> Iterator[Budget]:
    """Measure on an empty queue, where the start is all there is."""
    say("starting commands")
    bare, imported = lab.median_ms([PYTHON, "-c", ""], [PYTHON, "-c", "import slurmkit"])
    limit = "bare Python + 30 ms"
    yield Budget("import slurmkit", imported, limit, bare, imported <= bare + 30)
    squeue, queue = lab.median_ms(["squeue"], ["slurmkit", "queue"])
    limit, jobs = "squeue + 100 ms", lab.jobs()
    what = f"slurmkit queue, start to end, {jobs:,} jobs in the queue"
    yield Budget(what, queue, limit, squeue, queue <= squeue + 100)
