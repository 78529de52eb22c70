"""The exporter's metrics: what NVML, the job finder and node_check.py say, as a page."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from slurmkit_plugins.gpu_exporter.holders import JobFinder, read_mig_minors
from slurmkit_plugins.gpu_exporter.readings import DriverReading, GpuReader

_LABELS = ("node", "gpu", "uuid", "pci", "mig")
_LEAST_SECONDS = 1.0  # between two readings: several scrapers cost no more than one
_OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_NAME = "slurmkit_gpu_"
_HEALTH = "slurmkit_gpu_exporter_"
NODE_CHECKS = Path("/run/slurmkit/node_check")
"""Where node_check.py writes its last results."""


class GpuCollector(Collector):
    """Collector that reads the GPUs at a scrape.

    Args:
        node: name of this node in Slurm.
        reader: an open reader.
        jobs: finds the jobs on the GPUs.
        checks: folder with the results of node_check.py.
    """

    def __init__(
        self, node: str, reader: GpuReader, jobs: JobFinder, checks: Path = NODE_CHECKS
    ) -> None:
        self._node = node
        self._checks = checks
        self._reader = reader
        self._jobs = jobs
        self._started = time.time()
        self._lock = threading.Lock()
        self._taken = -_LEAST_SECONDS
        self._seconds = 0.0
        self._metrics: list[Metric] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def page(self, accept: str) -> tuple[str, bytes]:
        """Return content type and page: OpenMetrics where an Accept header asks for it, else text.

        Only the kind is looked at. prometheus-client 0.26 fails on versions that are no numbers.
        """
        encode, kind = choose_encoder(_OPENMETRICS if "openmetrics-text" in accept else "")
        return kind, encode(self._registry)

    def describe(self) -> list[Metric]:
        """Return no metrics: nothing is read before the first scrape."""
        return []

    def collect(self) -> list[Metric]:
        """Read the GPUs, unless that was done a moment ago."""
        with self._lock:
            began = time.monotonic()
            if began - self._taken >= _LEAST_SECONDS:
                self._metrics = [
                    *_gpu_metrics(self._node, self._reader, self._jobs),
                    *_check_metrics(self._node, self._checks / "health.json"),
                ]
                self._taken = time.monotonic()
                self._seconds = self._taken - began
            return [*self._metrics, *self._health()]

    def _health(self) -> Iterator[Metric]:
        yield _gauge("driver_up", "1 if the driver answers.", bool(self._reader.driver))
        yield _gauge("scrape_seconds", "Time that reading the GPUs took.", self._seconds)
        yield _gauge("start_time_seconds", "When the exporter started.", self._started)
        errors = CounterMetricFamily(
            f"{_HEALTH}errors", "Answers of the driver that could not be used.", labels=("kind",)
        )
        for kind, count in sorted(self._reader.errors.items()):
            errors.add_metric((kind,), count)
        yield errors


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_HEALTH + name, text, value=float(value))


def _gpu_metrics(node: str, reader: GpuReader, jobs: JobFinder) -> Iterator[Metric]:
    """Read all GPUs and yield their metrics; what is unknown has no series."""
    families = _Families()
    readings = reader.read()
    caps = read_mig_minors() if any(reading.identity.mig for reading in readings) else {}
    for reading in readings:
        gpu = reading.identity
        index = jobs.gpus.index(gpu, caps)
        index = None if reading.partitioned else index  # Slurm knows its instances only
        slurm_index = "" if index is None else str(index)
        labels = (node, slurm_index, gpu.uuid, gpu.pci, gpu.mig)
        families.info.add_metric((*labels, gpu.name, reader.driver), 1)
        families.add_reading(labels, reading)
        if not gpu.mig:
            for (uuid, number), count in sorted(reader.xids.items()):
                if uuid == gpu.uuid:
                    families.xids.add_metric((*labels, str(number)), count)
        if not reading.partitioned:
            families.add_jobs(labels, reading, jobs.jobs_on(index, reading), jobs)
    yield from families.all()


def _check_metrics(node: str, path: Path) -> Iterator[Metric]:
    """Yield the results of the last health check; none if there was none since the boot."""
    labels = ("node", "check", "state", "uuid", "serial")
    states = GaugeMetricFamily(
        "slurmkit_node_check", "What node_check.py found at the last health check.", labels=labels
    )
    try:
        found = json.loads(path.read_text("utf-8"))
        # Once each: a GPU may have two notes of one check, as of two Xids.
        series = dict.fromkeys(
            tuple(str(each[name] or "") for name in labels[1:])
            for each in found["checks"]
            if each["state"] != "skipped"
        )
        for values in series:
            states.add_metric((node, *values), 1)
        taken = GaugeMetricFamily(
            "slurmkit_node_check_time_seconds", "When that was.", labels=("node",)
        )
        taken.add_metric((node,), float(found["time"]))
    except (OSError, ValueError, KeyError, TypeError):
        return
    yield states
    yield taken


class _Families:
    """The metric families of one scrape."""

    def __init__(self) -> None:
        def gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(_NAME + name, text, labels=(*_LABELS, *more))

        def counter(name: str, text: str, *more: str) -> CounterMetricFamily:
            return CounterMetricFamily(_NAME + name, text, labels=(*_LABELS, *more))

        self.info = gauge("info", "The GPU or MIG instance; always 1.", "name", "driver")
        self.lost = gauge("lost", "1 if the GPU does not answer.")
        self.utilization = gauge(
            "utilization_ratio", "Share of the time in which a kernel ran, 0 to 1."
        )
        self.sm_active = gauge(
            "sm_active_ratio", "Share of the SMs that were busy since the last scrape, 0 to 1."
        )
        self.memory_used = gauge("memory_used_bytes", "GPU memory in use.")
        self.memory_total = gauge("memory_total_bytes", "GPU memory.")
        self.power = gauge("power_watts", "Power drawn.")
        self.temperature = gauge("temperature_celsius", "Temperature of the GPU.")
        self.throttled = gauge("throttled", "1 if the clocks are held back.", "reason")
        self.energy = counter("energy_joules", "Energy since the driver was loaded.")
        self.ecc = counter("ecc_errors", "ECC memory errors over the GPU's life.", "kind")
        self.xids = counter("xid_errors", "Xid errors since the exporter started.", "xid")
        self.job = gauge("job", "A job that holds the GPU or a part of it; always 1.", "job")
        self.job_utilization = gauge(
            "job_utilization_ratio", "What a job does on a GPU that jobs share, 0 to 1.", "job"
        )
        self.job_memory = gauge(
            "job_memory_used_bytes", "Memory that a job uses on a GPU that jobs share.", "job"
        )

    def all(self) -> list[Metric]:
        """Return the families that have a series."""
        return [family for family in vars(self).values() if family.samples]

    def add_reading(self, labels: tuple[str, ...], reading: DriverReading) -> None:
        """Add the values of a GPU that are known."""
        if not reading.identity.mig:
            self.lost.add_metric(labels, reading.lost)
        for family, value in (
            (self.utilization, _ratio(reading.utilization)),
            (self.sm_active, _ratio(reading.sm_active)),
            (self.memory_used, reading.memory_used),
            (self.memory_total, reading.memory_total),
            (self.power, reading.power_watts),
            (self.temperature, reading.temperature),
            (self.energy, reading.energy_joules),
        ):
            if value is not None:
                family.add_metric(labels, value)
        for reason, is_held in (reading.throttled or {}).items():
            self.throttled.add_metric((*labels, reason), is_held)
        for kind, count in reading.ecc.items():
            self.ecc.add_metric((*labels, kind), count)

    def add_jobs(
        self,
        labels: tuple[str, ...],
        reading: DriverReading,
        held_by: tuple[str, ...],
        jobs: JobFinder,
    ) -> None:
        """Add the jobs on a GPU, and on a shared one what each of them does."""
        for job in held_by:
            self.job.add_metric((*labels, job), 1)
        if not jobs.gpus.shared and len(held_by) < 2:
            return
        for share in jobs.shares(held_by, reading):
            if (busy := _ratio(share.utilization)) is not None:
                self.job_utilization.add_metric((*labels, share.job), busy)
            if share.memory is not None:
                self.job_memory.add_metric((*labels, share.job), share.memory)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
