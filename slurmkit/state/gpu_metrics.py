"""What GPUs are doing: samples, and the Protocols of plugins that read samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from slurmkit.errors import SlurmkitError

THROTTLE_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
"""What holds a GPU's clocks back, by the bits of NVML and DCGM (nvmlClocksEventReasons)."""


IDLE_BELOW = 1.0
"""A GPU is idle over a time if each sample of its utilization is below this, percent."""
LEAST_MEASURED = 0.9
"""Share of that time that the samples must cover; else it is unknown whether the GPU was idle."""


class NoSamples(SlurmkitError):
    """A source answered, but it has nothing about any of the nodes."""


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of a GPU; None is unknown.

    Attributes:
        index: as in Slurm's index map of the node; -1 if unknown, which only a `GpuTrace` has.
        taken: epoch seconds of the measurement.
        utilization: percent of the time in which a kernel ran.
        memory_used: MiB.
        memory_total: MiB.
        watts: power drawn.
        joules: energy counter.
        throttled: what holds the clocks back, as our exporter names it: `sw_thermal`, …; empty if
            nothing does.
    """

    index: int
    taken: float
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    watts: float | None = None
    joules: float | None = None
    throttled: tuple[str, ...] | None = None


def plausible_percent(value: float | None) -> float | None:
    """Return a utilization from 0 to 100; None for anything else, as drivers write for unknown."""
    return value if value is not None and 0 <= value <= 100 else None


class GpuMetrics(Protocol):
    """A source of GPU measurements, e.g. Prometheus. The entry point's object is its class."""

    def read(self, nodes: Iterable[str], *, seconds: float = 0) -> dict[str, tuple[GpuSample, ...]]:
        """Read samples by node; nodes without an answer are left out.

        Args:
            nodes: names as Slurm has them.
            seconds: return the samples of the last so many seconds, of each GPU those after which
                none is missing, or the first of these, with their most, and the last; with 0 only
                the newest.

        Raises:
            NoSamples: when the source has nothing about any of the nodes.
            SlurmkitError: when the source cannot be reached.
        """
        ...


class JobWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job, whose GPUs a source is asked about.

    Attributes:
        job_id: Slurm's own job id (JobIDRaw).
        nodes: names as Slurm has them.
        begin: epoch seconds of its start.
        end: epoch seconds of its end.
        gpus: number of GPUs, or MIG instances, that it held.
    """

    job_id: int
    nodes: tuple[str, ...]
    begin: int
    end: int
    gpus: int


class GpuTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one GPU of a run; empty texts are unknown.

    Attributes:
        node: name as Slurm has it.
        uuid: of the GPU.
        pci: PCI address of the GPU.
        index: Slurm's index; None if unknown.
        mig: UUID or another unique name of a MIG instance; empty for a whole GPU.
        shared: whether other jobs held the GPU, too. Then the samples are the job's own share.
        samples: oldest first.
    """

    node: str
    uuid: str = ""
    pci: str = ""
    index: int | None = None
    mig: str = ""
    shared: bool = False
    samples: tuple[GpuSample, ...] = ()


class GpuHistory(Protocol):
    """A source that also keeps old samples; a plugin of `slurmkit.gpu_metrics` may be one."""

    def read_job(self, window: JobWindow) -> Iterable[GpuTrace]:
        """Read the samples of the GPUs that a run held, as the source took them.

        A GPU may come several times, each time with later samples: so a source need not have the
        samples of a long run in memory all at once. A GPU is left out if the source does not say
        whether the run held it.

        Raises:
            NoSamples: when the source has nothing about any of the nodes.
            SlurmkitError: when the source cannot be reached.
        """
        ...


class SeenNodes(msgspec.Struct, frozen=True):
    """What a source that is asked about runs has of some nodes.

    Attributes:
        nodes: those whose GPUs are measured.
        with_jobs: those on which the source says which job holds a GPU.
    """

    nodes: frozenset[str]
    with_jobs: frozenset[str]


class GpuMetricsOfNodes(Protocol):
    """A `GpuHistory` that can look whether it has what it needs for the runs on some nodes."""

    def check_nodes(self, nodes: Sequence[str]) -> SeenNodes:
        """Look with the queries of `read_job`.

        Raises:
            NoSamples: when the source has nothing about any of the nodes.
            SlurmkitError: when the source cannot be reached.
        """
        ...


class GpuMetricsOfRunning(Protocol):
    """A source that knows which GPUs running jobs hold; a `GpuHistory` may be one."""

    def read_running(self, windows: Sequence[JobWindow]) -> Iterable[tuple[int, GpuTrace]]:
        """Read the last samples of the GPUs that running jobs hold, all jobs at once.

        Args:
            windows: one for each job; `end` is now, and of `begin` the earliest counts.

        Returns:
            The job id of each GPU's holder, and the samples. A GPU is left out if the source does
            not say which job holds it.

        Raises:
            NoSamples: when the source has nothing about any of the nodes.
            SlurmkitError: when the source cannot be reached.
        """
        ...


class MeasuredRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a job held and what was measured of it; None is unknown, never 0.

    Attributes:
        job_id: as squeue shows it: `12`, `12_3`.
        job_id_raw: Slurm's own job id.
        start: epoch seconds.
        end: epoch seconds; None while it runs.
        seconds: run time without the time in which it was suspended; None while it runs.
        node_list: as Slurm writes it.
        gpus: GPUs by type, or parts of GPUs: `{"a100": 4}`, `{"shard": 2}`; the type `""` is none.
        mem_mib: memory that it held on all nodes together, MiB.
        cpus_busy: CPU time of all processes through run time.
        mem_peak_mib: most memory of its steps, summed over nodes, MiB.
        gpu_use: mean utilization of its GPUs, 0 to 1.
        watts: mean power of one of its GPUs.
    """

    job_id: str
    job_id_raw: int
    start: int
    end: int | None = None
    seconds: int | None = None
    partition: str
    node_list: str
    nodes: int
    cpus: int
    gpus: dict[str, int]
    mem_mib: int | None = None
    cpus_busy: float | None = None
    mem_peak_mib: int | None = None
    gpu_use: float | None = None
    watts: float | None = None


class RunBesideEarlier(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job, and the completed runs of the same user and job name before it.

    Attributes:
        earlier: newest first.
        taken: epoch seconds up to which the source knows what runs did; None if unknown.
    """

    run: MeasuredRun
    earlier: tuple[MeasuredRun, ...] = ()
    taken: int | None = None


class RunHistory(Protocol):
    """A source that keeps what runs held and did; a plugin of `slurmkit.gpu_metrics` may be one."""

    def read_beside_earlier(
        self, job_id: str, *, started: int | None = None, ended: int | None = None
    ) -> RunBesideEarlier:
        """Read one run of a job and the runs before it, of the same user and job name.

        Args:
            job_id: `12`, `12_3` or `12+1`.
            started: start of the run, epoch seconds; it tells runs of one job id apart.
            ended: end of the run, epoch seconds; likewise, for a run that has ended.

        Raises:
            SlurmkitError: when the source has no such run, or cannot be reached.
        """
        ...
