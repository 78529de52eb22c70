"""Arrays in several of Slurm's by the ids that their user knows, as they are remembered here.

To the books they are what sacct says of them: each task is a run, and its array one of Slurm's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from slurmkit.jobs.ids import whole_id
from slurmkit.sweeps.finding import Whole, as_sent
from slurmkit.sweeps.records import everywhere

if TYPE_CHECKING:
    from slurmkit_accounting.reports.model import Report


def as_slurm_has(job: str | None, clusters: Sequence[str] = ()) -> str | None:
    """All of Slurm's ids that one stands for, by comma: `12,13` for `12`, `13_2` for `12_1003`.

    Args:
        job: as a person gives it; one of which nothing is remembered stays as it is.
        clusters: only of these, unless there are none.
    """
    array, _, index = (job or "").partition("_")
    for name, whole in _wholes():
        if array == whole.first and (not clusters or name in clusters):
            return whole.part_of(int(index)) if index.isdecimal() else ",".join(whole.offsets)
    return job


def named(report: Report) -> Report:
    """A report whose runs have the ids that their user knows."""
    by_part = {(name, job_id): one for name, one in _wholes() for job_id in one.offsets}

    def renamed(row: Mapping[str, object]) -> dict[str, object]:
        job_id = str(row["job"])
        whole = by_part.get((str(row["cluster"]), whole_id(job_id)))
        return {**row, "job": whole.named(job_id) if whole else job_id}

    return msgspec.structs.replace(report, rows=tuple(map(renamed, report.rows)))


def _wholes() -> Iterator[tuple[str, Whole]]:
    """Those in more than one of Slurm's arrays, with the name of their cluster."""
    for name, records in everywhere().items():
        for record in records:
            if len(record.sent) > 1:
                yield name, as_sent(record)
