"""Forms of Slurm job ids, and the rows of squeue and sacct that belong to an id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from slurmkit.errors import BadInput


class HasId(Protocol):
    """Any row of squeue or sacct."""

    @property
    def job_id(self) -> str:
        """`12`, `12_3`, `12_[4-9]` or `12+1`."""
        ...

    @property
    def raw_id(self) -> str:
        """Slurm's plain number; each array task and het component has its own."""
        ...


RowT = TypeVar("RowT", bound=HasId)

_JOB_ID = re.compile(r"\d{1,10}(_\d{1,10})?(\+\d{1,10})?", re.ASCII)
_PENDING_TASKS = re.compile(r"\d{1,10}_\[[\d,:\-]+\]", re.ASCII)
_TASKS = re.compile(r"(?P<first>\d+)(-(?P<last>\d+)(:(?P<step>[1-9]\d*))?)?", re.ASCII)
_MAX_CHARS = 64 * 1024  # half of what Linux takes in one argument


def check_job_id(text: str) -> str:
    """Return `text` when it is `12`, `12_3` (an array task) or `12+1` (a het component).

    Raises:
        BadInput: for anything else.
    """
    if not _JOB_ID.fullmatch(text):
        raise BadInput(f"{text!r} is not a job id; give e.g. 123, or 123_4 for an array task")
    return text


def check_part_id(text: str) -> str:
    """Return `text` when it is a job id, or the id of pending array tasks, `12_[1,4-9]`.

    Raises:
        BadInput: for anything else.
    """
    if not _PENDING_TASKS.fullmatch(text):
        return check_job_id(text)
    spans = parse_task_indices(text)
    if len(spans) <= text.count(",") or not all(spans):
        raise BadInput(f"{text!r} names no array tasks; give e.g. 12_[1,4-9]")
    return text


def whole_id(job_id: str) -> str:
    """Return the id of the array or het job of a task or component: `12` for `12_3`, `12+1`."""
    return re.split(r"[_+]", job_id, maxsplit=1)[0]


def parse_task_indices(job_id: str) -> tuple[range, ...]:
    """Parse the task indices of an id such as `12_[1,4-9%2]` or `12_3`; empty for others."""
    return parse_index_spans(job_id.partition("_")[2].strip("[]"))


def count_tasks(job_id: str) -> int:
    """Return how many tasks of an array an id stands for: 3 for `12_[1-3]`, else 1."""
    return sum(map(len, parse_task_indices(job_id))) or 1


def parse_index_spans(indices: str) -> tuple[range, ...]:
    """Parse indices such as `0,2,5-9,20-40:5%3` (`%3`: three run at once, ignored here)."""
    ranges = []
    for match in map(_TASKS.fullmatch, indices.partition("%")[0].split(",")):
        if match:
            first = int(match["first"])
            last, step = int(match["last"] or first), int(match["step"] or 1)
            ranges.append(range(first, last + 1, step))
    return tuple(ranges)


def queryable_id(part: str) -> str:
    """Return an id that Slurm accepts in a query. For pending `12_[4-9]` it is task 4."""
    return f"{whole_id(part)}_{parse_task_indices(part)[0][0]}" if "[" in part else part


def batch_job_ids(job_ids: Iterable[str]) -> Iterator[list[str]]:
    """Split ids into lists that each fit into one argument of a command line."""
    batch: list[str] = []
    chars = 0
    for job_id in dict.fromkeys(job_ids):
        if chars + len(job_id) >= _MAX_CHARS:
            yield batch
            batch, chars = [], 0
        batch.append(job_id)
        chars += len(job_id) + 1
    if batch:
        yield batch


def group_by_id(job_ids: Iterable[str], rows: Iterable[RowT]) -> dict[str, list[RowT]]:
    """Group rows by the id that was asked for; an array or het job gets the rows of its parts."""
    grouped: dict[str, list[RowT]] = {job_id: [] for job_id in job_ids}
    asked_tasks: dict[str, list[tuple[int, str]]] = {}  # (index, id) by array
    for job_id in grouped:
        for first in [span[0] for span in parse_task_indices(job_id)[:1]]:
            asked_tasks.setdefault(whole_id(job_id), []).append((first, job_id))
    for row in rows:
        for job_id in _ids_of(row, asked_tasks):
            if job_id in grouped:
                grouped[job_id].append(row)
    return grouped


def _ids_of(row: HasId, asked_tasks: dict[str, list[tuple[int, str]]]) -> Iterable[str]:
    """Return every id that a row answers to, with the tasks asked for that it includes."""
    whole = whole_id(row.job_id)
    # Before a het job starts sacct leaves out the +0.
    ids = {row.job_id, row.raw_id, whole, f"{row.job_id}+0"}
    if "[" in row.job_id and whole in asked_tasks:
        indices = {index for span in parse_task_indices(row.job_id) for index in span}
        ids |= {job_id for index, job_id in asked_tasks[whole] if index in indices}
    return ids
