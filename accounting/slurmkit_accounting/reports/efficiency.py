"""`report efficiency`: what was held and not used, and the request that would have fitted."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, literal_column, or_

from slurmkit.durations import format_duration
from slurmkit_accounting.bins import read_tres
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.reports.model import Column, Meta, Report
from slurmkit_accounting.reports.selected import Selection, ended_within
from slurmkit_accounting.schema import HOUR, runs

USUAL = ("user", "partition")
COLUMNS = (
    Column("asked"),
    Column("jobs", "count"),
    Column("gpu_hours", "hours"),
    Column("gpu_hours_wasted", "hours"),
    Column("gpu_efficiency", "share"),
    Column("cpu_hours_wasted", "hours"),
    Column("cpu_efficiency", "share"),
    Column("memory_gib_hours_wasted", "hours"),
    Column("memory_efficiency", "share"),
    Column("would_have_fitted"),
)
ROOM = 1.2  # of memory, CPUs and time, over the most that any run needed
_SHAPE = tuple(runs.c[name] for name in ("nodes", "cpus", "gpus", "time_limit", "alloc_tres"))
_MEASURED = [runs.c[name] for name in ("cpu_used_ms", "mem_peak_mib", "gpu_used_permille")]


class Shape(msgspec.Struct, frozen=True):
    """What a run held; runs of the same are looked at together."""

    nodes: int
    cpus: int
    gpus: int
    mem_mib: int
    time_limit: str


class Use(msgspec.Struct):
    """What runs of one shape used, all together and at most.

    Attributes:
        seconds: they lasted; `cpu_seconds`, `mem_seconds` and `gpu_seconds` those in which that
            was measured.
        cpu_ms: CPU-milliseconds; so `mem` MiB-seconds, `gpu` seconds of 1/1000 of the GPUs.
        most_cpus: busy; so `most_mem` MiB, `most_gpu` 1/1000 of the GPUs.
        longest: seconds.
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

    def add(self, other: Use) -> None:
        """Add other runs."""
        for name in self.__struct_fields__:
            there, more = getattr(self, name), getattr(other, name)
            together = max if name in _AT_MOST else operator.add
            setattr(self, name, together(there, more))


_AT_MOST = frozenset(("most_cpus", "most_mem", "most_gpu", "longest"))
# As `Use` has them; what is large is summed as floating point, lest it overflow.
_LASTED = '("end" - start)'
_SUMS = {
    "jobs": "count(*)",
    "seconds": f"sum({_LASTED})",
    "cpu_seconds": f"sum(CASE WHEN cpu_used_ms IS NOT NULL THEN {_LASTED} END)",
    "mem_seconds": f"sum(CASE WHEN mem_peak_mib IS NOT NULL THEN {_LASTED} END)",
    "gpu_seconds": f"sum(CASE WHEN gpu_used_permille IS NOT NULL THEN {_LASTED} END)",
    "cpu_ms": f"sum(CASE WHEN {_LASTED} > 0 THEN CAST(cpu_used_ms AS FLOAT) END)",
    "mem": f"sum(CAST(mem_peak_mib AS FLOAT) * {_LASTED})",
    "gpu": f"sum(CAST(gpu_used_permille AS FLOAT) * {_LASTED})",
    "most_cpus": (
        f"max(CASE WHEN {_LASTED} > 0 THEN CAST(cpu_used_ms AS FLOAT) / ({_LASTED} * 1000) END)"
    ),
    "most_mem": "max(mem_peak_mib)",
    "most_gpu": "max(gpu_used_permille)",
    "longest": f"max({_LASTED})",
}


def _summed(name: str, sql: str) -> ColumnElement[Any]:
    # PostgreSQL adds up into `numeric`, which Python would get as slow Decimals.
    whole = name.endswith("seconds")
    return literal_column(f"CAST({sql} AS BIGINT)" if whole else sql).label(name)


_AGGREGATES = [_summed(name, sql) for name, sql in _SUMS.items()]


def efficiency_report(ledger: Ledger, question: Question, by: Sequence[str] = USUAL) -> Report:
    """Who wastes what: runs that ended in the window, those that wasted most first.

    Args:
        ledger: open for reading.
        question: which window, of whom.
        by: dimensions but those of time.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    names = list(by)
    uses: dict[tuple[tuple[str, ...], Shape], Use] = {}
    with ledger.transaction() as connection:
        chosen = Selection(connection, question)
        measured = or_(*(column.is_not(None) for column in _MEASURED))
        where = (*ended_within(question.window), measured)
        for labels, found in chosen.grouped(names, _SHAPE, _AGGREGATES, *where):
            nodes, cpus, gpus, limit, tres = found[: len(_SHAPE)]
            shape = Shape(nodes, cpus, gpus, read_tres(tres).mem_mib, limit)
            use = Use(*(each or 0 for each in found[len(_SHAPE) :]))
            uses.setdefault((labels, shape), Use()).add(use)
        meta = Meta(
            report="efficiency",
            by=tuple(names),
            filters=question.filters,
            job=question.job,
            runs=sum(use.jobs for use in uses.values()),
            notes=tuple(_notes()),
            **provenance.of_books(ledger, connection, question.now, question.scope),
            **provenance.of_window(connection, question.window, question.zone, question.now),
        )
    rows = [
        {**dict(zip(names, labels, strict=True)), **_values(shape, use)}
        for (labels, shape), use in uses.items()
    ]
    rows.sort(key=lambda row: (-(row["gpu_hours_wasted"] or 0), -(row["cpu_hours_wasted"] or 0)))
    return Report(meta, (*map(Column, names), *COLUMNS), tuple(rows))


def _values(shape: Shape, use: Use) -> dict[str, Any]:
    gpu, gpu_held = use.gpu / 1000 * shape.gpus, use.gpu_seconds * shape.gpus
    cpu, cpu_held = use.cpu_ms / 1000, use.cpu_seconds * shape.cpus
    mem = use.mem / 1024 if shape.mem_mib else 0.0
    mem_held = use.mem_seconds * shape.mem_mib / 1024
    return {
        "asked": " ".join(_asked(shape)),
        "jobs": use.jobs,
        "gpu_hours": shape.gpus * use.seconds / HOUR,
        "gpu_hours_wasted": _wasted(gpu, gpu_held),
        "gpu_efficiency": gpu / gpu_held if gpu_held else None,
        "cpu_hours_wasted": _wasted(cpu, cpu_held),
        "cpu_efficiency": cpu / cpu_held if cpu_held else None,
        "memory_gib_hours_wasted": _wasted(mem, mem_held),
        "memory_efficiency": mem / mem_held if mem_held else None,
        "would_have_fitted": " ".join(_fitting(shape, use)) or "what was asked",
    }


def _wasted(used: float, held: float) -> float | None:
    return max(held - used, 0.0) / HOUR if held else None


def _fitting(shape: Shape, use: Use) -> Iterator[str]:
    """Options, per node, of the least request in which every one of the runs would have fitted."""
    nodes = max(shape.nodes, 1)
    if use.cpu_seconds and shape.cpus:
        cpus = max(math.ceil(use.most_cpus * ROOM / nodes), 1)
        if cpus * nodes < shape.cpus:
            yield f"--cpus-per-task={cpus}"
    if use.mem_seconds and shape.mem_mib:
        mem = _rounded(use.most_mem * ROOM / nodes)
        if mem < shape.mem_mib / nodes:
            yield f"--mem={_memory(mem)}"
    if use.gpu_seconds and shape.gpus:
        gpus = max(math.ceil(use.most_gpu / 1000 * shape.gpus / nodes), 1)
        if gpus * nodes < shape.gpus:
            yield f"--gpus-per-node={gpus}"
    if shape.time_limit.isdecimal():
        minutes = max(math.ceil(use.longest * ROOM / 60), 1)
        if minutes < int(shape.time_limit):
            yield f"--time={format_duration(minutes * 60)}"


def _rounded(mebibytes: float) -> int:
    """Up to full GiB, or eighths of one where that is less."""
    step = 1024 if mebibytes > 1024 else 128
    return max(math.ceil(mebibytes / step), 1) * step


def _memory(mebibytes: float) -> str:
    whole = math.ceil(mebibytes)
    return f"{whole // 1024}G" if whole % 1024 == 0 else f"{whole}M"


def _asked(shape: Shape) -> Iterator[str]:
    nodes = max(shape.nodes, 1)
    if nodes > 1:
        yield f"--nodes={nodes}"
    yield f"--cpus-per-task={math.ceil(shape.cpus / nodes)}"
    if shape.gpus:
        yield f"--gpus-per-node={math.ceil(shape.gpus / nodes)}"
    if shape.mem_mib:
        yield f"--mem={_memory(shape.mem_mib / nodes)}"
    limit = shape.time_limit
    yield f"--time={format_duration(int(limit) * 60) if limit.isdecimal() else limit or '?'}"


def _notes() -> Iterator[str]:
    yield "efficiency: of the runs that ended in the window and whose steps were measured"
    yield (
        f"would have fitted: the most that any of these runs used and {ROOM - 1:.0%} more; GPUs by"
        " their utilisation, which says nothing of their memory; CPUs as of one task a node"
    )
