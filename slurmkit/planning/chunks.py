"""An array beyond what one of Slurm's arrays may hold, in several that are one for its user."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from slurmkit.arrays import fold
from slurmkit.jobs.ids import spans

_MAX_TASKS = re.compile(r"max_array_tasks=(\d+)", re.IGNORECASE)
DEFAULT_SIZE = 1001  # slurm.conf(5) MaxArraySize


class Chunk(msgspec.Struct, frozen=True):
    """One of Slurm's arrays, which holds some tasks of a logical one.

    Attributes:
        array: its indices as Slurm takes them, with its share of the throttle.
        offset: what an index of Slurm's lacks to the logical one.
        tasks: the logical indices.
        after: position of the chunk that must have ended before, where they are chained.
    """

    array: str
    offset: int
    tasks: tuple[int, ...]
    after: int | None = None


class Limits(msgspec.Struct, frozen=True):
    """What one array may hold: indices below `size`, and at most so many `tasks`."""

    size: int = DEFAULT_SIZE
    tasks: int | None = None


def limits(config: Mapping[str, str]) -> Limits:
    """The limits that slurm.conf sets (MaxArraySize, SchedulerParameters=max_array_tasks)."""
    most = _MAX_TASKS.search(config.get("SchedulerParameters", ""))
    return Limits(int(config.get("MaxArraySize") or DEFAULT_SIZE), int(most[1]) if most else None)


def indices(array: str) -> list[int]:
    """The tasks of an array, in order: `0,2,5-9%3`."""
    return sorted(set().union(*spans(array)))


def throttle(array: str) -> int | None:
    """How many tasks of an array may run at once; None for all, as Slurm takes `%0` too."""
    return int(array.partition("%")[2] or 0) or None


def split(array: str, within: Limits) -> tuple[Chunk, ...]:
    """The arrays of Slurm that an array comes to, each index in exactly one, in order.

    The shares of a throttle together never exceed it; with fewer than there are chunks, one chunk
    follows the other. Of a cluster without arrays (MaxArraySize 0 or 1) it stays as it is.
    """
    tasks = indices(array)
    if within.size < 2 or (tasks[-1] < within.size and len(tasks) <= (within.tasks or len(tasks))):
        return (Chunk(array, 0, tuple(tasks)),)
    parts = _parts(tasks, within)
    most = throttle(array)
    chained = most is not None and most < len(parts)
    given = [most] * len(parts) if chained or most is None else shares(most, list(map(len, parts)))
    return tuple(
        Chunk(_text(part, offset, share), offset, tuple(part), at - 1 if chained and at else None)
        for at, (part, share) in enumerate(zip(parts, given, strict=True))
        for offset in [_offset(part, within.size)]
    )


def shares(most: int, sizes: Sequence[int]) -> list[int]:
    """Divide a throttle over chunks by their sizes; each has one, none more than it has tasks.

    Args:
        most: at least as many as there are chunks.
        sizes: the numbers of tasks.
    """
    total = sum(sizes)
    found = [max(1, min(size, most * size // total)) for size in sizes]
    while sum(found) > most:  # the least was raised to 1
        found[found.index(max(found))] -= 1
    # What is left goes to those with the most tasks for each that runs.
    while sum(found) < min(most, total):
        room = [at for at, size in enumerate(sizes) if found[at] < size]
        found[max(room, key=lambda at: sizes[at] / found[at])] += 1
    return found


def _parts(tasks: Sequence[int], within: Limits) -> list[list[int]]:
    parts: list[list[int]] = []
    for task in tasks:
        fits = parts and task - _offset(parts[-1], within.size) < within.size
        if fits and len(parts[-1]) < (within.tasks or len(tasks)):
            parts[-1].append(task)
        else:
            parts.append([task])
    return parts


def _offset(part: Sequence[int], size: int) -> int:
    """Slurm's own indices where they can be had: what they print is then the same."""
    return 0 if part[0] < size else part[0]


def _text(part: Sequence[int], offset: int, share: int | None) -> str:
    return fold(task - offset for task in part) + (f"%{share}" if share else "")
