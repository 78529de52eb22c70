"""The charts of a usage report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction

from slurmkit_accounting.ledger.schema.usage import DAY, HOUR
from slurmkit_accounting.reports.counted import CountedUsage
from slurmkit_accounting.reports.model import Panel, Series
from slurmkit_accounting.reports.rates import NO_GPU_NAME
from slurmkit_accounting.reports.tally import OUTCOMES
from slurmkit_accounting.usage.query import SUM_INDEX

_MOST_BARS = 12  # bars; all smaller ones share one bar
_LOST_OUTCOMES = tuple(name for name in OUTCOMES if name not in {"completed", "running"})
_STARTED, _WAITED = SUM_INDEX["started"], SUM_INDEX["waited_seconds"]


def chart_unit(window: tuple[int, int]) -> str:
    """Return the unit of time for charts of a window: at most about sixty bars."""
    days = (window[1] - window[0]) / DAY
    return "day" if days <= 62 else "week" if days <= 430 else "month"


def usage_panels(counted: CountedUsage, unit: str) -> tuple[Panel, ...]:
    """Return charts of GPU-hours over time, by person and lost by outcome, and of wait times."""
    return (
        _over_time(counted, unit),
        _by_person(counted),
        _lost_by_outcome(counted),
        _wait_by_partition(counted),
    )


def _over_time(counted: CountedUsage, unit: str) -> Panel:
    rows = counted.rows((unit, "gpu_type"))
    hours = {labels: tally.gpu_hours(counted.rates) for labels, tally in rows.items()}
    labels = tuple(dict.fromkeys(part.labels[unit] for part in counted.parts))
    kinds: dict[str, Fraction] = defaultdict(Fraction)
    for (_, kind), amount in hours.items():
        kinds[kind] += amount
    series = tuple(
        Series(kind, tuple(float(hours.get((label, kind), 0)) for label in labels))
        for kind in _largest_first(kinds)
        if kind != NO_GPU_NAME
    )
    return Panel("stacked", "GPU-hours by GPU type", "GPU-hours", labels, series)


def _by_person(counted: CountedUsage) -> Panel:
    rows = counted.rows(("user",))
    hours = {labels[0]: tally.gpu_hours(counted.rates) for labels, tally in rows.items()}
    names = _largest_first({name: amount for name, amount in hours.items() if amount})
    most = _MOST_BARS + (len(names) == _MOST_BARS + 1)  # one bar too many is shown by its name
    named = {name: float(hours[name]) for name in names[:most]}
    if rest := names[most:]:
        named[f"{len(rest)} others"] = float(sum(hours[name] for name in rest))
    return _bars("GPU-hours by person", "GPU-hours", named)


def _lost_by_outcome(counted: CountedUsage) -> Panel:
    values = counted.total(lambda key: not key.redone).values(counted.rates, counted.parts)
    hours = {
        name.replace("_", " "): float(values[f"gpu_hours_{name}"] or 0) for name in _LOST_OUTCOMES
    }
    named = {name: hours[name] for name in _largest_first(hours) if hours[name]}
    note = "Without runs that were requeued and completed later."
    return _bars("GPU-hours lost, by outcome", "GPU-hours", named, note)


def _wait_by_partition(counted: CountedUsage) -> Panel:
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for _, key, each in counted.cells:
        started, waited = sums[key.partition]
        sums[key.partition] = (started + each[_STARTED], waited + each[_WAITED])
    means = {name: waited / started / HOUR for name, (started, waited) in sums.items() if started}
    named = {name: means[name] for name in _largest_first(means)[:_MOST_BARS]}
    note = "Mean time from submission to start, of the runs that started in the window."
    return _bars("Wait by partition", "hours", named, note)


def _bars(title: str, unit: str, named: Mapping[str, float], note: str = "") -> Panel:
    series = (Series(unit, tuple(named.values())),)
    return Panel("bars", title, unit, tuple(named), series, note)


def _largest_first(amounts: Mapping[str, float | Fraction]) -> list[str]:
    return sorted(amounts, key=lambda name: (-amounts[name], name))
