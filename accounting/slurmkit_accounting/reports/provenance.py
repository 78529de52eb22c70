"""Metadata of a report about its data: age of the ledger, gaps, rejects, corrections."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from sqlalchemy import Connection, func, or_, select

from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.ledger.coverage import load_gaps, load_spans
from slurmkit_accounting.ledger.database import Ledger, once
from slurmkit_accounting.ledger.schema.people import people_syncs
from slurmkit_accounting.ledger.schema.runs import UNREAD, clusters, rejects, revisions, runs
from slurmkit_accounting.reports.counted import CountedUsage
from slurmkit_accounting.reports.dimensions import load_cluster_names
from slurmkit_accounting.reports.model import ClosedMonthSummary
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from slurmkit_accounting.reports.selection import RunSelection, overlapping_runs
from slurmkit_accounting.usage.closed_months import ClosedMonth
from slurmkit_accounting.usage.partial import load_last_ingests

_JOBS_SHOWN = 10


def ledger_fields(
    ledger: Ledger, connection: Connection, now: int, scope: Scope = EVERYTHING
) -> dict[str, Any]:
    """Return the fields of `Meta` about the ledger, which every report has.

    The owner of a rejected line is unknown, so only readers who may see everything get their
    number.
    """
    by_name = select(clusters).order_by(clusters.c.name)
    known = once(connection, "clusters", lambda: connection.execute(by_name).all())
    ingests = once(connection, "last ingests", lambda: load_last_ingests(connection))
    last_sync = select(func.max(people_syncs.c.at))
    last = min(ingests.values(), default=None)
    return {
        "source": f"ledger {ledger.source}{_single_user_note(known)}",
        "clusters": tuple(one.name for one in known),
        "gpus_not_tracked": tuple(one.name for one in known if one.tracks_gpus is False),
        "last_ingest": last,
        "data_age": None if last is None else max(now - last, 0),
        "last_people_sync": once(
            connection, "last people sync", lambda: connection.scalar(last_sync)
        ),
        "rejects": (
            connection.scalar(select(func.count()).select_from(rejects).where(UNREAD))
            if scope.is_everything
            else None
        ),
        "made": now,
    }


def window_fields(
    connection: Connection, window: tuple[int, int], zone: Zone, now: int
) -> dict[str, Any]:
    """Return the fields of `Meta` about the ledger's coverage of a window."""
    begin, end = window
    names = load_cluster_names(connection)
    first_spans = [
        spans[0] for spans in (load_spans(connection, number) for number in names) if spans
    ]
    missing = max((first for first, _ in first_spans), default=begin)
    gaps_within = (
        (names[number], *map(zone.show, gap))
        for number in names
        for gap in load_gaps(connection, number)
        if gap[0] < end and gap[1] > begin
    )
    return {
        "window": (zone.show(begin), zone.show(end)),
        "timezone": zone.name,
        "missing_before": zone.show(missing) if begin < missing else None,
        "gaps": tuple(gaps_within),
        "running_until": zone.show(min(now, end)),
    }


def _single_user_note(known: Iterable[Any]) -> str:
    """Return a remark on the clusters of which the ledger holds only one user's runs."""
    limits = [f"{one.name}: only runs of {one.only_user}" for one in known if one.only_user]
    return f" ({', '.join(limits)})" if limits else ""


def closed_months(connection: Connection, counted: CountedUsage) -> tuple[ClosedMonthSummary, ...]:
    """Return the closed months of a report with the corrections made since."""
    return tuple(_closed_month(connection, counted, closing) for closing in counted.closings)


def _closed_month(
    connection: Connection, counted: CountedUsage, closing: ClosedMonth
) -> ClosedMonthSummary:
    at_closing = sum(
        counted.gpu_hours(key, sums)
        for part, key, sums in counted.cells
        if key.cluster_id == closing.cluster_id
        and closing.span[0] <= counted.parts[part].begin < closing.span[1]
    )
    corrections = [one for one in counted.corrections if one.closing == closing]
    return ClosedMonthSummary(
        cluster=closing.cluster,
        month=closing.month,
        at=closing.at,
        gpu_hours=float(at_closing),
        corrected=float(sum(counted.gpu_hours(one.key, one.sums) for one in corrections)),
        jobs=_corrected_jobs(connection, counted, closing) if corrections else (),
    )


def _corrected_jobs(
    connection: Connection, counted: CountedUsage, closing: ClosedMonth
) -> tuple[str, ...]:
    """Return the first few jobs of the month that are new, changed or retracted since."""
    revised = select(revisions.c.run_id).where(revisions.c.ingest_id > closing.ingest)
    changed_since = or_(
        runs.c.first_ingest_id > closing.ingest,
        runs.c.id.in_(revised),
        runs.c.retracted >= closing.at,
    )
    selection = RunSelection(connection, counted.question, counted.dimensions)
    where = (
        runs.c.cluster_id == closing.cluster_id,
        changed_since,
        *overlapping_runs(closing.span),
    )
    rows = selection.rows(("job_id",), *where, retracted=True, in_order=True)
    jobs = list(islice((row.job_id for row, _ in rows), _JOBS_SHOWN + 1))
    return (*jobs[:_JOBS_SHOWN], *(["and more"] if len(jobs) > _JOBS_SHOWN else []))
