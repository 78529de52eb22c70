"""`GET /metrics`: metrics of the service and the ledger for Prometheus; users only on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http import HTTPStatus

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from sqlalchemy import Connection

from slurmkit.errors import SlurmkitError
from slurmkit_accounting.calendar import Zone, month_of, month_span
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.reports.counted import CountedUsage, Question
from slurmkit_accounting.reports.tally import OUTCOMES
from slurmkit_accounting.service.left_metrics import LeftMetrics
from slurmkit_accounting.service.log import Log
from slurmkit_accounting.service.monitoring import LedgerState, read_state
from slurmkit_accounting.service.schedule import Schedule
from slurmkit_accounting.service.wsgi import Page

_OPENMETRICS = "application/openmetrics-text; version=1.0.0"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "slurmkit_ledger_"
_CACHED_SECONDS = 60
_LABELS = ("cluster", "partition", "gpu_type")


class LedgerMetrics(Collector):
    """Collector of the metrics, which reads the ledger at each scrape.

    Args:
        open_ledger: opens the ledger for reading.
        schedule: the schedule whose tasks are shown.
        hours: the metric of this month's GPU-hours.
        log: gets a line when the ledger cannot be read.
        left: the metrics of unmapped people, budgets and allocations; None for none.
        are_pages_served: whether those of `[ledger.portal]` are; None where there are none.
    """

    def __init__(
        self,
        open_ledger: Callable[[], AbstractContextManager[Ledger]],
        schedule: Schedule,
        hours: MonthGpuHours,
        log: Log,
        left: LeftMetrics | None = None,
        are_pages_served: Callable[[], bool] | None = None,
    ) -> None:
        self._open_ledger = open_ledger
        self._schedule = schedule
        self._hours = hours
        self._log = log
        self._left = left
        self._are_pages_served = are_pages_served
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def page(self, accept: str = "") -> Page:
        """Return the page: OpenMetrics where an Accept header asks for it, else Prometheus' text.

        Only the kind is looked at. prometheus-client 0.26 fails on versions that are no numbers.
        """
        if "openmetrics-text" in accept:
            encode, kind = choose_encoder(_OPENMETRICS)
            return HTTPStatus.OK, kind, encode(self._registry)
        return HTTPStatus.OK, CONTENT_TYPE, generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: they are known only once they are collected."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; those of the ledger only if it can be read."""
        try:
            with self._open_ledger() as ledger:
                with ledger.transaction() as connection:
                    of_ledger = [
                        *_ledger_metrics(read_state(connection)),
                        self._hours.metric(connection, time.time()),
                    ]
                if self._left:
                    of_ledger += self._left.metrics(ledger, int(time.time()))
        except SlurmkitError as error:
            self._log("failed", asked="metrics", why=error)
            of_ledger = []
        yield GaugeMetricFamily(
            f"{_PREFIX}up", "Whether the ledger could be read.", value=float(bool(of_ledger))
        )
        if self._are_pages_served:
            yield GaugeMetricFamily(
                f"{_PREFIX}portal_up",
                "Whether the pages of [ledger.portal] are served.",
                value=float(self._are_pages_served()),
            )
        yield from of_ledger
        yield from self._task_metrics()

    def _task_metrics(self) -> Iterator[Metric]:
        seconds = GaugeMetricFamily(
            f"{_PREFIX}task_seconds", "Duration of a task's last run.", labels=["task"]
        )
        failures = CounterMetricFamily(
            f"{_PREFIX}task_failures",
            "Failed runs of a task since the service started.",
            labels=["task"],
        )
        running = GaugeMetricFamily(
            f"{_PREFIX}task_running", "Whether a task runs now.", labels=["task"]
        )
        for task in self._schedule.tasks:
            labels = [task.name]
            if task.name in self._schedule.seconds:
                seconds.add_metric(labels, self._schedule.seconds[task.name])
            failures.add_metric(labels, self._schedule.failures[task.name])
            running.add_metric(labels, float(self._schedule.running == task.name))
        yield from (seconds, failures, running)


def _ledger_metrics(state: LedgerState) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        f"{_PREFIX}ingest_lag_seconds",
        "Time since the last finished ingest began.",
        labels=["cluster"],
    )
    rows = CounterMetricFamily(f"{_PREFIX}rows", "Rows added to the ledger.", labels=["cluster"])
    still = GaugeMetricFamily(f"{_PREFIX}open_rows", "Runs without an end.", labels=["cluster"])
    for each in state.clusters:
        if each.last_ingest is not None:
            lag.add_metric([each.name], state.taken - each.last_ingest)
        rows.add_metric([each.name], each.rows)
        still.add_metric([each.name], each.open)
    yield from (lag, rows, still)
    words = "sacct lines whose runs still could not be read."
    yield GaugeMetricFamily(f"{_PREFIX}rejects", words, value=state.rejects)
    if state.last_people_sync is not None:
        words, age = "Time since people were last read.", state.taken - state.last_people_sync
        yield GaugeMetricFamily(f"{_PREFIX}people_age_seconds", words, value=age)
    yield from _queue_metrics(state)
    yield from _node_metrics(state)
    well = GaugeMetricFamily(
        f"{_PREFIX}task_success_timestamp_seconds", "When a task last succeeded.", labels=["task"]
    )
    for task in state.tasks.values():
        if task.well is not None:
            well.add_metric([task.task], task.well)
    yield well


def _queue_metrics(state: LedgerState) -> Iterator[Metric]:
    labels = ["cluster", "partition"]
    held = GaugeMetricFamily(
        f"{_PREFIX}gpus_allocated",
        "GPUs that running jobs hold, as of the last ingest.",
        labels=labels,
    )
    wanted = GaugeMetricFamily(
        f"{_PREFIX}gpus_wanted",
        "GPUs that pending jobs ask for, as of the last ingest.",
        labels=labels,
    )
    jobs = GaugeMetricFamily(
        f"{_PREFIX}jobs",
        "Jobs and tasks of arrays, as of the last ingest.",
        labels=[*labels, "state"],
    )
    for each in state.queued:
        jobs.add_metric([each.cluster, each.partition, each.state], each.jobs)
        gpus = held if each.state == "running" else wanted
        gpus.add_metric([each.cluster, each.partition], each.gpus)
    yield from (held, wanted, jobs)


def _node_metrics(state: LedgerState) -> Iterator[Metric]:
    labels = ["cluster", "state"]
    nodes = GaugeMetricFamily(
        f"{_PREFIX}nodes_out", "Nodes out of use, as of the last ingest.", labels=labels
    )
    gpus = GaugeMetricFamily(f"{_PREFIX}gpus_out", "The GPUs of these nodes.", labels=labels)
    for each in state.nodes_out:
        nodes.add_metric([each.cluster, each.state], each.nodes)
        gpus.add_metric([each.cluster, each.state], each.gpus)
    yield from (nodes, gpus)


class MonthGpuHours:
    """The metric of this month's GPU-hours, counted at most once a minute.

    Args:
        zone: time zone of the month.
        by_user: whether the metric has a label `user`.
    """

    def __init__(self, zone: Zone, *, by_user: bool = False) -> None:
        self._zone = zone
        self._by = (*_LABELS, "user") if by_user else _LABELS
        self._cached: GaugeMetricFamily | None = None
        self._counted = float("-inf")

    def metric(self, connection: Connection, now: float) -> GaugeMetricFamily:
        """Return the metric, at most a minute old."""
        if self._cached is None or not 0 <= now - self._counted < _CACHED_SECONDS:
            self._cached, self._counted = self._count(connection, int(now)), now
        return self._cached

    def _count(self, connection: Connection, now: int) -> GaugeMetricFamily:
        begin, _ = month_span(month_of(now, self._zone), self._zone)
        metric = GaugeMetricFamily(
            "slurmkit_ledger_month_gpu_hours",
            f"GPU-hours since the month began in {self._zone.name}.",
            labels=[*self._by, "outcome"],
        )
        question = Question(window=(begin, max(now, begin + 1)), zone=self._zone, now=now)
        counted = CountedUsage(connection, question)
        for labels, tally in counted.rows(self._by).items():
            values = tally.values(counted.rates, counted.parts)
            for outcome in OUTCOMES:
                hours = values[f"gpu_hours_{outcome}"]
                if isinstance(hours, float) and hours:
                    metric.add_metric([*labels, outcome], hours)
        return metric
