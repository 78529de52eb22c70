"""`report capacity`: GPUs that were there, held, used and waited for, by month and GPU type."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection

from slurmkit_accounting.gpu_use.capacity import gpu_seconds_there, load_capacity
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.usage import HOUR
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import CountedUsage, Question
from slurmkit_accounting.reports.model import Column, Meta, Report, Value, sum_columns
from slurmkit_accounting.reports.rates import NO_GPU_NAME
from slurmkit_accounting.reports.tally import Tally

BY = ("month", "gpu_type")
COLUMNS = (
    Column("month"),
    Column("gpu_type"),
    Column("capacity_gpu_hours", "hours", adds_up=True),
    Column("gpu_hours", "hours", adds_up=True),
    Column("held", "share"),
    Column("gpu_hours_used", "hours", adds_up=True),
    Column("gpu_efficiency", "share"),
    Column("jobs", "count"),
    Column("wait_hours", "hours", adds_up=True),
    Column("wait_hours_mean", "hours"),
)
_DEFINITIONS = (
    (
        "capacity_gpu_hours: GPUs of all nodes, also of those that were down, as ingests saw them;"
        " unknown for a month that began before the first of these ingests"
    ),
    "held: gpu_hours of capacity_gpu_hours; with filters only those of the runs that match",
    (
        "gpu_hours_used, gpu_efficiency: of the runs that ended in the month and whose GPUs were"
        " measured for at least half of their time"
    ),
    "wait_hours: from submission to start, summed over the runs that started in the month",
)


def capacity_report(ledger: Ledger, question: Question) -> Report:
    """Report capacity, use and waiting by month and GPU type.

    Args:
        ledger: open for reading.
        question: window, filters and scope.

    Raises:
        BadConfig: for prices that cannot be used.
        LedgerError: when the ledger cannot be read.
    """
    with ledger.transaction() as connection:
        counted = CountedUsage(connection, replace(question, units=frozenset(("month",))), BY)
        there = _capacity(connection, counted)
        tallies = {
            labels: tally for labels, tally in counted.rows(BY).items() if labels[1] != NO_GPU_NAME
        }
        rows = [
            _row(month, gpu_type, tallies.get((month, gpu_type)), there, counted)
            for month, gpu_type in sorted({*tallies, *there})
        ]
        meta = Meta(
            report="capacity",
            by=BY,
            filters=question.filters,
            job=question.job,
            total=sum_columns(COLUMNS, rows),
            definitions=_DEFINITIONS,
            **provenance.ledger_fields(ledger, connection, question.now, question.scope),
            **provenance.window_fields(connection, question.window, question.zone, question.now),
        )
    return Report(meta, COLUMNS, tuple(rows))


def _capacity(
    connection: Connection, counted: CountedUsage
) -> dict[tuple[str, str], Fraction | None]:
    """Return the GPU-hours that were there, by month and GPU type; None if unknown."""
    question, found = counted.question, dict[tuple[str, str], Fraction | None]()
    for (_, gpu_type), changes in load_capacity(connection).items():
        kind = counted.rates.kind(gpu_type, "")
        if question.filters.get("gpu_type") and kind.name not in question.filters["gpu_type"]:
            continue
        for part in counted.parts:
            end = min(part.end, question.now)
            if end <= part.begin:
                continue
            key = part.labels["month"], kind.name
            seconds = gpu_seconds_there(changes, part.begin, end)
            before = found.get(key, Fraction(0))
            known = None if seconds is None else (kind.weight or 0) * Fraction(seconds, HOUR)
            found[key] = None if known is None or before is None else before + known
    return {key: hours for key, hours in found.items() if hours != 0}


def _row(
    month: str,
    gpu_type: str,
    tally: Tally | None,
    there: dict[tuple[str, str], Fraction | None],
    counted: CountedUsage,
) -> dict[str, Any]:
    values: dict[str, Value] = {} if tally is None else tally.values(counted.rates, counted.parts)
    capacity = there.get((month, gpu_type))
    held = values.get("gpu_hours", 0.0)
    jobs, wait = values.get("jobs", 0), values.get("wait_hours", 0.0)
    return {
        "month": month,
        "gpu_type": gpu_type,
        "capacity_gpu_hours": None if capacity is None else float(capacity),
        "gpu_hours": held,
        "held": _share(held, capacity),
        "gpu_hours_used": values.get("gpu_hours_used"),
        "gpu_efficiency": values.get("gpu_efficiency"),
        "jobs": jobs,
        "wait_hours": wait,
        "wait_hours_mean": _mean_wait(tally),
    }


def _share(held: Value, capacity: Fraction | None) -> float | None:
    return held / float(capacity) if capacity and isinstance(held, float) else None


def _mean_wait(tally: Tally | None) -> float | None:
    if tally is None or not tally.started:
        return None
    return tally.waited_seconds / tally.started / HOUR
