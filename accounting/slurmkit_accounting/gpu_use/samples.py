"""One reading of one GPU, and the pages of `slurmkit gpu-exporter` as readings.

What no GPU can measure (NaN, 250 %, a negative power) is unknown. A reading says nothing about a
value that is unknown.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from slurmkit.state.gpu_metrics import GpuSample, plausible_percent

PREFIX = "slurmkit_gpu_"
MOST_WATTS = 5000.0  # of one GPU; more is a wrong measurement
PARTS = ("gres/shard", "gres/mps")  # TRES of parts of a GPU, as Slurm's accounting names them
_MOST_MIB = 2**24
_MIB = 2**20
_MOST_GPUS = 1024  # GPUs and MIG instances of one node
_MOST_JOBS = 4096  # of one page
_MOST_NAME = 80  # characters of a UUID or an address
# `slurmkit_gpu_utilization_ratio{node="c1",gpu="0",uuid="GPU-1"} 0.8`, perhaps with a time stamp.
_LINE = re.compile(
    rf"^{PREFIX}(utilization_ratio|memory_used_bytes|memory_total_bytes|power_watts"
    r"|energy_joules_total|job|job_utilization_ratio|job_memory_used_bytes)"
    r"\{([^\n]{,1000})\} (\S+)(?: \S+)?\r?$",
    re.MULTILINE,
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class GpuName(msgspec.Struct, frozen=True, gc=False):
    """What names a GPU, or a MIG instance; empty texts are unknown.

    Attributes:
        uuid: NVML's UUID of the GPU.
        pci: its PCI address.
        index: Slurm's index of the GPU or MIG instance on its node; None if unknown.
        mig: UUID of the MIG instance; empty for a whole GPU.
    """

    uuid: str = ""
    pci: str = ""
    index: int | None = None
    mig: str = ""

    @property
    def key(self) -> str:
        """The name under which its use is stored; empty if nothing names it."""
        index = "" if self.index is None else f"gpu{self.index}"
        return self.mig or self.uuid or self.pci or index


class GpuReading(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What one GPU did at one time, for one job; None is unknown.

    Attributes:
        at: epoch seconds, by the clock of the reader.
        utilization: percent of the time in which a kernel ran.
        memory_mib: memory in use.
        memory_total_mib: memory of the GPU.
        watts: power drawn.
        joules: energy counter.
    """

    at: float
    utilization: float | None = None
    memory_mib: int | None = None
    memory_total_mib: int | None = None
    watts: float | None = None
    joules: float | None = None


class JobReading(msgspec.Struct, frozen=True, gc=False):
    """A reading of a GPU that a job holds.

    Attributes:
        job: Slurm's own job id.
        gpu: names the GPU.
        shared: whether other jobs hold the same GPU. Then utilization and memory are the job's
            own, and power and energy are unknown.
        whole_gpu: of a shared GPU, the reading of all of it.
    """

    job: int
    gpu: GpuName
    shared: bool
    reading: GpuReading
    whole_gpu: GpuReading | None = None


class NodeAnswer(NamedTuple):
    """The answer of one node.

    Attributes:
        readings: one for each job on each GPU; empty if the node did not answer.
        error: why it did not answer; empty if it did.
        without_job: the GPUs of which the page tells Slurm's index and names no job.
        nodes: the names of nodes on the page; more than one, or another one, is a mistake.
    """

    readings: tuple[JobReading, ...] = ()
    error: str = ""
    without_job: tuple[tuple[GpuName, GpuReading], ...] = ()
    nodes: frozenset[str] = frozenset()


def _percent(ratio: float | None) -> float | None:
    """Return a ratio of a page as percent; None for what is not from 0 to 1."""
    return None if ratio is None else plausible_percent(round(ratio * 100, 4))


def plausible_watts(value: float | None) -> float | None:
    """Return a power that a GPU can draw; None for anything else."""
    return value if value is not None and 0 <= value <= MOST_WATTS else None


def plausible_mib(value: float | None) -> int | None:
    """Return whole MiB of bytes; None for what no GPU can have."""
    return None if value is None else plausible_memory(value / _MIB)


def plausible_memory(mebibytes: float | None) -> int | None:
    """Return whole MiB; None for what no GPU can have."""
    if mebibytes is None or not 0 <= mebibytes <= _MOST_MIB:
        return None
    return int(mebibytes)


def plausible_counter(value: float | None) -> float | None:
    """Return a counter; None for a value that no counter has."""
    return value if value is not None and 0 <= value < 2**63 else None


def read_sample(sample: GpuSample) -> GpuReading:
    """Return the sample of a site's metrics as a reading."""
    return GpuReading(
        at=sample.taken,
        utilization=plausible_percent(sample.utilization),
        memory_mib=plausible_memory(sample.memory_used),
        memory_total_mib=plausible_memory(sample.memory_total),
        watts=plausible_watts(sample.watts),
        joules=plausible_counter(sample.joules),
    )


class PageError(ValueError):
    """A page that is not one of `slurmkit gpu-exporter`."""


def parse_page(text: str, at: float) -> NodeAnswer:
    """Parse a page of `slurmkit gpu-exporter`. Of two lines for the same value the last counts.

    Args:
        text: Prometheus text format, or OpenMetrics.
        at: epoch seconds at which the page was read.

    Raises:
        PageError: when the page is not an exporter's, or has more GPUs or jobs than a node has.
    """
    gpus: dict[str, _GpuValues] = {}
    # A GPU's labels are the same on every line of a page. They are forgotten with the page, so that
    # forged ones take no memory.
    known: dict[str, tuple[GpuName, int | None, str]] = {}
    jobs = 0
    for metric, labels, number in _LINE.findall(text):
        gpu, job, _ = known.get(labels) or known.setdefault(labels, _parse_labels(labels))
        if not gpu.key:
            continue
        values = gpus.get(gpu.key)
        if values is None:
            if len(gpus) >= _MOST_GPUS:
                raise PageError(f"the page has more than {_MOST_GPUS} GPUs")
            values = gpus[gpu.key] = _GpuValues(gpu)
        value = _parse_number(number)
        if job is None:
            values.own[metric] = value
            continue
        jobs += 1
        if jobs > _MOST_JOBS:
            raise PageError(f"the page has more than {_MOST_JOBS} lines of jobs")
        values.by_job.setdefault(job, {})[metric] = value
    if not gpus and PREFIX not in text:
        raise PageError(f"no line begins with {PREFIX}; is this slurmkit gpu-exporter?")
    found = gpus.values()
    numbers = Counter(values.gpu.index for values in found)
    return NodeAnswer(
        readings=tuple(reading for values in found for reading in values.readings(at)),
        without_job=tuple(
            (values.gpu, values.whole(at))
            for values in found
            if values.gpu.index is not None and numbers[values.gpu.index] == 1
            if not values.names_job
        ),
        nodes=frozenset(node for _, _, node in known.values() if node),
    )


class _GpuValues:
    """The values of one GPU: its own, and those of each job; None for NaN."""

    def __init__(self, gpu: GpuName) -> None:
        self.gpu = gpu
        self.own: dict[str, float | None] = {}
        self.by_job: dict[int, dict[str, float | None]] = {}

    @property
    def names_job(self) -> bool:
        """Whether any line of the GPU is of a job, also of one whose id cannot be read."""
        return bool(self.by_job) or any(metric.startswith("job") for metric in self.own)

    def whole(self, at: float) -> GpuReading:
        return GpuReading(
            at=at,
            utilization=_percent(self.own.get("utilization_ratio")),
            memory_mib=plausible_mib(self.own.get("memory_used_bytes")),
            memory_total_mib=plausible_mib(self.own.get("memory_total_bytes")),
            watts=plausible_watts(self.own.get("power_watts")),
            joules=plausible_counter(self.own.get("energy_joules_total")),
        )

    def readings(self, at: float) -> Iterator[JobReading]:
        holders = {job: each for job, each in self.by_job.items() if each.get("job") == 1}
        shared = len(holders) > 1
        whole = self.whole(at)
        total = whole.memory_total_mib
        for job, of_job in holders.items():
            if shared:
                yield JobReading(job, self.gpu, True, _shared_reading(of_job, at, total), whole)  # noqa: FBT003
            else:
                yield JobReading(job, self.gpu, False, whole)  # noqa: FBT003


def _shared_reading(of_job: Mapping[str, float | None], at: float, total: int | None) -> GpuReading:
    return GpuReading(
        at=at,
        utilization=_percent(of_job.get("job_utilization_ratio")),
        memory_mib=plausible_mib(of_job.get("job_memory_used_bytes")),
        memory_total_mib=total,
    )


def _parse_labels(text: str) -> tuple[GpuName, int | None, str]:
    """Return the GPU that labels name, the job (None without a job), and the node, or nothing."""
    labels = {
        name: _ESCAPED.sub(r"\1", value) if "\\" in value else value
        for name, value in _LABEL.findall(text)
    }
    return gpu_of_labels(labels), parse_job(labels.get("job", "")), _plain(labels.get("node", ""))


def gpu_of_labels(labels: Mapping[str, str]) -> GpuName:
    """Return the GPU that an exporter's labels name."""
    index = labels.get("gpu", "")
    return GpuName(
        uuid=_plain(labels.get("uuid", "")),
        pci=_plain(labels.get("pci", "")),
        index=int(index) if index.isdecimal() and len(index) < 5 else None,
        mig=_plain(labels.get("mig", "")),
    )


def _plain(text: str) -> str:
    """Return a name that a driver gives; empty for anything else."""
    return text if text.isascii() and text.isprintable() and len(text) <= _MOST_NAME else ""


def parse_job(text: str) -> int | None:
    """Parse Slurm's own job id; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
