"""GPU-hours of the current month, as a metric: the numbers of `slurmkit report usage`."""

from __future__ import annotations

from prometheus_client.core import GaugeMetricFamily
from sqlalchemy import Connection

from slurmkit_accounting.reports.counted import Counted, Question
from slurmkit_accounting.reports.periods import month, month_of
from slurmkit_accounting.reports.tally import OUTCOMES
from slurmkit_accounting.zones import Zone

_KEPT_SECONDS = 60
_BY = ("cluster", "partition", "gpu-type")


class GpuHours:
    """Counts the month at most once a minute.

    Args:
        zone: whose month it is.
        by_user: whether users are told apart.
    """

    def __init__(self, zone: Zone, *, by_user: bool = False) -> None:
        self._zone = zone
        self._by = (*_BY, "user") if by_user else _BY
        self._kept: GaugeMetricFamily | None = None
        self._counted = float("-inf")

    def metric(self, connection: Connection, now: float) -> GaugeMetricFamily:
        """The metric, at most a minute old."""
        if self._kept is None or not 0 <= now - self._counted < _KEPT_SECONDS:
            self._kept, self._counted = self._count(connection, int(now)), now
        return self._kept

    def _count(self, connection: Connection, now: int) -> GaugeMetricFamily:
        begin, _ = month(month_of(now, self._zone), self._zone)
        made = GaugeMetricFamily(
            "slurmkit_ledger_month_gpu_hours",
            f"GPU-hours since the month began in {self._zone.name}.",
            labels=[*(name.replace("-", "_") for name in self._by), "outcome"],
        )
        question = Question(window=(begin, max(now, begin + 1)), zone=self._zone, now=now)
        counted = Counted(connection, question)
        for labels, tally in counted.rows(self._by).items():
            values = tally.values(counted.rates, counted.parts)
            for outcome in OUTCOMES:
                hours = values[f"gpu_hours_{outcome}"]
                if isinstance(hours, float) and hours:
                    made.add_metric([*labels, outcome], hours)
        return made
