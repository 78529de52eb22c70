"""`report benchmark`: how fast nodes and GPUs are, which ones are slow, and what that costs."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from slurmkit.errors import BadInput
from slurmkit.formats.display import join_names
from slurmkit_accounting.calendar import day_of, month_of
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.benchmarks import benchmark_results
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.reports.model import Column, Meta, Panel, Report, Series
from slurmkit_accounting.reports.rates import NO_GPU_NAME, Rates

SUBJECTS = ("gpu", "node", "gpu_type", "day", "month")
SLOW, SLOWER, FAILED, FEW, GOOD = "slow", "slower", "failed", "few", "ok"
_WORST_FIRST = (FAILED, SLOW, SLOWER, FEW, GOOD)
# The benchmark whose values the charts show, the first that was measured.
_FOR_CHARTS = ("matmul_bf16", "matmul_fp32", "memory", "nccl_all_reduce", "cpu_matmul_fp32")
_MOST_BARS = 20
_KEYS = (Column("gpu_type"), Column("benchmark"))
_COLUMNS: dict[str, tuple[Column, ...]] = {
    "gpu": (
        *_KEYS,
        Column("node"),
        Column("gpu"),
        Column("value", "number"),
        Column("unit"),
        Column("verdict"),
        Column("of_median", "share"),
        Column("change", "share"),
        Column("measured", "count"),
        Column("at", "time"),
        Column("median", "number"),
        Column("trouble"),
        Column("method"),
        Column("driver"),
        Column("torch"),
    ),
    "node": (
        *_KEYS,
        Column("node"),
        Column("gpus", "count"),
        Column("lowest", "number"),
        Column("unit"),
        Column("verdict"),
        Column("slow", "count"),
        Column("of_median", "share"),
        Column("change", "share"),
        Column("measured", "count"),
        Column("at", "time"),
        Column("method"),
    ),
    "gpu_type": (
        *_KEYS,
        Column("devices", "count"),
        Column("median", "number"),
        Column("unit"),
        Column("spread", "share"),
        Column("lowest", "number"),
        Column("highest", "number"),
        Column("slow", "count"),
        Column("failed", "count"),
        Column("price", "money"),
        Column("per_price", "number"),
        Column("cloud_price", "money"),
        Column("per_cloud_price", "number"),
        Column("price_of"),
        Column("measured", "count"),
        Column("at", "time"),
        Column("method"),
    ),
}
_OVER_TIME = (
    Column("devices", "count"),
    Column("measured", "count"),
    Column("median", "number"),
    Column("unit"),
    Column("spread", "share"),
    Column("lowest", "number"),
    Column("highest", "number"),
    Column("method"),
)
_ASK = "nothing was measured in the window; to measure: slurmkit benchmark run"


class Bounds(msgspec.Struct, frozen=True):
    """When a value is slow.

    Attributes:
        percent: it is more than so many percent below the median,
        mads: and more than so many median absolute deviations.
        devices: fewer devices of a type are too few to compare.
        past: fewer earlier values of a device are too few to compare.
    """

    percent: float = 5.0
    mads: float = 3.0
    devices: int = 5
    past: int = 3

    def is_below(self, value: float, values: Sequence[float]) -> bool:
        """Return whether a value is slow among values."""
        middle = median(values)
        deviation = median(abs(each - middle) for each in values)
        return value < middle * (1 - self.percent / 100) and value < middle - self.mads * deviation


class Group(NamedTuple):
    """Values that can be compared."""

    gpu_type: str
    benchmark: str
    unit: str
    method: str


class Sample(msgspec.Struct, frozen=True):
    """One measurement of the ledger; `device` is a GPU, or a node (or several) without one."""

    group: Group
    device: str
    node: str
    gpu: str
    value: float | None
    at: int
    trouble: str
    driver: str
    torch: str


class Device(msgspec.Struct, frozen=True):
    """What a device measured within the window, compared with its past and its type.

    Attributes:
        last: its last measurement.
        value: the last value; None if it never could be measured.
        past: its values before that.
        middle: median of the last values of all devices of its type; None if unknown.
        verdict: `failed`, `slow` (for its type), `slower` (than before), `few` or `ok`.
    """

    last: Sample
    value: float | None
    past: tuple[float, ...]
    measured: int
    middle: float | None
    verdict: str

    @property
    def of_median(self) -> float | None:
        """The value as a share of the median of its type."""
        return None if self.value is None or not self.middle else self.value / self.middle

    @property
    def change(self) -> float | None:
        """The difference from the median of its past, as a share of that median."""
        before = median(self.past) if self.past else None
        return None if self.value is None or not before else self.value / before - 1


def benchmark_report(
    ledger: Ledger,
    question: Question,
    by: str = "gpu",
    *,
    benchmarks: Sequence[str] = (),
    bounds: Bounds = Bounds(),  # noqa: B008 - frozen
) -> Report:
    """Report benchmark results of the window, slow devices first.

    Args:
        ledger: open for reading.
        question: window; of the filters only `cluster` and `gpu_type` have an effect.
        by: `gpu`, `node`, `gpu_type`, `day` or `month`.
        benchmarks: only these; all when empty.
        bounds: when a value is slow.

    Raises:
        BadInput: for another `by`, and bounds that cannot be used.
        BadConfig: for prices that cannot be used.
        LedgerError: when the ledger cannot be read.
    """
    if by not in SUBJECTS:
        raise BadInput(f"by must be {', '.join(SUBJECTS[:-1])} or {SUBJECTS[-1]}; not {by!r}")
    if not 0 <= bounds.percent < 100 or not 0 <= bounds.mads <= 1000:
        raise BadInput("below must be from 0 to less than 100 percent, and mads from 0 to 1000")
    rates = Rates()
    with ledger.transaction() as connection:
        samples = load_samples(connection, question, rates, benchmarks)
        devices = judge_devices(samples, bounds)
        columns = _columns(by)
        rows = _rows(by, samples, devices, question, rates)
        notes = tuple(_notes(samples, devices, bounds))
        meta = Meta(
            report="benchmark",
            by=(by, "gpu_type", "benchmark")
            if by in {"day", "month"}
            else ("gpu_type", "benchmark"),
            filters=question.filters | ({"benchmark": tuple(benchmarks)} if benchmarks else {}),
            currency=rates.currency if by == "gpu_type" else None,
            prices=_price_words(rates) if by == "gpu_type" else None,
            definitions=tuple(_definitions(by, bounds)),
            notes=notes,
            **provenance.ledger_fields(ledger, connection, question.now, question.scope),
            **provenance.window_fields(connection, question.window, question.zone, question.now),
        )
    panels = tuple(_panels(by, samples, devices, question, rates))
    return Report(meta, columns, tuple(rows), panels)


def load_samples(
    connection: Connection, question: Question, rates: Rates, benchmarks: Sequence[str] = ()
) -> list[Sample]:
    """Load the measurements within a window, oldest first."""
    begin, end = question.window[0], question.events_end
    names = {row[0]: row[1] for row in connection.execute(select(clusters.c.id, clusters.c.name))}
    wanted = question.filters.get("cluster", tuple(names.values()))
    types = {rates.kind(name, "").name for name in question.filters.get("gpu_type", ())}
    months = question.filters.get("month", ())
    table = benchmark_results
    query = (
        select(table).where(table.c.at >= begin, table.c.at < end).order_by(table.c.at, table.c.id)
    )
    if benchmarks:
        query = query.where(table.c.benchmark.in_(list(benchmarks)))
    found = []
    for row in connection.execute(query):
        name = names[row.cluster_id]
        kind = rates.kind(row.gpu_type, "").name
        in_month = not months or month_of(row.at, question.zone) in months
        if name in wanted and (not types or kind in types) and in_month:
            found.append(_sample(row, kind, f"{name}/" if len(names) > 1 else ""))
    return _with_methods(found)


def _sample(row: Any, kind: str, prefix: str) -> Sample:
    nodes = ",".join(f"{prefix}{node}" for node in row.nodes.split(","))
    # A UUID is that of one GPU wherever it is; an index is one of its node.
    known = row.gpu and not row.gpu.startswith("index ")
    return Sample(
        group=Group(kind, row.benchmark, row.unit, row.method),
        device=row.gpu if known else f"{nodes} {row.gpu}".strip(),
        node=nodes,
        gpu=row.gpu_serial or row.gpu,
        value=row.value,
        at=row.at,
        trouble=row.trouble,
        driver=row.driver,
        torch=row.torch,
    )


def _with_methods(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples; one that could not be measured has the method of the device's others.

    Without such others, it has that of its type, if there is one alone.
    """
    of_device: dict[object, set[str]] = defaultdict(set)
    of_type: dict[object, set[str]] = defaultdict(set)
    for each in samples:
        if each.value is not None:
            of_device[each.device, each.group[:3]].add(each.group.method)
            of_type[each.group[:3]].add(each.group.method)
    found = []
    for each in samples:
        methods = of_device[each.device, each.group[:3]] or of_type[each.group[:3]]
        if each.value is None and len(methods) == 1:
            group = each.group._replace(method=next(iter(methods)))
            found.append(msgspec.structs.replace(each, group=group))
        else:
            found.append(each)
    return found


def judge_devices(samples: Iterable[Sample], bounds: Bounds) -> list[Device]:
    """Return each device with its verdict, the worst first.

    Args:
        samples: in the order of time.
        bounds: when a value is slow.
    """
    by_group: dict[Group, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for each in samples:
        by_group[each.group][each.device].append(each)
    found = []
    for devices in by_group.values():
        known = {
            name: [each.value for each in own if each.value is not None]
            for name, own in devices.items()
        }
        lasts = [values[-1] for values in known.values() if values]
        middle = median(lasts) if lasts else None
        for name, own in devices.items():
            values = known[name]
            found.append(
                Device(
                    last=own[-1],
                    value=values[-1] if values else None,
                    past=tuple(values[:-1]),
                    measured=len(values),
                    middle=middle,
                    verdict=_verdict(own[-1], values, lasts, bounds),
                )
            )
    return sorted(found, key=_rank)


def _verdict(last: Sample, values: Sequence[float], lasts: Sequence[float], bounds: Bounds) -> str:
    """Return the verdict on a device.

    Args:
        last: its last measurement.
        values: all its values, oldest first.
        lasts: the last values of all devices that it is compared with, also its own.
        bounds: when a value is slow.
    """
    if last.value is None:
        return FAILED
    enough, has_past = len(lasts) >= bounds.devices, len(values) > bounds.past
    if enough and bounds.is_below(values[-1], lasts):
        return SLOW
    if has_past and bounds.is_below(values[-1], values[:-1]):
        return SLOWER
    return GOOD if enough else FEW


def _rank(device: Device) -> tuple[Any, ...]:
    share = device.of_median
    group = device.last.group
    name = (group.gpu_type, group.benchmark, device.last.node, device.last.gpu)
    return (_WORST_FIRST.index(device.verdict), math.inf if share is None else share, name)


def _columns(by: str) -> tuple[Column, ...]:
    return _COLUMNS[by] if by in _COLUMNS else (Column(by), *_KEYS, *_OVER_TIME)


def _rows(
    by: str,
    samples: Sequence[Sample],
    devices: Sequence[Device],
    question: Question,
    rates: Rates,
) -> list[dict[str, Any]]:
    if by == "gpu":
        return [_device_row(device) for device in devices]
    if by == "node":
        return _node_rows(devices)
    if by == "gpu_type":
        return _type_rows(devices, question, rates)
    return _rows_over_time(by, samples, question)


def _device_row(device: Device) -> dict[str, Any]:
    last, group = device.last, device.last.group
    return {
        "gpu_type": group.gpu_type,
        "benchmark": group.benchmark,
        "node": last.node,
        "gpu": last.gpu,
        "value": last.value,
        "unit": group.unit,
        "verdict": device.verdict,
        "of_median": None if last.value is None else device.of_median,
        "change": None if last.value is None else device.change,
        "measured": device.measured,
        "at": last.at,
        "median": device.middle,
        "trouble": last.trouble,
        "method": group.method,
        "driver": last.driver,
        "torch": last.torch,
    }


def _node_rows(devices: Sequence[Device]) -> list[dict[str, Any]]:
    """Return a row for each node and benchmark, of its worst GPU."""
    grouped: dict[tuple[Group, str], list[Device]] = defaultdict(list)
    for device in devices:
        grouped[device.last.group, device.last.node].append(device)
    rows = []
    for (group, node), own in grouped.items():
        worst = own[0]  # they are in the order of `_rank`
        values = [device.value for device in own if device.last.value is not None]
        rows.append(
            {
                "gpu_type": group.gpu_type,
                "benchmark": group.benchmark,
                "node": node,
                "gpus": sum(1 for device in own if device.last.gpu),
                "lowest": _least(values),
                "unit": group.unit,
                "verdict": worst.verdict,
                "slow": sum(device.verdict in {SLOW, SLOWER} for device in own),
                "of_median": _least(device.of_median for device in own),
                "change": _least(device.change for device in own),
                "measured": sum(device.measured for device in own),
                "at": max(device.last.at for device in own),
                "method": group.method,
            }
        )
    return rows


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _type_rows(devices: Sequence[Device], question: Question, rates: Rates) -> list[dict[str, Any]]:
    """Return a row for each type and benchmark, with what a price buys of it."""
    rows = []
    for group, own in _by_group(devices).items():
        values = [device.value for device in own if device.value is not None]
        at = max(device.last.at for device in own)
        day = day_of(at, question.zone)
        prices = _prices(group, own, day, rates)
        middle = median(values) if values else None
        rows.append(
            {
                "gpu_type": group.gpu_type,
                "benchmark": group.benchmark,
                "devices": len(own),
                "median": middle,
                "unit": group.unit,
                "spread": _spread(values),
                "lowest": min(values, default=None),
                "highest": max(values, default=None),
                "slow": sum(device.verdict in {SLOW, SLOWER} for device in own),
                "failed": sum(device.verdict == FAILED for device in own),
                "price": prices[0],
                "per_price": _per_price(middle, prices[0]),
                "cloud_price": prices[1],
                "per_cloud_price": _per_price(middle, prices[1]),
                "price_of": "" if prices == (None, None) else day.isoformat(),
                "measured": sum(device.measured for device in own),
                "at": at,
                "method": group.method,
            }
        )
    return rows


def _by_group(devices: Sequence[Device]) -> dict[Group, list[Device]]:
    """Return the devices by group: those of a benchmark together, the fastest type first."""
    found: dict[Group, list[Device]] = defaultdict(list)
    for device in devices:
        found[device.last.group].append(device)

    def order(group: Group) -> tuple[Any, ...]:
        middle = next((each.middle for each in found[group] if each.middle is not None), 0.0)
        return group.benchmark, group.unit, -middle, group

    return {group: found[group] for group in sorted(found, key=order)}


def _prices(
    group: Group, devices: Sequence[Device], day: dt.date, rates: Rates
) -> tuple[float | None, float | None]:
    """Return the price of a GPU-hour on a day, here and in a cloud; of what GPUs did only."""
    if not any(device.last.gpu for device in devices):
        return None, None
    cost = rates.gpu_hour(rates.kind(group.gpu_type, ""), day)
    here, cloud = (None if each is None else float(each) for each in cost)
    return here, cloud


def _per_price(value: float | None, price: float | None) -> float | None:
    return None if value is None or not price else value / price


def _spread(values: Sequence[float]) -> float | None:
    """Return the median absolute deviation as a share of the median; None of fewer than two."""
    if len(values) < 2 or not (middle := median(values)):
        return None
    return median(abs(value - middle) for value in values) / middle


def _rows_over_time(by: str, samples: Sequence[Sample], question: Question) -> list[dict[str, Any]]:
    grouped: dict[tuple[str, Group], list[Sample]] = defaultdict(list)
    for each in samples:
        if each.value is not None:
            grouped[_period(by, each.at, question), each.group].append(each)
    rows = []
    for (period, group), own in sorted(grouped.items()):
        values = [each.value for each in own if each.value is not None]
        rows.append(
            {
                by: period,
                "gpu_type": group.gpu_type,
                "benchmark": group.benchmark,
                "devices": len({each.device for each in own}),
                "measured": len(own),
                "median": median(values),
                "unit": group.unit,
                "spread": _spread(values),
                "lowest": min(values),
                "highest": max(values),
                "method": group.method,
            }
        )
    return rows


def _period(by: str, at: int, question: Question) -> str:
    if by == "month":
        return month_of(at, question.zone)
    return day_of(at, question.zone).isoformat()


def _price_words(rates: Rates) -> str:
    if rates.currency is None:
        return "none in the configuration ([gpu.TYPE] prices), so no cost is shown"
    return "of a GPU-hour on the day of the last measurement, from the configuration"


def _definitions(by: str, bounds: Bounds) -> Iterator[str]:
    if by in {"gpu", "node"}:
        yield (
            f"slow: more than {bounds.percent:g} % and {bounds.mads:g} MAD (median absolute"
            " deviation) below the median of the last values of all devices of the type, of which"
            f" there must be {bounds.devices}; slower: as far below the median of its"
            f" own earlier values of the window, of which there must be {bounds.past}; few: too few"
            " to say"
        )
        yield "of_median: the value divided by the median of its type"
        yield (
            "change: the difference from the median of the device's own earlier values of the"
            " window, as a share of that median"
        )
    if by == "node":
        yield "verdict, lowest, of_median and change are those of the node's worst GPU"
    if by == "gpu_type":
        yield "per_price: median divided by the price of a GPU-hour; more is better"
    if by != "gpu":
        yield "spread: median absolute deviation, as a share of the median"
    yield (
        "only values measured by the same method are compared; TFLOP/s are 10^12, GB 10^9 and"
        " MB 10^6 bytes"
    )


def _notes(samples: Sequence[Sample], devices: Sequence[Device], bounds: Bounds) -> Iterator[str]:
    if not samples:
        yield _ASK
    few = sorted({each.last.group.gpu_type for each in devices if each.verdict == FEW})
    if few:
        yield (
            f"too few to say what is slow: fewer than {bounds.devices} devices of"
            f" {join_names([_device_words(name) for name in few])} were measured in the same way"
        )


def _device_words(gpu_type: str) -> str:
    return "nodes without GPUs" if gpu_type == NO_GPU_NAME else gpu_type


def _panels(
    by: str,
    samples: Sequence[Sample],
    devices: Sequence[Device],
    question: Question,
    rates: Rates,
) -> Iterator[Panel]:
    measured = {each.group.benchmark for each in samples if each.value is not None}
    shown = [name for name in _FOR_CHARTS if name in measured] or sorted(measured)
    if not shown:
        return
    name = shown[0]
    if by == "gpu_type":
        yield from _type_panels(name, _type_rows(devices, question, rates), rates)
    elif by in {"gpu", "node"}:
        yield from _slowest_panel(devices)
    yield from _trend_panels(name, samples, question, "month" if by == "month" else "day")


def _type_panels(name: str, rows: Sequence[Mapping[str, Any]], rates: Rates) -> Iterator[Panel]:
    own = [row for row in rows if row["benchmark"] == name and row["median"] is not None]
    unit = own[0]["unit"]
    labels = tuple(row["gpu_type"] for row in own)
    values = tuple(row["median"] for row in own)
    yield Panel("bars", f"{name} by GPU type", unit, labels, (Series(unit, values),), "Medians.")
    priced = [row for row in own if row["per_price"] is not None]
    priced.sort(key=lambda row: -row["per_price"])
    if priced:
        labels = tuple(row["gpu_type"] for row in priced)
        values = tuple(row["per_price"] for row in priced)
        per = f"{unit} per {rates.currency}"
        note = "Median divided by the price of a GPU-hour here. More is better."
        yield Panel("bars", f"{name} for the money", per, labels, (Series(per, values),), note)


def _slowest_panel(devices: Sequence[Device]) -> Iterator[Panel]:
    known = [device for device in devices if device.of_median is not None]
    known.sort(key=lambda device: device.of_median or 0.0)
    bars: dict[str, float] = {}
    for device in known:
        last = device.last
        bars.setdefault(f"{last.node} {last.group.benchmark}", 100 * (device.of_median or 0.0))
    shown = list(bars.items())[:_MOST_BARS]
    series = (Series("percent", tuple(value for _, value in shown)),)
    note = "Last value of the node's slowest GPU, in percent of the median of its type."
    yield Panel(
        "bars", "Slowest nodes", "percent", tuple(label for label, _ in shown), series, note
    )


def _trend_panels(
    name: str, samples: Sequence[Sample], question: Question, by: str
) -> Iterator[Panel]:
    own = [each for each in samples if each.group.benchmark == name and each.value is not None]
    periods = sorted({_period(by, each.at, question) for each in own})
    if len(periods) < 2:
        return
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in own:
        if each.value is not None:
            values[each.group.gpu_type][_period(by, each.at, question)].append(each.value)
    series = tuple(
        Series(
            kind,
            tuple(median(found[each]) if found.get(each) else None for each in periods),
        )
        for kind, found in sorted(values.items())
    )
    unit = own[0].group.unit
    note = "Median of each period. Periods without a measurement are left out."
    yield Panel("lines", f"{name} over time", unit, tuple(periods), series, note)
