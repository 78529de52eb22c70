"""What the GPUs of a job did: one record for each run, one line and one curve for each GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from slurmkit.errors import BadInput
from slurmkit.state.gpu_use import GpuUseOfGpu, GpuUseOfRun
from slurmkit_accounting.gpu_use.store import RunTimes, find_run, load_uses
from slurmkit_accounting.gpu_use.summaries import GpuUse, best_source
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import clusters, runs
from slurmkit_accounting.reports.dimensions import Dimensions
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.reports.selection import usage_keys_of
from slurmkit_accounting.usage.partial import is_of_job
from slurmkit_accounting.usage.tables import load_eras

MOST_RUNS = 100
MOST_CURVES = 64


def load_gpu_use(
    ledger: Ledger, job: str, *, cluster: str | None = None, scope: Scope = EVERYTHING
) -> tuple[GpuUseOfRun, ...]:
    """Load what the GPUs of a job did, for each of its runs that held GPUs, oldest first.

    While a run goes on, it ends for this purpose at its last sample.

    Args:
        ledger: open for reading.
        job: job ids as in `is_of_job`.
        cluster: only runs on this cluster.
        scope: whose runs the reader may see.

    Raises:
        BadInput: when the ledger has no run of the job that the reader may see, or too many.
        LedgerError: when the ledger cannot be read.
    """
    with ledger.transaction() as connection:
        rows = load_shown_runs(connection, is_of_job(job), cluster, scope)
        if not rows:
            raise BadInput(f"the ledger has no run of job {job} that you may see")
        with_gpus = [row for row in rows if row.start is not None and "gres/" in row.alloc_tres]
        if len(with_gpus) > MOST_RUNS:
            raise BadInput(
                f"job {job} has {len(with_gpus):,} runs with GPUs; ask for at most {MOST_RUNS} of"
                " them, e.g. for one task of the array"
            )
        uses = _uses_by_run(connection, with_gpus)
        found = connection.execute(select(clusters.c.id, clusters.c.name))
        names: dict[int, str] = {row.id: row.name for row in found}
    count = sum(map(len, uses.values()))
    return tuple(
        GpuUseOfRun(
            cluster=names[row.cluster_id],
            job_id=row.job_id,
            job_id_raw=row.job_id_raw,
            user=row.user,
            start=row.start,
            end=row.end,
            held=row.gpus,
            gpus=tuple(_gpu(use, row, curves=count <= MOST_CURVES) for use in uses[row.id]),
        )
        for row in with_gpus
    )


def load_shown_runs(
    connection: Connection, where: ColumnElement[bool], cluster: str | None, scope: Scope
) -> Sequence[Any]:
    """Load the runs that meet a condition and that the reader may see, oldest first."""
    query = select(runs).where(where, runs.c.retracted.is_(None))
    if cluster is not None:
        query = query.join(clusters).where(clusters.c.name == cluster)
    dimensions, known_eras = Dimensions(connection, Rates()), load_eras(connection)
    return [
        row
        for row in connection.execute(query.order_by(runs.c.start, runs.c.id))
        if any(dimensions.shown(key, scope) for key in usage_keys_of(row, known_eras))
    ]


def _uses_by_run(connection: Connection, rows: Sequence[Any]) -> dict[int, list[GpuUse]]:
    """Return the summaries of runs by row id; of several sources the one that counts."""
    found: dict[int, list[GpuUse]] = defaultdict(list)
    for use in load_uses(connection, run_ids=[row.id for row in rows]):
        found[use.run_id or 0].append(use)
    known: dict[tuple[int, int], list[RunTimes]] = defaultdict(list)
    for row in rows:
        known[row.cluster_id, row.job_id_raw].append(RunTimes(row.id, row.start, row.end))
    for use in load_uses(connection, job_ids={row.job_id_raw for row in rows}):
        run = find_run(use.start, use.first, known[use.cluster_id, use.job])
        if run is not None:
            if run.end is not None:  # its end came just now
                use.finish(float(run.end))
            found[run.id].append(use)
    return defaultdict(list, {run_id: best_source(uses) for run_id, uses in found.items()})


def _gpu(use: GpuUse, run: Any, *, curves: bool) -> GpuUseOfGpu:
    until = use.last if run.end is None else float(run.end)
    curve = use.curve if curves else None
    return GpuUseOfGpu(
        node=use.node,
        gpu=use.gpu.key,
        index=use.gpu.index,
        mig=use.gpu.mig,
        shared=use.shared,
        source=use.source,
        utilization=use.mean,
        percentile_95=use.percentile_95,
        idle_share=use.idle_share,
        idle=use.is_idle,
        memory_mib=use.memory_mib,
        memory_total_mib=use.memory_total_mib,
        joules=use.joules,
        energy_by=use.energy_by,
        energy_seconds=use.energy_seconds,
        samples=use.samples,
        covered=use.covered_share(until or float(run.start), run.start),
        last=use.last,
        points=() if curve is None else tuple(curve.points()),
        step=0 if curve is None else curve.step,
    )
