"""States of the points of a sweep, and the job that runs some of its points again.

The newest run of each point counts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from slurmkit.cluster import sweeps
from slurmkit.cluster.sweeps import ArrayRecord, SentArray, find_split_arrays
from slurmkit.errors import BadInput, DatabaseDown, NoSuchJob, Refused
from slurmkit.formats.job_ids import parse_index_spans, parse_task_indices
from slurmkit.jobs.exit_codes import settle_exit_codes
from slurmkit.jobs.info import UNKNOWN, JobInfo
from slurmkit.jobs.lookup import merge_parts, read_database_runs, read_queue_rows
from slurmkit.planning.arrays import array_throttle
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.arrays import format_indices
from slurmkit.state.queue_rows import FINAL_STATES

if TYPE_CHECKING:
    from slurmkit.cluster.protocol import Submitter

UNSENT = "UNSENT"
"""State of a point whose Slurm array was not sent because the submit was interrupted."""
FAILED = frozenset(FINAL_STATES - {"COMPLETED", "CANCELLED"})
_GROUPS = {
    "failed": FAILED,
    "unfinished": frozenset({*FINAL_STATES, UNSENT, UNKNOWN} - {"COMPLETED"}),
}


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep, and its newest run.

    Attributes:
        index: number in the sweep.
        parameters: values by name; empty for a plain array.
        state: Slurm's state, UNSENT, or UNKNOWN if Slurm has forgotten it.
        exit_code: `code:signal` once ended, where known.
        elapsed: run time as squeue prints it; empty before the start.
        job_id: Slurm's id; empty while it is not sent.
        nodes: node list of the run.
    """

    index: int
    parameters: dict[str, str]
    state: str
    exit_code: str | None = None
    elapsed: str = ""
    job_id: str = ""
    nodes: str = ""


class SweepResults(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep, its repetitions, and its points.

    Attributes:
        first: id of the sweep.
        runs: every submit of its points, oldest first.
        points: all points, in order.
        without_history: why ended points may be unknown; empty when they are known.
    """

    first: str
    runs: tuple[ArrayRecord, ...]
    points: tuple[SweepPoint, ...]
    without_history: str = ""

    @property
    def tally(self) -> dict[str, int]:
        """Number of points by state."""
        return dict(Counter(point.state for point in self.points))

    @property
    def unsent(self) -> int:
        """Number of Slurm arrays of the first submit that were not sent."""
        return self.runs[0].planned - len(self.runs[0].sent)


def read_sweep_results(cluster: Submitter, job_id: str) -> SweepResults:
    """Read the states of the points of a sweep, or of a split array.

    Args:
        cluster: the cluster it was sent to.
        job_id: id of the sweep, or of one of its repetitions.

    Raises:
        BadInput: when there is no record of it.
        SlurmError: when slurmctld does not answer.
    """
    runs = _load_runs(cluster, job_id)
    sent = [each for run in runs for each in run.sent]
    parts, missing = _read_parts(cluster, sent)
    indices = {index for span in parse_index_spans(runs[0].spec.array or "") for index in span}
    points = {index: _point(runs[0], index, UNSENT) for index in indices}
    for run in runs:
        for each in run.sent:
            points |= dict(_points(run, each, parts[each.job_id]))
    ordered = tuple(points[index] for index in sorted(points))
    return SweepResults(first=runs[0].first, runs=runs, points=ordered, without_history=missing)


def read_completed_tasks(cluster: Submitter, job_ids: Sequence[str]) -> set[int]:
    """Read which tasks of an array have completed; return the user's indices.

    Args:
        cluster: the cluster it was sent to.
        job_ids: ids of all Slurm arrays that it consists of, in order.

    Raises:
        SlurmError: when slurmctld or slurmdbd does not answer.
    """
    whole = find_split_arrays(cluster, job_ids[:1]).get(job_ids[0])
    offsets = whole.offsets if whole else {}
    rows, runs = read_queue_rows(cluster.backend, job_ids), _read_runs(cluster, job_ids)
    return {
        index + offsets.get(job_id, 0)
        for job_id in job_ids
        for index, info in _tasks(merge_parts(job_id, rows[job_id], runs.get(job_id, ())))
        if info.state == "COMPLETED"
    }


def _read_runs(cluster: Submitter, job_ids: Sequence[str]) -> Mapping[str, Sequence[JobInfo]]:
    try:
        return read_database_runs(cluster.slurm, job_ids)
    except Refused:  # this cluster keeps no accounts
        return {}


def parse_point_states(text: str) -> frozenset[str]:
    """Parse `failed`, `unfinished`, or Slurm's states separated by commas.

    Raises:
        BadInput: for an empty state.
    """
    given = [word.strip() for word in text.split(",")]
    if not all(given):
        raise BadInput("--state may not be empty; give e.g. failed, unfinished or TIMEOUT")
    groups = (_GROUPS.get(word.lower(), frozenset({word.upper()})) for word in given)
    return frozenset().union(*groups)


def _load_runs(cluster: Submitter, job_id: str) -> tuple[ArrayRecord, ...]:
    """Load the records of a sweep and of its repetitions, oldest first."""
    own = sweeps.load_record(cluster, job_id)
    if own is None:
        raise BadInput(
            f"there is no record of a sweep {job_id} here; list your sweeps: slurmkit sweep list;"
            f" or see what Slurm knows about the job: slurmkit job {job_id}"
        )
    first = own.again or job_id
    original = own if first == job_id else sweeps.load_record(cluster, first)
    again = [each for each in sweeps.load_records(cluster) if each.again == first and each.sent]
    return (*((original,) if original else ()), *reversed(again))


def _read_parts(
    cluster: Submitter, sent: Sequence[SentArray]
) -> tuple[dict[str, dict[str, JobInfo]], str]:
    """Read the tasks of each Slurm array; return them, and why slurmdbd's facts are missing."""
    ids = [each.job_id for each in sent]
    if not ids:
        return {}, ""
    rows, missing = read_queue_rows(cluster.backend, ids), ""
    runs: Mapping[str, Sequence[JobInfo]] = {}
    try:
        runs = read_database_runs(cluster.slurm, ids)
    except (DatabaseDown, Refused, NoSuchJob) as error:
        missing = str(error)
    parts = {job_id: merge_parts(job_id, rows[job_id], runs.get(job_id, ())) for job_id in ids}
    tasks = [info for each in parts.values() for info in each.values()]
    settled = {info.job_id: info for info in settle_exit_codes(cluster.slurm, tasks)}
    return {
        job_id: {part: settled[info.job_id] for part, info in each.items()}
        for job_id, each in parts.items()
    }, missing


def _points(
    run: ArrayRecord, sent: SentArray, parts: Mapping[str, JobInfo]
) -> Iterator[tuple[int, SweepPoint]]:
    """Yield the points of one Slurm array by the user's index."""
    known = dict(_tasks(parts))
    for span in parse_index_spans(sent.array):
        for slurm_index in span:
            index = slurm_index + sent.offset
            info = known.get(slurm_index)
            job_id = f"{sent.job_id}_{slurm_index}"
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


def _tasks(parts: Mapping[str, JobInfo]) -> Iterable[tuple[int, JobInfo]]:
    """Yield tasks by Slurm's index; a task's own record comes after `12_[4-9]` and so counts."""
    for part in sorted(parts, key=lambda part: "[" not in part):
        for span in parse_task_indices(part):
            for index in span:
                yield index, parts[part]


def _point(run: ArrayRecord, index: int, state: str) -> SweepPoint:
    sweep = run.spec.sweep
    return SweepPoint(index=index, parameters=sweep.values(index) if sweep else {}, state=state)


def rerun_spec(
    run: ArrayRecord, indices: Iterable[int], environ: Mapping[str, str] = os.environ
) -> JobSpec:
    """Return the job of a sweep for some of its points.

    The dependency, begin time and hold of the first submit are dropped.

    Raises:
        BadInput: when a secret variable, which is never stored, is not set here.
    """
    spec = run.spec
    missing = [name for name in run.secrets if name not in environ]
    if missing:
        raise BadInput(
            f"the sweep needs the variable {missing[0]}, a secret whose value is not stored; export"
            " it here and try again"
        )
    limit = array_throttle(spec.array or "")
    array = format_indices(indices) + (f"%{limit}" if limit else "")
    given = {name: environ[name] for name in run.secrets}
    return msgspec.structs.replace(
        spec,
        array=array,
        environment=spec.environment | given,
        dependency=None,
        begin=None,
        deadline=None,
        hold=False,
    )
