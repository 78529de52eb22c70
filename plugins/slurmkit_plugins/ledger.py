"""What the site's ledger tells slurmkit: metrics of GPUs, and how long jobs waited.

A user sees the GPUs of their own jobs, a PI those of their groups, an operator all of them. Waits
are sums over all jobs, which name nobody.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from slurmkit_accounting import read

from slurmkit.errors import BadInput, ServiceError
from slurmkit.state.gpu_metrics import GpuSample, RunBesideEarlier
from slurmkit.state.past_waits import PastWaits

_NEWEST = 300  # seconds; an older sample is not the present
_MOST_SECONDS = 7 * 86400  # that one can look back


class LedgerGpus:
    """GPU metrics (`slurmkit.state.gpu_metrics.GpuMetrics`) of running jobs, from the ledger.

    It also has the runs before a job's (`RunHistory` there).

    Args:
        db: URL of the ledger's database; None for the usual one.
    """

    def __init__(self, db: str | None = None) -> None:
        self._db = db

    def read(self, nodes: Iterable[str], *, seconds: float = 0) -> dict[str, tuple[GpuSample, ...]]:
        """Read samples by node: of the begin of the time asked for, with its most, and of now."""
        back = min(max(int(seconds), _NEWEST), _MOST_SECONDS)
        with read.ledger(self._db) as ledger:
            found = read.gpu_use_now(ledger, nodes=sorted(nodes), seconds=back)
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

    def read_beside_earlier(
        self, job_id: str, *, started: int | None = None, ended: int | None = None
    ) -> RunBesideEarlier:
        """Read one run of a job and the completed runs of the same user and name before it."""
        with read.ledger(self._db) as ledger:
            return read.run_beside_earlier(ledger, job_id, started=started, ended=ended)


class LedgerWaits:
    """A source of past waits (`slurmkit.state.past_waits.PastWaitReader`).

    Args:
        db: URL of the ledger's database; None for the usual one.
    """

    def __init__(self, db: str | None = None) -> None:
        self._db = db

    def read_past_waits(self, cluster: str) -> PastWaits:
        """Read how long the jobs of a cluster waited that started in the last 30 days."""
        try:
            with read.ledger(self._db) as ledger:
                return read.past_waits(ledger, cluster)
        except BadInput as error:  # it does not know this function
            raise ServiceError("the ledger's service has an older release") from error


def _samples(gpu: read.GpuUseNow, *, past: bool) -> Iterator[GpuSample]:
    if gpu.index is None:  # then nobody can tell which of the node's GPUs it is
        return
    if past and gpu.since is not None and gpu.since < gpu.last:
        yield GpuSample(index=gpu.index, taken=gpu.since, utilization=gpu.busiest)
    yield GpuSample(
        index=gpu.index,
        taken=gpu.last,
        utilization=gpu.utilization,
        memory_used=gpu.memory_mib,
        memory_total=gpu.memory_total_mib,
        watts=gpu.watts,
    )
