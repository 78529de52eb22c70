"""`report reclaimed`: what was done about idle GPUs, why, and what was won back at most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from slurmkit_accounting.calendar import UNITS, WindowPart, split_window
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.reclaim import (
    reclaim_acts,
    reclaim_keeps,
    reclaim_outcomes,
)
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.reports.dimensions import Dimensions
from slurmkit_accounting.reports.model import Column, Meta, Panel, Report, sum_columns
from slurmkit_accounting.reports.panels import MeasuredGpuHours, largest_bars_panel
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.usage.bins import NO_GPU, UNKNOWN_UID, UsageKey, parse_alloc_tres
from slurmkit_accounting.usage.tables import load_eras

COLUMNS = (
    Column("at", "time"),
    Column("cluster"),
    Column("job"),
    Column("user"),
    Column("pi"),
    Column("account"),
    Column("partition"),
    Column("policy"),
    Column("action"),
    Column("outcome"),
    Column("gpus", "count"),
    Column("idle_gpus", "count"),
    Column("window_minutes", "number"),
    Column("utilization", "share"),
    Column("samples", "count"),
    Column("covered", "share"),
    Column("gpu_hours_at_most", "hours", adds_up=True),
    Column("why"),
)
_DEFINITIONS = (
    "action: report, mail, requeue, cancel, or keep: the user asked to leave the job alone",
    (
        "window_minutes, utilization, samples, covered: the samples that caused the act: its"
        " window, the mean of the idle GPUs, how many there are, how much of the window they cover"
    ),
    (
        "gpu_hours_at_most: of jobs that were requeued held or cancelled, from then to the end of"
        " their time limit, in whole GPUs; without the act the job may have ended before, so less"
        " may have been won back. A held job that is released runs again, and its use counts then"
    ),
)
_TAKEN = ("held", "cancelled")


def reclaimed_report(ledger: Ledger, question: Question) -> Report:
    """Report each act about idle GPUs in a window, the oldest first.

    Args:
        ledger: open for reading.
        question: window, filters and scope.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    with ledger.transaction() as connection:
        dimensions = Dimensions(connection, Rates())
        rows = sorted(_rows(connection, question, dimensions), key=lambda row: row["at"])
        meta = Meta(
            report="reclaimed",
            filters=question.filters,
            job=question.job,
            total=sum_columns(COLUMNS, rows),
            definitions=_DEFINITIONS,
            notes=() if rows else ("nothing was done about idle GPUs in this window",),
            **provenance.ledger_fields(ledger, connection, question.now, question.scope),
            **provenance.window_fields(connection, question.window, question.zone, question.now),
        )
    return Report(meta, COLUMNS, tuple(rows), tuple(_panels(rows)))


def _panels(rows: Iterable[Mapping[str, Any]]) -> Iterator[Panel]:
    """Yield a chart of what was won back at most, by user; none where nothing was."""
    won: dict[str, MeasuredGpuHours] = defaultdict(MeasuredGpuHours)
    for row in rows:
        won[row["user"]] = won[row["user"]].plus(MeasuredGpuHours(row["gpu_hours_at_most"] or 0.0))
    if any(each.held for each in won.values()):
        yield largest_bars_panel("GPU-hours won back at most, by user", won)


def whole_gpus(rates: Rates, alloc_tres: str, partition: str) -> float:
    """Return how many whole GPUs a job holds, by the weights of their types."""
    kinds = (
        (rates.kind(name, partition), count) for name, count in parse_alloc_tres(alloc_tres).gpus
    )
    return float(sum((kind.weight or 0) * count for kind, count in kinds))


def _rows(
    connection: Connection, question: Question, dimensions: Dimensions
) -> Iterator[dict[str, Any]]:
    rates, known_eras = Rates(), load_eras(connection)
    units = [name for name in UNITS if name in question.filters]
    parts = split_window((question.window[0], question.events_end), question.zone, units)
    for row in _stored(connection, question):
        uid = UNKNOWN_UID if row.uid is None else row.uid
        types = parse_alloc_tres(row.alloc_tres).gpus or ((NO_GPU, 0),)
        key = UsageKey(
            row.cluster_id, row.user, uid, row.account, row.partition, row.qos, "", False,  # noqa: FBT003
            types[0][0], known_eras.of(row.submit),
        )  # fmt: skip
        if (
            dimensions.shown(key, question.scope)
            and dimensions.matches(key, question.filters)
            and _is_in_time(row.at, parts, question)
            and _is_of_job(row.job_id, question.job)
        ):
            yield _row(row, key, dimensions, rates)


def _stored(connection: Connection, question: Question) -> Iterator[Any]:
    begin, end = question.window[0], question.events_end
    columns = (
        reclaim_outcomes.c.outcome,
        reclaim_outcomes.c.at.label("done"),
        reclaim_outcomes.c.why,
    )
    acts = select(reclaim_acts, *columns).select_from(reclaim_acts.outerjoin(reclaim_outcomes))
    yield from connection.execute(
        acts.where(reclaim_acts.c.at >= begin, reclaim_acts.c.at < end).order_by(reclaim_acts.c.id)
    )
    yield from connection.execute(
        select(reclaim_keeps).where(reclaim_keeps.c.at >= begin, reclaim_keeps.c.at < end)
    )


def _row(row: Any, key: UsageKey, dimensions: Dimensions, rates: Rates) -> dict[str, Any]:
    values = {
        "at": row.at,
        "cluster": dimensions.of("cluster", key),
        "job": row.job_id,
        "user": row.user,
        "pi": dimensions.of("pi", key),
        "account": row.account,
        "partition": row.partition,
    }
    if "reason" in row._fields:  # of table `reclaim_keeps`
        empty = dict.fromkeys(each.name for each in COLUMNS if each.name not in values)
        return values | empty | {
            "policy": "", "action": "keep", "outcome": "kept", "gpu_hours_at_most": 0.0,
            "why": row.reason,
        }  # fmt: skip
    return values | {
        "policy": row.policy,
        "action": row.action,
        "outcome": row.outcome or "under way",
        "gpus": row.gpus,
        "idle_gpus": row.idle_gpus,
        "window_minutes": round((row.at - row.window_begin) / 60, 1),
        "utilization": row.mean / 100,
        "samples": row.samples,
        "covered": row.covered,
        "gpu_hours_at_most": _hours_at_most(row, rates),
        "why": row.why or "",
    }


def _hours_at_most(row: Any, rates: Rates) -> float | None:
    """Return what an act won back at most; None if the job had no time limit."""
    if row.outcome not in _TAKEN:
        return 0.0
    if row.limit_end is None:
        return None
    gpus = whole_gpus(rates, row.alloc_tres, row.partition)
    seconds: int = max(row.limit_end - row.done, 0)
    return seconds / 3600 * gpus


def _is_in_time(at: int, parts: Sequence[WindowPart], question: Question) -> bool:
    """Return whether the filters by hour, day, week and month have a time."""
    part = next((each for each in parts if each.begin <= at < each.end), None)
    return part is not None and all(
        part.labels[unit] in values for unit, values in question.filters.items() if unit in UNITS
    )


def _is_of_job(job_id: str, job: str | None) -> bool:
    """Return whether a job is one of those asked for; `12` is also of its tasks and components."""
    if job is None:
        return True
    asked = job.split(",")
    return job_id in asked or job_id.replace("+", "_").partition("_")[0] in asked
