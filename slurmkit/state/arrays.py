"""Job arrays in the queue: the tasks of a row, and one row for a whole array.

slurmkit may submit one array of a user as several Slurm arrays. A tag in their comments says so:
`slurmkit-array:TOKEN:OFFSET:TOTAL` in the first, `slurmkit-array:TOKEN:OFFSET:TOTAL:FIRST_ID` in
the others. OFFSET, added to a Slurm array index, gives the user's index.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec

from slurmkit.formats.durations import parse_elapsed
from slurmkit.formats.job_ids import parse_task_indices
from slurmkit.formats.job_states import state_code
from slurmkit.formats.scontrol import merge_node_lists
from slurmkit.formats.tres import gpu_parts
from slurmkit.state.queue_rows import (
    QueueRow,
    escape_cells,
    format_gpu_count,
    format_gpu_parts,
    format_where,
    pending_reason,
    queue_cells,
)

_TAG_PREFIX = "slurmkit-array:"
_TAG = re.compile(
    _TAG_PREFIX
    + r"(?P<token>[0-9a-f]{12}):(?P<offset>\d{1,7}):(?P<total>\d{1,7})(:(?P<first>\d{1,10}))?"
    r"(?=\s|$|\"|')",
    re.ASCII,
)


def group_by_array(rows: Iterable[QueueRow]) -> list[tuple[QueueRow, ...]]:
    """Group rows by array, each group at the place of its first row.

    A tag counts only among jobs of the same user, because anybody can write such a comment.
    """
    groups: dict[object, list[QueueRow]] = {}
    for position, row in enumerate(rows):
        array = user_array_id(row)
        groups.setdefault((row.user, array) if array else position, []).append(row)
    return list(map(tuple, groups.values()))


class MergedArrayRow(QueueRow, frozen=True, gc=False):
    """One row for the pending tasks of a user's array that Slurm holds as several arrays.

    Attributes:
        rows: the rows of the Slurm arrays, for actions on them.
    """

    rows: tuple[QueueRow, ...] = ()


def merge_pending_rows(rows: Sequence[QueueRow]) -> Sequence[QueueRow]:
    """Merge pending rows of one user's array, even if Slurm holds it as several arrays.

    The merged row takes the place of the first; all other rows stay as they are.
    """
    parts = [row for row in rows if "[" in row.job_id and parse_array_tag(row.comment)]
    groups = [group for group in group_by_array(parts) if len(group) > 1]
    if not groups:
        return rows
    replaced: dict[str, QueueRow | None] = {row.job_id: None for group in groups for row in group}
    replaced.update((group[0].job_id, _merged_row(group)) for group in groups)
    merged = (replaced.get(row.job_id, row) for row in rows)
    return [row for row in merged if row is not None]


def _merged_row(rows: tuple[QueueRow, ...]) -> MergedArrayRow:
    own = {**msgspec.structs.asdict(rows[0]), "job_id": _array_id_with_indices(rows), "comment": ""}
    return MergedArrayRow(**own, rows=rows)


def count_tasks(row: QueueRow) -> int:
    """Return how many tasks a row stands for: 6 for `12_[4-9]`."""
    return sum(map(len, parse_task_indices(row.job_id))) if "[" in row.job_id else 1


def matches_job_id(row: QueueRow, job_id: str) -> bool:
    """Tell whether a job id names this row: its job, array, task or het component.

    Ids of Slurm's arrays and of the user's array both match.
    """
    own = re.split("[_+]", row.job_id)[0]
    users_array = user_array_id(row) or own
    if job_id in {row.job_id, row.raw_id, own, users_array}:
        return True
    array, _, task = job_id.partition("_")
    if not task.isdigit():
        return False
    if array == own and any(int(task) in span for span in parse_task_indices(row.job_id)):
        return True
    return array == users_array and int(task) in user_task_indices(row)


def array_cells(rows: Sequence[QueueRow], *, gpus_known: bool) -> tuple[str, ...]:
    """Return the cells of one table row for an array: tasks by state, all nodes, all GPUs.

    Args:
        rows: all rows of one array, or the single row of a job.
        gpus_known: see `queue_cells`.
    """
    if len(rows) == 1 and "[" not in rows[0].job_id:
        shown = queue_cells(rows[0], gpus_known=gpus_known)
        task = rows[0].array_id is not None
        return (*escape_cells(shown_id(rows[0])), *shown[1:]) if task else shown
    return escape_cells(
        _array_id_with_indices(rows),
        _distinct(row.user for row in rows),
        _distinct(row.account for row in rows),
        _distinct(row.partition for row in rows),
        format_task_states(rows),
        _longest(row.time_used for row in rows),
        _longest(row.time_limit for row in rows),
        str(sum(row.nodes * count_tasks(row) for row in rows)),
        _gpus(rows, known=gpus_known),
        format_where(_all_nodes(rows), _distinct(filter(None, map(pending_reason, rows)))),
        _distinct(row.name for row in rows),
    )


def _gpus(rows: Sequence[QueueRow], *, known: bool) -> str:
    if any(format_gpu_count(row, known=known) == "?" for row in rows):
        return "?"
    whole, parts = 0, Counter[str]()
    for row in rows:
        tasks = count_tasks(row)
        whole += row.gpus * tasks
        for kind, part in gpu_parts(row.tres).items():
            parts[kind] += part * tasks
    number = [str(whole)] if whole or not parts else []
    return ", ".join([*number, *filter(None, [format_gpu_parts(parts)])])


def format_task_states(rows: Iterable[QueueRow]) -> str:
    """Count tasks by state: `R 4, PD 36`; running tasks come first, pending ones last."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.state] += count_tasks(row)
    order = sorted(counts, key=lambda state: (state == "PENDING", state != "RUNNING", state))
    return ", ".join(f"{state_code(state)} {counts[state]}" for state in order)


def format_indices(indices: Iterable[int]) -> str:
    """Write task indices as Slurm does: `1-3,7`, or `0-20:5` for every fifth."""
    at = sorted(set(indices))
    steps = {b - a for a, b in pairwise(at)}
    if len(at) > 2 and len(steps) == 1 and steps != {1}:
        return f"{at[0]}-{at[-1]}:{steps.pop()}"
    runs = [[i for _, i in run] for _, run in groupby(enumerate(at), lambda p: p[1] - p[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _array_id_with_indices(rows: Sequence[QueueRow]) -> str:
    if len(rows) == 1:
        return shown_id(rows[0])
    tasks = format_indices(index for row in rows for index in user_task_indices(row))
    return f"{user_array_id(rows[0])}_[{tasks}{_total_throttle(rows)}]"


def _total_throttle(rows: Iterable[QueueRow]) -> str:
    """Return the throttle (`%8`) of the user's array: the sum over its Slurm arrays."""
    limits = {
        row.array_id: row.job_id.strip("]").partition("%")[2] for row in rows if "%" in row.job_id
    }
    return f"%{sum(map(int, limits.values()))}" if limits else ""


def _distinct(values: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(values))


def _longest(times: Iterable[str]) -> str:
    """Return the longest time; text that is no time, e.g. UNLIMITED, counts as the longest."""
    different = dict.fromkeys(times)  # most tasks of an array are alike
    if len(different) == 1:
        return next(iter(different))
    return max(different, key=_seconds_or_endless)


def _seconds_or_endless(time: str) -> float:
    seconds = parse_elapsed(time)
    return math.inf if seconds is None else seconds


def _all_nodes(rows: Sequence[QueueRow]) -> str:
    node_lists = list(dict.fromkeys(row.node_list for row in rows if row.node_list))
    if len(node_lists) < 2:
        return "".join(node_lists)
    return merge_node_lists(node_lists)


class ArrayTag(NamedTuple):
    """The tag of one Slurm array that is a part of a user's array.

    Attributes:
        token: random, the same in all parts of one submit.
        offset: added to a Slurm array index, it gives the user's index.
        total: number of tasks of the user's array.
        first: id of the first Slurm array, which is the user's array id; None in the first.
    """

    token: str
    offset: int
    total: int
    first: str | None = None

    def comment_text(self) -> str:
        """Return the tag as text for a comment of Slurm."""
        first = f":{self.first}" if self.first else ""
        return f"{_TAG_PREFIX}{self.token}:{self.offset}:{self.total}{first}"


def parse_array_tag(comment: str) -> ArrayTag | None:
    """Parse the tag in a comment, or in a submit line; of several the last one counts."""
    if _TAG_PREFIX not in comment:
        return None
    matches = list(_TAG.finditer(comment))
    if not matches:
        return None
    last = matches[-1]
    return ArrayTag(last["token"], int(last["offset"]), int(last["total"]), last["first"])


def drop_foreign_tags(rows: Sequence[QueueRow], own_user: str | None) -> tuple[QueueRow, ...]:
    """Remove tags that say that a row belongs to another array, unless that array is there.

    Anybody can write another user's array id into a comment. A tag counts in your own jobs, and
    where the first array is among the rows, with the same user and token.

    Args:
        rows: rows of one squeue call.
        own_user: your login name; None if unknown.
    """
    tags = [parse_array_tag(row.comment) for row in rows]
    firsts = {
        (row.user, row.array_id, tag.token)
        for row, tag in zip(rows, tags, strict=True)
        if tag and tag.first is None
    }
    return tuple(
        row
        if tag is None
        or tag.first is None
        or row.user == own_user
        or (row.user, tag.first, tag.token) in firsts
        else msgspec.structs.replace(row, comment=_TAG.sub("", row.comment).strip())
        for row, tag in zip(rows, tags, strict=True)
    )


def user_array_id(row: QueueRow) -> str | None:
    """Return the id of the user's array that a row belongs to; None if it is no array."""
    array = row.array_id
    tag = parse_array_tag(row.comment) if array else None
    return tag.first if tag and tag.first else array


def shown_id(row: QueueRow) -> str:
    """Return a row's id with the user's array id and index: `12_1003` for Slurm's `13_2`."""
    tag = parse_array_tag(row.comment)
    return row.job_id if tag is None else to_user_array_id(row.job_id, tag.first, tag.offset)


class SplitArray(NamedTuple):
    """A user array that Slurm holds as several arrays.

    Attributes:
        first: id of the first Slurm array; it stands for the whole.
        offsets: offset of each Slurm array by id, in order.
    """

    first: str
    offsets: Mapping[str, int]

    def part_of(self, index: int) -> str:
        """Return Slurm's id of a task: `13_2` for task 1003."""
        before = [job_id for job_id, offset in self.offsets.items() if offset <= index]
        job_id = before[-1] if before else self.first
        return f"{job_id}_{index - self.offsets[job_id]}" if before else f"{job_id}_{index}"

    def named(self, job_id: str) -> str:
        """Return the user's id for a Slurm id: `12_1003` for `13_2`."""
        array = job_id.partition("_")[0]
        return to_user_array_id(job_id, self.first, self.offsets.get(array, 0))


def to_user_array_id(job_id: str, first: str | None, offset: int) -> str:
    """Change an id of a Slurm array into one of the user's array.

    Args:
        job_id: `13_2` or `13_[2-9%4]`; any other id stays as it is.
        first: id of the user's array; None if the Slurm array has the same id.
        offset: added to a Slurm array index, it gives the user's index.
    """
    array, underscore, rest = job_id.partition("_")
    if not underscore or (first is None and not offset):
        return job_id
    # Every index, but not the throttle after % nor the step after a colon.
    moved = re.sub(r"(?<![%:\d])\d+", lambda number: str(int(number[0]) + offset), rest)
    return f"{first or array}_{moved}"


def user_task_indices(row: QueueRow) -> Iterable[int]:
    """Return the task indices of the user's array that a row stands for."""
    tag = parse_array_tag(row.comment)
    offset = tag.offset if tag else 0
    return (index + offset for span in parse_task_indices(row.job_id) for index in span)


def replace_task_ids(text: str, name: Callable[[str], str]) -> str:
    """Replace each task id (`12_3`) in a text by what `name` returns for it."""
    return re.sub(r"\b\d+_\d+\b", lambda match: name(match[0]), text)
