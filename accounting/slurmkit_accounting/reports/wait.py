"""`report wait`: how long runs waited from submission to start, by partition and GPU type."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, literal_column

from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.ledger.schema.usage import HOUR
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.reports.model import Column, Meta, Panel, Report, Series, sum_columns
from slurmkit_accounting.reports.selection import RunSelection, runs_started_within

DEFAULT_BY = ("partition", "gpu_type")
COLUMNS = (
    Column("jobs", "count", adds_up=True),
    Column("wait_hours_mean", "hours"),
    Column("wait_hours_median", "hours"),
    Column("wait_hours_90", "hours"),
    Column("wait_hours_longest", "hours"),
)

_WAIT: ColumnElement[int] = literal_column(
    "CASE WHEN start > submit THEN start - submit ELSE 0 END"
)
_DEFINITION = (
    "wait: from submission to start, of the runs that started in the window; a run with several"
    " GPU types is counted under the first type"
)


def wait_report(ledger: Ledger, question: Question, by: Sequence[str] = DEFAULT_BY) -> Report:
    """Report wait times of the runs that started in the window, longest mean first.

    Args:
        ledger: open for reading.
        question: window, filters and scope.
        by: dimensions, but none of time.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    names = list(by)
    waits: dict[tuple[str, ...], Counter[int]] = defaultdict(Counter)
    with ledger.transaction() as connection:
        selection = RunSelection(connection, question)
        for started in runs_started_within(question.window):
            where = (*started, runs.c.nodes > 0)
            for labels, (wait, jobs) in selection.sums_by(names, (_WAIT,), (func.count(),), *where):
                waits[labels][wait] += jobs
        rows = [
            {**dict(zip(names, labels, strict=True)), **_wait_columns(counts)}
            for labels, counts in waits.items()
        ]
        meta = Meta(
            report="wait",
            by=tuple(names),
            filters=question.filters,
            job=question.job,
            runs=sum(each.total() for each in waits.values()),
            total=sum_columns(COLUMNS, rows),
            definitions=(_DEFINITION,),
            notes=selection.unknown_names() if not rows else (),
            **provenance.ledger_fields(ledger, connection, question.now, question.scope),
            **provenance.window_fields(connection, question.window, question.zone, question.now),
        )
    rows.sort(key=lambda row: -row["wait_hours_mean"])
    return Report(meta, (*map(Column, names), *COLUMNS), tuple(rows), (_panel(rows, names),))


def _wait_columns(counts: Mapping[int, int]) -> dict[str, Any]:
    jobs = sum(counts.values())
    ordered = sorted(counts.items())
    return {
        "jobs": jobs,
        "wait_hours_mean": sum(wait * count for wait, count in ordered) / jobs / HOUR,
        "wait_hours_median": wait_not_exceeded_by(ordered, jobs * 0.5) / HOUR,
        "wait_hours_90": wait_not_exceeded_by(ordered, jobs * 0.9) / HOUR,
        "wait_hours_longest": ordered[-1][0] / HOUR,
    }


def wait_not_exceeded_by(ordered: Sequence[tuple[int, int]], runs_below: float) -> int:
    """Return the shortest wait that at least so many runs did not exceed."""
    passed = 0
    for wait, count in ordered:
        passed += count
        if passed >= runs_below:
            return wait
    return ordered[-1][0]


def _panel(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Panel:
    labels = tuple(" ".join(row[name] for name in names) for row in rows)
    values = tuple(row["wait_hours_90"] for row in rows)
    note = "Nine in ten runs waited at most this long."
    return Panel("bars", "Wait, 90th percentile", "hours", labels, (Series("h", values),), note)
