"""`GET /metrics`: the service and the books for Prometheus; no users unless the site asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http import HTTPStatus

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slurmkit.errors import SlurmkitError
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.service.app import Page
from slurmkit_accounting.service.gpuhours import GpuHours
from slurmkit_accounting.service.log import Log
from slurmkit_accounting.service.schedule import Schedule
from slurmkit_accounting.service.state import State, read_state

KIND = "text/plain; version=0.0.4; charset=utf-8"
_P = "slurmkit_ledger_"


class Metrics(Collector):
    """Makes the metrics when they are asked for.

    Args:
        books: opens the ledger for reading.
        schedule: whose runs are shown.
        hours: GPU-hours of the month.
        log: told when the ledger cannot be read.
    """

    def __init__(
        self,
        books: Callable[[], AbstractContextManager[Ledger]],
        schedule: Schedule,
        hours: GpuHours,
        log: Log,
    ) -> None:
        self._books = books
        self._schedule = schedule
        self._hours = hours
        self._log = log
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def page(self) -> Page:
        """The page, in Prometheus' text format."""
        return HTTPStatus.OK, KIND, generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Nothing: what there is shows when it is collected."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every metric; those of the books only where they can be read."""
        try:
            with self._books() as ledger, ledger.transaction() as connection:
                of_books = [
                    *_of_books(read_state(connection)),
                    self._hours.metric(connection, time.time()),
                ]
        except SlurmkitError as error:
            self._log("failed", asked="metrics", why=error)
            of_books = []
        yield GaugeMetricFamily(
            f"{_P}up", "Whether the books could be read.", value=float(bool(of_books))
        )
        yield from of_books
        yield from self._of_tasks()

    def _of_tasks(self) -> Iterator[Metric]:
        seconds = GaugeMetricFamily(
            f"{_P}task_seconds", "How long a task's last run took.", labels=["task"]
        )
        failures = CounterMetricFamily(
            f"{_P}task_failures", "Failed runs of a task since the start.", labels=["task"]
        )
        running = GaugeMetricFamily(
            f"{_P}task_running", "Whether a task runs now.", labels=["task"]
        )
        for task in self._schedule.tasks:
            labels = [task.name]
            if task.name in self._schedule.seconds:
                seconds.add_metric(labels, self._schedule.seconds[task.name])
            failures.add_metric(labels, self._schedule.failures[task.name])
            running.add_metric(labels, float(self._schedule.running == task.name))
        yield from (seconds, failures, running)


def _of_books(state: State) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        f"{_P}ingest_lag_seconds",
        "Since the start of the last finished ingest.",
        labels=["cluster"],
    )
    rows = CounterMetricFamily(f"{_P}rows", "Rows taken into the books.", labels=["cluster"])
    still = GaugeMetricFamily(f"{_P}open_rows", "Rows without an end.", labels=["cluster"])
    for each in state.clusters:
        if each.last_ingest is not None:
            lag.add_metric([each.name], state.taken - each.last_ingest)
        rows.add_metric([each.name], each.rows)
        still.add_metric([each.name], each.open)
    yield from (lag, rows, still)
    words = "Lines whose runs could not be read to this day."
    yield GaugeMetricFamily(f"{_P}rejects", words, value=state.rejects)
    if state.last_people_sync is not None:
        words, age = "Since people were last read.", state.taken - state.last_people_sync
        yield GaugeMetricFamily(f"{_P}people_age_seconds", words, value=age)
    held = GaugeMetricFamily(
        f"{_P}gpus_allocated",
        "GPUs that running jobs hold, as of the last ingest.",
        labels=["cluster", "partition"],
    )
    for allocated in state.allocated:
        held.add_metric([allocated.cluster, allocated.partition], allocated.gpus)
    yield held
    well = GaugeMetricFamily(
        f"{_P}task_success_timestamp_seconds", "When a task last ended well.", labels=["task"]
    )
    for task in state.tasks.values():
        if task.well is not None:
            well.add_metric([task.task], task.well)
    yield well
