"""A server that answers queries over ranges of time as Prometheus does, from given samples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from gpu_lab import exporter

_QUERY = re.compile(r"\{(?P<matchers>.*)\}\[(?P<seconds>\d+)s\]")
_MATCHER = re.compile(r'(\w+)=~("(?:[^"\\]|\\.)*")')


class Series:
    """The samples of one series: labels with `__name__`, and values by time."""

    def __init__(self, name: str, values: Iterable[tuple[float, object]], **labels: str) -> None:
        self.labels = {"__name__": name, **labels}
        self.values = sorted(values)


class FakePrometheus:
    """Prometheus with some series.

    Attributes:
        away: whether it answers with an error.
        queries: the queries asked so far.
    """

    def __init__(self, *series: Series) -> None:
        self.series = list(series)
        self.away = False
        self.queries: list[str] = []

    def answer(self, request: BaseHTTPRequestHandler) -> str | None:
        parts = urlsplit(request.path)
        asked = {key: each[0] for key, each in parse_qs(parts.query).items()}
        self.queries.append(asked.get("query", asked.get("match[]", "")))
        if self.away:
            request.send_error(503)
            return None
        if parts.path.endswith("/series"):
            return self._labels(asked)
        found = _QUERY.fullmatch(asked["query"])
        if found is None:  # query_range of a metric by name
            begin, end = float(asked["start"]) - 300, float(asked["end"])
            chosen = [s for s in self.series if s.labels["__name__"] == asked["query"]]
        else:
            end = float(asked["time"])
            begin = end - float(found["seconds"])
            chosen = self._matching(found["matchers"])
        result = [
            {"metric": one.labels, "values": [[at, str(v)] for at, v in values]}
            for one in chosen
            if (values := [pair for pair in one.values if begin < pair[0] <= end])
        ]
        return json.dumps({"status": "success", "data": {"result": result}})

    def _labels(self, asked: dict[str, str]) -> str:
        """The labels of the series that have samples in a time, as Prometheus' /series."""
        begin, end = float(asked["start"]), float(asked["end"])
        some = self._matching(asked["match[]"].strip("{}"))
        found = [one.labels for one in some if any(begin <= at <= end for at, _ in one.values)]
        return json.dumps({"status": "success", "data": found})

    def _matching(self, matchers: str) -> list[Series]:
        wanted = {name: json.loads(text) for name, text in _MATCHER.findall(matchers)}
        assert len(wanted) == 2, matchers
        return [
            each
            for each in self.series
            if all(re.fullmatch(what, each.labels.get(n, "")) for n, what in wanted.items())
        ]

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve on 127.0.0.1 and give the URL."""
        with exporter(self.answer) as port:
            yield f"http://127.0.0.1:{port}"


def times(begin: int, end: int, value: object, every: int = 30) -> list[tuple[float, object]]:
    """The same value every 30 seconds."""
    return [(float(at), value) for at in range(begin + every, end + 1, every)]


def counter(begin: int, end: int, watts: float, every: int = 30) -> list[tuple[float, object]]:
    """A counter of millijoules of a GPU that draws some watts."""
    return [(float(at), 1000 * watts * (at - begin)) for at in range(begin + every, end + 1, every)]


def dcgm(begin: int, end: int, busy: object, watts: float = 300, **labels: str) -> list[Series]:
    """What dcgm-exporter says about a GPU that does the same all the time."""
    return [
        Series("DCGM_FI_DEV_GPU_UTIL", times(begin, end, busy), **labels),
        Series("DCGM_FI_DEV_FB_USED", times(begin, end, 10240), **labels),
        Series("DCGM_FI_DEV_FB_FREE", times(begin, end, 71680), **labels),
        Series("DCGM_FI_DEV_POWER_USAGE", times(begin, end, watts), **labels),
        Series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", counter(begin, end, watts), **labels),
    ]
