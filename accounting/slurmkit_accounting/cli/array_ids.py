"""Reports with facts from records in this home: users' array ids, and why runs ended.

The ledger has Slurm's ids, as sacct shows them; users know the ids that slurmkit gave the array
and its tasks. They differ for an array that Slurm holds as several arrays. Why a run ended is in
the history of a job that was sent with `--survive`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from slurmkit.cluster.sweeps import load_records_by_cluster, split_array_of
from slurmkit.formats.job_ids import whole_id
from slurmkit.jobs.run_history import RunRecord, load_history
from slurmkit.state.arrays import SplitArray
from slurmkit_accounting.reports.model import Column

if TYPE_CHECKING:
    from slurmkit_accounting.reports.model import Report

_SOURCE_NOTE = "why: from the jobs' histories in this home directory"


def to_slurm_ids(job: str | None, clusters: Sequence[str] = ()) -> str | None:
    """Return Slurm's ids for a user's id: `12,13` for `12`, `13_2` for `12_1003`.

    Args:
        job: the id that the user gives; an id without a record is returned unchanged.
        clusters: only look at records of these clusters; empty for all.
    """
    array, _, index = (job or "").partition("_")
    for name, whole in _split_arrays():
        if array == whole.first and (not clusters or name in clusters):
            return whole.part_of(int(index)) if index.isdecimal() else ",".join(whole.offsets)
    return job


def with_user_ids(report: Report) -> Report:
    """Return a report with Slurm's job ids replaced by those that users know."""
    by_part = {(name, job_id): one for name, one in _split_arrays() for job_id in one.offsets}

    def renamed(row: Mapping[str, object]) -> dict[str, object]:
        job_id = str(row["job"])
        whole = by_part.get((str(row["cluster"]), whole_id(job_id)))
        return {**row, "job": whole.named(job_id) if whole else job_id}

    return msgspec.structs.replace(report, rows=tuple(map(renamed, report.rows)))


def _split_arrays() -> Iterator[tuple[str, SplitArray]]:
    """Yield the recorded arrays that Slurm holds as several arrays, with their cluster's name."""
    for name, records in load_records_by_cluster().items():
        for record in records:
            if len(record.sent) > 1:
                yield name, split_array_of(record)


def with_end_reasons(report: Report) -> Report:
    """Add a column `why` to a report of runs; it is empty for runs without a history here."""
    jobs = {_job_of(row) for row in report.rows}
    histories = {(cluster, job): load_history(cluster, job) for cluster, job in jobs}
    rows = tuple({**row, "why": _end_reason(row, histories[_job_of(row)])} for row in report.rows)
    at = [column.name for column in report.columns].index("state") + 1
    columns = (*report.columns[:at], Column("why"), *report.columns[at:])
    note = (_SOURCE_NOTE,) if any(row["why"] for row in rows) else ()
    meta = msgspec.structs.replace(report.meta, notes=(*report.meta.notes, *note))
    return msgspec.structs.replace(report, meta=meta, columns=columns, rows=rows)


def _job_of(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["cluster"], row["job"]


def _end_reason(row: Mapping[str, Any], runs: Sequence[RunRecord]) -> str:
    """Return the reason of the run that began between Slurm's start and end of a row."""
    start, end = row["start"], row["end"]
    for run in runs:
        began = run.began
        if start is not None and began is not None and start <= began <= (end or began):
            return run.reason
    return ""
