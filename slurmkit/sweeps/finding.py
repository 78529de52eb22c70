"""Which of Slurm's arrays are one: remembered, or read from their comments or submit lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from slurmkit.errors import SlurmError
from slurmkit.jobs.sacct import SubmitLine, read_submit_lines, since_argument
from slurmkit.logical import Tag, renamed, tag_of
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import QueueFilter
from slurmkit.sweeps import records

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

_WITHIN = 3600  # seconds that a submit of many arrays may take


class Whole(NamedTuple):
    """An array, and the offset of each of Slurm's arrays that it consists of, by id, in order."""

    first: str
    offsets: Mapping[str, int]

    def part_of(self, index: int) -> str:
        """The id that Slurm has for a task: `13_2` for task 1003."""
        found = [job_id for job_id, offset in self.offsets.items() if offset <= index]
        job_id = found[-1] if found else self.first
        return f"{job_id}_{index - self.offsets[job_id]}" if found else f"{job_id}_{index}"

    def named(self, job_id: str) -> str:
        """An id of Slurm's as one of the whole: `12_1003` of `13_2`."""
        array = job_id.partition("_")[0]
        return renamed(job_id, self.first, self.offsets.get(array, 0))


def whole(cluster: Cluster, first: str) -> Whole | None:
    """The array that a job's id stands for; None where it stands for what Slurm has by that id."""
    record = records.read(cluster, first)
    try:
        row = _row(cluster, first)
    except SlurmError:
        row = None
    tag = tag_of(row.comment) if row else None
    if record and (row is None or (tag and tag.token == record.token)):
        return Whole(first, {sent.job_id: sent.offset for sent in record.sent})
    found: Iterable[tuple[str, Tag]] = ()
    with suppress(SlurmError):
        if row and tag:
            found = _queued(cluster, row)
        elif row is None:
            found = _accounted(cluster, first)
    return _joined(first, found)


def _row(cluster: Cluster, job_id: str) -> QueueRow | None:
    rows = cluster.queue(QueueFilter(job_ids=(job_id,), states=("all",))).rows
    return rows[0] if rows else None


def _queued(cluster: Cluster, row: QueueRow) -> Iterable[tuple[str, Tag]]:
    """Arrays of the same person alone: anybody can write anything in a comment."""
    rows = cluster.queue(QueueFilter(users=(row.user,), states=("all",))).rows
    for each in rows:
        if (tag := tag_of(each.comment)) and each.array_id:
            yield each.array_id, tag


def _accounted(cluster: Cluster, first: str) -> Iterable[tuple[str, Tag]]:
    for line in read_submit_lines(cluster.slurm, f"--jobs={first}")[:1]:
        if tag_of(line.text):
            since = since_argument((line.submitted or 0) - _WITHIN)
            yield from _tagged(read_submit_lines(cluster.slurm, f"--user={line.user}", since))


def _tagged(lines: Iterable[SubmitLine]) -> Iterable[tuple[str, Tag]]:
    for line in lines:
        if tag := tag_of(line.text):
            yield line.job_id.partition("_")[0], tag


def _joined(first: str, found: Iterable[tuple[str, Tag]]) -> Whole | None:
    tags = dict(found)
    own = tags.get(first)
    if own is None or own.first is not None:
        return None
    token = own.token
    offsets = {job_id: tag.offset for job_id, tag in tags.items() if tag.token == token}
    return Whole(first, dict(sorted(offsets.items(), key=lambda pair: pair[1])))
