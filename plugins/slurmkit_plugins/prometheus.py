"""GPU metrics from a site's Prometheus with the metrics of NVIDIA's dcgm-exporter.

The plugin needs its section of the configuration:

    [gpu_metrics.prometheus]
    url = "http://prometheus:9090"
    node_label = "Hostname"
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from slurmkit.config.files import load_section
from slurmkit.errors import BadConfig, SlurmkitError
from slurmkit.state.gpu_metrics import GpuSample

SECTION = "gpu_metrics.prometheus"
_TIMEOUT = 20  # seconds
_STEP = 60  # seconds between two samples, at least
_MOST_SAMPLES = 500  # samples of one GPU


class PrometheusSection(msgspec.Struct, frozen=True):
    """`[gpu_metrics.prometheus]`.

    Attributes:
        url: URL of the server, without `/api`.
        metric: name of the metric of GPU utilisation in percent.
        node_label: label with the node's name; anything from a dot or colon on is cut off.
        gpu_label: label with the GPU's index.
    """

    url: str = ""
    metric: str = "DCGM_FI_DEV_GPU_UTIL"
    node_label: str = "Hostname"
    gpu_label: str = "gpu"


class Prometheus:
    """GPU metrics (`slurmkit.state.gpu_metrics.GpuMetrics`) from Prometheus."""

    def __init__(self, ask: Callable[[str], bytes] | None = None) -> None:
        self._section = load_section(SECTION, PrometheusSection)
        if not self._section.url.startswith(("http://", "https://")):
            raise BadConfig(f"[{SECTION}] url names no server; write url = 'http://HOST:9090'")
        self._ask = ask or _http_get

    def read(self, nodes: Iterable[str], *, seconds: float = 0) -> dict[str, tuple[GpuSample, ...]]:
        """Read the samples of the last `seconds`, by node."""
        wanted = frozenset(nodes)
        by_node: dict[str, list[GpuSample]] = defaultdict(list)
        for node, sample in self._samples(seconds):
            if node in wanted:
                by_node[node].append(sample)
        return {node: tuple(samples) for node, samples in by_node.items()}

    def _samples(self, seconds: float) -> Iterator[tuple[str, GpuSample]]:
        now = time.time()
        step = max(_STEP, seconds / _MOST_SAMPLES)
        span = {"start": now - seconds, "end": now, "step": step}
        query = urllib.parse.urlencode({"query": self._section.metric, **span})
        for series in self._answer(f"{self._section.url.rstrip('/')}/api/v1/query_range?{query}"):
            labels = series["metric"]
            node = labels.get(self._section.node_label, "").split(":")[0].split(".")[0]
            index = labels.get(self._section.gpu_label, "")
            if not index.isdecimal():
                continue
            for taken, value in series["values"]:
                busy = float(value)
                yield node, GpuSample(index=int(index), taken=float(taken), utilisation=busy)

    def _answer(self, url: str) -> list[dict[str, Any]]:
        try:
            result: list[dict[str, Any]] = json.loads(self._ask(url))["data"]["result"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SlurmkitError(
                f"Prometheus at {self._section.url} gave no answer: {error}"
            ) from error
        return result


def _http_get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:  # noqa: S310 - http(s), see above
        body: bytes = answer.read()
    return body
