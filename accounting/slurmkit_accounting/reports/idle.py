"""`report idle`: GPUs that are allocated now and idle, as far as they are measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from slurmkit.config.plugins import load_plugin
from slurmkit.diagnose.gpus_now import gpu_sources
from slurmkit.errors import SlurmkitError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.gpu_metrics import LEAST_MEASURED, GpuMetrics, GpuSample, plausible_percent
from slurmkit.state.gpumap import read_gpus
from slurmkit.state.gpumap_model import Gpu
from slurmkit_accounting.reports.model import Column, Meta, Report, sum_columns

COLUMNS = (
    Column("node"),
    Column("gpu", "count"),
    Column("idle"),
    Column("gpu_type"),
    Column("job"),
    Column("user"),
    Column("account"),
    Column("held_hours", "hours", adds_up=True),
    Column("busiest", "share"),
    Column("measured_minutes", "number"),
)
_SLURM = "slurm"
_NEWEST = 300  # seconds; an older sample says nothing of what the GPU does now
_HELD_STATES = frozenset(("held", "shared"))


class IdleBound(msgspec.Struct, frozen=True):
    """When a GPU is idle: utilization below `percent` for `seconds`."""

    percent: float
    seconds: int


def idle_report(
    slurm: SlurmCommands, source: str | None, bound: IdleBound, now: float | None = None
) -> Report:
    """Report every allocated GPU, idle ones first.

    `idle` is None for a GPU that was not measured, or not for long enough.

    Args:
        slurm: runs Slurm's commands, which say who holds which GPU.
        source: name of the plugin that measures utilization; None for the one that knows most.
        bound: which GPUs are idle.
        now: epoch seconds; None for the present time.

    Raises:
        BadInput: for an unknown source.
        SlurmError: when slurmctld does not answer.
        SlurmkitError: when a named source does not answer.
    """
    gpu_map = read_gpus(slurm)
    moment = time.time() if now is None else now
    held = [gpu for gpu in gpu_map.gpus if gpu.state in _HELD_STATES]
    found = _read_samples(source, held, bound)
    rows = [_row(gpu, found.samples.get(gpu.node, ()), bound, moment) for gpu in held]
    rows.sort(
        key=lambda row: (row["idle"] != "yes", row["idle"] == "no", -(row["held_hours"] or 0))
    )
    known = sum(row["idle"] is not None for row in rows)
    idle = sum(row["idle"] == "yes" for row in rows)
    meta = Meta(
        report="idle",
        timezone="UTC",
        source=f"slurmctld, and {found.source}" if found.source else "slurmctld",
        clusters=(),
        last_ingest=None,
        data_age=int(max(moment - gpu_map.taken, 0)),
        total=sum_columns(COLUMNS, rows),
        notes=(
            f"idle GPUs: {idle} of {len(rows)} that are allocated, {len(rows) - known} unknown",
            f"idle: utilization below {bound.percent:g} % for {bound.seconds // 60} minutes",
            *gpu_map.warnings,
            *found.notes,
        ),
        made=int(moment),
    )
    return Report(meta, COLUMNS, tuple(rows))


class _SourceSamples(NamedTuple):
    """Samples by node, the source that they are from, and why there are none."""

    samples: Mapping[str, tuple[GpuSample, ...]]
    source: str = ""
    notes: tuple[str, ...] = ()


def _read_samples(source: str | None, held: Sequence[Gpu], bound: IdleBound) -> _SourceSamples:
    """Read the source that was named, or of all sources the one that measures most of the GPUs.

    A source that was named must answer. Why the others do not is a note.
    """
    nodes = sorted({gpu.node for gpu in held})
    if source is not None:
        return _SourceSamples(_metrics(source).read(nodes, seconds=bound.seconds), source)
    best, most, problems = _SourceSamples({}), 0, []
    for name in [*gpu_sources(), _SLURM]:
        if not held or most == len(held):
            break
        try:
            samples = _metrics(name).read(nodes, seconds=bound.seconds)
        except SlurmkitError as error:
            problems.append(f"{name}: {error}")
            continue
        known = {
            (node, one.index)
            for node, some in samples.items()
            for one in some
            if plausible_percent(one.utilization) is not None
        }
        measured = sum((gpu.node, gpu.index) in known for gpu in held)
        if measured > most:
            best, most = _SourceSamples(samples, name), measured
    if most or not problems:
        return best
    return _SourceSamples({}, notes=(f"GPU utilization is unknown: {'; '.join(problems)}",))


def _metrics(name: str) -> GpuMetrics:
    return cast("Callable[[], GpuMetrics]", load_plugin("gpu_metrics", name))()


def _row(gpu: Gpu, samples: Iterable[GpuSample], bound: IdleBound, now: float) -> dict[str, Any]:
    own = [
        (one.taken, use)
        for one in samples
        if one.index == gpu.index and (use := plausible_percent(one.utilization)) is not None
    ]
    since = min((taken for taken, _ in own), default=None)
    newest = max((taken for taken, _ in own), default=None)
    busiest = max((use for _, use in own), default=None)
    lasted = None if since is None or newest is None else newest - since
    is_fresh = newest is not None and now - newest <= _NEWEST
    held = gpu.since if _shows_all_holders(gpu) else None
    return {
        "node": gpu.node,
        "gpu": gpu.index,
        "gpu_type": gpu.type or "?",
        **_holder(gpu),
        "held_hours": None if held is None else (now - held) / 3600,
        "busiest": None if busiest is None else busiest / 100,
        "measured_minutes": None if lasted is None else lasted / 60,
        "idle": _is_idle(busiest, lasted if is_fresh else 0.0, held, bound, now),
    }


def _holder(gpu: Gpu) -> dict[str, str]:
    """Return who holds a GPU; `?` if Slurm hides one of its jobs, so that nobody is named alone."""
    if not _shows_all_holders(gpu):
        return dict.fromkeys(("job", "user", "account"), "?")
    return {
        "job": gpu.job_id or ", ".join(share.job_id for share in gpu.sharers) or "?",
        "user": gpu.user or ", ".join(share.user for share in gpu.sharers) or "?",
        "account": gpu.account or "?",
    }


def _shows_all_holders(gpu: Gpu) -> bool:
    """Return whether the jobs that Slurm shows hold all shards and MPS units that are in use."""
    if gpu.state != "shared":
        return True
    for sharing in (gpu.shard, gpu.mps):
        if sharing is None or (not sharing.by and sharing.used == 0):
            continue
        amounts = [share.amount for share in sharing.by]
        if sharing.used is None or None in amounts:
            return False
        if sum(amount or 0 for amount in amounts) != sharing.used:
            return False
    return True


def _is_idle(
    busiest: float | None, lasted: float | None, held: int | None, bound: IdleBound, now: float
) -> str | None:
    """Return `yes` or `no`; None if the GPU was not measured, or not for long enough until now."""
    if busiest is None or lasted is None:
        return None
    if busiest >= bound.percent:
        return "no"
    if held is not None and now - held < bound.seconds:
        return "no"  # the job has not held the GPU for that long
    return "yes" if lasted >= bound.seconds * LEAST_MEASURED else None
