"""The tasks of a job array: which they are, and all of them in one row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

import msgspec

from slurmkit.durations import parse_elapsed
from slurmkit.jobs.ids import tasks
from slurmkit.logical import indices as logical_indices
from slurmkit.logical import shown_id, tag_of, whole_of
from slurmkit.queue.cells import cells, gpus, parts_in_words, safe, waiting_for, where
from slurmkit.queue.rows import QueueRow
from slurmkit.states import code
from slurmkit.tres import gpu_parts


def collapse(rows: Iterable[QueueRow]) -> list[tuple[QueueRow, ...]]:
    """Put the rows of each array together, where the first of them stood.

    What a comment says of the whole counts within one person's jobs: anybody can write one.
    """
    together: dict[object, list[QueueRow]] = {}
    for at, row in enumerate(rows):
        whole = whole_of(row)
        together.setdefault((row.user, whole) if whole else at, []).append(row)
    return list(map(tuple, together.values()))


class Joined(QueueRow, frozen=True, gc=False):
    """What waits of an array in several of Slurm's, in one row.

    Attributes:
        rows: Slurm's own, for what can be done to them.
    """

    rows: tuple[QueueRow, ...] = ()


def joined(rows: Sequence[QueueRow]) -> Sequence[QueueRow]:
    """Rows of the queue, those one that wait of an array, in however many of Slurm's it is."""
    parts = [row for row in rows if "[" in row.job_id and tag_of(row.comment)]
    several = [some for some in collapse(parts) if len(some) > 1]
    if not several:
        return rows
    left_out = {row.job_id: None for some in several for row in some}
    first = {some[0].job_id: _joined(some) for some in several}
    found = (first.get(row.job_id) or left_out.get(row.job_id, row) for row in rows)
    return [row for row in found if row is not None]


def _joined(rows: tuple[QueueRow, ...]) -> Joined:
    own = {**msgspec.structs.asdict(rows[0]), "job_id": _tasks(rows), "comment": ""}
    return Joined(**own, rows=rows)


def count(row: QueueRow) -> int:
    """How many tasks a row stands for: `12_[4-9]` for six."""
    return sum(map(len, tasks(row.job_id))) if "[" in row.job_id else 1


def covers(row: QueueRow, job_id: str) -> bool:
    """Whether a row is of the job, array, task or het component of that id, or of such a whole."""
    own = re.split("[_+]", row.job_id)[0]
    whole = whole_of(row) or own
    if job_id in {row.job_id, row.raw_id, own, whole}:
        return True
    array, _, task = job_id.partition("_")
    if not task.isdigit():
        return False
    slurms = array == own and any(int(task) in span for span in tasks(row.job_id))
    return slurms or (array == whole and int(task) in logical_indices(row))


def array_cells(rows: Sequence[QueueRow], *, gpus_known: bool) -> tuple[str, ...]:
    """One row for an array: its tasks by state, and nodes and GPUs of all of them together.

    Args:
        rows: all rows of one array, or the one row of a job.
        gpus_known: see `queue.cells.cells`.
    """
    if len(rows) == 1 and "[" not in rows[0].job_id:
        shown = cells(rows[0], gpus_known=gpus_known)
        return (*safe(shown_id(rows[0])), *shown[1:])
    return safe(
        _tasks(rows),
        _each(row.user for row in rows),
        _each(row.account for row in rows),
        _each(row.partition for row in rows),
        tally(rows),
        _longest(row.time_used for row in rows),
        _longest(row.time_limit for row in rows),
        str(sum(row.nodes * count(row) for row in rows)),
        _gpus(rows, known=gpus_known),
        where(_folded(rows), _each(filter(None, map(waiting_for, rows)))),
        _each(row.name for row in rows),
    )


def _gpus(rows: Sequence[QueueRow], *, known: bool) -> str:
    if any(gpus(row, known=known) == "?" for row in rows):
        return "?"
    whole, parts = sum(row.gpus * count(row) for row in rows), Counter[str]()
    for row in rows:
        parts.update({kind: part * count(row) for kind, part in gpu_parts(row.tres).items()})
    said = [str(whole)] if whole or not parts else []
    return ", ".join([*said, *filter(None, [parts_in_words(parts)])])


def tally(rows: Iterable[QueueRow]) -> str:
    """Count tasks by state: `R 4, PD 36`; what waits comes last."""
    found: Counter[str] = Counter()
    for row in rows:
        found[row.state] += count(row)
    order = sorted(found, key=lambda state: (state == "PENDING", state != "RUNNING", state))
    return ", ".join(f"{code(state)} {found[state]}" for state in order)


def fold(indices: Iterable[int]) -> str:
    """Write task indices as Slurm does: `1-3,7`, or `0-20:5` for steps."""
    at = sorted(set(indices))
    steps = {b - a for a, b in pairwise(at)}
    if len(at) > 2 and len(steps) == 1 and steps != {1}:
        return f"{at[0]}-{at[-1]}:{steps.pop()}"
    runs = [[i for _, i in run] for _, run in groupby(enumerate(at), lambda p: p[1] - p[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _tasks(rows: Sequence[QueueRow]) -> str:
    if len(rows) == 1:
        return shown_id(rows[0])
    indices = fold(index for row in rows for index in logical_indices(row))
    return f"{whole_of(rows[0])}_[{indices}{_limit(rows)}]"


def _limit(rows: Iterable[QueueRow]) -> str:
    """The throttle: of each of Slurm's arrays its own, together the whole's."""
    limits = {
        row.array_id: row.job_id.strip("]").partition("%")[2] for row in rows if "%" in row.job_id
    }
    return f"%{sum(map(int, limits.values()))}" if limits else ""


def _each(values: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(values))


def _longest(times: Iterable[str]) -> str:
    """The longest time; one that is no number, like UNLIMITED, is longer than any."""
    return max(times, key=lambda time: float("inf") if (s := parse_elapsed(time)) is None else s)


def _folded(rows: Sequence[QueueRow]) -> str:
    node_lists = list(dict.fromkeys(row.node_list for row in rows if row.node_list))
    if len(node_lists) < 2:
        return "".join(node_lists)
    from ClusterShell.NodeSet import NodeSet  # noqa: PLC0415 - 9 ms that few queues need

    return str(NodeSet(",".join(node_lists)))
