"""A snapshot of the queue made ready for the screen, away from the screen's thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from slurmkit import states
from slurmkit.queue.cells import cells, counts_gpus
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import Queue
from slurmkit.site import Site

_SLICE = 1000  # rows between two chances for the screen's thread to run


class Line(msgspec.Struct, frozen=True, gc=False):
    """One row of the queue as the screen uses it.

    Attributes:
        key: the same for this job in the next snapshot.
        cells: its texts, safe to show, in the order of `columns.COLUMNS`.
        text: what the filter looks in: the cells and the state's code, in lower case.
        held: GPUs it holds now; what a pending job asks for is not held.
        mine: whether it belongs to the person at the screen.
    """

    row: QueueRow
    key: str
    cells: tuple[str, ...]
    text: str
    held: int
    mine: bool


class Snapshot(NamedTuple):
    """The queue at one moment.

    Attributes:
        widths: of the widest cell in each column.
        taken: epoch seconds at which squeue was asked.
        seconds: how long squeue and parsing took.
        gpus_known: whether the cluster counts GPUs at all.
    """

    lines: tuple[Line, ...]
    widths: tuple[int, ...]
    taken: float
    seconds: float
    site: Site
    gpus_known: bool


def prepare(queue: Queue, site: Site, me: str) -> Snapshot:
    """Make a snapshot ready in slices, so that no thread waits long for the interpreter."""
    known = counts_gpus(queue.rows, tracked=site.tracks_gpus)
    lines: list[Line] = []
    widths: tuple[int, ...] = ()
    for rows in _slices(queue.rows):
        part = [_line(row, me, gpus_known=known) for row in rows]
        widths = _widest(widths, part)
        lines += part
        time.sleep(0)
    return Snapshot(tuple(lines), widths, queue.taken, queue.seconds, site, known)


def job_key(job_id: str) -> str:
    """What stays the same of an id: a pending array `12_[4-9]` loses tasks as they start."""
    array, bracket, _ = job_id.partition("[")
    return array + bracket


def _slices(rows: Sequence[QueueRow]) -> Iterator[Sequence[QueueRow]]:
    return (rows[at : at + _SLICE] for at in range(0, len(rows), _SLICE))


def _line(row: QueueRow, me: str, *, gpus_known: bool) -> Line:
    texts = cells(row, gpus_known=gpus_known)
    holds = bool(row.node_list) and row.state != "PENDING" and not row.ended
    return Line(
        row=row,
        key=job_key(row.job_id),
        cells=texts,
        text="\n".join((*texts, states.code(row.state))).lower(),
        held=row.gpus if holds else 0,
        mine=row.user == me,
    )


def _widest(widths: tuple[int, ...], lines: list[Line]) -> tuple[int, ...]:
    columns = zip(*(line.cells for line in lines), strict=True)
    found = tuple(max(map(len, column)) for column in columns)
    return tuple(map(max, widths, found)) if widths else found
