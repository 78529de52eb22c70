"""Why the runs of a job that survives ended: more than Slurm's REQUEUED, of jobs of this home."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from slurmkit.survive.history import RunEnd, kept_history

if TYPE_CHECKING:
    from slurmkit_accounting.reports.model import Report

_SOURCE = "why: as the jobs' own histories on this home have it"


def with_reasons(report: Report) -> Report:
    """The runs of a report with a column `why`; empty where nothing is known of it here."""
    from slurmkit_accounting.reports.model import Column  # noqa: PLC0415 - as in the commands

    jobs = {_of(row) for row in report.rows}
    histories = {(cluster, job): kept_history(cluster, job) for cluster, job in jobs}
    rows = tuple({**row, "why": _why(row, histories[_of(row)])} for row in report.rows)
    at = [column.name for column in report.columns].index("state") + 1
    columns = (*report.columns[:at], Column("why"), *report.columns[at:])
    told = (_SOURCE,) if any(row["why"] for row in rows) else ()
    meta = msgspec.structs.replace(report.meta, notes=(*report.meta.notes, *told))
    return msgspec.structs.replace(report, meta=meta, columns=columns, rows=rows)


def _of(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["cluster"], row["job"]


def _why(row: Mapping[str, Any], runs: Sequence[RunEnd]) -> str:
    """Of the run that began between Slurm's start and end."""
    start, end = row["start"], row["end"]
    for run in runs:
        began = run.began
        if start is not None and began is not None and start <= began <= (end or began):
            return run.reason
    return ""
