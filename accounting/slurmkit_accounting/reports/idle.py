"""`report idle`: GPUs that are held now and do nothing, as far as somebody measures them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from slurmkit.errors import SlurmkitError
from slurmkit.gpumap.model import Gpu
from slurmkit.gpumap.read import read_gpus
from slurmkit.plugins import GpuMetrics, GpuSample, load, plugins
from slurmkit.slurm import Slurm
from slurmkit_accounting.reports.model import Column, Meta, Report

COLUMNS = (
    Column("node"),
    Column("gpu", "count"),
    Column("gpu_type"),
    Column("job"),
    Column("user"),
    Column("account"),
    Column("held_hours", "hours"),
    Column("busiest", "share"),
    Column("measured_minutes", "number"),
    Column("idle"),
)
USUAL = "slurm"
_HELD = frozenset(("held", "shared"))


class Bound(msgspec.Struct, frozen=True):
    """What is idle: busy for less than `percent`, for `seconds`."""

    percent: float
    seconds: int


def idle_report(slurm: Slurm, source: str | None, bound: Bound, now: float | None = None) -> Report:
    """Every GPU that is held, idle ones first; `?` where nobody has measured it for long enough.

    Args:
        slurm: says who holds which.
        source: plugin that says what they do; Slurm itself when left out, as far as it can.
        bound: what is idle.
        now: epoch seconds; the clock's when left out.

    Raises:
        BadInput: for a source that there is none of.
        SlurmError: when slurmctld does not answer.
        SlurmkitError: when the source cannot be asked.
    """
    found = read_gpus(slurm)
    moment = time.time() if now is None else now
    held = [gpu for gpu in found.gpus if gpu.state in _HELD]
    samples, silence = _samples(source, {gpu.node for gpu in held}, bound)
    rows = [_row(gpu, samples.get(gpu.node, ()), bound, moment) for gpu in held]
    rows.sort(
        key=lambda row: (row["idle"] != "yes", row["idle"] == "no", -(row["held_hours"] or 0))
    )
    known = sum(row["idle"] is not None for row in rows)
    idle = sum(row["idle"] == "yes" for row in rows)
    meta = Meta(
        report="idle",
        timezone="UTC",
        source=f"slurmctld, and {source or USUAL}",
        clusters=(),
        last_ingest=None,
        data_age=int(max(moment - found.taken, 0)),
        notes=(
            f"{idle} of {len(rows)} held GPUs are idle, {len(rows) - known} are unknown",
            f"idle: never {bound.percent:g} % busy for {bound.seconds // 60} minutes",
            *found.warnings,
            *silence,
        ),
        made=int(moment),
    )
    return Report(meta, COLUMNS, tuple(rows))


def _samples(
    source: str | None, nodes: Iterable[str], bound: Bound
) -> tuple[Mapping[str, tuple[GpuSample, ...]], Iterable[str]]:
    """What is known, and in words why nothing is; a source that was named must answer."""
    try:
        made = cast("Callable[[], GpuMetrics]", load("gpu_metrics", source or USUAL))()
        return made.read(sorted(nodes), seconds=bound.seconds), ()
    except SlurmkitError as error:
        if source is not None:
            raise
        others = ", ".join(name for name in plugins("gpu_metrics") if name != USUAL)
        return {}, (f"what GPUs do is unknown: {error}; --source names another source ({others})",)


def _row(gpu: Gpu, samples: Iterable[GpuSample], bound: Bound, now: float) -> dict[str, Any]:
    own = [one for one in samples if one.index == gpu.index and one.utilisation is not None]
    since = min((one.taken for one in own), default=None)
    busiest = max((one.utilisation or 0 for one in own), default=None)
    lasted = None if since is None else now - since
    return {
        "node": gpu.node,
        "gpu": gpu.index,
        "gpu_type": gpu.type or "?",
        "job": gpu.job_id or ", ".join(share.job_id for share in gpu.sharers) or "?",
        "user": gpu.user or ", ".join(share.user for share in gpu.sharers) or "?",
        "account": gpu.account or "?",
        "held_hours": None if gpu.since is None else (now - gpu.since) / 3600,
        "busiest": None if busiest is None else busiest / 100,
        "measured_minutes": None if lasted is None else lasted / 60,
        "idle": _idle(busiest, lasted, gpu.since, bound, now),
    }


def _idle(
    busiest: float | None, lasted: float | None, held: int | None, bound: Bound, now: float
) -> str | None:
    """Whether; None is unknown: nobody measured it, or not for long enough."""
    if busiest is None or lasted is None:
        return None
    if busiest >= bound.percent:
        return "no"
    if held is not None and now - held < bound.seconds:
        return "no"  # its job has not had that long
    return "yes" if lasted >= bound.seconds * 0.9 else None
