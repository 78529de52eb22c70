"""The queue snapshot: typed rows beside squeue's text and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

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
