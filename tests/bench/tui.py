"""The TUI: its first frame, and whether it ever stands still."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.lab import RUNS, Budget, Lab, median_ms, say

JOBS = 50_000
PAINT_MS, STALL_MS, MEGABYTES = 400, 50, 300


def budgets(lab: Lab) -> Iterator[Budget]:
    """Measure the TUI on the queue as it is."""
    say("opening the TUI")
    found = lab.measure("tui", str(RUNS))
    paint = median_ms(found["paint"])
    yield Budget("slurmkit tui, first frame", paint, f"{PAINT_MS} ms", None, paint < PAINT_MS)
    for what, seconds in found["worst"].items():
        worst = seconds * 1000
        named = f"TUI of {found['rows']:,} jobs, longest stall: {what}"
        yield Budget(named, worst, f"{STALL_MS} ms", None, worst < STALL_MS)
    size = found["megabytes"]
    yield Budget("the same, memory", size, f"{MEGABYTES} MB", None, size < MEGABYTES, "MB")
