"""The forms of a Slurm job id, and which rows of squeue and sacct belong to one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from slurmkit.errors import BadInput


class HasId(Protocol):
    """A row of squeue or sacct."""

    @property
    def job_id(self) -> str:
        """`12`, `12_3`, `12_[4-9]` or `12+1`."""
        ...

    @property
    def raw_id(self) -> str:
        """Slurm's own number for it."""
        ...


RowT = TypeVar("RowT", bound=HasId)

_JOB_ID = re.compile(r"\d{1,10}(_\d{1,10})?(\+\d{1,10})?", re.ASCII)
_WAITING = re.compile(r"\d{1,10}_\[[\d,:\-]+\]", re.ASCII)
_TASKS = re.compile(r"(?P<first>\d+)(-(?P<last>\d+)(:(?P<step>\d+))?)?", re.ASCII)
_CHARS = 64 * 1024  # half of what Linux takes in one argument


def check_job_id(text: str) -> str:
    """Return `text` when it is `12`, `12_3` (an array task) or `12+1` (a het component).

    Raises:
        BadInput: for anything else.
    """
    if not _JOB_ID.fullmatch(text):
        raise BadInput(f"{text!r} is not a job id: a number, or NUMBER_INDEX for an array task")
    return text


def check_part_id(text: str) -> str:
    """Return `text` when it is a job id, or that of tasks that wait together, `12_[1,4-9]`.

    Raises:
        BadInput: for anything else.
    """
    return text if _WAITING.fullmatch(text) else check_job_id(text)


def whole_id(job_id: str) -> str:
    """The array or het job that a task or component is part of: `12` of `12_3` and `12+1`."""
    return re.split(r"[_+]", job_id, maxsplit=1)[0]


def tasks(job_id: str) -> tuple[range, ...]:
    """Indices of the array tasks in an id such as `12_[1,4-9%2]` or `12_3`; none for others."""
    return spans(job_id.partition("_")[2].strip("[]"))


def spans(indices: str) -> tuple[range, ...]:
    """Read `0,2,5-9,20-40:5%3`; what follows `%` limits how many run at once."""
    found = map(_TASKS.fullmatch, indices.partition("%")[0].split(","))
    return tuple(_range(match) for match in found if match)


def one_of(part: str) -> str:
    """An id that can be asked about: of tasks that wait together that of the first."""
    return f"{whole_id(part)}_{tasks(part)[0][0]}" if "[" in part else part


def _range(match: re.Match[str]) -> range:
    first = int(match["first"])
    return range(first, int(match["last"] or first) + 1, int(match["step"] or 1))


def batches(job_ids: Iterable[str]) -> Iterator[list[str]]:
    """Split ids into lists that fit on a command line as one argument."""
    batch: list[str] = []
    chars = 0
    for job_id in dict.fromkeys(job_ids):
        if chars + len(job_id) >= _CHARS:
            yield batch
            batch, chars = [], 0
        batch.append(job_id)
        chars += len(job_id) + 1
    if batch:
        yield batch


def group(job_ids: Iterable[str], rows: Iterable[RowT]) -> dict[str, list[RowT]]:
    """Sort rows by the id that was asked for; the rows of an array or het job are its parts'."""
    found: dict[str, list[RowT]] = {job_id: [] for job_id in job_ids}
    members: dict[str, list[tuple[int, str]]] = {}
    for job_id in found:
        for first in [span[0] for span in tasks(job_id)[:1]]:
            members.setdefault(whole_id(job_id), []).append((first, job_id))
    for row in rows:
        for job_id in _ids_of(row, members):
            if job_id in found:
                found[job_id].append(row)
    return found


def _ids_of(row: HasId, members: dict[str, list[tuple[int, str]]]) -> Iterable[str]:
    """Ids by which a row can be asked for; `members` are the tasks asked for, by their array."""
    whole = whole_id(row.job_id)
    ids = {row.job_id, row.raw_id, whole, f"{row.job_id}+0"}  # sacct before it starts: no +0
    if "[" in row.job_id and whole in members:
        held = {at for span in tasks(row.job_id) for at in span}
        ids |= {job_id for at, job_id in members[whole] if at in held}
    return ids
