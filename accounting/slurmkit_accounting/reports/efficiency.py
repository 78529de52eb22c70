"""`report efficiency`: what was held and not used, and the request that would have fitted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from slurmkit.durations import format_duration
from slurmkit_accounting.bins import read_tres
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.reports.model import Column, Meta, Report
from slurmkit_accounting.reports.selected import Selection, ended_within
from slurmkit_accounting.schema import HOUR

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
_MEASURED = ("cpu_used_ms", "mem_peak_mib", "gpu_used_permille")
_READ = ("start", "end", "nodes", "cpus", "gpus", "time_limit", "suspended", *_MEASURED)


class Shape(msgspec.Struct, frozen=True):
    """What a run held; runs of the same are looked at together."""

    nodes: int
    cpus: int
    gpus: int
    mem_mib: int
    time_limit: str


class Use(msgspec.Struct):
    """What runs of one shape used, all together and at most."""

    jobs: int = 0
    seconds: int = 0
    cpu_ms: int = 0
    cpu_held_ms: int = 0
    mem: int = 0
    mem_held: int = 0
    gpu: float = 0
    gpu_held: int = 0
    most_cpus: float = 0
    most_mem: int = 0
    most_gpus: float = 0
    longest: int = 0

    def add(self, row: Any, shape: Shape) -> None:
        """Add one run."""
        length = row.end - row.start
        self.jobs += 1
        self.seconds += length
        self.longest = max(self.longest, length)
        if row.cpu_used_ms is not None and shape.cpus and length:
            self.cpu_ms += row.cpu_used_ms
            self.cpu_held_ms += shape.cpus * length * 1000
            self.most_cpus = max(self.most_cpus, row.cpu_used_ms / (length * 1000))
        if row.mem_peak_mib is not None and shape.mem_mib:
            self.mem += row.mem_peak_mib * length
            self.mem_held += shape.mem_mib * length
            self.most_mem = max(self.most_mem, row.mem_peak_mib)
        if row.gpu_used_permille is not None and shape.gpus:
            busy = row.gpu_used_permille / 1000 * shape.gpus
            self.gpu += busy * length
            self.gpu_held += shape.gpus * length
            self.most_gpus = max(self.most_gpus, busy)


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
        for row, keys in chosen.rows(_READ, *ended_within(question.window)):
            if all(getattr(row, name) is None for name in _MEASURED):
                continue
            mem = read_tres(row.alloc_tres).mem_mib
            shape = Shape(row.nodes, row.cpus, row.gpus, mem, row.time_limit)
            labels = tuple(chosen.dimensions.of(name, keys[0]) for name in names)
            uses.setdefault((labels, shape), Use()).add(row, shape)
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
    measured = use.gpu_held > 0
    return {
        "asked": " ".join(_asked(shape)),
        "jobs": use.jobs,
        "gpu_hours": shape.gpus * use.seconds / HOUR,
        "gpu_hours_wasted": (use.gpu_held - use.gpu) / HOUR if measured else None,
        "gpu_efficiency": use.gpu / use.gpu_held if measured else None,
        "cpu_hours_wasted": _wasted(use.cpu_ms / 1000, use.cpu_held_ms / 1000),
        "cpu_efficiency": use.cpu_ms / use.cpu_held_ms if use.cpu_held_ms else None,
        "memory_gib_hours_wasted": _wasted(use.mem / 1024, use.mem_held / 1024),
        "memory_efficiency": use.mem / use.mem_held if use.mem_held else None,
        "would_have_fitted": " ".join(_fitting(shape, use)) or "what was asked",
    }


def _wasted(used: float, held: float) -> float | None:
    return max(held - used, 0.0) / HOUR if held else None


def _fitting(shape: Shape, use: Use) -> Iterator[str]:
    """Options, per node, of the least request in which every one of the runs would have fitted."""
    nodes = max(shape.nodes, 1)
    if use.cpu_held_ms:
        cpus = max(math.ceil(use.most_cpus * ROOM / nodes), 1)
        if cpus * nodes < shape.cpus:
            yield f"--cpus-per-task={cpus}"
    if use.mem_held:
        mem = math.ceil(use.most_mem * ROOM / nodes / 1024)
        if mem < shape.mem_mib / nodes / 1024:
            yield f"--mem={max(mem, 1)}G"
    if use.gpu_held:
        gpus = max(math.ceil(use.most_gpus / nodes), 1)
        if gpus * nodes < shape.gpus:
            yield f"--gpus-per-node={gpus}"
    if shape.time_limit.isdecimal():
        minutes = max(math.ceil(use.longest * ROOM / 60), 1)
        if minutes < int(shape.time_limit):
            yield f"--time={format_duration(minutes * 60)}"


def _asked(shape: Shape) -> Iterator[str]:
    nodes = max(shape.nodes, 1)
    if nodes > 1:
        yield f"--nodes={nodes}"
    yield f"--cpus-per-task={math.ceil(shape.cpus / nodes)}"
    if shape.gpus:
        yield f"--gpus-per-node={math.ceil(shape.gpus / nodes)}"
    if shape.mem_mib:
        yield f"--mem={shape.mem_mib / nodes / 1024:g}G"
    limit = shape.time_limit
    yield f"--time={format_duration(int(limit) * 60) if limit.isdecimal() else limit or '?'}"


def _notes() -> Iterator[str]:
    yield "efficiency: of the runs that ended in the window and whose steps were measured"
    yield (
        f"would have fitted: the most that any of these runs used and {ROOM - 1:.0%} more; GPUs by"
        " their utilisation, which says nothing of their memory; CPUs as of one task a node"
    )
