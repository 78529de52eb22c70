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
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from slurmkit.config.files import load_section, read_secret_file
from slurmkit.errors import BadConfig, SlurmkitError
from slurmkit.state.gpu_metrics import (
    THROTTLE_REASONS,
    GpuSample,
    GpuTrace,
    JobWindow,
    NoSamples,
    SeenNodes,
    plausible_percent,
)

SECTION = "gpu_metrics.prometheus"
_TIMEOUT = 20  # seconds
_STEP = 60  # seconds between two samples, at least
_MOST_SAMPLES = 500  # samples of one GPU
_MOST_BYTES = 256 * 2**20  # of one answer
_PIECE = 6 * 3600  # seconds asked for at a time
_NODES_OF_LABELS = 100  # asked for at a time
_NOW = 300  # seconds; a series without a newer sample says nothing of the present
_INDEXED = "slurmkit_gpu_(info|memory_total_bytes)"  # ours: each GPU and MIG instance has these
_THROTTLED = "slurmkit_gpu_throttled"  # ours: one series for each reason
_THROTTLED_BITS = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
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
        metric: metric of GPU utilization, for `report idle`: of one of the three exporters, or
            another in percent.
        node_label: label with the node's name; a port is cut off, and a domain that Slurm's name
            of the node lacks. Empty for the first of `Hostname`, `hostname`, `node` and `instance`.
        gpu_label: label with Slurm's index of the GPU, for `report idle`; empty if none has it.
            Most exporters' `gpu` is the driver's number, which is another on some machines.
        job_label: label with Slurm's own job id; empty for the first of `hpc_job`, `jobid` and
            `exported_job`.
        token_file: file with the bearer token; empty for none.
        ca_file: file with the certificates (PEM) that the server's is checked with; empty for
            those of the system.
    """

    url: str = ""
    metric: str = "DCGM_FI_DEV_GPU_UTIL"
    node_label: str = ""
    gpu_label: str = ""
    job_label: str = ""
    token_file: str = ""
    ca_file: str = ""


class _Metric(NamedTuple):
    """What a metric of an exporter means: a field of `GpuSample`, and the factor to its unit.

    Attributes:
        field: also `holder`: the GPU is held by the job that a label names; `holder_value`: by the
            job that the value is. A field that begins with `job_` is of the labelled job only.
    """

    field: str
    factor: float = 1.0


_METRICS = {
    "slurmkit_gpu_utilization_ratio": _Metric("utilization", 100),
    "slurmkit_gpu_memory_used_bytes": _Metric("memory_used", 1 / _MIB),
    "slurmkit_gpu_memory_total_bytes": _Metric("memory_total", 1 / _MIB),
    "slurmkit_gpu_power_watts": _Metric("watts"),
    "slurmkit_gpu_energy_joules_total": _Metric("joules"),
    "slurmkit_gpu_job": _Metric("holder"),
    "slurmkit_gpu_job_utilization_ratio": _Metric("job_utilization", 100),
    "slurmkit_gpu_job_memory_used_bytes": _Metric("job_memory_used", 1 / _MIB),
    "DCGM_FI_DEV_GPU_UTIL": _Metric("utilization"),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": _Metric("engine", 100),
    "DCGM_FI_DEV_FB_USED": _Metric("memory_used"),
    "DCGM_FI_DEV_FB_FREE": _Metric("memory_free"),
    "DCGM_FI_DEV_POWER_USAGE": _Metric("watts"),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": _Metric("joules", 1e-3),
    "nvidia_gpu_duty_cycle": _Metric("utilization"),
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
        given = self._section
        self._ask = ask or _http_client(given)
        self._node_labels = (given.node_label,) if given.node_label else _NODE_LABELS
        self._job_labels = (given.job_label,) if given.job_label else _JOB_LABELS
        self._nodes: frozenset[str] = frozenset()
        self._long_names: dict[str, str] = {}

    def read(self, nodes: Iterable[str], *, seconds: float = 0) -> dict[str, tuple[GpuSample, ...]]:
        """Read the samples of the last `seconds`, by node.

        GPUs whose index in Slurm is not known are left out, and what was before a gap.
        """
        wanted = self._ask_about(nodes)
        now = time.time()
        step = max(_STEP, seconds / _MOST_SAMPLES)
        span = {"start": now - seconds, "end": now, "step": step}
        found = self._query("query_range", {"query": self._section.metric, **span})
        self._check_nodes([series["metric"] for series in found], wanted, self._section.metric)
        found = [series for series in found if self._node_of(series["metric"]) in wanted]
        known = self._read_indices([series["metric"] for series in found], now - seconds, now)
        meaning = _METRICS.get(self._section.metric)
        percent = meaning.factor if meaning else 1.0
        by_node: dict[str, list[GpuSample]] = defaultdict(list)
        for series in self._without_doubles(found, known):
            labels = series["metric"]
            index = known[self._gpu_key(labels)]
            values = [
                (taken, use)
                for taken, value in _values(series)
                if (use := plausible_percent(value * percent)) is not None
            ]
            # A single blank is no gap.
            by_node[self._node_of(labels)] += (
                GpuSample(index=index, taken=taken, utilization=use)
                for taken, use in _since_gap(values, 2.5 * step)
            )
        if found and not by_node:
            raise NoSamples(
                f"Prometheus at {self._section.url} does not say which GPU of"
                f" {self._section.metric} is which of Slurm's; let it read slurmkit gpu-exporter"
                f" too, or set [{SECTION}] gpu_label if a label has Slurm's index"
            )
        # Of a whole cluster nobody asks why a GPU is slow.
        if by_node and len(wanted) <= _NODES_OF_LABELS:
            with suppress(SlurmkitError):  # then it is unknown
                self._add_throttling(by_node, known, now)
        return {node: tuple(samples) for node, samples in by_node.items()}

    def _read_indices(
        self, found: Sequence[Labels], begin: float, end: float
    ) -> dict[tuple[str, ...], int]:
        """Return Slurm's index of GPUs, by `_gpu_key`: as our exporter says, else `gpu_label`."""
        known = {self._gpu_key(labels): self._sure_index(labels) for labels in found}
        missing = {key for key, index in known.items() if index is None and _is_name(key)}
        nodes = sorted({key[0] for key in missing})
        for label in self._node_labels:
            for first in range(0, len(nodes), _NODES_OF_LABELS):
                some = _of_nodes(label, nodes[first : first + _NODES_OF_LABELS])
                match = f'{{__name__=~"{_INDEXED}",{some}}}'
                span = {"start": str(begin - _NOW), "end": str(end)}
                for labels in self._answer("series", {"match[]": match, **span}):
                    if (key := self._gpu_key(labels)) in missing:
                        known[key] = self._index_of(labels)
        return {key: index for key, index in known.items() if index is not None}

    def _sure_index(self, labels: Labels) -> int | None:
        """Return Slurm's index as the labels say it: ours, and the one that the site names."""
        if (index := self._index_of(labels)) is not None:
            return index
        text = labels.get(self._section.gpu_label, "") if self._section.gpu_label else ""
        # The MIG instances of a GPU have the number of the GPU.
        return int(text) if text.isdecimal() and not self._gpu_key(labels)[-1] else None

    def _without_doubles(
        self, found: Iterable[dict[str, Any]], known: Mapping[tuple[str, ...], int]
    ) -> Iterator[dict[str, Any]]:
        """Yield the series of GPUs with an index that no other GPU of the node has."""
        named = [(key, each) for each in found if (key := self._gpu_key(each["metric"])) in known]
        times = Counter((key[0], known[key]) for key in {key for key, _ in named})
        return (each for key, each in named if times[key[0], known[key]] == 1)

    def _add_throttling(
        self,
        by_node: dict[str, list[GpuSample]],
        known: Mapping[tuple[str, ...], int],
        now: float,
    ) -> None:
        """Put what holds the clocks back into the newest sample of each GPU."""
        held = self._throttling(list(by_node), known, now)
        for node, samples in by_node.items():
            for index in {sample.index for sample in samples}:
                if (reasons := held.get((node, index))) is not None:
                    own = [at for at, sample in enumerate(samples) if sample.index == index]
                    newest = max(own, key=lambda at: samples[at].taken)
                    samples[newest] = msgspec.structs.replace(
                        samples[newest], throttled=tuple(sorted(reasons))
                    )

    def _throttling(
        self, nodes: Sequence[str], known: Mapping[tuple[str, ...], int], now: float
    ) -> dict[tuple[str, int], set[str]]:
        """Read what holds the clocks back, by node and index; only GPUs of which that is known."""
        names = "|".join((_THROTTLED, *_THROTTLED_BITS))
        held: dict[tuple[str, int], set[str]] = {}
        for label in self._node_labels:
            chosen = f'__name__=~"({names})",{_of_nodes(label, nodes)}'
            for series in self._query("query", {"query": f"{{{chosen}}}[{_NOW}s]", "time": now}):
                labels, values = series["metric"], list(_values(series))
                index, key = self._sure_index(labels), self._gpu_key(labels)
                if index is None and _is_name(key):
                    index = known.get(key)
                if values and index is not None and not key[-1]:
                    reasons = held.setdefault((self._node_of(labels), index), set())
                    reasons |= _reasons(labels, values[-1][1])
        return held

    def read_job(self, window: JobWindow) -> Iterator[GpuTrace]:
        """Read the samples of a run, six hours and some nodes at a time.

        See `slurmkit.state.gpu_metrics.GpuHistory`.
        """
        known = self._read_labels(window)
        whole = _holds_all(window, known.count_by_node())
        for first in range(0, len(window.nodes), _NODES_OF_SAMPLES):
            nodes = window.nodes[first : first + _NODES_OF_SAMPLES]
            for begin in range(window.begin, window.end, _PIECE):
                end = min(begin + _PIECE, window.end)
                for gpu in self._read_piece(nodes, known, begin, end):
                    trace = gpu.trace(str(window.job_id), whole=whole)
                    if trace is not None:
                        yield trace

    def read_running(self, windows: Sequence[JobWindow]) -> Iterator[tuple[int, GpuTrace]]:
        """Read the last samples of the GPUs of running jobs, a hundred nodes at a time.

        See `slurmkit.state.gpu_metrics.GpuMetricsOfRunning`.
        """
        if not windows:
            return
        begin, end = min(each.begin for each in windows), max(each.end for each in windows)
        nodes = tuple(sorted({node for each in windows for node in each.nodes}))
        by_node: dict[str, list[_GpuSeries]] = defaultdict(list)
        counts: dict[str, int] = {}
        unknown: NoSamples | None = None
        for first in range(0, len(nodes), _NODES_OF_LABELS):
            some = nodes[first : first + _NODES_OF_LABELS]
            window = JobWindow(job_id=0, nodes=some, begin=begin, end=end, gpus=0)
            try:
                known = self._read_labels(window)
            except NoSamples as error:  # of these nodes; others may have samples
                unknown = error
                continue
            counts |= known.count_by_node()
            for gpu in self._read_piece(some, known, begin, end):
                by_node[gpu.node].append(gpu)
        if unknown is not None and not by_node:
            raise unknown
        for each in windows:
            whole = _holds_all(each, counts)
            for gpu in (gpu for node in each.nodes for gpu in by_node.get(node, ())):
                trace = gpu.trace(str(each.job_id), whole=whole)
                if trace is not None:
                    yield each.job_id, _since(trace, each.begin)

    def check_nodes(self, nodes: Sequence[str]) -> SeenNodes:
        """Look whether there is what `read_job` needs; see `slurmkit.state.gpu_metrics`."""
        now = int(time.time())
        window = JobWindow(job_id=0, nodes=tuple(nodes), begin=now - _NOW, end=now, gpus=0)
        known = self._read_labels(window)
        return SeenNodes(frozenset(known.count_by_node()), known.with_jobs)

    def _read_labels(self, window: JobWindow) -> _KnownGpus:
        """Read which GPUs the nodes of a run have, before their samples.

        Raises:
            NoSamples: when there is no series of any of the nodes.
        """
        wanted = self._ask_about(window.nodes)
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
        self._check_nodes(seen, wanted, f"{{{_matcher()}}}")
        with_jobs = set[str]()
        for labels in seen:
            if self._node_of(labels) in wanted:
                if self._job_of(labels) or _METRICS[labels["__name__"]].field == "holder_value":
                    with_jobs.add(self._node_of(labels))
                key = self._gpu_key(labels)
                index = indices.get(key)
                indices[key] = self._index_of(labels) if index is None else index
        with_mig = {key[:2] for key in indices if key[-1]}
        own = {key: index for key, index in indices.items() if key[-1] or key[:2] not in with_mig}
        return _KnownGpus(own, frozenset(with_jobs), names)

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
        return f"{_matcher()},{_of_nodes(label, nodes)}"

    def _node_of(self, labels: Labels) -> str:
        """Return the node of a series as Slurm names it: with a domain only if a node has one."""
        name = next((labels[each] for each in self._node_labels if labels.get(each)), "")
        host = name.split(":")[0]
        if host in self._nodes:
            return host
        short, _, domain = host.partition(".")
        return short if domain else self._long_names.get(short, short)

    def _ask_about(self, nodes: Iterable[str]) -> frozenset[str]:
        """Note the nodes that series may be of."""
        wanted = frozenset(nodes)
        self._nodes |= wanted
        short = Counter(node.partition(".")[0] for node in self._nodes)
        names = ((node.partition("."), node) for node in self._nodes)
        self._long_names = {
            name: node for (name, dot, _), node in names if dot and short[name] == 1
        }
        return wanted

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
            number = labels.get(self._section.gpu_label or "gpu", "")
            uuid = f"gpu{labels.get('minor_number', number)}"
        return self._node_of(labels), uuid, "" if uuid else pci, mig

    def _index_of(self, labels: Labels) -> int | None:
        """Return Slurm's index; only our own exporter has it for certain."""
        text = labels.get("gpu", "") if _is_ours(labels) else ""
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


def _is_ours(labels: Labels) -> bool:
    """Return whether a series is of our own exporter; that of an expression has no name."""
    return labels.get("__name__", "").startswith("slurmkit_gpu_")


def _is_name(key: tuple[str, ...]) -> bool:
    """Return whether a `_gpu_key` names the GPU itself, by UUID or PCI address."""
    return not key[1].startswith("gpu")


def _holds_all(window: JobWindow, counts: Mapping[str, int]) -> bool:
    """Return whether a run held all GPUs of its nodes, so that they are its own without a label.

    That is certain only with as many on each node: where series of a node are missing, GPUs that
    others hold on another would be taken for them.

    Args:
        window: the run.
        counts: how many GPUs are known of each node.
    """
    each = [counts.get(node, 0) for node in window.nodes]
    return 0 < sum(each) == window.gpus and len(set(each)) == 1


def _of_nodes(label: str, nodes: Iterable[str]) -> str:
    """Return the matcher of series of these nodes."""
    # A node with a domain in Slurm may have none in the label.
    short = (name for node in nodes for name in (node, node.partition(".")[0]))
    names = "|".join(map(re.escape, dict.fromkeys(short)))
    return f"{label}=~{json.dumps(f'({names})([.:].*)?', ensure_ascii=False)}"


def _reasons(labels: Labels, value: float) -> set[str]:
    """Return the reasons that a sample of a series names."""
    if labels.get("__name__") == _THROTTLED:
        return {labels.get("reason", "")} - {""} if value else set()
    return {name for bit, name in THROTTLE_REASONS.items() if int(value) & bit}


class _KnownGpus(NamedTuple):
    """What the labels of a run's series say.

    Attributes:
        indices: Slurm's index of each GPU and MIG instance, None if unknown, by `_gpu_key`; not of
            GPUs whose MIG instances are there.
        with_jobs: the nodes on which a series names a job.
        node_labels: the labels that name the nodes.
    """

    indices: Mapping[tuple[str, ...], int | None]
    with_jobs: frozenset[str]
    node_labels: Sequence[str]

    def count_by_node(self) -> dict[str, int]:
        """Return how many GPUs and MIG instances each node has."""
        return Counter(key[0] for key in self.indices)


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
        holders = self.holders() or self.jobs
        if holders and job not in holders:
            return None
        if holders:
            times, others = self._held(job), set[float]().union(*map(self._held, holders - {job}))
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
            known = sorted({at for each in by_job.values() for at in each})
            mine = by_job.get(job, {})
            return {at for at in self._sample_times() if _nearest(known, at) in mine}
        return {at for (_, of), each in self._values.items() if of == job for at in each}

    def _sample_times(self) -> set[float]:
        return {at for (field, _), each in self._values.items() if field != "holder" for at in each}

    def _sample(self, at: float, job: str) -> GpuSample:
        def value(field: str) -> float | None:
            found = self._values.get((field, job), {}).get(at)
            return found if found is not None else self._values.get((field, ""), {}).get(at)

        # The driver has no utilization of a MIG instance; the share of its engine is the same.
        percent = value("engine") if self.mig else None
        used, free = value("memory_used"), value("memory_free")
        total = value("memory_total")
        if total is None and used is not None and free is not None:
            total = used + free
        return GpuSample(
            index=-1 if self.index is None else self.index,
            taken=at,
            utilization=value("utilization") if percent is None else percent,
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
            utilization=self._values.get(("job_utilization", job), {}).get(at),
            memory_used=None if used is None else int(used),
        )


def _since(trace: GpuTrace, begin: float) -> GpuTrace:
    """Return a trace without the samples before a time: those of a job that was there before."""
    samples = tuple(each for each in trace.samples if each.taken > begin)
    return msgspec.structs.replace(trace, samples=samples)


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


def _since_gap(values: list[tuple[float, float]], longest: float) -> list[tuple[float, float]]:
    """Return the last values between which no time is longer."""
    first = len(values) - 1
    while first > 0 and values[first][0] - values[first - 1][0] <= longest:
        first -= 1
    return values[max(first, 0) :]


def _http_client(section: PrometheusSection) -> Callable[[str], bytes]:
    """Return what gets a URL.

    Raises:
        BadConfig: when a file cannot be read, or everybody can read the file of the token.
    """
    token = read_secret_file(f"[{SECTION}] token_file", section.token_file).strip()
    if not token.isascii() or not token.isprintable():
        raise BadConfig(f"[{SECTION}] token_file: a token has only ASCII characters, in one line")
    if not section.ca_file:
        return partial(_http_get, token=token, secure=None)
    try:
        secure = ssl.create_default_context(cafile=section.ca_file)
    except OSError as error:  # also of ssl
        raise BadConfig(f"[{SECTION}] ca_file: cannot use {section.ca_file}: {error}") from error
    return partial(_http_get, token=token, secure=secure)


def _http_get(url: str, *, token: str, secure: ssl.SSLContext | None) -> bytes:
    request = urllib.request.Request(url)  # noqa: S310 - http(s), see above
    if token:  # another server, to which this one may send us, does not get it
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=_TIMEOUT, context=secure) as answer:  # noqa: S310 - http(s), see above
        body: bytes = answer.read(_MOST_BYTES + 1)
    if len(body) > _MOST_BYTES:
        raise ValueError(f"its answer is larger than {_MOST_BYTES // _MIB} MiB")
    return body
