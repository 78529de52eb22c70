"""What the GPUs of jobs do: the samples of running jobs, and all samples of one job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from slurmkit.formats.display import spark_signs
from slurmkit.state.gpu_use import LEAST_COVERED, GpuUseNow, GpuUseOfRun
from slurmkit.state.gpumap_model import Gpu
from slurmkit.state.nodes import NodeRow

RECENT_SECONDS = 3600  # of the curve of a running job
_COLUMNS = 12  # of that curve
_OLD = 180.0  # seconds; an older sample is shown with its age
_LOST = 300.0  # seconds; an older sample says nothing about now
IDLE_SECONDS = 900  # idle for so long, a GPU that is held is marked
_ABOUT = 0.9  # of these seconds: there is some time between samples
_LOW = 10.0  # percent; less is marked wherever the use of a job is shown


class GpusNow(msgspec.Struct, frozen=True):
    """What the GPUs of the running jobs do that this person may see.

    Attributes:
        rows: GPUs with a sample in the last hour.
        taken: epoch seconds.
    """

    rows: tuple[GpuUseNow, ...]
    taken: float

    def by_job(self, cluster: str | None) -> dict[str, list[GpuUseNow]]:
        """Return the GPUs of each job of a cluster, by the id that people use."""
        found: dict[str, list[GpuUseNow]] = defaultdict(list)
        for row in self.rows:
            if cluster in (None, row.cluster):
                found[row.job_id].append(row)
        return dict(found)

    def of_job(self, cluster: str | None, job_id: str) -> list[GpuUseNow]:
        """Return the GPUs of one job of a cluster, by node and index."""
        rows = [r for r in self.rows if r.job_id == job_id and cluster in (None, r.cluster)]
        return sorted(rows, key=lambda row: (row.node, -1 if row.index is None else row.index))

    def by_type(self, cluster: str | None, nodes: Iterable[NodeRow]) -> dict[str | None, UsedGpus]:
        """Return how many of the held GPUs of a cluster work, by type; None for untyped ones.

        A GPU that several jobs share is left out, as not all of them may be known; so is one of
        which Slurm does not say the type, or that no job holds any more.

        Args:
            cluster: its name; None for the only one.
            nodes: all nodes.
        """
        newest: dict[str, dict[int, GpuUseNow]] = defaultdict(dict)
        for row in self.rows:
            of_node = newest[row.node] if cluster in (None, row.cluster) else {}
            if row.index is not None and (
                row.index not in of_node or row.age < of_node[row.index].age
            ):
                of_node[row.index] = row
        known: dict[str | None, list[GpuUseNow]] = defaultdict(list)
        for node in nodes:
            types = _types_of_held(node) if node.name in newest else {}
            for index, type_ in types.items():
                gpu = newest[node.name].get(index)
                if gpu and gpu.utilization is not None and not gpu.shared and gpu.age <= _LOST:
                    known[type_].append(gpu)
        return {
            type_: UsedGpus(
                sum(gpu.utilization or 0.0 for gpu in gpus) / 100,
                len(gpus),
                self.taken - max(gpu.age for gpu in gpus),
            )
            for type_, gpus in known.items()
        }

    def by_gpu(
        self, cluster: str | None, gpus: Iterable[Gpu], now: float
    ) -> dict[tuple[str, int], GpuActivity]:
        """Return what the GPUs of a cluster do, by node and Slurm's index.

        A GPU is left out if the samples of a job that holds it are not among these: the job is of
        somebody else, or new.

        Args:
            cluster: its name; None for the only one.
            gpus: who holds them now, as Slurm says.
            now: epoch seconds; of what is older than five minutes, the percentage is unknown.
        """
        by_holder: dict[tuple[str, int | None, str | None], GpuUseNow] = {
            (row.node, row.index, row.job_id): row
            for row in self.rows
            if row.index is not None and cluster in (None, row.cluster)
        }
        passed = max(now - self.taken, 0.0)
        found: dict[tuple[str, int], GpuActivity] = {}
        for gpu in gpus:
            jobs = {gpu.job_id, *(share.job_id for share in gpu.sharers)} - {None}
            rows = [by_holder.get((gpu.node, gpu.index, job)) for job in jobs]
            known = [row for row in rows if row is not None]
            is_partial = len(known) < len(jobs) or (len(jobs) == 1 and known[0].shared)
            if gpu.index is not None and known and not is_partial:
                found[gpu.node, gpu.index] = _together(known, passed)
        return found


class UsedGpus(NamedTuple):
    """How many of the measured GPUs work: each counts with its utilization.

    Attributes:
        used: sum of utilizations; two GPUs at 50 % are 1.
        measured: number of GPUs.
        oldest: epoch seconds of the oldest sample.
    """

    used: float
    measured: int
    oldest: float

    def is_recent(self, now: float) -> bool:
        """Return whether it says something about now."""
        return now - self.oldest <= _LOST


def _types_of_held(node: NodeRow) -> dict[int, str | None]:
    """Return the type of each held GPU by its index, as far as Slurm says which are held."""
    only = {gpus.type for gpus in node.gpus}
    found: dict[int, str | None] = {}
    for use in node.uses:
        if use.name == "gpu" and (use.type is not None or len(only) == 1):
            type_ = next(iter(only)) if len(only) == 1 else use.type
            found.update(dict.fromkeys(use.indices or (), type_))
    return found


class GpuActivity(NamedTuple):
    """What a GPU does now, for all jobs on it together.

    Attributes:
        percent: utilization; None is unknown.
        is_idle: whether it is idle for about 15 minutes.
    """

    percent: float | None
    is_idle: bool


class GpusOfJob(msgspec.Struct, frozen=True):
    """What the GPUs of a job did, in each of its runs.

    Attributes:
        runs: oldest first; only those that held GPUs.
        taken: epoch seconds.
    """

    runs: tuple[GpuUseOfRun, ...]
    taken: float


def is_idle(gpu: GpuUseNow) -> bool:
    """Return whether a GPU is idle for about 15 minutes, as far as its samples say."""
    return (gpu.idle_seconds or 0.0) >= _ABOUT * IDLE_SECONDS and gpu.age <= _LOST


def _together(rows: Sequence[GpuUseNow], passed: float) -> GpuActivity:
    """Sum up the jobs on a GPU; each has its own share of a GPU that is shared."""
    shares = [row.utilization if row.age + passed <= _LOST else None for row in rows]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return GpuActivity(None, is_idle=False)
    return GpuActivity(min(sum(known), 100.0), is_idle=all(map(is_idle, rows)))


class JobUse(NamedTuple):
    """What the GPUs of a job, or of the tasks of an array, do or did together.

    Attributes:
        percent: mean utilization: as of the last samples, or of an ended job; None is unknown.
        known: number of GPUs whose utilization is known.
        held: number of GPUs that the job holds; None if Slurm does not say.
        age: seconds since the oldest of these samples.
        curve: mean utilization of the last hour in stretches of five minutes, oldest first; None
            is unknown.
        is_sparse: whether samples cover less than half of the time of these GPUs.
    """

    percent: float | None = None
    known: int = 0
    held: int | None = None
    age: float = 0.0
    curve: tuple[float | None, ...] = (None,) * _COLUMNS
    is_sparse: bool = False

    @property
    def words(self) -> str:
        """The utilization, its age if it is old, and how many GPUs are known if not all are."""
        if self.percent is None:
            return "?"
        some = f" {self.known}/{self.held}" if self.held and self.known < self.held else ""
        old = f" {self.age / 60:.0f}m ago" if self.age > _OLD else ""
        return f"{'~' if self.is_sparse else ''}{self.percent:.0f}%{old}{some}"

    @property
    def is_low(self) -> bool:
        """Whether its GPUs do so little that it is marked."""
        return self.percent is not None and self.percent < _LOW

    def sparkline(self, *, plain: bool) -> str:
        """Return the curve as text, in ASCII if `plain`; empty if nothing of it is known."""
        return spark_signs(self.curve, plain=plain) if any(map(_is_known, self.curve)) else ""


def sum_up(gpus: Sequence[GpuUseNow], held: int | None, passed: float = 0.0) -> JobUse:
    """Sum up what the GPUs of a job do.

    Args:
        gpus: those with samples.
        held: number of GPUs that the job holds.
        passed: seconds since the answer about the GPUs.
    """
    known = [gpu for gpu in gpus if gpu.utilization is not None]
    curve = _join_curves(gpus)
    if not known:
        return JobUse(held=held, curve=curve)
    mean = sum(gpu.utilization or 0.0 for gpu in known) / len(known)
    return JobUse(mean, len(known), held, max(gpu.age for gpu in known) + passed, curve)


def sum_up_ended(runs: Sequence[GpuUseOfRun], held: int | None) -> JobUse:
    """Sum up what the GPUs of ended runs did. Each counts by the time that samples cover.

    Args:
        runs: those that the ledger knows.
        held: number of GPUs that all runs held.
    """
    known = [
        (max(run.end - run.start, 1), gpu.covered, gpu.utilization)
        for run in runs
        for gpu in run.gpus
        if run.end is not None and gpu.utilization is not None and gpu.covered
    ]
    if not known:
        return JobUse(held=held)
    measured = sum(seconds * covered for seconds, covered, _ in known)
    used = sum(seconds * covered * percent for seconds, covered, percent in known)
    is_sparse = measured < LEAST_COVERED * sum(seconds for seconds, _, _ in known)
    return JobUse(used / measured, len(known), held, is_sparse=is_sparse)


def _is_known(percent: float | None) -> bool:
    return percent is not None


def _join_curves(gpus: Iterable[GpuUseNow]) -> tuple[float | None, ...]:
    """Return the mean of the curves of GPUs, which end with the answer."""
    found: list[list[float]] = [[] for _ in range(_COLUMNS)]
    for gpu in gpus:
        for back, percent in enumerate(reversed(gpu.recent)):
            ago = gpu.age + back * gpu.recent_step  # seconds
            column = _COLUMNS - 1 - int(ago * _COLUMNS // RECENT_SECONDS)
            if percent is not None and column >= 0:
                found[column].append(percent)
    return tuple(sum(each) / len(each) if each else None for each in found)
