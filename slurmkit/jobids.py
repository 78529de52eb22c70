"""The forms of a Slurm job id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

from slurmkit.errors import BadInput


class HasId(Protocol):
    """A row of squeue or sacct."""

    @property
    def job_id(self) -> str:
        """`12`, `12_3`, `12_[4-9]` or `12+1`."""
        ...


RowT = TypeVar("RowT", bound=HasId)


_JOB_ID = re.compile(r"\d{1,10}(_\d{1,10})?(\+\d{1,10})?", re.ASCII)


def check_job_id(text: str) -> str:
    """Return `text` when it is `12`, `12_3` (an array task) or `12+1` (a het component).

    Raises:
        BadInput: for anything else.
    """
    if not _JOB_ID.fullmatch(text):
        raise BadInput(f"{text!r} is not a job id: a number, or NUMBER_INDEX for an array task")
    return text


def one_part(job_id: str, rows: Sequence[RowT]) -> RowT | None:
    """Return the last row of one job, None when there is none.

    Raises:
        BadInput: when the rows are tasks of array `job_id`, or components of a het job.
    """
    ids = list(dict.fromkeys(row.job_id for row in rows))
    parts = [part for part in ids if part.startswith((f"{job_id}_", f"{job_id}+"))]
    if len(ids) > 1 or (parts and "[" not in parts[0]):
        named = next((part for part in ids if "[" not in part), ids[0])
        raise BadInput(f"{job_id} has several parts; name one of them, e.g. {named}")
    return rows[-1] if rows else None
