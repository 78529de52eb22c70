"""What the charts of a usage report show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction

from slurmkit_accounting.query import AT
from slurmkit_accounting.reports.counted import Counted
from slurmkit_accounting.reports.model import Panel, Series
from slurmkit_accounting.reports.rates import NONE
from slurmkit_accounting.reports.tally import OUTCOMES
from slurmkit_accounting.schema import DAY, HOUR

_SHOWN = 12  # bars; what is smaller comes together
_LOST = tuple(name for name in OUTCOMES if name not in {"completed", "running"})
_STARTED, _WAITED = AT["started"], AT["waited_seconds"]


def unit_of(window: tuple[int, int]) -> str:
    """The unit of time of a window's bars: at most some sixty of them."""
    days = (window[1] - window[0]) / DAY
    return "day" if days <= 62 else "week" if days <= 430 else "month"


def panels_of(counted: Counted, unit: str) -> tuple[Panel, ...]:
    """GPU-hours over time by GPU type, by person, lost ones by outcome; wait times."""
    return (_over_time(counted, unit), _by_person(counted), _lost(counted), _waits(counted))


def _over_time(counted: Counted, unit: str) -> Panel:
    rows = counted.rows((unit, "gpu-type"))
    hours = {labels: tally.gpu_hours(counted.rates) for labels, tally in rows.items()}
    labels = tuple(dict.fromkeys(part.labels[unit] for part in counted.parts))
    kinds: dict[str, Fraction] = defaultdict(Fraction)
    for (_, kind), amount in hours.items():
        kinds[kind] += amount
    series = tuple(
        Series(kind, tuple(float(hours.get((label, kind), 0)) for label in labels))
        for kind in _largest(kinds)
        if kind != NONE
    )
    return Panel("stacked", "GPU-hours by GPU type", "GPU-hours", labels, series)


def _by_person(counted: Counted) -> Panel:
    rows = counted.rows(("user",))
    hours = {labels[0]: tally.gpu_hours(counted.rates) for labels, tally in rows.items()}
    names = _largest({name: amount for name, amount in hours.items() if amount})
    named = {name: float(hours[name]) for name in names[:_SHOWN]}
    if rest := names[_SHOWN:]:
        named[f"{len(rest)} others"] = float(sum(hours[name] for name in rest))
    return _bars("GPU-hours by person", "GPU-hours", named)


def _lost(counted: Counted) -> Panel:
    values = counted.total(lambda key: not key.redone).values(counted.rates, counted.parts)
    hours = {name.replace("_", " "): float(values[f"gpu_hours_{name}"] or 0) for name in _LOST}
    named = {name: hours[name] for name in _largest(hours) if hours[name]}
    note = "Without runs that were requeued and completed later."
    return _bars("GPU-hours lost, by outcome", "GPU-hours", named, note)


def _waits(counted: Counted) -> Panel:
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for _, key, each in counted.cells:
        started, waited = sums[key.partition]
        sums[key.partition] = (started + each[_STARTED], waited + each[_WAITED])
    means = {name: waited / started / HOUR for name, (started, waited) in sums.items() if started}
    named = {name: means[name] for name in _largest(means)[:_SHOWN]}
    note = "Mean time from submission to start, of the runs that started in the window."
    return _bars("Wait by partition", "hours", named, note)


def _bars(title: str, unit: str, named: Mapping[str, float], note: str = "") -> Panel:
    series = (Series(unit, tuple(named.values())),)
    return Panel("bars", title, unit, tuple(named), series, note)


def _largest(amounts: Mapping[str, float | Fraction]) -> list[str]:
    return sorted(amounts, key=lambda name: (-amounts[name], name))
