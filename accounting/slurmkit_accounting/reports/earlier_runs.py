"""One run of a job, with the earlier runs of the same user and job name."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, not_, select

from slurmkit.errors import BadInput
from slurmkit.formats.job_ids import whole_id
from slurmkit.state.gpu_metrics import MeasuredRun, RunBesideEarlier
from slurmkit.state.gpu_use import GpuUseOfRun
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.reports.gpu_use import load_gpu_use, load_shown_runs
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from slurmkit_accounting.usage.bins import parse_alloc_tres
from slurmkit_accounting.usage.partial import is_of_job, load_last_ingests

_DAYS = 30
_MOST_RUNS = 10


def load_run_beside_earlier(
    ledger: Ledger,
    job: str,
    *,
    started: int | None = None,
    ended: int | None = None,
    scope: Scope = EVERYTHING,
) -> RunBesideEarlier:
    """Load one run of a job and the completed runs of the same user and name before it.

    Tasks of the same array are no earlier runs: they were submitted with it, for other input.

    Args:
        ledger: open for reading.
        job: one job id, as in `is_of_job`.
        started: epoch seconds at which the run began; the last run if None.
        ended: epoch seconds at which it ended.
        scope: whose runs the reader may see.

    Raises:
        BadInput: when the ledger has no such run that the reader may see.
        LedgerError: when the ledger cannot be read.
    """
    with ledger.transaction() as connection:
        own = [is_of_job(job), runs.c.start.is_not(None)]
        own += [runs.c.start == started] if started is not None else []
        own += [runs.c.end == ended] if ended is not None else []
        shown = load_shown_runs(connection, and_(*own), None, scope)
        if not shown:
            raise BadInput(
                f"the ledger has no such run of job {job} that you may see; it reads new runs, and"
                " how they ended, at each ingest"
            )
        row = shown[-1]
        earlier = load_shown_runs(connection, _before(connection, row), None, scope)
        taken = load_last_ingests(connection).get(row.cluster_id)
    this = _measured(row)
    if row.end is None and row.gpus:
        this = _with_samples(ledger, this, scope)
    newest = sorted(earlier, key=lambda each: each.end, reverse=True)
    return RunBesideEarlier(run=this, earlier=tuple(map(_measured, newest)), taken=taken)


def _before(connection: Connection, row: Any) -> ColumnElement[bool]:
    """Return the condition for the runs before a run; their index is that of users and ends."""
    alike = and_(
        runs.c.cluster_id == row.cluster_id,
        runs.c.user == row.user,
        runs.c.name == row.name,
        runs.c.state == "COMPLETED",
        runs.c.retracted.is_(None),
        runs.c.start < row.start,
        runs.c.end > runs.c.start,
        runs.c.end.between(row.start - _DAYS * 86400, row.start),
        not_(is_of_job(whole_id(row.job_id))),
    )
    query = select(runs.c.id).where(alike).order_by(runs.c.end.desc()).limit(_MOST_RUNS)
    return runs.c.id.in_(connection.scalars(query).all())


def _measured(row: Any) -> MeasuredRun:
    held = parse_alloc_tres(row.alloc_tres)
    seconds = None if row.end is None else max(row.end - row.start - (row.suspended or 0), 0)
    cpu_known = row.cpu_used_ms is not None
    watts = None
    if seconds and row.gpus and row.gpu_energy_joules is not None:
        watts = row.gpu_energy_joules / seconds / row.gpus
    return MeasuredRun(
        job_id=row.job_id,
        job_id_raw=row.job_id_raw,
        start=row.start,
        end=row.end,
        seconds=seconds,
        partition=row.partition,
        node_list=row.node_list,
        nodes=row.nodes,
        cpus=row.cpus,
        gpus=dict(held.gpus),
        mem_mib=held.mem_mib or None,
        cpus_busy=row.cpu_used_ms / 1000 / seconds if cpu_known and seconds else None,
        mem_peak_mib=row.mem_peak_mib,
        gpu_use=None if row.gpu_used_permille is None else row.gpu_used_permille / 1000,
        watts=watts,
    )


def _with_samples(ledger: Ledger, run: MeasuredRun, scope: Scope) -> MeasuredRun:
    """Add what the samples of a running job say, where they cover all of its GPUs so far."""
    found = [
        each
        for each in load_gpu_use(ledger, run.job_id, scope=scope)
        if (each.job_id_raw, each.start) == (run.job_id_raw, run.start)
    ]
    if not found or len(found[0].gpus) != found[0].held:
        return run
    return msgspec.structs.replace(run, gpu_use=_mean_use(found[0]), watts=_mean_watts(found[0]))


def _mean_use(run: GpuUseOfRun) -> float | None:
    known = [each.utilization for each in run.gpus if each.is_covered]
    uses = [use for use in known if use is not None]
    return sum(uses) / len(uses) / 100 if len(uses) == run.held else None


def _mean_watts(run: GpuUseOfRun) -> float | None:
    known = [
        each.watts
        for each in run.gpus
        if each.last is not None and each.energy_seconds >= (each.last - run.start) / 2
    ]
    watts = [each for each in known if each is not None]
    return sum(watts) / len(watts) if len(watts) == run.held else None
