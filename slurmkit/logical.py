"""One array to its user, several to Slurm: what their comments say of the whole.

`slurmkit-array:TOKEN:OFFSET:TOTAL` stands in the comment of the first, and `:ID` of that after it
in those of the others. OFFSET is what Slurm's indices lack to those of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from slurmkit.jobs.ids import tasks
from slurmkit.queue.rows import QueueRow

_SIGN = "slurmkit-array:"
_TAG = re.compile(
    _SIGN + r"(?P<token>[0-9a-f]{12}):(?P<offset>\d{1,7}):(?P<total>\d{1,7})(:(?P<first>\d{1,10}))?"
    r"(?=\s|$|\"|')",
    re.ASCII,
)


class Tag(NamedTuple):
    """What one of Slurm's arrays says of the whole it is part of.

    Attributes:
        token: made for this submit.
        offset: what its indices lack to those of the whole.
        total: tasks of the whole.
        first: id of the array that stands for the whole; None for that array itself.
    """

    token: str
    offset: int
    total: int
    first: str | None = None

    def words(self) -> str:
        """As it stands in a comment."""
        first = f":{self.first}" if self.first else ""
        return f"{_SIGN}{self.token}:{self.offset}:{self.total}{first}"


def tag_of(comment: str) -> Tag | None:
    """The tag in a comment, or in the line that was submitted; the last counts."""
    if _SIGN not in comment:
        return None
    found = list(_TAG.finditer(comment))
    if not found:
        return None
    last = found[-1]
    return Tag(last["token"], int(last["offset"]), int(last["total"]), last["first"])


def whole_of(row: QueueRow) -> str | None:
    """The id of the whole array a row is of, Slurm's own where that is one; None outside one."""
    tag = tag_of(row.comment)
    return tag.first if tag and tag.first and row.array_id else row.array_id


def shown_id(row: QueueRow) -> str:
    """The id of a row as one of its whole array: `12_1003` of Slurm's `13_2`."""
    tag = tag_of(row.comment)
    return row.job_id if tag is None else renamed(row.job_id, tag.first, tag.offset)


def renamed(job_id: str, first: str | None, offset: int) -> str:
    """An id of Slurm's as one of the whole array.

    Args:
        job_id: `13_2` or `13_[2-9%4]`; any other stays as it is.
        first: id of the whole; None for the same.
        offset: what its indices lack.
    """
    array, underscore, rest = job_id.partition("_")
    if not underscore or (first is None and not offset):
        return job_id
    return f"{first or array}_{_moved(rest, offset)}"


def _moved(indices: str, offset: int) -> str:
    return re.sub(r"(?<![%:\d])\d+", lambda number: str(int(number[0]) + offset), indices)


def indices(row: QueueRow) -> Iterable[int]:
    """The tasks of the whole array that a row stands for."""
    tag = tag_of(row.comment)
    offset = tag.offset if tag else 0
    return (index + offset for span in tasks(row.job_id) for index in span)


def in_words(text: str, name: Callable[[str], str]) -> str:
    """A text in which each id of a task is as `name` has it."""
    return re.sub(r"\b\d+_\d+\b", lambda found: name(found[0]), text)
