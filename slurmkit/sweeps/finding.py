"""Which of Slurm's arrays are one: remembered, or read from their comments or submit lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from slurmkit.errors import SlurmError
from slurmkit.jobs.ids import whole_id
from slurmkit.jobs.sacct import read_submit_lines, since_argument
from slurmkit.logical import Tag, renamed, tag_of
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import QueueFilter
from slurmkit.sweeps import records
from slurmkit.sweeps.records import Record

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


def wholes(cluster: Cluster, firsts: Iterable[str]) -> dict[str, Whole]:
    """The arrays that jobs' ids stand for; an id that stands for what Slurm has by it has none.

    Slurm is asked once for all, and slurmdbd for those that slurmctld has forgotten.
    """
    ids = list(dict.fromkeys(firsts))
    kept = {job_id: record for job_id in ids if (record := records.read(cluster, job_id))}
    try:
        rows = _rows(cluster, ids)
    except SlurmError:
        rows = {}
    found = {i: as_sent(kept[i]) for i in kept if i not in rows or _is_of(rows[i], kept[i])}
    others = [rows[i] for i in ids if i in rows and i not in found and tag_of(rows[i].comment)]
    gone = [job_id for job_id in ids if job_id not in rows and job_id not in found]
    with suppress(SlurmError):
        for user in dict.fromkeys(row.user for row in others):
            found |= _joined((row.array_id for row in others), _queued(cluster, user))
        if gone:
            found |= _joined(gone, _accounted(cluster, gone))
    return found


def remembered(cluster: Cluster, first: str) -> bool:
    """Whether something is known here of an array by that id, without asking Slurm."""
    return records.read(cluster, first) is not None


def as_sent(record: Record) -> Whole:
    """The array that a record is of."""
    return Whole(record.first, {sent.job_id: sent.offset for sent in record.sent})


def _is_of(row: QueueRow, record: Record) -> bool:
    """Whether it is that job, and not one of the same number, after numbers began anew."""
    tag = tag_of(row.comment)
    return tag is not None and tag.token == record.token


def _rows(cluster: Cluster, ids: Sequence[str]) -> dict[str, QueueRow]:
    rows = cluster.queue(QueueFilter(job_ids=tuple(ids), states=("all",))).rows
    return {whole_id(row.job_id): row for row in rows}


def _queued(cluster: Cluster, user: str) -> Iterable[tuple[str, Tag]]:
    """Arrays of the same person alone: anybody can write anything in a comment."""
    for row in cluster.queue(QueueFilter(users=(user,), states=("all",))).rows:
        if (tag := tag_of(row.comment)) and row.array_id:
            yield row.array_id, tag


def _accounted(cluster: Cluster, ids: Sequence[str]) -> Iterable[tuple[str, Tag]]:
    lines = read_submit_lines(cluster.slurm, f"--jobs={','.join(ids)}")
    tagged = [line for line in lines if tag_of(line.text)]
    for user in dict.fromkeys(line.user for line in tagged):
        first = min(line.submitted or 0 for line in tagged if line.user == user)
        since = since_argument(first - _WITHIN)
        for line in read_submit_lines(cluster.slurm, f"--user={user}", since):
            if tag := tag_of(line.text):
                yield whole_id(line.job_id), tag


def _joined(firsts: Iterable[str | None], found: Iterable[tuple[str, Tag]]) -> dict[str, Whole]:
    tags = dict(found)
    own = {job_id: tags[job_id] for job_id in firsts if job_id in tags}
    return {i: Whole(i, _offsets(tags, tag.token)) for i, tag in own.items() if tag.first is None}


def _offsets(tags: Mapping[str, Tag], token: str) -> dict[str, int]:
    own = ((job_id, tag.offset) for job_id, tag in tags.items() if tag.token == token)
    return dict(sorted(own, key=lambda pair: pair[1]))
