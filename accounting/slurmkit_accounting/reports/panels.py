"""The charts of a usage report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

from msgspec.structs import replace
from sqlalchemy import Connection

from slurmkit_accounting.ledger.schema.usage import DAY, HOUR
from slurmkit_accounting.reports.counted import CountedUsage, Question
from slurmkit_accounting.reports.model import Panel, Series
from slurmkit_accounting.reports.rates import NO_GPU_NAME
from slurmkit_accounting.reports.tally import OUTCOMES, Tally
from slurmkit_accounting.usage.query import SUM_INDEX

_MOST_BARS = 12  # bars; all smaller ones share one bar
_NOT_MEASURED = (
    "Hatched: nobody knows what these GPUs did. Runs are measured once they have ended, and only if"
    " samples cover at least half of their time."
)
_COUNTED_ANEW = "Closed months are counted as they are now: they have no numbers by day or week."
_LOST_OUTCOMES = tuple(name for name in OUTCOMES if name not in {"completed", "running"})
_STARTED, _WAITED = SUM_INDEX["started"], SUM_INDEX["waited_seconds"]


def chart_unit(window: tuple[int, int]) -> str:
    """Return the unit of time for charts of a window: at most about sixty bars."""
    days = (window[1] - window[0]) / DAY
    return "day" if days <= 62 else "week" if days <= 430 else "month"


def usage_panels(
    connection: Connection, question: Question, counted: CountedUsage, by: Sequence[str]
) -> tuple[Panel, ...]:
    """Return charts of GPU-hours over time, by person and lost by outcome, and of wait times.

    Args:
        connection: to the ledger.
        question: of the report.
        counted: the usage of its rows.
        by: the dimensions of its rows.
    """
    unit = chart_unit(question.window)
    in_time = replace(question, units=frozenset((unit,)))
    over_time = CountedUsage(connection, in_time, (unit, "gpu_type"), only_gpus=True)
    of_people = counted if "user" in by else CountedUsage(connection, question, ("user",))
    return (
        _over_time(over_time, unit),
        _by_person(of_people),
        *_used_by_type(counted),
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
    note = _COUNTED_ANEW if counted.closings and unit != "month" else ""
    return Panel("stacked", "GPU-hours by GPU type", "GPU-hours", labels, series, note)


class MeasuredGpuHours(NamedTuple):
    """GPU-hours that were held; of these, what was measured, and what was used of that."""

    held: float = 0.0
    measured: float = 0.0
    used: float = 0.0

    def plus(self, other: MeasuredGpuHours) -> MeasuredGpuHours:
        """Return the sum of both."""
        return MeasuredGpuHours(*(own + more for own, more in zip(self, other, strict=True)))


def used_panel(title: str, hours: Mapping[str, MeasuredGpuHours]) -> tuple[Panel, ...]:
    """Return a chart of GPU-hours used, next to those held; none where nothing was measured.

    Args:
        title: heading of the chart.
        hours: by the name of the bar.
    """
    if not any(each.measured for each in hours.values()):
        return ()
    bars = _largest_bars({name: each for name, each in hours.items() if each.held > 0})
    # A run counts as measured where it ends; it may have held its GPUs before the window.
    known = {name: min(each.measured, each.held) for name, each in bars.items()}
    used = {
        name: known[name] * min(each.used / each.measured, 1.0) if each.measured else 0.0
        for name, each in bars.items()
    }
    series = (
        Series("used", tuple(used.values())),
        Series("not used", tuple(known[name] - used[name] for name in bars), "faint"),
        Series("not measured", tuple(b.held - known[n] for n, b in bars.items()), "hatched"),
    )
    return (Panel("bars", title, "GPU-hours", tuple(bars), series, _NOT_MEASURED),)


def _used_by_type(counted: CountedUsage) -> tuple[Panel, ...]:
    return used_panel("GPU-hours held and used, by GPU type", _hours_by(counted, "gpu_type"))


def _hours_by(counted: CountedUsage, name: str) -> dict[str, MeasuredGpuHours]:
    rows = counted.rows((name,)).items()
    return {labels[0]: gpu_hours_of(tally, counted) for labels, tally in rows}


def gpu_hours_of(tally: Tally, counted: CountedUsage) -> MeasuredGpuHours:
    """Return the GPU-hours of a row of usage."""
    values = tally.values(counted.rates, counted.parts)
    measured, used = values["gpu_hours_measured"], values["gpu_hours_used"]
    hours = float(tally.gpu_hours(counted.rates))
    return MeasuredGpuHours(hours, float(measured or 0), float(used or 0))


def _by_person(counted: CountedUsage) -> Panel:
    hours = _hours_by(counted, "user")
    if panel := used_panel("GPU-hours held and used, by person", hours):
        return panel[0]
    return largest_bars_panel("GPU-hours by person", hours)


def _largest_bars(hours: Mapping[str, MeasuredGpuHours]) -> dict[str, MeasuredGpuHours]:
    """Return the bars of a chart, largest first; the sum of the smallest is the last one."""
    names = _largest_first({name: each.held for name, each in hours.items()})
    most = _MOST_BARS + (len(names) == _MOST_BARS + 1)  # one bar too many is shown by its name
    bars = {name: hours[name] for name in names[:most]}
    if rest := names[most:]:
        bars[f"{len(rest)} others"] = reduce(MeasuredGpuHours.plus, (hours[name] for name in rest))
    return bars


def _lost_by_outcome(counted: CountedUsage) -> Panel:
    values = counted.total(lambda key: not key.redone).values(counted.rates, counted.parts)
    hours = {
        name.replace("_", " "): float(values[f"gpu_hours_{name}"] or 0) for name in _LOST_OUTCOMES
    }
    named = {name: hours[name] for name in _largest_first(hours) if hours[name]}
    note = "Without runs that were requeued and completed later."
    return bars_panel("GPU-hours lost, by outcome", "GPU-hours", named, note)


def _wait_by_partition(counted: CountedUsage) -> Panel:
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for _, key, each in counted.cells:
        started, waited = sums[key.partition]
        sums[key.partition] = (started + each[_STARTED], waited + each[_WAITED])
    means = {name: waited / started / HOUR for name, (started, waited) in sums.items() if started}
    named = {name: means[name] for name in _largest_first(means)[:_MOST_BARS]}
    note = "Mean time from submission to start, of the runs that started in the window."
    return bars_panel("Wait by partition", "hours", named, note)


def largest_bars_panel(title: str, hours: Mapping[str, MeasuredGpuHours]) -> Panel:
    """Return a chart of GPU-hours held by name, largest first; the smallest share one bar."""
    bars = _largest_bars({name: each for name, each in hours.items() if each.held})
    return bars_panel(title, "GPU-hours", {name: each.held for name, each in bars.items()})


def bars_panel(title: str, unit: str, named: Mapping[str, float], note: str = "") -> Panel:
    """Return a chart of one bar for each name, in this order."""
    series = (Series(unit, tuple(named.values())),)
    return Panel("bars", title, unit, tuple(named), series, note)


def _largest_first(amounts: Mapping[str, float | Fraction]) -> list[str]:
    return sorted(amounts, key=lambda name: (-amounts[name], name))
