"""Metrics of what is left of budgets and allocations, and of people without a PI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric
from sqlalchemy import Connection, func, select

from slurmkit.errors import SlurmkitError
from slurmkit_accounting.allocations.balance import Balance, balances
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.people import people_syncs
from slurmkit_accounting.people.unmapped import load_unmapped_usage
from slurmkit_accounting.reports.budget import budget_report
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.service.log import Log

_PREFIX = "slurmkit_ledger_"
_CACHED_SECONDS = 300
KeyT = TypeVar("KeyT")


class LeftMetrics:
    """Metrics that are read again every five minutes, since they sum up the history.

    A PI is a user, so PIs are named only on request. Without names, the PI with the least left is
    shown for all of them.

    Args:
        zone: time zone of the days of budgets.
        log: gets a line when budgets or allocations cannot be read.
        by_user: whether metrics name PIs.
    """

    def __init__(self, zone: Zone, log: Log, *, by_user: bool = False) -> None:
        self._zone = zone
        self._log = log
        self._by_user = by_user
        self._cached: list[Metric] = []
        self._taken = float("-inf")

    def metrics(self, ledger: Ledger, now: int) -> list[Metric]:
        """Return the metrics, at most five minutes old.

        Args:
            ledger: an open ledger.
            now: epoch seconds.
        """
        if not 0 <= now - self._taken < _CACHED_SECONDS:
            with ledger.transaction() as connection:
                unmapped = list(_unmapped(connection))
            self._cached = [*unmapped, *self._left(ledger, now)]
            self._taken = now
        return self._cached

    def _left(self, ledger: Ledger, now: int) -> Iterator[Metric]:
        try:
            found = balances(ledger, everything=True, now=now).rows
            report = budget_report(
                ledger, Question(window=(now, now + 1), zone=self._zone, now=now)
            )
        except SlurmkitError as error:
            self._log("failed", asked="metrics of budgets and allocations", why=error)
            return
        yield self._allocations(found)
        budgets = GaugeMetricFamily(
            f"{_PREFIX}budget_left_ratio",
            "Share of a budget that is left; below 0 if it is overdrawn.",
            labels=["pi"],
        )
        shares = ((self._pi(str(row["pi"])), 1.0 - float(row["used"])) for row in report.rows)
        for pi, share in sorted(_least(shares).items()):
            budgets.add_metric([pi], share)
        yield budgets

    def _allocations(self, found: Iterable[Balance]) -> Metric:
        metric = GaugeMetricFamily(
            f"{_PREFIX}allocation_left_ratio",
            "Share of the allocations in force that is left; below 0 if they are overdrawn.",
            labels=["kind", "name", "unit"],
        )
        shares = (
            ((one.holder.kind, self._name(one), one.unit), one.left_ms / one.granted_ms)
            for one in found
            if one.granted_ms > 0
        )
        for labels, share in sorted(_least(shares).items()):
            metric.add_metric(labels, share)
        return metric

    def _name(self, balance: Balance) -> str:
        holder = balance.holder
        return self._pi(holder.name) if holder.kind == "pi" else holder.name

    def _pi(self, name: str) -> str:
        return name if self._by_user else ""


def _least(shares: Iterable[tuple[KeyT, float]]) -> dict[KeyT, float]:
    """Return the least share of each key."""
    least: dict[KeyT, float] = {}
    for key, share in shares:
        least[key] = min(share, least.get(key, share))
    return least


def _unmapped(connection: Connection) -> Iterator[Metric]:
    """Yield what has no PI; nothing where people were never read, so that nobody has one."""
    if connection.scalar(select(func.max(people_syncs.c.at))) is None:
        return
    usage = load_unmapped_usage(connection)
    yield GaugeMetricFamily(
        f"{_PREFIX}unmapped_people",
        "Users with ended runs that count for no PI.",
        value=len({(one.cluster, one.user) for one in usage}),
    )
    yield GaugeMetricFamily(
        f"{_PREFIX}unmapped_gpu_hours",
        "GPU-hours of these runs.",
        value=sum(one.gpu_hours for one in usage),
    )
