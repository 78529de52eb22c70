"""What the GPUs of one job did, as the ledger tells the TUI."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fake_queue import NOW
from slurmkit_tui.jobform.gpu_use import GpuOfJob, GpusOfJob, RunOfJob, UsePoint

BEGIN = int(NOW) - 7200
STEP = 60
POINTS = 120


def busy(at: int) -> float | None:
    """Most of the time at about 80 %, with a pause and a gap of ten minutes without samples."""
    if 50 <= at < 60:
        return None
    return 0.0 if at < 8 else 80 + 15 * math.sin(at / 5)


def gpu(node: str, index: int, use: Callable[[int], float | None], **other: Any) -> GpuOfJob:
    """A GPU with a curve of two hours."""
    percents = [use(at) for at in range(POINTS)]
    known = [each for each in percents if each is not None]
    points = tuple(
        UsePoint(BEGIN + at * STEP)
        if percent is None
        else UsePoint(BEGIN + at * STEP, percent, 20480 + 200 * at, 70.0 + 3 * percent)
        for at, percent in enumerate(percents)
    )
    given: dict[str, Any] = {
        "utilization": sum(known) / len(known), "percentile_95": 95,
        "idle_share": sum(each < 1 for each in known) / len(known), "idle": max(known) < 1,
        "memory_mib": 44080, "memory_total_mib": 81920, "joules": 2_160_000.0,
        "energy_by": "counter", "covered": len(known) / POINTS, "last": NOW - 12,
        "points": points, "step": STEP,
    }  # fmt: skip
    return GpuOfJob(node=node, gpu=f"GPU-{node}{index}", index=index, **{**given, **other})


GPUS = (
    gpu("c1", 0, busy),
    gpu("c1", 1, lambda _: 0.0),
    gpu("c2", 4, lambda at: None if at < 90 else 60.0, energy_by="power"),
)
RUN = RunOfJob(cluster="lab", job_id="4711", start=BEGIN, end=None, held=4, gpus=GPUS)
BEFORE = RunOfJob(
    cluster="lab", job_id="4711", start=BEGIN - 9000, end=BEGIN - 1000, held=4,
    gpus=(gpu("c3", 2, busy, points=(), step=0),),
)  # fmt: skip
GPUS_OF_JOB = GpusOfJob((BEFORE, RUN), NOW)
