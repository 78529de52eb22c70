"""What the GPUs of running jobs do, from a site's metrics (Prometheus), round by round.

Once a run has ended, `slurmkit_accounting.gpu_use.history` asks for its whole window.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from slurmkit.formats.tres import gpu_count
from slurmkit.state.gpu_metrics import GpuMetricsOfRunning, GpuTrace, JobWindow, NoSamples
from slurmkit.state.gres import HoldingJob
from slurmkit_accounting.gpu_use.history import usual_interval
from slurmkit_accounting.gpu_use.samples import (
    GpuName,
    JobReading,
    NodeAnswer,
    parse_job,
    read_sample,
)
from slurmkit_accounting.gpu_use.summaries import RUNNING_IN_PROMETHEUS

_LOOK_BACK = 300  # seconds; as long as Prometheus itself takes a sample for present
_INTERVALS = 3  # of the source, that most rounds look back
_TOGETHER = 60  # seconds; samples of one node that are further apart are not of one time


class MetricsOfRunning:
    """A site's metrics as a source of samples of running jobs.

    Attributes:
        interval: usual seconds between the samples; 0 until there are some of a GPU.

    Args:
        metrics: the plugin.
        clock: returns epoch seconds.
    """

    name = RUNNING_IN_PROMETHEUS

    def __init__(
        self, metrics: GpuMetricsOfRunning, clock: Callable[[], float] = time.time
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self.interval = 0
        self._longest = 0  # interval of the GPU that is measured least often
        self._looked_back = -math.inf  # when a round last looked back as far as possible
        self._last: dict[str, float] = {}  # time of the last sample of each node

    def read(self, jobs: Sequence[HoldingJob]) -> dict[str, NodeAnswer]:
        """Read the newest sample of each GPU that some jobs hold; none twice.

        Raises:
            SlurmkitError: when the source cannot be reached.
        """
        nodes = sorted({node for job in jobs for node in job.nodes})
        by_node: dict[str, list[tuple[int, GpuTrace]]] = defaultdict(list)
        seconds = self._seconds_back()
        windows = list(_windows(jobs, int(self._clock()), seconds))
        intervals: list[int] = []
        silent = NodeAnswer(error=f"the source has no sample of the last {seconds} s")
        try:
            for job, trace in self._metrics.read_running(windows) if windows else ():
                if trace.samples:
                    by_node[trace.node].append((job, trace))
                    intervals.append(usual_interval(trace.samples, 0))
        except NoSamples as error:
            silent = NodeAnswer(error=str(error))
        if seconds == _LOOK_BACK and (known := list(filter(None, intervals))):
            self.interval, self._longest = round(statistics.median(known)), max(known)
            self._looked_back = self._clock()
        answers = {
            node: self._answer(node, by_node[node]) if node in by_node else silent for node in nodes
        }
        self._last = {node: at for node, at in self._last.items() if node in answers}
        return answers

    def _seconds_back(self) -> int:
        """Return how far this round looks back: a few intervals, and now and then five minutes."""
        if not self._longest or not 0 <= self._clock() - self._looked_back < _LOOK_BACK:
            return _LOOK_BACK
        return min(_INTERVALS * self._longest, _LOOK_BACK)

    def _answer(self, node: str, traces: Sequence[tuple[int, GpuTrace]]) -> NodeAnswer:
        """Return the newest samples of one node, as of one time."""
        at = max(trace.samples[-1].taken for _, trace in traces)
        if at <= self._last.get(node, 0.0):
            return NodeAnswer()
        self._last[node] = at
        return NodeAnswer(tuple(_readings(traces, at)))


def _windows(jobs: Iterable[HoldingJob], now: int, seconds: int) -> Iterable[JobWindow]:
    for job in jobs:
        number = parse_job(job.raw_id.strip())
        if number is not None and job.started is not None and job.started < now:
            yield JobWindow(
                job_id=number,
                nodes=job.nodes,
                begin=max(job.started, now - seconds),
                end=now,
                gpus=gpu_count(job.tres),
            )


def _readings(traces: Iterable[tuple[int, GpuTrace]], at: float) -> Iterable[JobReading]:
    for job, trace in traces:
        sample = trace.samples[-1]
        name = GpuName(trace.uuid, trace.pci, trace.index, trace.mig)
        if at - sample.taken <= _TOGETHER:
            # A round stores one time for each node.
            reading = read_sample(msgspec.structs.replace(sample, taken=at))
            yield JobReading(job, name, trace.shared, reading)
