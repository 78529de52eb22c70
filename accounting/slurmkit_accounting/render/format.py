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

_EMPTY = '""'  # an empty name, in a sentence


def format_count(number: int, what: str) -> str:
    """Return a number with its noun: `1 run`, `2 runs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def format_value(value: Value, kind: ColumnKind) -> str:
    """Format a value for people, not escaped."""
    if value is None:
        return "" if kind == "time" else UNKNOWN
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


def footer_lines(meta: Meta, *, brief: bool = False) -> Iterator[str]:
    """Yield the lines below a report about its data, not escaped.

    Args:
        meta: metadata of the report.
        brief: only the window, the age of the data, the currency, whose data it is, and whatever
            makes the numbers doubtful or incomplete.
    """
    yield from _window_lines(meta, brief=brief)
    clusters = ""
    if meta.source.startswith("ledger "):
        clusters = f", {', '.join(meta.clusters) or 'no cluster yet'}"
    yield f"source: {meta.source}{clusters}; {_data_age(meta)}"
    runs = [] if meta.runs is None else [format_count(meta.runs, "run")]
    remarks = list(_run_remarks(meta, brief=brief))
    if remarks or (runs and not brief):
        yield f"counted: {', '.join([*runs, *remarks])}"
    yield from _missing_data_lines(meta)
    if meta.prices and (meta.currency or not brief):
        money = f" in {meta.currency}" if meta.currency else ""
        yield f"prices{money}: {meta.prices}"
    weights = ", ".join(
        f"{name} {_weight(weight)}"
        for name, weight in meta.weights.items()
        if weight is None or not brief
    )
    if weights:
        yield f"weights in whole GPUs: {weights}"
    if meta.sreport and not (brief and _is_nothing(meta.sreport)):
        yield _sreport_line(meta.sreport, brief=brief)
    yield from (_closed_month_line(each) for each in meta.closed if each.jobs or not brief)
    yield from () if brief else meta.definitions
    yield from meta.notes


def _window_lines(meta: Meta, *, brief: bool) -> Iterator[str]:
    if meta.window:
        begin, end = meta.window
        yield f"window: {begin} to {end} (not included), {meta.timezone}{_filter_note(meta)}"
    if meta.suspended and not (brief and meta.suspended == "charge"):
        says = {"charge": "counts, as in sreport", "skip": "does not count"}
        yield f"suspended time {says[meta.suspended]} (--suspended {meta.suspended})"


def _filter_note(meta: Meta) -> str:
    parts = [
        " ".join((name, " or ".join(value or _EMPTY for value in values)))
        for name, values in meta.filters.items()
    ]
    parts += [f"job {meta.job}"] if meta.job else []
    return f"; only {', '.join(parts)}" if parts else ""


def _run_remarks(meta: Meta, *, brief: bool) -> Iterator[str]:
    if meta.rejects or (meta.rejects is not None and not brief):
        yield format_count(meta.rejects, "rejected line")
    if meta.unmapped is not None and (meta.unmapped.jobs or not brief):
        hours = format_amount(meta.unmapped.gpu_hours)
        yield f"unmapped {format_count(meta.unmapped.jobs, 'run')} with {hours} GPU-hours"
    if meta.running:
        yield f"{meta.running:,} still running, counted up to {meta.running_until}"
    if meta.doubtful:
        yield f"the GPU count of {format_count(meta.doubtful, 'run')} is doubtful"


def _missing_data_lines(meta: Meta) -> Iterator[str]:
    if meta.missing_before:
        # Only who may see everything is told of rejected lines, and only they may ingest.
        how = (
            "to have them, ask your administrators"
            if meta.rejects is None
            else "to read them: slurmkit ledger ingest --since DATE"
        )
        begin = meta.missing_before
        yield f"the ledger begins at {begin}, so earlier runs are missing; {how}"
    for cluster, begin, end in meta.gaps:
        yield f"gap: no jobs of {cluster} were read from {begin} to {end}"
    for name in meta.gpus_not_tracked:
        yield (
            f"GPUs of {name} are not tracked: its AccountingStorageTRES lacks gres/gpu, so sacct"
            " does not show their use"
        )
    if "pi" in meta.by and meta.last_people_sync is None:
        yield "no people were read yet, so no PI is known; run: slurmkit ledger people sync"


def _is_nothing(difference: SreportDifference) -> bool:
    """Return whether only runs that still run differ; the line `counted` has those."""
    return not (difference.suspended or difference.requeued)


def _sreport_line(difference: SreportDifference, *, brief: bool) -> str:
    parts = {
        "while suspended": difference.suspended,
        "of runs still running": difference.running,
        "of requeued runs": difference.requeued,
    }
    named = (
        f"{format_amount(hours)} {what}" for what, hours in parts.items() if hours or not brief
    )
    return (
        f"sreport may differ: these GPU-hours include {', '.join(named)}; sreport adds idle"
        f" reservations; for the whole difference: {difference.command}"
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
