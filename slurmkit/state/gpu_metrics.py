"""What GPUs are doing: samples, and the Protocols of plugins that read samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from slurmkit.errors import SlurmkitError


class NoSamples(SlurmkitError):
    """A source answered, but it has nothing about any of the nodes."""


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of a GPU; None is unknown.

    Attributes:
        index: as in Slurm's index map of the node; -1 if unknown, which only a `GpuTrace` has.
        taken: epoch seconds of the measurement.
        utilisation: percent of the time in which a kernel ran.
        memory_used: MiB.
        memory_total: MiB.
        watts: power drawn.
        joules: energy counter.
    """

    index: int
    taken: float
    utilisation: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    watts: float | None = None
    joules: float | None = None


class GpuMetrics(Protocol):
    """A source of GPU measurements, e.g. Prometheus. The entry point's object is its class."""

    def read(self, nodes: Iterable[str], *, seconds: float = 0) -> dict[str, tuple[GpuSample, ...]]:
        """Read samples by node; nodes without an answer are left out.

        Args:
            nodes: names as Slurm has them.
            seconds: return all samples of the last so many seconds; with 0 only the newest of
                each GPU.

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
