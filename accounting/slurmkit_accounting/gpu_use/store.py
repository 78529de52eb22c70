"""Summaries and curves in the ledger: load, store, link to their runs, delete old curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, case, delete, distinct, func, select, text, update

from slurmkit_accounting.gpu_use.recent import add_samples
from slurmkit_accounting.gpu_use.samples import GpuName
from slurmkit_accounting.gpu_use.series import Curve
from slurmkit_accounting.gpu_use.summaries import (
    GpuUse,
    source_weight,
    unpack_bins,
)
from slurmkit_accounting.ledger.bulk_write import in_values, replace_rows, update_rows
from slurmkit_accounting.ledger.schema.gpu_use import NOT_LINKED, gpu_curves, gpu_use
from slurmkit_accounting.ledger.schema.runs import runs

_NUMBERS = (
    "shared", "samples", "covered", "measured_samples", "measured_seconds", "utilization_sum",
    "idle_samples", "memory_mib", "memory_total_mib", "counted_joules", "counted_seconds",
    "ends_joules", "ends_seconds", "power_joules", "power_seconds", "first", "last", "counter_at",
    "counter", "last_watts",
)  # fmt: skip
_COLUMNS = (
    "id", "cluster_id", "job_id_raw", "start", "node", "gpu", "uuid", "pci", "index", "mig",
    "source", "interval", "percentile_95", "bins", *_NUMBERS,
)  # fmt: skip
_CURVE_COLUMNS = ("use_id", "begin", "step", "last", "points")
_QUICK, _SMALL = 1, 9  # levels of zlib
_AT_ONCE = 1000  # summaries in memory


class RunTimes(NamedTuple):
    """When a run of a job began and ended.

    Attributes:
        id: row id of the run.
        end: None while it runs.
    """

    id: int
    start: int
    end: int | None


class MeasuredGpus(NamedTuple):
    """What the samples of a run's GPUs say together.

    Attributes:
        measured_seconds: GPU-seconds that samples of utilization cover.
        mean: mean utilization in that time, percent.
        joules: energy of the GPUs.
        energy_seconds: GPU-seconds that the energy covers.
        memory_mib: most memory in use on any GPU; None if unknown.
        gpus: number of GPUs.
        idle_seconds: GPU-seconds of `measured_seconds` in which GPUs were idle.
    """

    measured_seconds: float
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
        uses: one for each run, node, GPU and source; `run_id` of each is stored only by this:
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
    ids: Collection[int] | None = None,
    nodes: Collection[str] | None = None,
    curves: bool = True,
) -> list[GpuUse]:
    """Load summaries: of some runs, or those of some jobs whose runs have not ended yet.

    Those of runs that have not ended are up to date: with the samples that came since they were
    stored.

    Args:
        connection: to the ledger.
        run_ids: row ids of runs.
        job_ids: Slurm's own job ids, for summaries that are not linked to a run yet.
        ids: row ids of summaries that are not linked to a run yet.
        nodes: only of these nodes.
        curves: whether to load the curves too.
    """
    query = select(*(gpu_use.c[name] for name in _COLUMNS), gpu_use.c.run_id)
    if run_ids is not None:
        query = query.where(in_values(connection, gpu_use.c.run_id, run_ids))
    if job_ids is not None:
        query = query.where(text(NOT_LINKED), in_values(connection, gpu_use.c.job_id_raw, job_ids))
    if ids is not None:
        query = query.where(text(NOT_LINKED), in_values(connection, gpu_use.c.id, ids))
    if nodes is not None:
        query = query.where(in_values(connection, gpu_use.c.node, nodes))
    order = (gpu_use.c.start, gpu_use.c.node, gpu_use.c.index, gpu_use.c.gpu)
    uses = [_use(row) for row in connection.execute(query.order_by(*order))]
    if curves and uses:
        _load_curves(connection, uses)
    add_samples(connection, [use for use in uses if use.run_id is None])
    return uses


def update_uses(connection: Connection, ids: Collection[int]) -> None:
    """Add to summaries of runs that have not ended what came since they were stored."""
    numbers = list(ids)
    for first in range(0, len(numbers), _AT_ONCE):
        store_uses(connection, load_uses(connection, ids=numbers[first : first + _AT_ONCE]))


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
        run_id=row.run_id,
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


def load_open_ids(
    connection: Connection, cluster: int, source: str, job_ids: Collection[int]
) -> dict[tuple[int, int, str, str], int]:
    """Return the row ids of a source's summaries whose runs have not ended, by what names them."""
    columns = (gpu_use.c.job_id_raw, gpu_use.c.start, gpu_use.c.node, gpu_use.c.gpu)
    query = select(*columns, gpu_use.c.id).where(
        gpu_use.c.cluster_id == cluster,
        gpu_use.c.source == source,
        text(NOT_LINKED),
        in_values(connection, gpu_use.c.job_id_raw, job_ids),
    )
    return {(job, start, node, gpu): number
            for job, start, node, gpu, number in connection.execute(query)}  # fmt: skip


def raise_interval(connection: Connection, cluster: int, source: str, interval: int) -> None:
    """Let a sample cover so many seconds in a source's summaries whose runs have not ended."""
    connection.execute(
        update(gpu_use)
        .where(
            gpu_use.c.cluster_id == cluster,
            gpu_use.c.source == source,
            gpu_use.c.interval < interval,
            text(NOT_LINKED),
        )
        .values(interval=interval)
    )


def link_ended_runs(connection: Connection) -> list[int]:
    """Link summaries to their runs, once the ledger has the end of the run: see `find_run`.

    Returns:
        Row ids of the runs that got summaries.
    """
    names = ("id", "cluster_id", "job_id_raw", "start", "first")
    query = select(*(gpu_use.c[name] for name in names)).where(text(NOT_LINKED))
    waiting = connection.execute(query).all()
    if not waiting:
        return []
    jobs = {row.job_id_raw for row in waiting}
    found = load_run_times(connection, jobs, runs.c.end.is_not(None))
    run_of = {
        row.id: run
        for row in waiting
        for known in [found[row.cluster_id, row.job_id_raw]]
        for run in [find_run(row.start, row.first, known)]
        if run is not None
    }
    numbers = list(run_of)
    for first in range(0, len(numbers), _AT_ONCE):
        uses = load_uses(connection, ids=numbers[first : first + _AT_ONCE])
        for use in uses:
            use.finish(run_of[use.id or 0].end or 0)
        store_uses(connection, uses, final=True)
        linked = [(use.id, run_of[use.id or 0].id) for use in uses]
        update_rows(connection, gpu_use, ("id", "run_id"), linked)
    return sorted({run.id for run in run_of.values()})


def load_run_times(
    connection: Connection, job_ids: Collection[int], *where: ColumnElement[bool]
) -> dict[tuple[int, int], list[RunTimes]]:
    """Return the runs of some jobs that have begun, by cluster and Slurm's own job id.

    Args:
        connection: to the ledger.
        job_ids: Slurm's own job ids.
        *where: further conditions on the runs.
    """
    query = select(runs.c.cluster_id, runs.c.job_id_raw, runs.c.id, runs.c.start, runs.c.end).where(
        in_values(connection, runs.c.job_id_raw, job_ids), runs.c.start.is_not(None), *where
    )
    found: dict[tuple[int, int], list[RunTimes]] = defaultdict(list)
    for cluster, job, *run in connection.execute(query.order_by(runs.c.start)):
        found[cluster, job].append(RunTimes(*run))
    return found


def find_run(start: int, first: float | None, known: Sequence[RunTimes]) -> RunTimes | None:
    """Return the run that a summary is of; None if it is of none of them.

    squeue and sacct may give a run different starts. So without a run of the same start, it is the
    one that ran at the time of the first sample.

    Args:
        start: the start of the summary's run.
        first: its first sample; None if unknown.
        known: runs of the same job.
    """
    exact = [run for run in known if run.start == start]
    if exact:
        return exact[-1]
    at = start if first is None else first
    return next(
        (run for run in known if run.start <= at and (run.end is None or at <= run.end)), None
    )


def load_measured_gpus(connection: Connection, run_ids: Collection[int]) -> dict[int, MeasuredGpus]:
    """Load what the samples of the GPUs of runs say, by row id of the run.

    One source of each run is used (`source_weight`); for energy, the one that covers the longest
    time.
    """
    if not run_ids:
        return {}
    found: dict[int, list[_OfSource]] = defaultdict(list)
    for run_id, *sums in connection.execute(_sums_by_source(connection, run_ids)):
        found[run_id].append(_OfSource(*sums))
    return {run_id: _join_sources(sources) for run_id, sources in found.items()}


class _OfSource(NamedTuple):
    """The sums of one source's summaries of one run; see `MeasuredGpus`."""

    source: str
    samples: int
    measured_seconds: float
    used_seconds: float | None
    joules: float | None
    energy_seconds: float
    memory_mib: int | None
    gpus: int
    idle_seconds: float


def _sums_by_source(connection: Connection, run_ids: Collection[int]) -> Any:
    by_counter = gpu_use.c.counted_joules + gpu_use.c.ends_joules
    joules = func.coalesce(by_counter, gpu_use.c.power_joules)
    counted = gpu_use.c.counted_joules.is_not(None)
    known = gpu_use.c.counted_seconds + gpu_use.c.ends_seconds
    seconds = case((counted, known), else_=gpu_use.c.power_seconds)
    samples = func.nullif(gpu_use.c.measured_samples, 0)
    mean = gpu_use.c.utilization_sum / samples
    return (
        select(
            gpu_use.c.run_id,
            gpu_use.c.source,
            func.sum(gpu_use.c.samples),
            func.sum(gpu_use.c.measured_seconds),
            func.sum(mean * gpu_use.c.measured_seconds),
            func.sum(joules),
            func.sum(case((joules.is_not(None), seconds), else_=0)),
            func.max(gpu_use.c.memory_mib),
            func.count(distinct(gpu_use.c.node.concat("/").concat(gpu_use.c.gpu))),
            func.coalesce(
                func.sum(gpu_use.c.measured_seconds * gpu_use.c.idle_samples / samples), 0.0
            ),
        )
        .where(in_values(connection, gpu_use.c.run_id, run_ids))
        .group_by(gpu_use.c.run_id, gpu_use.c.source)
    )


def _join_sources(sources: Sequence[_OfSource]) -> MeasuredGpus:
    best = max(
        sources, key=lambda each: source_weight(each.source, each.samples, each.measured_seconds)
    )
    energy = max(sources, key=lambda each: source_weight(each.source, 1, each.energy_seconds))
    covered, used = best.measured_seconds, best.used_seconds or 0.0
    return MeasuredGpus(
        measured_seconds=covered,
        mean=min(used / covered, 100.0) if covered else 0.0,
        joules=energy.joules or 0.0,
        energy_seconds=energy.energy_seconds,
        memory_mib=best.memory_mib,
        gpus=max(best.gpus, energy.gpus),
        idle_seconds=best.idle_seconds,
    )


def delete_old_curves(connection: Connection, before: int) -> int:
    """Delete the curves whose last sample is older than a time; return their number."""
    return connection.execute(delete(gpu_curves).where(gpu_curves.c.last < before)).rowcount
