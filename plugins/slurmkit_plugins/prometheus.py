"""GPU metrics from a site's Prometheus: dcgm-exporter's, jobstats', or our own exporter's.

The plugin needs its section of the configuration:

    [gpu_metrics.prometheus]
    url = "http://prometheus:9090"

Samples of ended jobs are asked for as they were scraped (range vectors): no sample is repeated or
interpolated.
"""

from __future__ import annotations

import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from slurmkit.config.files import load_section
from slurmkit.errors import BadConfig, SlurmkitError
from slurmkit.state.gpu_metrics import GpuSample, GpuTrace, JobWindow, NoSamples

SECTION = "gpu_metrics.prometheus"
_TIMEOUT = 20  # seconds
_STEP = 60  # seconds between two samples, at least
_MOST_SAMPLES = 500  # samples of one GPU
_MOST_BYTES = 256 * 2**20  # of one answer
_PIECE = 6 * 3600  # seconds asked for at a time
_NODES_OF_LABELS = 100  # asked for at a time
_NODES_OF_SAMPLES = 8  # so that one piece takes some 200 MB, whatever the run had
_MIB = 2**20
Labels = Mapping[str, str]

# dcgm-exporter writes Hostname, its main branch since 2026-05 hostname; without either, Prometheus
# has the scraped address.
_NODE_LABELS = ("Hostname", "hostname", "node", "instance")
# dcgm-exporter's job mapping, jobstats, and our exporter's `job` as Prometheus renames it.
_JOB_LABELS = ("hpc_job", "jobid", "exported_job")
_UUID_LABELS = ("UUID", "uuid")
_PCI_LABELS = ("pci_bus_id", "pci")


class PrometheusSection(msgspec.Struct, frozen=True):
    """`[gpu_metrics.prometheus]`.

    Attributes:
        url: URL of the server, without `/api`.
        metric: metric of GPU utilisation, for `report idle`: of one of the three exporters, or
            another in percent.
        node_label: label with the node's name, from which anything from a dot or colon on is cut
            off; empty for the first of `Hostname`, `hostname`, `node` and `instance`.
        gpu_label: label with the GPU's index, which must be Slurm's.
        job_label: label with Slurm's own job id; empty for the first of `hpc_job`, `jobid` and
            `exported_job`.
    """

    url: str = ""
    metric: str = "DCGM_FI_DEV_GPU_UTIL"
    node_label: str = ""
    gpu_label: str = "gpu"
    job_label: str = ""


class _Metric(NamedTuple):
    """What a metric of an exporter means: a field of `GpuSample`, and the factor to its unit.

    Attributes:
        field: also `holder`: the GPU is held by the job that a label names; `holder_value`: by the
            job that the value is. A field that begins with `job_` is of the labelled job only.
    """

    field: str
    factor: float = 1.0


_METRICS = {
    "slurmkit_gpu_utilization_ratio": _Metric("utilisation", 100),
    "slurmkit_gpu_memory_used_bytes": _Metric("memory_used", 1 / _MIB),
    "slurmkit_gpu_memory_total_bytes": _Metric("memory_total", 1 / _MIB),
    "slurmkit_gpu_power_watts": _Metric("watts"),
    "slurmkit_gpu_energy_joules_total": _Metric("joules"),
    "slurmkit_gpu_job": _Metric("holder"),
    "slurmkit_gpu_job_utilization_ratio": _Metric("job_utilisation", 100),
    "slurmkit_gpu_job_memory_used_bytes": _Metric("job_memory_used", 1 / _MIB),
    "DCGM_FI_DEV_GPU_UTIL": _Metric("utilisation"),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": _Metric("engine", 100),
    "DCGM_FI_DEV_FB_USED": _Metric("memory_used"),
    "DCGM_FI_DEV_FB_FREE": _Metric("memory_free"),
    "DCGM_FI_DEV_POWER_USAGE": _Metric("watts"),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": _Metric("joules", 1e-3),
    "nvidia_gpu_duty_cycle": _Metric("utilisation"),
    "nvidia_gpu_memory_used_bytes": _Metric("memory_used", 1 / _MIB),
    "nvidia_gpu_memory_total_bytes": _Metric("memory_total", 1 / _MIB),
    "nvidia_gpu_power_usage_milliwatts": _Metric("watts", 1e-3),
    "nvidia_gpu_jobId": _Metric("holder_value"),
    "nvidia_gpu_jobid": _Metric("holder_value"),
}


class Prometheus:
    """GPU metrics and history (`slurmkit.state.gpu_metrics`) from Prometheus."""

    def __init__(self, ask: Callable[[str], bytes] | None = None) -> None:
        self._section = load_section(SECTION, PrometheusSection)
        if not self._section.url.startswith(("http://", "https://")):
            raise BadConfig(f"[{SECTION}] url names no server; write url = 'http://HOST:9090'")
        self._ask = ask or _http_get
        given = self._section
        self._node_labels = (given.node_label,) if given.node_label else _NODE_LABELS
        self._job_labels = (given.job_label,) if given.job_label else _JOB_LABELS

    def read(self, nodes: Iterable[str], *, seconds: float = 0) -> dict[str, tuple[GpuSample, ...]]:
        """Read the samples of the last `seconds`, by node."""
        wanted = frozenset(nodes)
        now = time.time()
        step = max(_STEP, seconds / _MOST_SAMPLES)
        span = {"start": now - seconds, "end": now, "step": step}
        found = self._query("query_range", {"query": self._section.metric, **span})
        self._check_nodes([series["metric"] for series in found], wanted, self._section.metric)
        meaning = _METRICS.get(self._section.metric)
        percent = meaning.factor if meaning else 1.0
        by_node: dict[str, list[GpuSample]] = defaultdict(list)
        for series in found:
            labels = series["metric"]
            node, index = self._node_of(labels), labels.get(self._section.gpu_label, "")
            if node in wanted and index.isdecimal():
                by_node[node] += (
                    GpuSample(index=int(index), taken=taken, utilisation=value * percent)
                    for taken, value in _values(series)
                )
        return {node: tuple(samples) for node, samples in by_node.items()}

    def read_job(self, window: JobWindow) -> Iterator[GpuTrace]:
        """Read the samples of a run, six hours and some nodes at a time.

        See `slurmkit.state.gpu_metrics.GpuHistory`.
        """
        known = self._read_labels(window)
        for first in range(0, len(window.nodes), _NODES_OF_SAMPLES):
            nodes = window.nodes[first : first + _NODES_OF_SAMPLES]
            for begin in range(window.begin, window.end, _PIECE):
                end = min(begin + _PIECE, window.end)
                for gpu in self._read_piece(nodes, known, begin, end):
                    trace = gpu.trace(str(window.job_id), whole=known.whole)
                    if trace is not None:
                        yield trace

    def _read_labels(self, window: JobWindow) -> _KnownGpus:
        """Read which GPUs the nodes of a run have, before their samples.

        Without a label or metric that names jobs, the GPUs are the run's own only if it held all of
        its nodes' GPUs.

        Raises:
            NoSamples: when there is no series of any of the nodes.
        """
        indices: dict[tuple[str, ...], int | None] = {}
        names = []
        seen: list[Labels] = []
        for label in self._node_labels:
            of_label: list[Labels] = []
            for first in range(0, len(window.nodes), _NODES_OF_LABELS):
                some = window.nodes[first : first + _NODES_OF_LABELS]
                match = {"match[]": f"{{{self._selector(label, some)}}}"}
                span = {"start": str(window.begin), "end": str(window.end)}
                of_label += self._answer("series", match | span)
            names += [label] * bool(of_label)
            seen += of_label
        self._check_nodes(seen, frozenset(window.nodes), f"{{{_matcher()}}}")
        for labels in seen:
            if self._node_of(labels) in window.nodes:
                key = self._gpu_key(labels)
                index = indices.get(key)
                indices[key] = self._index_of(labels) if index is None else index
        with_mig = {key[:2] for key in indices if key[-1]}
        own = {key: index for key, index in indices.items() if key[-1] or key[:2] not in with_mig}
        return _KnownGpus(own, len(own) == window.gpus, names)

    def _read_piece(
        self, nodes: tuple[str, ...], known: _KnownGpus, begin: int, end: int
    ) -> Iterable[_GpuSeries]:
        gpus: dict[tuple[str, ...], _GpuSeries] = {}
        for label in known.node_labels:
            # Two exporters may name the same node by two labels: one knows the use, one the jobs.
            # A series that both queries match counts once, since its times are the same.
            query = f"{{{self._selector(label, nodes)}}}[{end - begin}s]"
            for series in self._query("query", {"query": query, "time": end}):
                labels = series["metric"]
                key = self._gpu_key(labels)
                if key in known.indices:
                    gpu = gpus.setdefault(key, _GpuSeries(*key))
                    gpu.index = known.indices[key]
                    gpu.add(labels["__name__"], self._job_of(labels), _values(series))
        return gpus.values()

    def _selector(self, label: str, nodes: Iterable[str]) -> str:
        names = "|".join(map(re.escape, nodes))
        return f"{_matcher()},{label}=~{json.dumps(f'({names})([.:].*)?', ensure_ascii=False)}"

    def _node_of(self, labels: Labels) -> str:
        name = next((labels[each] for each in self._node_labels if labels.get(each)), "")
        return name.split(":")[0].split(".")[0]

    def _job_of(self, labels: Labels) -> str:
        return next((labels[each] for each in self._job_labels if labels.get(each)), "")

    def _gpu_key(self, labels: Labels) -> tuple[str, str, str, str]:
        """Return node, UUID, PCI address and MIG instance of a series."""
        uuid = next((labels[each] for each in _UUID_LABELS if labels.get(each)), "")
        pci = next((labels[each] for each in _PCI_LABELS if labels.get(each)), "")
        mig = labels.get("mig", "") or labels.get("GPU_I_ID", "")
        if mig and not mig.startswith("MIG-"):
            mig = f"{uuid or pci}/{mig}"
        if uuid.startswith("MIG-"):
            mig = uuid
        if mig.startswith("MIG-"):  # exporters differ in whether they name its GPU, too
            return self._node_of(labels), "", "", mig
        if not uuid and not pci:  # then the index is all that tells the GPUs of a node apart
            uuid = f"gpu{labels.get('minor_number', labels.get(self._section.gpu_label, ''))}"
        return self._node_of(labels), uuid, "" if uuid else pci, mig

    def _index_of(self, labels: Labels) -> int | None:
        """Return Slurm's index; only our own exporter has it for certain."""
        text = labels.get("gpu", "") if labels["__name__"].startswith("slurmkit_gpu_") else ""
        return int(text) if text.isdecimal() else None

    def _check_nodes(self, found: Iterable[Labels], nodes: frozenset[str], query: str) -> None:
        """Name a query that matches nothing, or nothing of the nodes asked for."""
        seen = {self._node_of(labels) for labels in found}
        if not nodes or seen & nodes:
            return
        names = ", ".join(sorted(nodes)[:3])
        labels = " or ".join(self._node_labels)
        known = sorted(seen - {""})
        has = (
            f"has no series of {names}" if not known else f"has {', '.join(known[:3])}, not {names}"
        )
        raise NoSamples(
            f"Prometheus at {self._section.url} {has}: {query} with the node in {labels}; check the"
            f" labels there, and set [{SECTION}] node_label"
        )

    def _query(self, kind: str, parameters: Mapping[str, object]) -> list[dict[str, Any]]:
        """Return series with `metric`, their labels, and `values`."""
        found: list[dict[str, Any]] = self._answer(kind, parameters, "result")
        if not all(isinstance(series.get("metric"), dict) for series in found):
            raise SlurmkitError(
                f"Prometheus at {self._section.url} gave no answer: a series has no labels"
            )
        return found

    def _answer(
        self, kind: str, parameters: Mapping[str, object], *path: str
    ) -> list[dict[str, Any]]:
        """Return the list of objects at `path` in the data of an answer."""
        url = f"{self._section.url.rstrip('/')}/api/v1/{kind}?{urllib.parse.urlencode(parameters)}"
        try:
            found = json.loads(self._ask(url))["data"]
            for name in path:
                found = found[name]
            if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
                raise TypeError("it is no list of series")  # noqa: TRY301
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SlurmkitError(
                f"Prometheus at {self._section.url} gave no answer: {error}"
            ) from error
        return found


class _KnownGpus(NamedTuple):
    """What the labels of a run's series say.

    Attributes:
        indices: Slurm's index of each GPU and MIG instance, None if unknown, by `_gpu_key`; not of
            GPUs whose MIG instances are there.
        whole: whether the run held all of them.
        node_labels: the labels that name the nodes.
    """

    indices: Mapping[tuple[str, ...], int | None]
    whole: bool
    node_labels: Sequence[str]


class _GpuSeries:
    """What Prometheus has about one GPU in some hours: values by time, and who held it."""

    def __init__(self, node: str, uuid: str, pci: str, mig: str) -> None:
        self.node, self.uuid, self.pci, self.mig = node, uuid, pci, mig
        self.index: int | None = None
        self.jobs: set[str] = set()  # of labels of the values
        self._values: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)

    def add(self, metric: str, job: str, values: Iterable[tuple[float, float]]) -> None:
        """Add the values of one series."""
        meaning = _METRICS.get(metric)
        if meaning is None:
            return
        for at, value in values:
            if meaning.field == "holder_value":
                self._values["holder", f"{value:.0f}"][at] = 1.0
            else:
                self._values[meaning.field, job][at] = value * meaning.factor
        if job and meaning.field != "holder":
            self.jobs.add(job)

    def holders(self) -> set[str]:
        """Return the jobs that held the GPU at some time, as far as metrics say."""
        return {job for field, job in self._values if field == "holder"}

    def trace(self, job: str, *, whole: bool) -> GpuTrace | None:
        """Return the samples while a job held the GPU; None if it never did.

        Args:
            job: Slurm's own job id.
            whole: whether the run held all GPUs of its nodes.
        """
        said = self.holders() or self.jobs
        if said:
            times, others = self._held(job), set[float]().union(*map(self._held, said - {job}))
        else:
            every = {at for each in self._values.values() for at in each}
            times, others = (every if whole else set[float]()), set[float]()
        if not times:
            return None
        samples = tuple(
            self._shared_sample(at, job) if at in others else self._sample(at, job)
            for at in sorted(times)
        )
        return GpuTrace(
            node=self.node,
            uuid=self.uuid,
            pci=self.pci,
            index=self.index,
            mig=self.mig,
            shared=bool(times & others),
            samples=samples,
        )

    def _held(self, job: str) -> set[float]:
        """Return the times of samples while a job held the GPU: as a metric says, else labels.

        The metric may be of another exporter, which is read at other times.
        """
        if self.holders():
            by_job = {of: each for (field, of), each in self._values.items() if field == "holder"}
            said = sorted({at for each in by_job.values() for at in each})
            mine = by_job.get(job, {})
            return {at for at in self._sample_times() if _nearest(said, at) in mine}
        return {at for (_, of), each in self._values.items() if of == job for at in each}

    def _sample_times(self) -> set[float]:
        return {at for (field, _), each in self._values.items() if field != "holder" for at in each}

    def _sample(self, at: float, job: str) -> GpuSample:
        def value(field: str) -> float | None:
            found = self._values.get((field, job), {}).get(at)
            return found if found is not None else self._values.get((field, ""), {}).get(at)

        # The driver has no utilisation of a MIG instance; the share of its engine is the same.
        percent = value("engine") if self.mig else None
        used, free = value("memory_used"), value("memory_free")
        total = value("memory_total")
        if total is None and used is not None and free is not None:
            total = used + free
        return GpuSample(
            index=-1 if self.index is None else self.index,
            taken=at,
            utilisation=value("utilisation") if percent is None else percent,
            memory_used=None if used is None else int(used),
            memory_total=None if total is None else int(total),
            # Of a MIG instance, these are the whole GPU's.
            watts=None if self.mig else value("watts"),
            joules=None if self.mig else value("joules"),
        )

    def _shared_sample(self, at: float, job: str) -> GpuSample:
        used = self._values.get(("job_memory_used", job), {}).get(at)
        return GpuSample(
            index=-1 if self.index is None else self.index,
            taken=at,
            utilisation=self._values.get(("job_utilisation", job), {}).get(at),
            memory_used=None if used is None else int(used),
        )


def _nearest(times: list[float], at: float) -> float | None:
    """Return the nearest of some times in order; None if it is more than a minute away."""
    place = bisect_left(times, at)
    near = min(times[max(place - 1, 0) : place + 1], key=lambda each: abs(each - at), default=None)
    return near if near is not None and abs(near - at) <= _STEP else None


def _matcher() -> str:
    return f'__name__=~"{"|".join(_METRICS)}"'


def _values(series: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """Yield time and value of each sample; those that are no numbers are left out."""
    for taken, text in series.get("values", ()):
        try:
            at, value = float(taken), float(text)
        except (TypeError, ValueError):
            continue
        if math.isfinite(value) and math.isfinite(at):
            yield at, value


def _http_get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:  # noqa: S310 - http(s), see above
        body: bytes = answer.read(_MOST_BYTES + 1)
    if len(body) > _MOST_BYTES:
        raise ValueError(f"its answer is larger than {_MOST_BYTES // _MIB} MiB")
    return body
