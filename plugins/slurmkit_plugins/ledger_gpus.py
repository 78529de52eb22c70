"""GPU metrics from the site's ledger: what its service last read from the nodes' exporters.

A user sees the GPUs of their own jobs, a PI those of their groups, an operator all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from slurmkit_accounting import read

from slurmkit.state.gpu_metrics import GpuSample

_NEWEST = 300  # seconds; an older sample is not the present
_MOST_SECONDS = 7 * 86400  # that one can look back


class LedgerGpus:
    """GPU metrics (`slurmkit.state.gpu_metrics.GpuMetrics`) of running jobs, from the ledger.

    Args:
        db: URL of the ledger's database; None for the usual one.
    """

    def __init__(self, db: str | None = None) -> None:
        self._db = db

    def read(self, nodes: Iterable[str], *, seconds: float = 0) -> dict[str, tuple[GpuSample, ...]]:
        """Read samples by node: of the begin of the time asked for, with its most, and of now."""
        back = min(max(int(seconds), _NEWEST), _MOST_SECONDS)
        with read.ledger(self._db) as books:
            found = read.gpu_use_now(books, nodes=sorted(nodes), seconds=back)
        jobs_on = Counter((gpu.cluster, gpu.node, gpu.index) for gpu in found)
        by_node: dict[str, list[GpuSample]] = defaultdict(list)
        clusters: dict[str, set[str]] = defaultdict(set)
        for gpu in found:
            # What one job does on a shared GPU is not what the GPU does; the others may be hidden.
            if not gpu.shared or jobs_on[gpu.cluster, gpu.node, gpu.index] > 1:
                by_node[gpu.node] += _samples(gpu, past=seconds > 0)
            clusters[gpu.node].add(gpu.cluster)
        # Which of two clusters with a node of that name is meant is unknown here.
        return {
            node: tuple(samples)
            for node, samples in by_node.items()
            if samples and len(clusters[node]) == 1
        }


def _samples(gpu: read.GpuUseNow, *, past: bool) -> Iterator[GpuSample]:
    if gpu.index is None:  # then nobody can tell which of the node's GPUs it is
        return
    if past and gpu.since is not None and gpu.since < gpu.last:
        yield GpuSample(index=gpu.index, taken=gpu.since, utilisation=gpu.busiest)
    yield GpuSample(
        index=gpu.index,
        taken=gpu.last,
        utilisation=gpu.utilisation,
        memory_used=gpu.memory_mib,
        memory_total=gpu.memory_total_mib,
        watts=gpu.watts,
    )
