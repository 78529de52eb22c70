"""The points of a sweep with what became of each: the newest of its runs counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from slurmkit.errors import BadInput, DatabaseDown, NoSuchJob, Refused
from slurmkit.jobs.ids import spans, tasks
from slurmkit.jobs.info import UNKNOWN, JobInfo
from slurmkit.jobs.lookup import in_database, in_queue, parts_of
from slurmkit.queue.rows import ENDED
from slurmkit.sweeps import records
from slurmkit.sweeps.finding import wholes
from slurmkit.sweeps.records import Record, Sent

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

UNSENT = "UNSENT"
"""State of a point whose array was not sent, since the submit broke off."""
FAILED = frozenset(ENDED - {"COMPLETED", "CANCELLED"})
_GROUPS = {
    "failed": FAILED,
    "unfinished": frozenset({*ENDED, UNSENT, UNKNOWN} - {"COMPLETED"}),
}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One point, and its newest run.

    Attributes:
        index: its number in the sweep.
        parameters: by name; none of a plain array.
        state: Slurm's, UNSENT, or UNKNOWN where Slurm has forgotten it.
        exit_code: `code:signal` once it ended, where known.
        elapsed: run time as squeue prints it; empty before it starts.
        job_id: what Slurm calls it; empty while it is not sent.
        nodes: where it ran or runs.
    """

    index: int
    parameters: dict[str, str]
    state: str
    exit_code: str | None = None
    elapsed: str = ""
    job_id: str = ""
    nodes: str = ""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep, its repetitions, and its points.

    Attributes:
        first: the id that stands for the sweep.
        runs: every submit of points of it, the oldest first.
        points: in order.
        without_history: why ended points may be unknown; empty when they are known.
    """

    first: str
    runs: tuple[Record, ...]
    points: tuple[Point, ...]
    without_history: str = ""

    @property
    def tally(self) -> dict[str, int]:
        """Points by state."""
        return dict(Counter(point.state for point in self.points))

    @property
    def unsent(self) -> int:
        """How many of the arrays of the first submit were not sent."""
        return self.runs[0].planned - len(self.runs[0].sent)


def results(cluster: Cluster, job_id: str) -> Results:
    """What became of the points of a sweep, or of an array in several of Slurm's.

    Args:
        cluster: where.
        job_id: of the sweep, or of one of its repetitions.

    Raises:
        BadInput: when nothing is remembered of it.
        SlurmError: when slurmctld does not answer.
    """
    runs = _runs(cluster, job_id)
    sent = [each for run in runs for each in run.sent]
    parts, missing = _parts(cluster, sent)
    points = _unsent(runs[0])
    for run in runs:
        for each in run.sent:
            points |= dict(_points(run, each, parts[each.job_id]))
    ordered = tuple(points[index] for index in sorted(points))
    return Results(first=runs[0].first, runs=runs, points=ordered, without_history=missing)


def completed(cluster: Cluster, job_ids: Sequence[str]) -> set[int]:
    """Tasks of an array that have completed, by their numbers in the whole.

    Args:
        cluster: where.
        job_ids: all of Slurm's arrays that it consists of, in order.

    Raises:
        SlurmError: when slurmctld or slurmdbd does not answer.
    """
    whole = wholes(cluster, job_ids[:1]).get(job_ids[0])
    offsets = whole.offsets if whole else {}
    rows, runs = in_queue(cluster.backend, job_ids), _runs_of(cluster, job_ids)
    return {
        at + offsets.get(job_id, 0)
        for job_id in job_ids
        for at, info in _each(parts_of(job_id, rows[job_id], runs.get(job_id, ())))
        if info.state == "COMPLETED"
    }


def _runs_of(cluster: Cluster, job_ids: Sequence[str]) -> Mapping[str, Sequence[JobInfo]]:
    try:
        return in_database(cluster.slurm, job_ids)
    except Refused:  # this cluster keeps no accounts
        return {}


def states(text: str) -> frozenset[str]:
    """The states that are meant by `failed`, `unfinished`, or names of Slurm's by comma.

    Raises:
        BadInput: for an empty one.
    """
    given = [word.strip() for word in text.split(",")]
    if not all(given):
        raise BadInput("--state may not be empty; give e.g. failed, unfinished or TIMEOUT")
    groups = (_GROUPS.get(word.lower(), frozenset({word.upper()})) for word in given)
    return frozenset().union(*groups)


def _runs(cluster: Cluster, job_id: str) -> tuple[Record, ...]:
    own = records.read(cluster, job_id)
    if own is None:
        raise BadInput(
            f"nothing is remembered of a sweep {job_id} here; slurmkit sweep list shows those that"
            f" are; what Slurm knows of any job: slurmkit job {job_id}"
        )
    first = own.again or job_id
    original = own if first == job_id else records.read(cluster, first)
    again = [each for each in records.read_all(cluster) if each.again == first and each.sent]
    return (*((original,) if original else ()), *reversed(again))


def _parts(cluster: Cluster, sent: Sequence[Sent]) -> tuple[dict[str, dict[str, JobInfo]], str]:
    """What Slurm knows of the tasks of each of its arrays."""
    ids = [each.job_id for each in sent]
    if not ids:
        return {}, ""
    rows, missing = in_queue(cluster.backend, ids), ""
    runs: Mapping[str, Sequence[JobInfo]] = {}
    try:
        runs = in_database(cluster.slurm, ids)
    except (DatabaseDown, Refused, NoSuchJob) as error:
        missing = str(error)
    return {job_id: parts_of(job_id, rows[job_id], runs.get(job_id, ())) for job_id in ids}, missing


def _unsent(run: Record) -> dict[int, Point]:
    indices = {index for span in spans(run.spec.array or "") for index in span}
    return {index: _point(run, index, UNSENT) for index in indices}


def _points(run: Record, sent: Sent, parts: Mapping[str, JobInfo]) -> Iterator[tuple[int, Point]]:
    known = dict(_each(parts))
    for span in spans(sent.array):
        for at in span:
            index = at + sent.offset
            info = known.get(at)
            job_id = f"{sent.job_id}_{at}"
            point = _point(run, index, info.state if info else UNKNOWN)
            yield (
                index,
                msgspec.structs.replace(
                    point,
                    exit_code=info.exit_code if info else None,
                    elapsed=info.elapsed if info and info.started else "",
                    job_id=job_id,
                    nodes=info.node_list if info else "",
                ),
            )


def _each(parts: Mapping[str, JobInfo]) -> Iterable[tuple[int, JobInfo]]:
    """Tasks with a record of their own count before those that are told together."""
    for part in sorted(parts, key=lambda part: "[" not in part):
        for span in tasks(part):
            for at in span:
                yield at, parts[part]


def _point(run: Record, index: int, state: str) -> Point:
    sweep = run.spec.sweep
    return Point(index=index, parameters=sweep.values(index) if sweep else {}, state=state)
