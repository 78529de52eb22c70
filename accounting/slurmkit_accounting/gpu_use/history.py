"""Ask a site's metrics (Prometheus) for the window of each ended run, once.

A question that failed is asked again, after growing pauses. An answer replaces an earlier one, so
nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, and_, delete, or_, select

from slurmkit.config.plugins import load_plugin
from slurmkit.errors import BadConfig
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.state.gpu_metrics import GpuHistory, GpuSample, JobWindow, NoSamples
from slurmkit_accounting.gpu_use.recent import RETENTION_SECONDS
from slurmkit_accounting.gpu_use.samples import PARTS, GpuName, read_sample
from slurmkit_accounting.gpu_use.store import delete_old_curves, store_uses
from slurmkit_accounting.gpu_use.summaries import PROMETHEUS, RUNNING_IN_PROMETHEUS, GpuUse
from slurmkit_accounting.ledger.bulk_write import in_values, replace_rows
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.gpu_use import gpu_curves, gpu_questions, gpu_use
from slurmkit_accounting.ledger.schema.runs import clusters, runs

_AT_ONCE = 100  # runs of one round
_MOST_FAILURES = 3  # of one round
_SETTLED = 60  # seconds after the end of a run until its last samples are there
_PAUSE, _MOST_PAUSE = 60, 86400  # seconds until a question is asked again
_LEAST_SAMPLES = 4  # with fewer, an outage may be taken for the usual time between two
_MOST_INTERVAL = 300  # seconds
_CLEAN_EVERY, _CLEAN_SECONDS = 3600, 2 * 86400
_BEGUN = "the service ended while it asked"
_ROW = ("run_id", "asked", "failures", "again", "error")


class RunToAsk(NamedTuple):
    """A run whose GPUs are not known yet.

    Attributes:
        failures: how often the question failed.
    """

    id: int
    cluster_id: int
    window: JobWindow
    failures: int


class GpuHistoryReader:
    """Reads the GPU use of ended runs.

    Args:
        open_ledger: opens the ledger for writing.
        source: the site's metrics.
        count_use: counts in the usage tables what is known now of runs, by their row ids.
        interval: seconds that one sample covers, if the source does not take them more often.
        ask_days: runs that ended longer ago are not asked for.
        keep_days: days for which curves are stored.
    """

    def __init__(
        self,
        open_ledger: Callable[[], AbstractContextManager[Ledger]],
        source: GpuHistory,
        *,
        count_use: Callable[[Connection, Sequence[int]], object],
        interval: int,
        ask_days: int,
        keep_days: int,
    ) -> None:
        self._open_ledger = open_ledger
        self._source = source
        self._count_use = count_use
        self._interval = interval
        self._ask_seconds = ask_days * 86400
        self._keep_seconds = keep_days * 86400
        self._cleaned = -_CLEAN_EVERY

    def run(self, cluster: str, now: int, check: Callable[[], None]) -> str:
        """Ask for some runs of a cluster; stop after some failures, since the source may be away.

        A source that has nothing about a run's nodes is there. `slurmkit doctor` names the query.

        Args:
            cluster: name of the cluster whose metrics the source has.
            now: epoch seconds.
            check: raises when the service shall stop.

        Returns:
            Why a question failed; empty if none did.

        Raises:
            LedgerError: when the ledger cannot be written.
        """
        failed: list[str] = []
        with self._open_ledger() as ledger:
            with ledger.transaction() as connection:
                due = _runs_to_ask(connection, cluster, now, self._ask_seconds)
                delete_old_curves(connection, now - self._keep_seconds)
                if not 0 <= now - self._cleaned < _CLEAN_EVERY:
                    delete_running_uses(connection, now)
                    self._cleaned = now
            for run in due:
                check()
                with ledger.transaction() as connection:
                    # One that takes all memory, and ends the service, must not be the first again.
                    _record(connection, run, now, _BEGUN)
                try:
                    uses = _read_uses(self._source, run, self._interval)
                except Exception as error:  # noqa: BLE001 - whatever one run's answer holds, others follow
                    reason = str(error) or type(error).__name__
                    with ledger.transaction() as connection:
                        _record(connection, run, now, reason)
                    if not isinstance(error, NoSamples):
                        failed.append(reason)
                    if len(failed) >= _MOST_FAILURES:
                        break
                    continue
                with ledger.transaction() as connection:
                    _replace(connection, run.id, uses)
                    self._count_use(connection, [run.id])
                    _record(connection, run, now, "")
        return failed[0] if failed else ""


def load_gpu_history(name: str) -> GpuHistory:
    """Load a plugin of `slurmkit.gpu_metrics` that keeps old samples.

    Raises:
        BadInput: when there is no plugin of that name.
        BadConfig: when the plugin keeps none, or its section is wrong.
    """
    plugin: Any = load_plugin("gpu_metrics", name)
    if not hasattr(plugin, "read_job"):
        raise BadConfig(
            f"[gpu_use] source: plugin {name!r} of slurmkit.gpu_metrics keeps no history"
        )
    return cast("GpuHistory", plugin())


def _runs_to_ask(connection: Connection, cluster: str, now: int, seconds: int) -> list[RunToAsk]:
    """Return a cluster's ended runs with GPUs that are due, the newest first.

    Those whose question has failed come last.
    """
    columns = [runs.c[n] for n in ("id", "cluster_id", "job_id_raw", "node_list", "gpus")]
    failures, again, error = (gpu_questions.c[name] for name in ("failures", "again", "error"))
    parts = [runs.c.alloc_tres.contains(name) for name in PARTS]
    query = (
        select(*columns, runs.c.start, runs.c.end, failures)
        .join(clusters, clusters.c.id == runs.c.cluster_id)
        .outerjoin(gpu_questions, gpu_questions.c.run_id == runs.c.id)
        .where(
            clusters.c.name == cluster,
            runs.c.end > now - seconds,
            runs.c.end <= now - _SETTLED,
            runs.c.start < runs.c.end,
            or_(runs.c.gpus > 0, *parts),
            runs.c.retracted.is_(None),
            or_(
                gpu_questions.c.run_id.is_(None),
                again <= now,
                and_(again.is_(None), error.is_not(None)),  # an earlier version gave up
            ),
        )
        .order_by(again.is_not(None), again, runs.c.end.desc())
        .limit(_AT_ONCE)
    )
    return [
        RunToAsk(
            row.id,
            row.cluster_id,
            JobWindow(
                job_id=row.job_id_raw,
                nodes=_expand(row.node_list),
                begin=row.start,
                end=row.end,
                gpus=row.gpus,
            ),
            row.failures or 0,
        )
        for row in connection.execute(query)
    ]


def _expand(node_list: str) -> tuple[str, ...]:
    try:
        return expand_nodes(node_list)
    except ValueError:
        return ()


def _read_uses(source: GpuHistory, run: RunToAsk, interval: int) -> list[GpuUse]:
    """Return the summaries of a run's GPUs; its samples are never in memory all at once."""
    uses: dict[tuple[str, str], GpuUse] = {}
    for trace in source.read_job(run.window):
        name = GpuName(trace.uuid, trace.pci, trace.index, trace.mig)
        use = uses.get((trace.node, name.key))
        if use is None:
            use = uses[trace.node, name.key] = GpuUse(
                cluster_id=run.cluster_id,
                job=run.window.job_id,
                start=run.window.begin,
                node=trace.node,
                gpu=name,
                source=PROMETHEUS,
                interval=interval,
            )
        inside = [
            each for each in trace.samples if run.window.begin <= each.taken <= run.window.end
        ]
        use.interval = max(use.interval, usual_interval(inside, interval))
        for sample in inside:
            use.add(read_sample(sample), shared=trace.shared)
    for use in uses.values():
        use.finish(run.window.end)
    return list(uses.values())


def usual_interval(samples: Sequence[GpuSample], least: int) -> int:
    """Return the usual time between two samples, at least `least` and at most 5 minutes.

    It is a short one of the times between them: the long ones may be outages.
    """
    if len(samples) < _LEAST_SAMPLES:
        return least
    gaps = sorted(after.taken - before.taken for before, after in pairwise(samples))
    return max(least, min(round(gaps[len(gaps) // 4]), _MOST_INTERVAL))


def _replace(connection: Connection, run_id: int, uses: list[GpuUse]) -> None:
    """Store the summaries of a run in place of those of an earlier answer."""
    ours = select(gpu_use.c.id).where(gpu_use.c.run_id == run_id, gpu_use.c.source == PROMETHEUS)
    old = connection.scalars(ours).all()
    connection.execute(delete(gpu_curves).where(in_values(connection, gpu_curves.c.use_id, old)))
    connection.execute(delete(gpu_use).where(in_values(connection, gpu_use.c.id, old)))
    store_uses(connection, uses, run_id=run_id, final=True)


def delete_running_uses(connection: Connection, now: int) -> int:
    """Delete what was read of runs that went on, once the answer about the whole run is there.

    It waits until all samples of the run are deleted: a new summary may get the same row id.

    Args:
        connection: to the ledger.
        now: epoch seconds.

    Returns:
        The number of summaries.
    """
    ended = select(runs.c.id).where(
        runs.c.end > now - _CLEAN_SECONDS, runs.c.end <= now - 2 * RETENTION_SECONDS
    )
    answered = select(gpu_use.c.run_id).where(
        gpu_use.c.run_id.in_(ended), gpu_use.c.source == PROMETHEUS
    )
    old = connection.scalars(
        select(gpu_use.c.id).where(
            gpu_use.c.run_id.in_(answered), gpu_use.c.source == RUNNING_IN_PROMETHEUS
        )
    ).all()
    connection.execute(delete(gpu_curves).where(in_values(connection, gpu_curves.c.use_id, old)))
    connection.execute(delete(gpu_use).where(in_values(connection, gpu_use.c.id, old)))
    return len(old)


def _record(connection: Connection, run: RunToAsk, now: int, error: str) -> None:
    """Record a question; with an error it is asked again, after growing pauses."""
    failures = run.failures + 1 if error else 0
    pause = min(_PAUSE * 2 ** min(failures, 20), _MOST_PAUSE)
    again = now + pause if error else None
    replace_rows(connection, gpu_questions, _ROW, [(run.id, now, failures, again, error or None)])
