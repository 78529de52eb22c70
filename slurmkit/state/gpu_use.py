"""What GPUs do, and did for one run of a job: the types of whoever reads or shows samples."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

import msgspec

LEAST_COVERED = 0.5
"""A run of which less was measured is marked wherever its use is shown."""
_HALF_STEP = 0.05  # percent; utilization of a point is rounded to a tenth
_HOUR, _DAY = 3600, 86400


class Span(NamedTuple):
    """A length of time until now, in stretches of an hour or of a local day.

    Attributes:
        step: seconds of a stretch; a local day may have an hour more or less.
        stretches: their number; the present one is the last.
        words: for people: `24 hours`.
    """

    step: int
    stretches: int
    words: str

    def begins(self, now: float, zone: tzinfo | None = None) -> tuple[int, ...]:
        """Return the begins of its stretches in epoch seconds; the last one contains `now`.

        Args:
            now: epoch seconds.
            zone: in which hours and days begin; the host's when left out.
        """
        if self.step == _DAY:
            local = datetime.fromtimestamp(int(now), zone)
            today = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
            days = (today - timedelta(days=back) for back in range(self.stretches - 1, -1, -1))
            return tuple(int(day.timestamp()) for day in days)
        last = begin_of_hour(now, zone)
        return tuple(range(last - (self.stretches - 1) * _HOUR, last + 1, _HOUR))


def begin_of_hour(at: float, zone: tzinfo | None = None) -> int:
    """Return the begin of the local hour that contains a time, in epoch seconds.

    In some zones, for example India's, hours begin at half past those of UTC.
    """
    local = datetime.fromtimestamp(int(at), zone)
    return int(at) - local.minute * 60 - local.second


SPANS = {
    "24h": Span(_HOUR, 24, "24 hours"),
    "7d": Span(_HOUR, 7 * 24, "7 days"),
    "30d": Span(_DAY, 30, "30 days"),
}
"""Lengths of time for which curves of GPU use are shown."""


class CurvePoint(msgspec.Struct, frozen=True, gc=False):
    """One point of a curve; None is unknown.

    Attributes:
        at: epoch seconds at which the point begins; it ends where the next one begins.
        samples: number of samples behind it.
        utilization: mean, percent.
        memory_mib: the most, MiB; in steps of 16 MiB.
        watts: mean.
    """

    at: int
    samples: int
    utilization: float | None
    memory_mib: int | None
    watts: int | None

    def may_be_busy(self, below: float) -> bool:
        """Return whether one of its samples may be at `below` percent or more.

        That is so if the sample is, that has all the utilization of the point: the most that is
        rounded to it.
        """
        if not self.utilization:
            return False
        most = self.utilization + (_HALF_STEP if self.samples > 1 else 0.0)
        return most * max(self.samples, 1) >= below


class GpuUseNow(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU of a running job does now; None is unknown.

    Attributes:
        cluster: name of the cluster.
        job_id: the id that people use: `12`, `12_3`.
        job_id_raw: Slurm's own job id.
        user: user name.
        node: name of the node.
        index: Slurm's index on its node.
        gpu: what names the GPU: UUID of the MIG instance or GPU, else PCI address or index.
        shared: whether other jobs hold the GPU, too; then utilization and memory are the job's own.
        last: epoch seconds of the last sample.
        age: seconds since the last sample, by the clock that took it.
        utilization: of the last sample, percent.
        memory_mib: memory in use then.
        memory_total_mib: memory of the GPU.
        watts: power then.
        since: epoch seconds from which on no sample is missing. More than an hour ago it ends at a
            point of the curve that may hide a sample of 1 % or more.
        busiest: the largest utilization in the time asked for, percent. What is older than an hour
            counts by the means of the curve's points.
        idle_since: epoch seconds from which on each sample is below 1 % and none is missing; None
            if the last one is not, or is unknown.
        recent: at most 60 whole percents for a sparkline, oldest first; the last one ends at
            `last`. None: no sample.
        recent_step: seconds of each of `recent`.
        start: epoch seconds at which the job started; None from a service of an older release.
    """

    cluster: str
    job_id: str
    job_id_raw: int
    user: str
    node: str
    index: int | None
    gpu: str
    shared: bool
    last: float
    age: float
    utilization: float | None
    memory_mib: int | None
    memory_total_mib: int | None
    watts: int | None
    since: float | None
    busiest: float | None
    idle_since: float | None
    recent: tuple[int | None, ...]
    recent_step: int
    start: int | None = None

    @property
    def idle_seconds(self) -> float | None:
        """How long it was idle up to its last sample; None if it is not."""
        return None if self.idle_since is None else self.last - self.idle_since


class GpuUseOfGpu(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU did for one run; None is unknown, never 0.

    Attributes:
        node: name of the node.
        gpu: what names the GPU: UUID of the MIG instance or GPU, else PCI address or index.
        index: Slurm's index on its node.
        mig: UUID of the MIG instance; empty for a whole GPU.
        shared: whether other jobs held the GPU, too; then utilization and memory are the job's own.
        source: `exporter`, `prometheus`, `jobstats`; `prometheus_running`: Prometheus as it was
            asked while the run went on.
        utilization: mean, percent.
        percentile_95: 95th percentile of the utilization, whole percent.
        idle_share: share of the samples below 1 %.
        idle: whether all samples are; of a summary of jobstats, whether its mean is.
        memory_mib: most memory in use.
        memory_total_mib: memory of the GPU.
        joules: energy that was measured.
        energy_by: `counter`, or `power` for power times time.
        energy_seconds: the time that it covers.
        samples: number of samples; 0 for a summary of jobstats, which does not say.
        covered: share of the run that is covered by samples of utilization, 0 to 1. Mark what is
            below 0.5.
        last: epoch seconds of the last sample.
        points: the curve, oldest first, at most 300 points; empty if it is not stored.
        step: seconds of one point; 0 without points.
    """

    node: str
    gpu: str
    index: int | None
    mig: str
    shared: bool
    source: str
    utilization: float | None
    percentile_95: int | None
    idle_share: float | None
    idle: bool | None
    memory_mib: int | None
    memory_total_mib: int | None
    joules: float | None
    energy_by: str | None
    energy_seconds: float
    samples: int
    covered: float
    last: float | None
    points: tuple[CurvePoint, ...] = ()
    step: int = 0

    @property
    def watts(self) -> float | None:
        """Mean power in the time that the energy covers."""
        return None if self.joules is None else self.joules / max(self.energy_seconds, 1.0)

    @property
    def is_covered(self) -> bool:
        """Whether samples cover at least half of the run."""
        return self.covered >= LEAST_COVERED


class GpuUseOfRun(msgspec.Struct, frozen=True, kw_only=True):
    """What the GPUs of one run did.

    Attributes:
        cluster: name of the cluster.
        job_id: the id that people use: `12`, `12_3`.
        job_id_raw: Slurm's own job id.
        user: user name.
        start: epoch seconds.
        end: epoch seconds; None while it runs, as of the last ingest.
        held: number of GPUs, or MIG instances, that the run held.
        gpus: by node and index; empty if nothing was measured. There may be fewer than `held`.
    """

    cluster: str
    job_id: str
    job_id_raw: int
    user: str
    start: int
    end: int | None
    held: int
    gpus: tuple[GpuUseOfGpu, ...] = ()
