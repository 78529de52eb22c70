"""Summaries and curves in the ledger: load, store, link to their runs, delete old curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, case, delete, func, select, text

from slurmkit_accounting.gpu_use.samples import GpuName
from slurmkit_accounting.gpu_use.series import Curve
from slurmkit_accounting.gpu_use.summaries import (
    IDLE_BELOW,
    GpuUse,
    seconds_to_the_end,
    unpack_bins,
)
from slurmkit_accounting.ledger.bulk_write import in_values, replace_rows, update_rows
from slurmkit_accounting.ledger.schema.gpu_use import NOT_LINKED, gpu_curves, gpu_use
from slurmkit_accounting.ledger.schema.runs import runs

_NUMBERS = (
    "shared", "samples", "covered", "busy_samples", "busy_covered", "busy", "idle_samples",
    "memory_mib", "memory_total_mib", "counted_joules", "counted_seconds", "edge_joules",
    "edge_seconds", "power_joules", "power_seconds", "first", "last", "counter_at", "counter",
    "last_watts",
)  # fmt: skip
_COLUMNS = (
    "id", "cluster_id", "job_id_raw", "start", "node", "gpu", "uuid", "pci", "index", "mig",
    "source", "interval", "percentile_95", "bins", *_NUMBERS,
)  # fmt: skip
# What the time from the last sample to the end of the run adds to.
_ENERGIES = ("edge_joules", "edge_seconds", "power_joules", "power_seconds")
_CURVE_COLUMNS = ("use_id", "begin", "step", "last", "points")
_QUICK, _SMALL = 1, 9  # levels of zlib


class _EndedRun(NamedTuple):
    id: int
    start: int
    end: int


class MeasuredGpus(NamedTuple):
    """What the samples of a run's GPUs say together.

    Attributes:
        busy_seconds: GPU-seconds that samples of utilisation cover.
        mean: mean utilisation in that time, 0 to 1.
        joules: energy of the GPUs.
        energy_seconds: GPU-seconds that the energy covers.
        memory_mib: most memory in use on any GPU; None if unknown.
        gpus: number of GPUs.
        idle_seconds: GPU-seconds of `busy_seconds` on GPUs that did nothing.
    """

    busy_seconds: float
    mean: float
    joules: float
    energy_seconds: float
    memory_mib: int | None
    gpus: int
    idle_seconds: float


def store_uses(
    connection: Connection,
    uses: Sequence[GpuUse],
    *,
    run_id: int | None = None,
    final: bool = False,
) -> None:
    """Store summaries and curves as they are now; new ones get their row ids.

    Args:
        connection: to the ledger.
        uses: one for each run, node, GPU and source.
        run_id: row id of their run; None if it has not ended, or is as stored.
        final: whether no more samples will come, so that curves are packed as small as possible.
    """
    new = [use for use in uses if use.id is None]
    if new:
        last = connection.scalar(select(func.max(gpu_use.c.id))) or 0
        for number, use in enumerate(new, start=last + 1):
            use.id = number
    replace_rows(connection, gpu_use, _COLUMNS, list(map(_row, uses)))
    if run_id is not None:
        update_rows(connection, gpu_use, ("id", "run_id"), [(use.id, run_id) for use in uses])
    if new and connection.dialect.name == "postgresql":
        connection.execute(
            text(
                "SELECT setval(pg_get_serial_sequence('gpu_use', 'id'),"
                " (SELECT max(id) FROM gpu_use))"
            )
        )
    curves = [
        (use.id, use.curve.begin, use.curve.step, int(use.last or use.start), packed)
        for use in uses
        if use.curve is not None
        for packed in [use.curve.pack(_SMALL if final else _QUICK)]
    ]
    replace_rows(connection, gpu_curves, _CURVE_COLUMNS, curves)


def _row(use: GpuUse) -> tuple[Any, ...]:
    gpu = use.gpu
    return (
        use.id, use.cluster_id, use.job, use.start, use.node, gpu.key, gpu.uuid, gpu.pci, gpu.index,
        gpu.mig, use.source, use.interval, use.percentile_95, use.pack_bins(),
        *(getattr(use, name) for name in _NUMBERS),
    )  # fmt: skip


def load_uses(
    connection: Connection,
    *,
    run_ids: Collection[int] | None = None,
    job_ids: Collection[int] | None = None,
    curves: bool = True,
) -> list[GpuUse]:
    """Load summaries: of some runs, or those of some jobs whose runs have not ended yet.

    Args:
        connection: to the ledger.
        run_ids: row ids of runs.
        job_ids: Slurm's own job ids, for summaries that are not linked to a run yet.
        curves: whether to load the curves too.
    """
    query = select(*(gpu_use.c[name] for name in _COLUMNS))
    if run_ids is not None:
        query = query.where(in_values(connection, gpu_use.c.run_id, run_ids))
    if job_ids is not None:
        query = query.where(text(NOT_LINKED), in_values(connection, gpu_use.c.job_id_raw, job_ids))
    order = (gpu_use.c.start, gpu_use.c.node, gpu_use.c.index, gpu_use.c.gpu)
    uses = [_use(row) for row in connection.execute(query.order_by(*order))]
    if curves and uses:
        _load_curves(connection, uses)
    return uses


def load_linked_keys(
    connection: Connection, cluster: int, source: str, job_ids: Collection[int]
) -> set[tuple[int, int, str, str]]:
    """Return job, start, node and GPU of a source's summaries whose runs have ended."""
    columns = (gpu_use.c.job_id_raw, gpu_use.c.start, gpu_use.c.node, gpu_use.c.gpu)
    query = select(*columns).where(
        gpu_use.c.cluster_id == cluster,
        gpu_use.c.source == source,
        gpu_use.c.run_id.is_not(None),
        in_values(connection, gpu_use.c.job_id_raw, job_ids),
    )
    return set(map(tuple, connection.execute(query)))


def _use(row: Any) -> GpuUse:
    return GpuUse(
        id=row.id,
        cluster_id=row.cluster_id,
        job=row.job_id_raw,
        start=row.start,
        node=row.node,
        gpu=GpuName(row.uuid, row.pci, row.index, row.mig),
        source=row.source,
        interval=row.interval,
        bins=unpack_bins(row.bins),
        **{name: getattr(row, name) for name in _NUMBERS},
    )


def _load_curves(connection: Connection, uses: Sequence[GpuUse]) -> None:
    by_id = {use.id: use for use in uses}
    known = in_values(connection, gpu_curves.c.use_id, [use.id for use in uses if use.id])
    for number, begin, step, _, points in connection.execute(select(gpu_curves).where(known)):
        by_id[number].curve = Curve.unpack(begin, step, points)


def link_ended_runs(connection: Connection) -> list[int]:
    """Link summaries to their runs, once the ledger has the end of the run.

    A run is found by its job id and start; without one, it is the one that ran at the time of the
    first sample.

    Returns:
        Row ids of the runs that got summaries.
    """
    names = ("id", "cluster_id", "job_id_raw", "start", "first", "last", "interval", "last_watts")
    columns = [gpu_use.c[name] for name in (*names, *_ENERGIES)]
    waiting = connection.execute(select(*columns).where(text(NOT_LINKED))).all()
    if not waiting:
        return []
    clusters = {row.cluster_id for row in waiting}
    found = _ended_runs(connection, clusters, {row.job_id_raw for row in waiting})
    linked = [
        (row.id, run.id, *_energies_to_the_end(row, run.end))
        for row in waiting
        for run in [_run_of(row, found[row.cluster_id, row.job_id_raw])]
        if run is not None
    ]
    update_rows(connection, gpu_use, ("id", "run_id", *_ENERGIES), linked)
    _make_curves_small(connection, [number for number, *_ in linked])
    return sorted({run_id for _, run_id, *_ in linked})


def _energies_to_the_end(row: Any, end: int) -> tuple[float | None, ...]:
    """Return the values of `_ENERGIES` with the time from the last sample to the end of the run."""
    energies = tuple(getattr(row, name) for name in _ENERGIES)
    if row.last is None or row.last_watts is None:
        return energies
    seconds = seconds_to_the_end(row.last, end, row.interval)
    joules = row.last_watts * seconds
    return tuple(
        (value or 0.0) + (joules if name.endswith("joules") else seconds)
        for name, value in zip(_ENERGIES, energies, strict=True)
    )


def _ended_runs(
    connection: Connection, clusters: Collection[int], job_ids: Collection[int]
) -> dict[tuple[int, int], list[_EndedRun]]:
    """Return the ended runs of some jobs, by cluster and job id."""
    query = select(runs.c.cluster_id, runs.c.job_id_raw, runs.c.id, runs.c.start, runs.c.end).where(
        in_values(connection, runs.c.job_id_raw, job_ids),
        runs.c.cluster_id.in_(clusters),
        runs.c.start.is_not(None),
        runs.c.end.is_not(None),
    )
    found: dict[tuple[int, int], list[_EndedRun]] = defaultdict(list)
    for cluster, job, *run in connection.execute(query):
        found[cluster, job].append(_EndedRun(*run))
    return found


def _run_of(row: Any, known: Sequence[_EndedRun]) -> _EndedRun | None:
    exact = [run for run in known if run.start == row.start]
    if exact:
        return exact[-1]
    at = row.start if row.first is None else row.first
    return next((run for run in known if run.start <= at <= run.end), None)


def _make_curves_small(connection: Connection, numbers: Sequence[int]) -> None:
    """Pack curves that are complete as small as possible."""
    known = in_values(connection, gpu_curves.c.use_id, numbers)
    rows = [
        (number, begin, step, last, Curve.unpack(begin, step, points).pack(_SMALL))
        for number, begin, step, last, points in connection.execute(select(gpu_curves).where(known))
    ]
    replace_rows(connection, gpu_curves, _CURVE_COLUMNS, rows)


def load_measured_gpus(connection: Connection, run_ids: Collection[int]) -> dict[int, MeasuredGpus]:
    """Load what the samples of the GPUs of runs say, by row id of the run.

    Of several sources for a run, the one that covers most counts.
    """
    if not run_ids:
        return {}
    by_counter = gpu_use.c.counted_joules + gpu_use.c.edge_joules
    joules = func.coalesce(by_counter, gpu_use.c.power_joules)
    counted = gpu_use.c.counted_joules.is_not(None)
    known = gpu_use.c.counted_seconds + gpu_use.c.edge_seconds
    seconds = case((counted, known), else_=gpu_use.c.power_seconds)
    mean = gpu_use.c.busy / func.nullif(gpu_use.c.busy_samples, 0)
    query = (
        select(
            gpu_use.c.run_id,
            func.sum(gpu_use.c.busy_covered),
            func.sum(mean * gpu_use.c.busy_covered),
            func.sum(joules),
            func.sum(case((joules.is_not(None), seconds), else_=0)),
            func.max(gpu_use.c.memory_mib),
            func.count(),
            func.sum(case((mean < IDLE_BELOW, gpu_use.c.busy_covered), else_=0)),
        )
        .where(in_values(connection, gpu_use.c.run_id, run_ids))
        .group_by(gpu_use.c.run_id, gpu_use.c.source)
    )
    best: dict[int, MeasuredGpus] = {}
    for run_id, covered, used, energy, energy_seconds, memory, gpus, idle in connection.execute(
        query
    ):
        share = min(used / covered, 1.0) if covered else 0.0
        found = MeasuredGpus(covered, share, energy or 0.0, energy_seconds, memory, gpus, idle)
        if run_id not in best or best[run_id].busy_seconds < covered:
            best[run_id] = found
    return best


def delete_old_curves(connection: Connection, before: int) -> int:
    """Delete the curves whose last sample is older than a time; return their number."""
    return connection.execute(delete(gpu_curves).where(gpu_curves.c.last < before)).rowcount
