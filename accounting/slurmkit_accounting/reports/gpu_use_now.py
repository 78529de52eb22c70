"""What the GPUs of running jobs do now: the samples of the last hour, and curves before that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, or_, select, text

from slurmkit.state.gpu_metrics import IDLE_BELOW
from slurmkit.state.gpu_use import GpuUseNow
from slurmkit_accounting.gpu_use.recent import RETENTION_SECONDS
from slurmkit_accounting.gpu_use.series import Curve
from slurmkit_accounting.gpu_use.store import RunTimes, find_run
from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.gpu_use import NOT_LINKED, gpu_curves, gpu_use
from slurmkit_accounting.ledger.schema.runs import OPEN, clusters, runs
from slurmkit_accounting.reports.dimensions import Dimensions
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.reports.selection import usage_keys_of
from slurmkit_accounting.usage.tables import load_eras

if TYPE_CHECKING:
    from slurmkit_accounting.gpu_use.latest import UseLately

_MOST_RECENT = 60  # values for a sparkline
_LEAST_STEP = 30  # seconds of one of them
_OF_RUN = [
    runs.c[name] for name in (
        "id", "cluster_id", "job_id_raw", "job_id", "user", "uid", "account", "partition", "qos",
        "state", "redone", "submit", "start", "alloc_tres",
    )
]  # fmt: skip
_OF_USE = [
    gpu_use.c[name] for name in (
        "id", "cluster_id", "job_id_raw", "start", "first", "node", "index", "gpu", "interval",
        "memory_total_mib",
    )
]  # fmt: skip


class NowQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Which GPUs are asked about; None is all.

    Attributes:
        jobs: ids as people use them; `12` is also all tasks of the array 12.
        nodes: names of nodes.
        cluster: name of the cluster.
        seconds: how far back one looks; GPUs without a sample since then are left out.
        scope: whose runs the reader may see.
    """

    jobs: frozenset[str] | None = None
    nodes: frozenset[str] | None = None
    cluster: str | None = None
    seconds: int = 1800
    scope: Scope = EVERYTHING


def load_gpu_use_now(ledger: Ledger, asked: NowQuestion, now: float) -> tuple[GpuUseNow, ...]:
    """Load what the GPUs of running jobs do now, as of their last sample.

    Args:
        ledger: open for reading.
        asked: which GPUs.
        now: epoch seconds.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    begin = now - asked.seconds
    step = max(_LEAST_STEP, -(-min(asked.seconds, RETENTION_SECONDS) // _MOST_RECENT))
    with ledger.transaction() as connection:
        names = {row.id: row.name for row in connection.execute(select(clusters))}
        found = _shown_runs(connection, asked)
        uses = _uses_of(connection, found, asked.nodes)
        lately = _load_lately(connection, begin, uses, step)
        if asked.seconds > RETENTION_SECONDS:
            lately = _reach_back(connection, lately, begin)
    shown = [
        _now(use, run, names[use.cluster_id], lately[use.id], step, now)
        for use, run in uses
        if use.id in lately
    ]
    return tuple(
        sorted(shown, key=lambda each: (each.cluster, each.job_id_raw, each.node, each.index or 0))
    )


def _shown_runs(connection: Connection, asked: NowQuestion) -> list[Any]:
    """Return the running runs with GPUs that are asked about and that the reader may see."""
    query = select(*_OF_RUN).where(
        text(OPEN),
        runs.c.retracted.is_(None),
        runs.c.start.is_not(None),
        runs.c.alloc_tres.contains("gres/"),
    )
    if asked.cluster is not None:
        query = query.join(clusters).where(clusters.c.name == asked.cluster)
    if asked.jobs is not None:
        parts = [runs.c.job_id.contains(sign, autoescape=True) for sign in "_+"]
        query = query.where(or_(in_values(connection, runs.c.job_id, asked.jobs), *parts))
    rows = [row for row in connection.execute(query) if _is_asked(row.job_id, asked.jobs)]
    if asked.scope.is_everything or not rows:
        return rows
    dimensions, eras = Dimensions(connection, Rates()), load_eras(connection)
    return [
        row
        for row in rows
        if any(dimensions.shown(key, asked.scope) for key in usage_keys_of(row, eras))
    ]


def _is_asked(job_id: str, jobs: Collection[str] | None) -> bool:
    whole = job_id.partition("_")[0].partition("+")[0]
    return jobs is None or job_id in jobs or whole in jobs


def _uses_of(
    connection: Connection, rows: Sequence[Any], nodes: Collection[str] | None
) -> list[tuple[Any, Any]]:
    """Return the summaries of runs, on some nodes, each with its run."""
    known: dict[tuple[int, int], list[RunTimes]] = defaultdict(list)
    for row in rows:
        known[row.cluster_id, row.job_id_raw].append(RunTimes(row.id, row.start, None))
    if not known:
        return []
    jobs = {job for _, job in known}
    query = select(*_OF_USE).where(
        text(NOT_LINKED), in_values(connection, gpu_use.c.job_id_raw, jobs)
    )
    if nodes is not None:
        query = query.where(in_values(connection, gpu_use.c.node, nodes))
    by_id = {row.id: row for row in rows}
    return [
        (use, by_id[run.id])
        for use in connection.execute(query)
        for run in [find_run(use.start, use.first, known[use.cluster_id, use.job_id_raw])]
        if run is not None
    ]


def _load_lately(
    connection: Connection, begin: float, uses: Sequence[tuple[Any, Any]], step: int
) -> dict[int, UseLately]:
    """Load what the samples since a time say of each summary, by its row id."""
    if not uses:
        return {}
    from slurmkit_accounting.gpu_use.latest import load_latest  # noqa: PLC0415  numpy takes 0.1 s

    return load_latest(
        connection,
        begin,
        {use.id: use.interval for use, _ in uses},
        {use.node for use, _ in uses},
        {use.cluster_id for use, _ in uses},
        step,
    )


def _now(use: Any, run: Any, cluster: str, lately: UseLately, step: int, now: float) -> GpuUseNow:
    _, shared, last = lately.last
    total = last.memory_total_mib
    return GpuUseNow(
        cluster=cluster,
        job_id=run.job_id,
        job_id_raw=run.job_id_raw,
        user=run.user,
        node=use.node,
        index=use.index,
        gpu=use.gpu,
        shared=shared,
        last=last.at,
        age=max(now - last.at, 0.0),
        utilization=last.utilization,
        memory_mib=last.memory_mib,
        memory_total_mib=use.memory_total_mib if total is None else total,
        watts=None if last.watts is None else round(last.watts),
        since=lately.since,
        busiest=lately.busiest,
        idle_since=lately.idle_since,
        recent=lately.recent,
        recent_step=step,
        start=run.start,
    )


def _reach_back(
    connection: Connection, lately: dict[int, UseLately], begin: float
) -> dict[int, UseLately]:
    """Return what GPUs did, with the points of their curves that are older than an hour."""
    query = select(gpu_curves.c.use_id, gpu_curves.c.begin, gpu_curves.c.step, gpu_curves.c.points)
    rows = connection.execute(query.where(in_values(connection, gpu_curves.c.use_id, lately)))
    return lately | {
        number: _reach_back_by_curve(lately[number], Curve.unpack(*curve), begin)
        for number, *curve in rows
    }


def _reach_back_by_curve(lately: UseLately, curve: Curve, begin: float) -> UseLately:
    """Go back from point to point, up to one without a sample.

    `since` and `idle_since` end at a point of which nobody knows whether all its samples were idle.
    """
    since, busiest, idle_since = lately.since, lately.busiest, lately.idle_since
    reached, is_certain = since, True
    for point in reversed(list(curve.points())):
        if reached is None or point.at >= reached:
            continue
        if point.at + curve.step < begin or point.utilization is None:
            break
        is_idle = not point.may_be_busy(IDLE_BELOW)
        is_certain = is_certain and (is_idle or point.utilization >= IDLE_BELOW)
        reached = max(float(point.at), begin)
        if is_certain:
            idle_since = reached if is_idle and idle_since == since else idle_since
            since = reached
        busiest = max(busiest or 0.0, point.utilization)
    return lately._replace(since=since, busiest=busiest, idle_since=idle_since)
