"""Values and what they rest on, in words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from slurmkit.durations import format_duration
from slurmkit_accounting.reports.model import Closed, Kind, Meta, Value

UNKNOWN = "?"


def several(number: int, what: str) -> str:
    """Write `1 run`, `2 runs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def shown(value: Value, kind: Kind) -> str:
    """A value for people; not escaped yet."""
    if value is None:
        return UNKNOWN
    if kind == "text" or isinstance(value, str | bool):
        return str(value)
    if kind == "share":
        return f"{value:.1%}"
    if kind == "time":
        return moment(int(value))
    return f"{value:,}" if isinstance(value, int) else amount(value)


def amount(value: float) -> str:
    """Two decimals; what is too little for them is not shown as nothing."""
    if 0 < abs(value) < 0.005:
        return "<0.01" if value > 0 else ">-0.01"
    return f"{value:,.2f}"


def brief(value: float) -> str:
    """Three digits or more, as many as one takes in at a glance."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else amount(value)


def moment(epoch: int) -> str:
    """A time, in UTC."""
    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d %H:%M:%S} UTC"


def footer(meta: Meta) -> Iterator[str]:
    """What the rows rest on, in a few lines; not escaped yet."""
    yield from _about(meta)
    yield f"source: {meta.source}{_clusters(meta)}; {_age(meta)}"
    counted = ", ".join(_counted(meta))
    if counted:
        yield f"counted: {counted}"
    yield from _lacking(meta)
    if meta.prices:
        money = f" in {meta.currency}" if meta.currency else ""
        yield f"prices{money}: {meta.prices}"
    if meta.weights:
        weights = ", ".join(f"{name} {_weight(weight)}" for name, weight in meta.weights.items())
        yield f"weights in whole GPUs: {weights}"
    if meta.sreport:
        yield from _sreport(meta)
    yield from map(_closed, meta.closed)
    yield from meta.notes


def _clusters(meta: Meta) -> str:
    if meta.source.startswith("ledger "):
        return f", {', '.join(meta.clusters) or 'no cluster yet'}"
    return ""


def _about(meta: Meta) -> Iterator[str]:
    if meta.window:
        begin, end = meta.window
        yield f"window: {begin} to {end} (not included), {meta.timezone}{_only(meta)}"
    if meta.suspended:
        says = {"charge": "counts, as in sreport", "skip": "does not count"}
        yield f"suspended time {says[meta.suspended]} (--suspended {meta.suspended})"


def _only(meta: Meta) -> str:
    parts = [f"{name} {' or '.join(values)}" for name, values in meta.filters.items()]
    parts += [f"job {meta.job}"] if meta.job else []
    return f"; only {', '.join(parts)}" if parts else ""


def _counted(meta: Meta) -> Iterator[str]:
    if meta.runs is not None:
        yield several(meta.runs, "run")
    if meta.rejects is not None:
        yield several(meta.rejects, "rejected line")
    if meta.unmapped is not None:
        hours = amount(meta.unmapped.gpu_hours)
        yield f"unmapped {several(meta.unmapped.jobs, 'run')} with {hours} GPU-hours"
    if meta.running:
        yield f"{meta.running:,} still running, counted up to {meta.running_until}"
    if meta.doubtful:
        yield f"the GPU count of {several(meta.doubtful, 'run')} is doubtful"


def _lacking(meta: Meta) -> Iterator[str]:
    if meta.missing_before:
        yield (
            f"the books begin at {meta.missing_before}, so what ran before is missing; to read it:"
            " slurmkit ledger ingest --since DATE"
        )
    for cluster, begin, end in meta.gaps:
        yield f"gap: nothing of {cluster} from {begin} to {end} was read"
    for name in meta.gpus_not_tracked:
        yield (
            f"GPUs of {name} are not tracked: its AccountingStorageTRES lacks gres/gpu, so sacct"
            " cannot say what was used"
        )
    if "pi" in meta.by and meta.last_people_sync is None:
        yield "no people yet, so nobody's PI is known; run: slurmkit ledger people sync"


def _sreport(meta: Meta) -> Iterator[str]:
    found = meta.sreport
    if found:
        parts = f"{amount(found.suspended)} while suspended, {amount(found.running)} still running"
        yield (
            f"sreport: of these GPU-hours {parts}, {amount(found.requeued)} of requeued runs; it"
            f" adds idle reservations; the whole difference: {found.command}"
        )


def _closed(closed: Closed) -> str:
    said = (
        f"{closed.month} of {closed.cluster} was closed at {moment(closed.at)} with"
        f" {amount(closed.gpu_hours)} GPU-hours"
    )
    if not closed.jobs:
        return f"{said}; nothing was corrected since"
    sign = "+" if closed.corrected > 0 else ""
    corrected = f"{sign}{amount(closed.corrected)}"
    return f"{said}; corrected since by {corrected}, by {', '.join(closed.jobs)}"


def _weight(weight: float | None) -> str:
    return "unknown, counted as 0" if weight is None else f"{weight:g}"


def _age(meta: Meta) -> str:
    if not meta.source.startswith("ledger "):
        return f"asked {format_duration(meta.data_age or 0)} ago"
    if meta.data_age is None:
        return "no ingest has been finished yet; run: slurmkit ledger ingest"
    return f"last ingest {format_duration(meta.data_age)} ago"
