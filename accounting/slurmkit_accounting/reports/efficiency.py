"""`report efficiency`: resources held but not used, and the request that would have fitted."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, func, literal_column, select

from slurmkit.formats.display import format_number
from slurmkit.formats.durations import format_duration
from slurmkit.formats.memory import memory_option
from slurmkit.state.gpu_metrics import IDLE_BELOW
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.gpu_use import gpu_use
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.ledger.schema.usage import HOUR
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.reports.model import Column, Meta, Panel, Report, sum_columns
from slurmkit_accounting.reports.panels import MeasuredGpuHours, bars_panel, used_panel
from slurmkit_accounting.reports.selection import RunSelection, runs_measured_within
from slurmkit_accounting.usage.bins import parse_alloc_tres

DEFAULT_BY = ("user", "partition")
COLUMNS = (
    Column("asked"),
    Column("jobs", "count", adds_up=True),
    Column("gpu_hours", "hours", adds_up=True),
    Column("gpu_hours_wasted", "hours", adds_up=True),
    Column("gpu_efficiency", "share"),
    Column("cpu_hours_wasted", "hours", adds_up=True),
    Column("cpu_efficiency", "share"),
    Column("memory_gib_hours_wasted", "hours", adds_up=True),
    Column("memory_efficiency", "share"),
    Column("gpu_hours_idle", "hours", adds_up=True),
    Column("gpu_hours_smaller", "hours", adds_up=True),
    Column("gpu_memory_gib", "number"),
    Column("smaller_gpu"),
    Column("would_have_fitted"),
)
_SMALLER = 0.9  # of a GPU's memory; types with more are not called smaller
_MOST_NAMED, _MOST_IN_TEXT = 12, 5  # names in a chart, and in a sentence
_LATELY = 20_000  # summaries from which the memory of GPU types is read
HEADROOM = 1.2  # factor for memory, CPUs and time over the largest use of any run
_DEFINITIONS = (
    "efficiency: only of runs that ended in the window and whose steps were measured",
    (
        "would_have_fitted: for CPUs, memory and time the largest use of any of these runs and"
        f" {HEADROOM - 1:.0%} more, with one task per node; for GPUs their utilization, but not"
        " their memory"
    ),
    (
        f"gpu_hours_idle: the time in which a GPU's utilization was below {IDLE_BELOW:g} %, of runs"
        " whose GPUs were measured one by one"
    ),
    (
        "gpu_hours_smaller: of the runs whose memory on each GPU, and"
        f" {HEADROOM - 1:.0%} more, would have fitted on a GPU type with less memory"
    ),
    (
        "smaller_gpu: the GPU type with the least memory, of those measured here, that holds"
        f" gpu_memory_gib, the most of any of these runs on one GPU, and {HEADROOM - 1:.0%} more;"
        " it may be slower"
    ),
)
_HELD_COLUMNS = tuple(
    runs.c[name] for name in ("nodes", "cpus", "gpus", "time_limit", "alloc_tres")
)


class HeldResources(msgspec.Struct, frozen=True):
    """What a run held. Runs that held the same are summed together.

    Attributes:
        gpu_type: empty without GPUs, for untyped GPUs, and for GPUs of several types.
    """

    nodes: int
    cpus: int
    gpus: int
    mem_mib: int
    time_limit: str
    gpu_type: str = ""


class ResourceUse(msgspec.Struct):
    """Measured use of the runs of one shape: sums and maxima.

    Attributes:
        jobs: number of runs.
        seconds: run time of all runs.
        cpu_seconds: run time of the runs whose CPU use was measured.
        mem_seconds: run time of the runs whose memory use was measured.
        gpu_seconds: run time of the runs whose GPU use was measured.
        cpu_ms: CPU time used, milliseconds.
        mem: peak memory times run time, MiB-seconds.
        gpu: GPU utilization (1/1000 of the run's GPUs) times run time, seconds.
        most_cpus: most CPUs that a run kept busy on average.
        most_mem: highest peak memory of a run, MiB.
        most_gpu: highest GPU utilization of a run, 1/1000 of its GPUs.
        longest: longest run time, seconds.
        idle: GPU-seconds in which GPUs were idle.
        idle_known: number of runs for which `idle` is known.
        most_gpu_mem: most memory in use on a GPU, MiB.
        gpu_mem_known: number of runs for which that is known.
        fitting: run time of the runs that would have fitted on a GPU of some memory sizes.
    """

    jobs: int = 0
    seconds: int = 0
    cpu_seconds: int = 0
    mem_seconds: int = 0
    gpu_seconds: int = 0
    cpu_ms: float = 0
    mem: float = 0
    gpu: float = 0
    most_cpus: float = 0
    most_mem: int = 0
    most_gpu: int = 0
    longest: int = 0
    idle: int = 0
    idle_known: int = 0
    most_gpu_mem: int = 0
    gpu_mem_known: int = 0
    fitting: tuple[int, ...] = ()

    def add(self, other: ResourceUse) -> None:
        """Add the use of other runs, for the same memory sizes."""
        fitting = zip_longest(self.fitting, other.fitting, fillvalue=0)
        self.fitting = tuple(own + more for own, more in fitting)
        for name in _SQL_OF_FIELD:
            combine = max if name in _MAXIMA else operator.add
            setattr(self, name, combine(getattr(self, name), getattr(other, name)))


_MAXIMA = frozenset(("most_cpus", "most_mem", "most_gpu", "longest", "most_gpu_mem"))
# The fields of `ResourceUse`. Large products are summed as floating point, to avoid an overflow.
_RUN_SECONDS = '("end" - start)'
_SQL_OF_FIELD = {
    "jobs": "count(*)",
    "seconds": f"sum({_RUN_SECONDS})",
    "cpu_seconds": f"sum(CASE WHEN cpu_used_ms IS NOT NULL THEN {_RUN_SECONDS} END)",
    "mem_seconds": f"sum(CASE WHEN mem_peak_mib IS NOT NULL THEN {_RUN_SECONDS} END)",
    "gpu_seconds": f"sum(CASE WHEN gpu_used_permille IS NOT NULL THEN {_RUN_SECONDS} END)",
    "cpu_ms": f"sum(CASE WHEN {_RUN_SECONDS} > 0 THEN CAST(cpu_used_ms AS FLOAT) END)",
    "mem": f"sum(CAST(mem_peak_mib AS FLOAT) * {_RUN_SECONDS})",
    "gpu": f"sum(CAST(gpu_used_permille AS FLOAT) * {_RUN_SECONDS})",
    "most_cpus": (
        f"max(CASE WHEN {_RUN_SECONDS} > 0"
        f" THEN CAST(cpu_used_ms AS FLOAT) / ({_RUN_SECONDS} * 1000) END)"
    ),
    "most_mem": "max(mem_peak_mib)",
    "most_gpu": "max(gpu_used_permille)",
    "longest": f"max({_RUN_SECONDS})",
    "idle": "sum(gpu_idle_seconds)",
    "idle_known": "count(gpu_idle_seconds)",
    "most_gpu_mem": "max(gpu_mem_peak_mib)",
    "gpu_mem_known": "count(gpu_mem_peak_mib)",
}


def _aggregate(name: str, sql: str) -> ColumnElement[Any]:
    # Without the cast, PostgreSQL sums into `numeric`, which Python gets as slow Decimals.
    whole = name.endswith("seconds") or name == "idle"
    return literal_column(f"CAST({sql} AS BIGINT)" if whole else sql).label(name)


_AGGREGATES = [_aggregate(name, sql) for name, sql in _SQL_OF_FIELD.items()]


def efficiency_report(ledger: Ledger, question: Question, by: Sequence[str] = DEFAULT_BY) -> Report:
    """Report wasted resources of the runs that ended in the window, most wasted first.

    Args:
        ledger: open for reading.
        question: window, filters and scope.
        by: dimensions, but none of time.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    names = list(by)
    uses: dict[tuple[tuple[str, ...], HeldResources], ResourceUse] = {}
    with ledger.transaction() as connection:
        selection = RunSelection(connection, question)
        where = runs_measured_within(question.window)
        memory = _memory_by_gpu_type(connection)
        aggregates = [*_AGGREGATES, *map(_fitting, _sizes(memory))]
        for labels, values in selection.sums_by(names, _HELD_COLUMNS, aggregates, *where):
            nodes, cpus, gpus, limit, tres = values[: len(_HELD_COLUMNS)]
            held = parse_alloc_tres(tres)
            gpu_type = held.gpus[0][0] if len(held.gpus) == 1 else ""
            shape = HeldResources(nodes, cpus, gpus, held.mem_mib, limit, gpu_type)
            sums: list[Any] = [value or 0 for value in values[len(_HELD_COLUMNS) :]]
            use = ResourceUse(*sums[: len(_AGGREGATES)])
            use.fitting = tuple(sums[len(_AGGREGATES) :])
            uses.setdefault((labels, shape), ResourceUse()).add(use)
        rows = [
            {**dict(zip(names, labels, strict=True)), **_row(shape, use, memory)}
            for (labels, shape), use in uses.items()
        ]
        meta = Meta(
            report="efficiency",
            by=tuple(names),
            filters=question.filters,
            job=question.job,
            runs=sum(use.jobs for use in uses.values()),
            total=sum_columns(COLUMNS, rows),
            definitions=_DEFINITIONS,
            notes=tuple(_notes(rows, names)) if rows else selection.unknown_names(),
            **provenance.ledger_fields(ledger, connection, question.now, question.scope),
            **provenance.window_fields(connection, question.window, question.zone, question.now),
        )
    rows.sort(key=lambda row: _rank(row, names))
    columns = (*map(Column, names), *COLUMNS)
    return Report(meta, columns, tuple(rows), tuple(_panels(uses, rows, names)))


def _panels(
    uses: Mapping[tuple[tuple[str, ...], HeldResources], ResourceUse],
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
) -> Iterator[Panel]:
    hours: dict[str, MeasuredGpuHours] = defaultdict(MeasuredGpuHours)
    for (labels, shape), use in uses.items():
        in_hours = shape.gpus / HOUR
        one = MeasuredGpuHours(
            use.seconds * in_hours, use.gpu_seconds * in_hours, use.gpu / 1000 * in_hours
        )
        hours[" ".join(labels)] = hours[" ".join(labels)].plus(one)
    yield from used_panel("GPU-hours held and used", hours)
    if idle := _sum_by_name(rows, names, "gpu_hours_idle"):
        named = {name: idle[name] for name in list(idle)[:_MOST_NAMED]}
        note = f"Utilization below {IDLE_BELOW:g} %, of runs whose GPUs were measured one by one."
        yield bars_panel("GPU-hours in which GPUs did nothing", "GPU-hours", named, note)


def _notes(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Say who held GPUs that did nothing, and who could have had a smaller one."""
    if idle := _sum_by_name(rows, names, "gpu_hours_idle"):
        yield f"GPU-hours in which GPUs did nothing: {_largest(idle)}"
    if smaller := _sum_by_name(rows, names, "gpu_hours_smaller"):
        yield f"GPU-hours of runs that GPUs with less memory would have held: {_largest(smaller)}"


def _sum_by_name(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], column: str
) -> dict[str, float]:
    """Return the sums of a column, by the names of the rows; most first, and none of 0."""
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[" ".join(row[name] for name in names)] += row[column] or 0
    in_order = sorted(sums, key=lambda name: (-sums[name], name))
    return {name: sums[name] for name in in_order if sums[name] > 0}


def _largest(hours: Mapping[str, float]) -> str:
    """Name those with most hours: `alice 120.5, bob 30.12, 3 others <0.01`."""
    listed = list(hours.items())
    rest = listed[_MOST_IN_TEXT:]
    others = [(f"{len(rest)} others", sum(each for _, each in rest))] if rest else []
    return ", ".join(
        f"{name} {format_number(each)}" for name, each in (*listed[:_MOST_IN_TEXT], *others)
    )


def _rank(row: Mapping[str, Any], names: Sequence[str]) -> tuple[object, ...]:
    """Return the sort key of a row: most wasted first, equal ones in the order of their names."""
    wasted = (row["gpu_hours_wasted"] or 0, row["cpu_hours_wasted"] or 0)
    return (*(-hours for hours in wasted), *(row[n] for n in (*names, "asked", "jobs")))


def _memory_by_gpu_type(connection: Connection) -> dict[str, int]:
    """Return the MiB of the GPU types that were measured lately, by type."""
    newest = select(func.max(gpu_use.c.id)).scalar_subquery()
    query = (
        select(runs.c.alloc_tres, func.max(gpu_use.c.memory_total_mib))
        .join_from(gpu_use, runs, gpu_use.c.run_id == runs.c.id)
        .where(gpu_use.c.id > newest - _LATELY, gpu_use.c.memory_total_mib.is_not(None))
        .group_by(runs.c.alloc_tres)
    )
    found: dict[str, int] = {}
    for tres, mebibytes in connection.execute(query):
        gpus = parse_alloc_tres(tres).gpus
        if len(gpus) == 1 and gpus[0][0]:
            found[gpus[0][0]] = max(mebibytes, found.get(gpus[0][0], 0))
    return found


def _sizes(memory: Mapping[str, int]) -> list[int]:
    """Return the memory sizes of GPU types, in MiB."""
    return sorted(set(memory.values()))


def _fitting(mebibytes: int) -> ColumnElement[Any]:
    """Return the run time of the runs that would have fitted on a GPU of this memory."""
    most = int(mebibytes / HEADROOM)
    fits = f"CASE WHEN gpu_mem_peak_mib <= {most} THEN {_RUN_SECONDS} END"
    return literal_column(f"CAST(sum({fits}) AS BIGINT)").label(f"fitting_{mebibytes}")


def _hours_that_fit_smaller(
    shape: HeldResources, use: ResourceUse, memory: Mapping[str, int]
) -> float | None:
    """Return the GPU-hours of runs that a type with less memory would have held; None: unknown."""
    own = memory.get(shape.gpu_type)
    if own is None or not use.gpu_mem_known:
        return None
    smaller = [
        seconds
        for size, seconds in zip(_sizes(memory), use.fitting, strict=True)
        if size < own * _SMALLER
    ]
    return shape.gpus * (smaller[-1] if smaller else 0) / HOUR


def _smaller_gpu(shape: HeldResources, use: ResourceUse, memory: Mapping[str, int]) -> str | None:
    """Return the GPU type with the least memory that would do; empty if none does.

    None is unknown: the memory of the type that was held, or of a run, was not measured.
    """
    own = memory.get(shape.gpu_type)
    if own is None or use.gpu_mem_known < use.jobs:
        return None
    wanted = use.most_gpu_mem * HEADROOM
    fitting = [(size, name) for name, size in memory.items() if wanted <= size < own * _SMALLER]
    return min(fitting, default=(0, ""))[1]


def _row(shape: HeldResources, use: ResourceUse, memory: Mapping[str, int]) -> dict[str, Any]:
    gpu, gpu_held = use.gpu / 1000 * shape.gpus, use.gpu_seconds * shape.gpus
    cpu, cpu_held = use.cpu_ms / 1000, use.cpu_seconds * shape.cpus
    mem = use.mem / 1024 if shape.mem_mib else 0.0
    mem_held = use.mem_seconds * shape.mem_mib / 1024
    return {
        "asked": " ".join(held_request(shape)),
        "jobs": use.jobs,
        "gpu_hours": shape.gpus * use.seconds / HOUR,
        "gpu_hours_wasted": _wasted_hours(gpu, gpu_held) if shape.gpus else 0.0,
        "gpu_efficiency": gpu / gpu_held if gpu_held else None,
        "cpu_hours_wasted": _wasted_hours(cpu, cpu_held),
        "cpu_efficiency": cpu / cpu_held if cpu_held else None,
        "memory_gib_hours_wasted": _wasted_hours(mem, mem_held),
        "memory_efficiency": mem / mem_held if mem_held else None,
        "gpu_hours_idle": use.idle / HOUR if use.idle_known else None,
        "gpu_hours_smaller": _hours_that_fit_smaller(shape, use, memory),
        "gpu_memory_gib": use.most_gpu_mem / 1024 if use.gpu_mem_known else None,
        "smaller_gpu": _smaller_gpu(shape, use, memory),
        "would_have_fitted": " ".join(smaller_request(shape, use)) or "the same request",
    }


def _wasted_hours(used: float, held: float) -> float | None:
    return max(held - used, 0.0) / HOUR if held else None


def smaller_request(shape: HeldResources, use: ResourceUse) -> Iterator[str]:
    """Yield the options, per node, of the smallest request that would have fitted every run."""
    nodes = max(shape.nodes, 1)
    if use.cpu_seconds and shape.cpus:
        cpus = max(math.ceil(use.most_cpus * HEADROOM / nodes), 1)
        if cpus * nodes < shape.cpus:
            yield f"--cpus-per-task={cpus}"
    if use.mem_seconds and shape.mem_mib:
        mem = _round_up_mib(use.most_mem * HEADROOM / nodes)
        if mem < shape.mem_mib / nodes:
            yield f"--mem={memory_option(mem)}"
    if use.gpu_seconds and shape.gpus:
        gpus = max(math.ceil(use.most_gpu / 1000 * shape.gpus / nodes), 1)
        if gpus * nodes < shape.gpus:
            yield f"--gpus-per-node={gpus}"
    if shape.time_limit.isdecimal():
        minutes = max(math.ceil(use.longest * HEADROOM / 60), 1)
        if minutes < int(shape.time_limit):
            yield f"--time={format_duration(minutes * 60)}"


def _round_up_mib(mebibytes: float) -> int:
    """Round up to full GiB, or below 1 GiB to eighths of a GiB; in MiB."""
    step = 1024 if mebibytes > 1024 else 128
    return max(math.ceil(mebibytes / step), 1) * step


def held_request(shape: HeldResources) -> Iterator[str]:
    """Yield the sbatch options, per node, that match what a run held."""
    nodes = max(shape.nodes, 1)
    if nodes > 1:
        yield f"--nodes={nodes}"
    yield f"--cpus-per-task={math.ceil(shape.cpus / nodes)}"
    if shape.gpus:
        yield f"--gpus-per-node={math.ceil(shape.gpus / nodes)}"
    if shape.mem_mib:
        yield f"--mem={memory_option(math.ceil(shape.mem_mib / nodes))}"
    limit = shape.time_limit
    yield f"--time={format_duration(int(limit) * 60) if limit.isdecimal() else limit or '?'}"
