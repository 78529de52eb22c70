"""What the GPUs of running jobs do now: the samples of the last hour, and curves before that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from sqlalchemy import Connection, or_, select, text

from slurmkit_accounting.gpu_use.recent import KEPT_SECONDS, LatestSamples, load_latest
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

_MOST_RECENT = 60  # values for a sparkline
_LEAST_STEP = 30  # seconds of one of them
_GAP = 3  # intervals without a sample: then it is unknown what happened between
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


class GpuUseNow(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU of a running job does now; None is unknown.

    Attributes:
        cluster: name of the cluster.
        job_id: the id that people use: `12`, `12_3`.
        job_id_raw: Slurm's own job id.
        user: user name.
        node: name of the node.
        index: Slurm's index on its node.
        gpu: what names the GPU: UUID of the MIG instance or GPU, else PCI address or index.
        shared: whether other jobs hold the GPU, too; then utilisation and memory are the job's own.
        last: epoch seconds of the last sample.
        age: seconds since the last sample, by the clock that took it.
        utilisation: of the last sample, percent.
        memory_mib: memory in use then.
        memory_total_mib: memory of the GPU.
        watts: power then.
        since: epoch seconds from which on no sample is missing.
        busiest: the largest utilisation in the time asked for, percent. What is older than an hour
            counts by the means of the curve's points.
        recent: at most 60 whole percents for a sparkline, oldest first; the last one ends at
            `last`. None: no sample.
        recent_step: seconds of each of `recent`.
    """

    cluster: str
    job_id: str
    job_id_raw: int
    user: str
    node: str
    index: int | None
    gpu: str
    shared: bool
    last: float
    age: float
    utilisation: float | None
    memory_mib: int | None
    memory_total_mib: int | None
    watts: int | None
    since: float | None
    busiest: float | None
    recent: tuple[int | None, ...]
    recent_step: int


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
    with ledger.transaction() as connection:
        names = {row.id: row.name for row in connection.execute(select(clusters))}
        found = _shown_runs(connection, asked)
        uses = _uses_of(connection, found, asked.nodes)
        samples = load_latest(
            connection, begin, [use.id for use, _ in uses], {use.node for use, _ in uses}
        )
        curves: dict[int, Curve] = {}
        if asked.seconds > KEPT_SECONDS:
            curves = _load_curves(connection, [use.id for use, _ in uses])
    shown = [
        _now(use, run, names, samples[use.id], curves.get(use.id), asked, now)
        for use, run in uses
        if use.id in samples
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


def _load_curves(connection: Connection, numbers: Sequence[int]) -> dict[int, Curve]:
    query = select(gpu_curves.c.use_id, gpu_curves.c.begin, gpu_curves.c.step, gpu_curves.c.points)
    rows = connection.execute(query.where(in_values(connection, gpu_curves.c.use_id, numbers)))
    return {number: Curve.unpack(*curve) for number, *curve in rows}


def _now(
    use: Any,
    run: Any,
    names: dict[int, str],
    samples: LatestSamples,
    curve: Curve | None,
    asked: NowQuestion,
    now: float,
) -> GpuUseNow:
    _, shared, last = samples.last
    known = [(at, share * 100) for at, share in zip(samples.times, samples.shares, strict=True)]
    since, busiest = (
        _since(known, use.interval),
        max((percent for _, percent in known), default=None),
    )
    if curve is not None and known:
        since, busiest = _reach_back(curve, now - asked.seconds, since, busiest)
    total = last.memory_total_mib
    step = max(_LEAST_STEP, -(-min(asked.seconds, KEPT_SECONDS) // _MOST_RECENT))
    return GpuUseNow(
        cluster=names[use.cluster_id],
        job_id=run.job_id,
        job_id_raw=run.job_id_raw,
        user=run.user,
        node=use.node,
        index=use.index,
        gpu=use.gpu,
        shared=shared,
        last=last.at,
        age=max(now - last.at, 0.0),
        utilisation=None if last.utilisation is None else round(last.utilisation * 100, 1),
        memory_mib=last.memory_mib,
        memory_total_mib=use.memory_total_mib if total is None else total,
        watts=None if last.watts is None else round(last.watts),
        since=since,
        busiest=None if busiest is None else round(busiest, 1),
        recent=_recent(known, last.at, step, use.interval),
        recent_step=step,
    )


def _since(known: Sequence[tuple[float, float]], interval: int) -> float | None:
    """Return the time of the first sample after the last gap."""
    since = known[0][0] if known else None
    for (before, _), (after, _) in pairwise(known):
        if after - before > _GAP * interval:
            since = after
    return since


def _reach_back(
    curve: Curve, begin: float, since: float | None, busiest: float | None
) -> tuple[float | None, float | None]:
    """Return `since` and `busiest` with the points of the curve that are older than an hour."""
    for point in reversed(list(curve.points())):
        if since is None or point.at >= since:
            continue
        if point.at + curve.step < begin or point.utilisation is None:
            break
        since, busiest = max(float(point.at), begin), max(busiest or 0.0, point.utilisation)
    return since, busiest


def _recent(
    known: Sequence[tuple[float, float]], last: float, step: int, interval: int
) -> tuple[int | None, ...]:
    """Return the mean of each `step` seconds up to `last`, in whole percent.

    A sample covers the time since the one before, one interval at most: so a step between two
    samples, which come a little late or early, has the value of the later one.
    """
    if not known:
        return ()
    count = min(int((last - known[0][0]) // step) + 1, _MOST_RECENT)
    sums = [[0.0, 0.0] for _ in range(count)]
    covering: list[float | None] = [None] * count
    covered = min(interval, step)
    for at, percent in known:
        place = count - 1 - int((last - at) // step)
        if 0 <= place < count:
            sums[place][0] += percent
            sums[place][1] += 1
        before = count - 1 - int((last - at + covered) // step)
        if 0 <= before < count:
            covering[before] = percent
    means = (
        total / number if number else cover
        for (total, number), cover in zip(sums, covering, strict=True)
    )
    return tuple(None if mean is None else round(mean) for mean in means)
