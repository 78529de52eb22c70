"""`report capacity`: GPUs that were there, held, used and waited for, by month and GPU type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from slurmkit_accounting.gpu_use.capacity import gpu_seconds_there, load_capacity
from slurmkit_accounting.ledger.coverage import load_spans
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.usage import HOUR
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import CountedUsage, Question
from slurmkit_accounting.reports.model import (
    Column,
    Meta,
    Panel,
    Report,
    Series,
    Value,
)
from slurmkit_accounting.reports.panels import bars_panel, gpu_hours_of, used_panel
from slurmkit_accounting.reports.rates import NO_GPU_NAME, Rates
from slurmkit_accounting.reports.selection import unknown_names
from slurmkit_accounting.reports.tally import Tally

BY = ("month", "gpu_type")
COLUMNS = (
    Column("month"),
    Column("gpu_type"),
    Column("capacity_gpu_hours", "hours", adds_up=True),
    Column("gpu_hours", "hours", adds_up=True),
    Column("held", "share"),
    Column("gpu_hours_used", "hours", adds_up=True),
    Column("gpu_efficiency", "share"),
    Column("jobs", "count"),
    Column("wait_hours", "hours", adds_up=True),
    Column("wait_hours_mean", "hours"),
)
_DEFINITIONS = (
    (
        "capacity_gpu_hours: GPUs of all nodes, also of those that were down, as ingests saw them;"
        " unknown for a month that began before the first of these ingests"
    ),
    (
        "gpu_hours: also of shards and MPS, in whole GPUs of their type; held: gpu_hours of"
        " capacity_gpu_hours; with filters only those of the runs that match"
    ),
    (
        "gpu_hours_used, gpu_efficiency: of what gpu_hours counts, the part of runs that have ended"
        " and whose GPUs were measured for at least half of their time; what was measured stands"
        " for the whole run"
    ),
    (
        "wait_hours: from submission to start, summed over the runs that started in the month; jobs"
        " that still wait, or were cancelled before they started, are not in it"
    ),
)


class _TypeCapacity(msgspec.Struct):
    """What there was of one GPU type in a month, and what became of it.

    Attributes:
        hours: GPU-hours that were there; None is unknown.
        usage: of the runs that held such GPUs; None if none did.
        tracked: whether Slurm's accounting says of all these GPUs when they are held.
    """

    hours: Fraction | None = Fraction(0)
    usage: Tally | None = None
    tracked: bool = True

    def add(self, other: _TypeCapacity) -> None:
        if self.hours is None or other.hours is None:
            self.hours = None
        else:
            self.hours += other.hours
        self.tracked = self.tracked and other.tracked
        if other.usage is not None:
            self.usage = self.usage or Tally()
            self.usage.merge(other.usage)


class _Held(msgspec.Struct):
    """GPU-hours that were there, and held, of one bar of a chart."""

    there: float = 0.0
    held: float = 0.0


_ByType = dict[str, _TypeCapacity]


def capacity_report(ledger: Ledger, question: Question) -> Report:
    """Report capacity, use and waiting by month and GPU type.

    Args:
        ledger: open for reading.
        question: window, filters and scope.

    Raises:
        BadConfig: for prices that cannot be used.
        LedgerError: when the ledger cannot be read.
    """
    chosen = question.filters.get("gpu_type", ())
    # All types are counted: whether the types of runs are known shows only there.
    others = {name: values for name, values in question.filters.items() if name != "gpu_type"}
    asked = replace(question, units=frozenset(("month",)), filters=others)
    with ledger.transaction() as connection:
        counted = CountedUsage(connection, asked, ("month", "cluster", "gpu_type"))
        counted.spread_gpu_use(connection)
        found: dict[tuple[str, str], _TypeCapacity] = defaultdict(_TypeCapacity)
        for (month, _), by_type in _by_month_and_cluster(connection, counted).items():
            for gpu_type, each in _with_whole_gpus(by_type, counted.rates).items():
                if not chosen or gpu_type in chosen:
                    found[month, gpu_type].add(each)
        rows = [
            _row(month, gpu_type, found[month, gpu_type], counted)
            for month, gpu_type in sorted(found)
        ]
        meta = Meta(
            report="capacity",
            by=BY,
            filters=question.filters,
            job=question.job,
            total=_total(found.values(), counted),
            definitions=_DEFINITIONS,
            notes=() if rows else unknown_names(connection, question, counted.dimensions),
            **provenance.ledger_fields(ledger, connection, question.now, question.scope),
            **provenance.window_fields(connection, question.window, question.zone, question.now),
        )
    return Report(meta, COLUMNS, tuple(rows), tuple(_panels(found, counted)))


def _panels(
    found: Mapping[tuple[str, str], _TypeCapacity], counted: CountedUsage
) -> Iterator[Panel]:
    """Yield charts: there and held by month and by GPU type; held and used, and waits, by type."""
    months: dict[str, _Held] = defaultdict(_Held)
    types: dict[str, _Held] = defaultdict(_Held)
    usage: dict[str, Tally] = defaultdict(Tally)
    for (month, gpu_type), each in found.items():
        if each.usage is not None:
            usage[gpu_type].merge(each.usage)
        if each.hours and each.tracked:
            held = float(each.usage.gpu_hours(counted.rates)) if each.usage else 0.0
            for bar in (months[month], types[gpu_type]):
                bar.there += float(each.hours)
                bar.held += held
    if len(months) > 1:
        yield _held_panel("GPU-hours there and held, by month", months)
    if types:
        largest = dict(sorted(types.items(), key=lambda pair: -pair[1].there))
        yield _held_panel("GPU-hours there and held", largest)
    hours = {name: gpu_hours_of(tally, counted) for name, tally in usage.items()}
    yield from used_panel("GPU-hours held and used", hours)
    waits = {name: wait for name, tally in usage.items() if (wait := _mean_wait(tally)) is not None}
    if waits:
        named = dict(sorted(waits.items(), key=lambda pair: -pair[1]))
        note = "From submission to start, of the runs that started."
        yield bars_panel("Mean wait", "hours", named, note)


def _held_panel(title: str, bars: Mapping[str, _Held]) -> Panel:
    series = (
        Series("held", tuple(min(each.held, each.there) for each in bars.values())),
        Series("free", tuple(max(each.there - each.held, 0.0) for each in bars.values()), "faint"),
    )
    note = "Of the months whose number of GPUs is known. GPUs that were down count as free."
    return Panel("bars", title, "GPU-hours", tuple(bars), series, note)


def _by_month_and_cluster(
    connection: Connection, counted: CountedUsage
) -> dict[tuple[str, str], _ByType]:
    """Return capacity and usage by month and cluster, and then by GPU type."""
    found: dict[tuple[str, str], _ByType] = defaultdict(lambda: defaultdict(_TypeCapacity))
    for (month, cluster, gpu_type), hours in _capacity(connection, counted).items():
        found[month, cluster][gpu_type].hours = hours
    for (month, cluster, gpu_type), tally in counted.rows(("month", "cluster", "gpu_type")).items():
        if gpu_type != NO_GPU_NAME:
            found[month, cluster][gpu_type].usage = tally
    for (_, cluster), by_type in found.items():
        held_any = any(each.usage is not None for each in by_type.values())
        for each in by_type.values():
            each.tracked = held_any or counted.tracks_gpus(cluster)
    return found


def _capacity(
    connection: Connection, counted: CountedUsage
) -> dict[tuple[str, str, str], Fraction | None]:
    """Return the GPU-hours that were there, by month, cluster and GPU type; None if unknown.

    A month of which the ledger knows neither GPUs nor runs is left out.
    """
    question, found = counted.question, dict[tuple[str, str, str], Fraction | None]()
    chosen, all_changes = question.filters.get("cluster"), load_capacity(connection)
    first_seen: dict[int, int] = {}
    for (number, _), changes in all_changes.items():
        first_seen[number] = min(first_seen.get(number, changes[0][0]), changes[0][0])
    for (number, gpu_type), changes in all_changes.items():
        kind, cluster = counted.rates.kind(gpu_type, ""), counted.dimensions.clusters[number]
        begins = [first_seen[number], *(span.begin for span in load_spans(connection, number)[:1])]
        if chosen and cluster not in chosen:
            continue
        for part in filter(counted.is_in_time, counted.parts):
            end = min(part.end, question.now)
            if end <= max(part.begin, min(begins)):
                continue
            key = part.labels["month"], cluster, kind.name
            seconds = gpu_seconds_there(changes, first_seen[number], part.begin, end)
            before = found.get(key, Fraction(0))
            known = None if seconds is None else (kind.weight or 0) * Fraction(seconds, HOUR)
            found[key] = None if known is None or before is None else before + known
    return {key: hours for key, hours in found.items() if hours != 0}


def _with_whole_gpus(by_type: _ByType, rates: Rates) -> Mapping[str, _TypeCapacity]:
    """Put shards and MPS to the GPUs they are of, and all to one where runs have no types.

    The latter is so where Slurm's accounting tracks gres/gpu only: then more untyped GPUs are held
    than the nodes have.
    """
    untyped = rates.kind("", "").name
    held = by_type[untyped].usage if untyped in by_type else None
    if held is not None:
        there = by_type[untyped].hours
        if there is not None and held.gpu_hours(rates) > there:
            return {untyped: _sum(by_type.values())}
    merged: dict[str, _TypeCapacity] = defaultdict(_TypeCapacity)
    for name, each in by_type.items():
        merged[rates.whole_type(name)].add(each)
    return merged


def _sum(each_type: Iterable[_TypeCapacity]) -> _TypeCapacity:
    total = _TypeCapacity()
    for each in each_type:
        total.add(each)
    return total


def _row(month: str, gpu_type: str, found: _TypeCapacity, counted: CountedUsage) -> dict[str, Any]:
    tally, capacity = found.usage, found.hours or None
    nothing = 0 if found.tracked else None
    values: dict[str, Value] = {} if tally is None else tally.values(counted.rates, counted.parts)
    held = values.get("gpu_hours", None if nothing is None else 0.0)
    return {
        "month": month,
        "gpu_type": gpu_type,
        "capacity_gpu_hours": None if capacity is None else float(capacity),
        "gpu_hours": held,
        "held": _share(held, capacity) if found.tracked else None,
        "gpu_hours_used": values.get("gpu_hours_used"),
        "gpu_efficiency": values.get("gpu_efficiency"),
        "jobs": values.get("jobs", nothing),
        "wait_hours": values.get("wait_hours", None if nothing is None else 0.0),
        "wait_hours_mean": _mean_wait(tally),
    }


def _total(each_row: Collection[_TypeCapacity], counted: CountedUsage) -> dict[str, Value]:
    """Return all rows as one, as other reports of usage do: what was not measured adds nothing."""
    total = _row("", "", _sum(each_row), counted) if each_row else {}
    return {name: value for name, value in total.items() if name not in BY}


def _share(held: Value, capacity: Fraction | None) -> float | None:
    return held / float(capacity) if capacity and isinstance(held, float) else None


def _mean_wait(tally: Tally | None) -> float | None:
    if tally is None or not tally.started:
        return None
    return tally.waited_seconds / tally.started / HOUR
