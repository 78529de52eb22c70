"""What the GPUs of one job did, as the ledger tells the TUI."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fake_queue import NOW
from slurmkit_tui.jobform.gpu_use import GpusOfJob

from slurmkit.state.gpu_use import CurvePoint, GpuUseOfGpu, GpuUseOfRun

BEGIN = int(NOW) - 7200
STEP = 60
POINTS = 120


def busy(at: int) -> float | None:
    """Most of the time at about 80 %, with a pause and a gap of ten minutes without samples."""
    if 50 <= at < 60:
        return None
    return 0.0 if at < 8 else 80 + 15 * math.sin(at / 5)


def gpu(node: str, index: int, use: Callable[[int], float | None], **other: Any) -> GpuUseOfGpu:
    """A GPU with a curve of two hours."""
    percents = [use(at) for at in range(POINTS)]
    known = [each for each in percents if each is not None]
    points = tuple(
        CurvePoint(BEGIN + at * STEP, 0, None, None, None)
        if percent is None
        else CurvePoint(BEGIN + at * STEP, 2, percent, 20480 + 200 * at, round(70 + 3 * percent))
        for at, percent in enumerate(percents)
    )
    given: dict[str, Any] = {
        "utilization": sum(known) / len(known), "percentile_95": 95,
        "idle_share": sum(each < 1 for each in known) / len(known), "idle": max(known) < 1,
        "memory_mib": 44080, "memory_total_mib": 81920, "joules": 2_160_000.0,
        "energy_by": "counter", "energy_seconds": float(POINTS * STEP),
        "samples": 2 * len(known), "covered": len(known) / POINTS, "last": NOW - 12,
        "points": points, "step": STEP,
    }  # fmt: skip
    return one_gpu(node=node, gpu=f"GPU-{node}{index}", index=index, **{**given, **other})


def one_gpu(**known: Any) -> GpuUseOfGpu:
    """A GPU of which nothing is known but this."""
    unknown = dict.fromkeys(GpuUseOfGpu.__struct_fields__) | {
        "node": "c1", "gpu": "x", "index": 0, "mig": "", "shared": False, "source": "exporter",
        "energy_seconds": 0.0, "samples": 0, "covered": 0.0, "points": (), "step": 0,
    }  # fmt: skip
    return GpuUseOfGpu(**unknown | known)


GPUS = (
    gpu("c1", 0, busy),
    gpu("c1", 1, lambda _: 0.0),
    gpu("c2", 4, lambda at: None if at < 90 else 60.0, energy_by="power"),
)
JOB = {"cluster": "lab", "job_id": "4711", "job_id_raw": 4711, "user": "alice", "held": 4}
RUN = GpuUseOfRun(**JOB, start=BEGIN, end=None, gpus=GPUS)
BEFORE = GpuUseOfRun(
    **JOB, start=BEGIN - 9000, end=BEGIN - 1000, gpus=(gpu("c3", 2, busy, points=(), step=0),)
)
GPUS_OF_JOB = GpusOfJob((BEFORE, RUN), NOW)
