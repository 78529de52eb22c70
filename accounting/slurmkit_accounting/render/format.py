"""Format values of reports as text, and the lines below a report about its data."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from slurmkit.formats.durations import format_duration
from slurmkit_accounting.reports.model import (
    ClosedMonthSummary,
    ColumnKind,
    Meta,
    SreportDifference,
    Value,
)

UNKNOWN = "?"


def format_count(number: int, what: str) -> str:
    """Return a number with its noun: `1 run`, `2 runs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def format_value(value: Value, kind: ColumnKind) -> str:
    """Format a value for people, not escaped."""
    if value is None:
        return UNKNOWN
    if kind == "text" or isinstance(value, str | bool):
        return str(value)
    if kind == "share":
        return f"{value:.1%}"
    if kind == "time":
        return format_utc(int(value))
    return f"{value:,}" if isinstance(value, int) else format_amount(value)


def format_amount(value: float) -> str:
    """Format a number with two decimals; one too small for them becomes `<0.01`, not 0."""
    if 0 < abs(value) < 0.005:
        return "<0.01" if value > 0 else ">-0.01"
    return f"{value:,.2f}"


def format_brief(value: float) -> str:
    """Format a number with few digits, at least three."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else format_amount(value)


def format_utc(epoch: int) -> str:
    """Format epoch seconds as a time in UTC."""
    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d %H:%M:%S} UTC"


def footer_lines(meta: Meta) -> Iterator[str]:
    """Yield the lines below a report about its data, not escaped."""
    yield from _window_lines(meta)
    clusters = ""
    if meta.source.startswith("ledger "):
        clusters = f", {', '.join(meta.clusters) or 'no cluster yet'}"
    yield f"source: {meta.source}{clusters}; {_data_age(meta)}"
    counted = ", ".join(_run_counts(meta))
    if counted:
        yield f"counted: {counted}"
    yield from _missing_data_lines(meta)
    if meta.prices:
        money = f" in {meta.currency}" if meta.currency else ""
        yield f"prices{money}: {meta.prices}"
    if meta.weights:
        weights = ", ".join(f"{name} {_weight(weight)}" for name, weight in meta.weights.items())
        yield f"weights in whole GPUs: {weights}"
    if meta.sreport:
        yield _sreport_line(meta.sreport)
    yield from map(_closed_month_line, meta.closed)
    yield from meta.notes


def _window_lines(meta: Meta) -> Iterator[str]:
    if meta.window:
        begin, end = meta.window
        yield f"window: {begin} to {end} (not included), {meta.timezone}{_filter_note(meta)}"
    if meta.suspended:
        says = {"charge": "counts, as in sreport", "skip": "does not count"}
        yield f"suspended time {says[meta.suspended]} (--suspended {meta.suspended})"


def _filter_note(meta: Meta) -> str:
    parts = [f"{name} {' or '.join(values)}" for name, values in meta.filters.items()]
    parts += [f"job {meta.job}"] if meta.job else []
    return f"; only {', '.join(parts)}" if parts else ""


def _run_counts(meta: Meta) -> Iterator[str]:
    if meta.runs is not None:
        yield format_count(meta.runs, "run")
    if meta.rejects is not None:
        yield format_count(meta.rejects, "rejected line")
    if meta.unmapped is not None:
        hours = format_amount(meta.unmapped.gpu_hours)
        yield f"unmapped {format_count(meta.unmapped.jobs, 'run')} with {hours} GPU-hours"
    if meta.running:
        yield f"{meta.running:,} still running, counted up to {meta.running_until}"
    if meta.doubtful:
        yield f"the GPU count of {format_count(meta.doubtful, 'run')} is doubtful"


def _missing_data_lines(meta: Meta) -> Iterator[str]:
    if meta.missing_before:
        yield (
            f"the ledger begins at {meta.missing_before}, so earlier runs are missing; to read"
            " them: slurmkit ledger ingest --since DATE"
        )
    for cluster, begin, end in meta.gaps:
        yield f"gap: no jobs of {cluster} were read from {begin} to {end}"
    for name in meta.gpus_not_tracked:
        yield (
            f"GPUs of {name} are not tracked: its AccountingStorageTRES lacks gres/gpu, so sacct"
            " does not show their use"
        )
    if "pi" in meta.by and meta.last_people_sync is None:
        yield "no people were read yet, so no PI is known; run: slurmkit ledger people sync"


def _sreport_line(difference: SreportDifference) -> str:
    suspended, running = format_amount(difference.suspended), format_amount(difference.running)
    return (
        f"sreport may differ: these GPU-hours include {suspended} while suspended, {running} of"
        f" runs still running, {format_amount(difference.requeued)} of requeued runs; sreport adds"
        f" idle reservations; for the whole difference: {difference.command}"
    )


def _closed_month_line(closed: ClosedMonthSummary) -> str:
    at_closing = (
        f"{closed.month} of {closed.cluster} was closed at {format_utc(closed.at)} with"
        f" {format_amount(closed.gpu_hours)} GPU-hours"
    )
    if not closed.jobs:
        return f"{at_closing}; no corrections since"
    sign = "+" if closed.corrected > 0 else ""
    corrected = f"{sign}{format_amount(closed.corrected)}"
    return f"{at_closing}; corrected since by {corrected}, because of jobs {', '.join(closed.jobs)}"


def _weight(weight: float | None) -> str:
    return "unknown, counted as 0" if weight is None else f"{weight:g}"


def _data_age(meta: Meta) -> str:
    if not meta.source.startswith("ledger "):
        return f"read {format_duration(meta.data_age or 0)} ago"
    if meta.data_age is None:
        return "no ingest has finished yet; run: slurmkit ledger ingest"
    return f"last ingest {format_duration(meta.data_age)} ago"
