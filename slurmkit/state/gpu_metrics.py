"""What GPUs are doing: one sample, and the Protocol of plugins that read samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of a GPU; None is unknown.

    Attributes:
        index: as in Slurm's index map of the node.
        taken: epoch seconds of the measurement.
        utilisation: percent of the time in which a kernel ran.
        memory_used: MiB.
        memory_total: MiB.
        watts: power drawn.
    """

    index: int
    taken: float
    utilisation: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    watts: float | None = None


class GpuMetrics(Protocol):
    """A source of GPU measurements, e.g. Prometheus. The entry point's object is its class."""

    def read(self, nodes: Iterable[str], *, seconds: float = 0) -> dict[str, tuple[GpuSample, ...]]:
        """Read samples by node; nodes without an answer are left out.

        Args:
            nodes: names as Slurm has them.
            seconds: return all samples of the last so many seconds; with 0 only the newest of
                each GPU.

        Raises:
            SlurmkitError: when the source cannot be reached.
        """
        ...
