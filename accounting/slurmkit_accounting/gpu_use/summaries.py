"""The summary of one GPU over one run, updated with each sample, in a few hundred bytes.

Samples are not stored here. Percentiles come from a histogram of 101 bins, one for each whole
percent, so they are exact to 1 %. A sample stands for the time since the sample before, or since
the start of the run, but for one interval at most: what lies further back is not covered.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from slurmkit.state.gpu_metrics import IDLE_BELOW
from slurmkit.state.gpu_use import LEAST_COVERED
from slurmkit_accounting.gpu_use.samples import MOST_WATTS, GpuName, GpuReading
from slurmkit_accounting.gpu_use.series import Curve

_BINS = 101
_PERCENTILE = 0.95
_SLACK = 100.0  # joules; a counter that moves in steps may be ahead of the power

PROMETHEUS = "prometheus"
RUNNING_IN_PROMETHEUS = "prometheus_running"
"""Source of what was read while a run went on; see `slurmkit_accounting.gpu_use.running`."""
_OF_RUNNING = 0.95  # a source that was read while the run went on must cover more than the others


class _Summary(Protocol):
    source: str
    samples: int
    measured_seconds: float


UseT = TypeVar("UseT", bound=_Summary)


class GpuUse(msgspec.Struct, kw_only=True):
    """What one GPU did for one run; times are epoch seconds, None is unknown.

    Attributes:
        cluster_id: row id of the cluster.
        job: Slurm's own job id.
        start: the run's start, as Slurm says it.
        node: name of the node.
        gpu: names the GPU.
        source: `exporter`, `prometheus`, `jobstats`; `prometheus_running`: Prometheus as it was
            asked while the run went on.
        interval: seconds between two samples, as configured.
        id: row id in the ledger; None before it is stored.
        run_id: row id of the run; None until the ledger has the end of the run.
        shared: whether other jobs held the GPU at the same time.
        samples: number of samples; 0 for a summary that another tool made.
        covered: seconds of the run that they cover.
        measured_samples: number of samples with a known utilization.
        measured_seconds: seconds that those cover.
        utilization_sum: sum of the utilizations, each in percent.
        idle_samples: number of samples below `IDLE_BELOW`.
        memory_mib: most memory in use.
        memory_total_mib: memory of the GPU.
        counted_joules: energy by the GPU's counter; None without a counter.
        counted_seconds: time that the counter covers.
        ends_joules: energy before the first and after the last value of the counter: power times
            time, for one interval at most.
        ends_seconds: time that it covers.
        power_joules: energy as power times time; None if no power is known.
        power_seconds: time that it covers.
        first: time of the first sample.
        last: time of the last sample.
        last_watts: power at the last sample.
        counter_at: time of the last value of the counter; `counter` is that value.
        bins: the histogram of utilization, a count for each whole percent.
        curve: the curve; None where its retention has ended.
    """

    cluster_id: int
    job: int
    start: int
    node: str
    gpu: GpuName
    source: str
    interval: int
    id: int | None = None
    run_id: int | None = None
    shared: bool = False
    samples: int = 0
    covered: float = 0.0
    measured_samples: int = 0
    measured_seconds: float = 0.0
    utilization_sum: float = 0.0
    idle_samples: int = 0
    memory_mib: int | None = None
    memory_total_mib: int | None = None
    counted_joules: float | None = None
    counted_seconds: float = 0.0
    ends_joules: float = 0.0
    ends_seconds: float = 0.0
    power_joules: float | None = None
    power_seconds: float = 0.0
    first: float | None = None
    last: float | None = None
    counter_at: float | None = None
    counter: float | None = None
    last_watts: float | None = None
    bins: list[int] = msgspec.field(default_factory=lambda: [0] * _BINS)
    curve: Curve | None = None

    @property
    def mean(self) -> float | None:
        """Mean utilization, percent."""
        return self.utilization_sum / self.measured_samples if self.measured_samples else None

    @property
    def percentile_95(self) -> int | None:
        """95th percentile of the utilization, whole percent."""
        wanted, seen = _PERCENTILE * self.measured_samples, 0
        for percent, count in enumerate(self.bins):
            seen += count
            if count and seen >= wanted:
                return percent
        return None

    @property
    def idle_share(self) -> float | None:
        """Share of the samples that are idle; None also where only a mean is known."""
        return self.idle_samples / self.measured_samples if any(self.bins) else None

    @property
    def is_idle(self) -> bool | None:
        """Whether all samples of the run are idle, or the only mean; None without either."""
        return self.idle_samples == self.measured_samples if self.measured_samples else None

    @property
    def joules(self) -> float | None:
        """Energy: by the counter, with `ends_joules`; else power times time."""
        if self.counted_joules is None:
            return self.power_joules
        return self.counted_joules + self.ends_joules

    @property
    def energy_by(self) -> str | None:
        """How the energy was measured: `counter`, or `power` (power times time)."""
        if self.counted_joules is not None:
            return "counter"
        return None if self.power_joules is None else "power"

    @property
    def energy_seconds(self) -> float:
        """Time that the energy covers."""
        if self.counted_joules is None:
            return self.power_seconds
        return self.counted_seconds + self.ends_seconds

    def add(self, reading: GpuReading, *, shared: bool = False) -> bool:
        """Add a sample; return False for one that is not newer than the last.

        Args:
            reading: the sample.
            shared: whether other jobs hold the GPU too.
        """
        if self.last is not None and reading.at <= self.last:
            return False
        since = self.start if self.last is None else max(self.last, self.start)
        seconds = min(max(reading.at - since, 0.0), float(self.interval))
        if self.last is None and reading.watts is not None:
            self.ends_joules, self.ends_seconds = reading.watts * seconds, seconds
        self.samples += 1
        self.covered += seconds
        self.shared |= shared
        self.first = reading.at if self.first is None else self.first
        self.last, self.last_watts = reading.at, reading.watts
        if reading.utilization is not None:
            self.measured_samples += 1
            self.measured_seconds += seconds
            self.utilization_sum += reading.utilization
            self.bins[round(reading.utilization)] += 1
            self.idle_samples += reading.utilization < IDLE_BELOW
        self.memory_mib = _larger(self.memory_mib, reading.memory_mib)
        self.memory_total_mib = reading.memory_total_mib or self.memory_total_mib
        self._add_energy(reading, seconds)
        if self.curve is None:
            self.curve = Curve(self.start, self.interval)
        self.curve.add(reading)
        return True

    def _add_energy(self, reading: GpuReading, seconds: float) -> None:
        if reading.watts is not None and seconds:
            self.power_joules = (self.power_joules or 0.0) + reading.watts * seconds
            self.power_seconds += seconds
        if reading.joules is None:
            if self.shared:
                self.counter = None  # what the GPU uses from here on is not this run's alone
            return
        if self.counter is not None and self.counter_at is not None:
            used, passed = reading.joules - self.counter, reading.at - self.counter_at
            # A counter that was reset, or wrapped, or jumped, says nothing about that time.
            if 0 <= used <= MOST_WATTS * passed + _SLACK:
                self.counted_joules = (self.counted_joules or 0.0) + used
                self.counted_seconds += passed
        self.counter, self.counter_at = reading.joules, reading.at

    def finish(self, end: float) -> None:
        """Add the energy from the last sample to the end of the run, for one interval at most."""
        if self.last is None or self.last_watts is None:
            return
        seconds = seconds_to_the_end(self.last, end, self.interval)
        self.ends_joules += self.last_watts * seconds
        self.ends_seconds += seconds
        self.power_joules = (self.power_joules or 0.0) + self.last_watts * seconds
        self.power_seconds += seconds

    def covered_share(self, end: float, start: float | None = None) -> float:
        """Return the share of the run that samples of utilization cover.

        Args:
            end: of the run, or the time up to which it is looked at.
            start: of the run, where the ledger has another than the summary.
        """
        length = end - (self.start if start is None else start)
        return min(self.measured_seconds / length, 1.0) if length > 0 else 0.0

    def pack_bins(self) -> bytes:
        """Return the histogram as bytes."""
        counts = array("I", self.bins)
        if sys.byteorder == "big":
            counts.byteswap()
        return zlib.compress(counts.tobytes(), 1)


def source_weight(source: str, samples: int, measured_seconds: float) -> tuple[float, bool]:
    """Return how much a source's summaries of a run count: of several sources the largest does.

    A summary that another tool made does not say what it covers. It counts for half of the run, so
    that samples of more than half go before it. What was read while a run went on counts only
    where it covers clearly more than the answer about the whole run.

    Args:
        source: see `GpuUse`.
        samples: number of samples; 0 for a summary that another tool made.
        measured_seconds: seconds that its values of utilization cover, or claim to cover.
    """
    is_final = source != RUNNING_IN_PROMETHEUS
    factor = (1 if samples else LEAST_COVERED) * (1 if is_final else _OF_RUNNING)
    return measured_seconds * factor, is_final


def best_source(uses: Iterable[UseT]) -> list[UseT]:
    """Return those of a run's summaries, or rows of them, that are of the source that counts."""
    by_source: dict[str, list[UseT]] = defaultdict(list)
    for use in uses:
        by_source[use.source].append(use)
    return max(by_source.values(), key=_weight)


def _weight(uses: Sequence[_Summary]) -> tuple[float, bool]:
    samples, seconds = (sum(use.samples for use in uses), sum(use.measured_seconds for use in uses))
    return source_weight(uses[0].source, samples, seconds)


def seconds_to_the_end(last: float, end: float, interval: int) -> float:
    """Return the seconds from the last sample to the end of a run, one interval at most.

    If the end is further away than two intervals, samples are missing and it is unknown what the
    GPU did: 0.
    """
    passed = max(end - last, 0.0)
    return min(passed, float(interval)) if passed <= 2 * interval else 0.0


def unpack_bins(packed: bytes | None) -> list[int]:
    """Return the histogram that `pack_bins` made; all zeros for None."""
    if packed is None:
        return [0] * _BINS
    counts = array("I")
    counts.frombytes(zlib.decompress(packed))
    if sys.byteorder == "big":
        counts.byteswap()
    return counts.tolist()


def _larger(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
