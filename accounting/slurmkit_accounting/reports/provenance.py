"""What the numbers of a report rest on: the age of the books, their gaps, rejects and doubts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, func, select

from slurmkit_accounting.coverage import covered, gaps
from slurmkit_accounting.held import last_ingests
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.reports.scope import EVERYTHING, Scope
from slurmkit_accounting.schema import UNREAD, clusters, people_syncs, rejects
from slurmkit_accounting.zones import Zone


def of_books(
    ledger: Ledger, connection: Connection, now: int, scope: Scope = EVERYTHING
) -> dict[str, Any]:
    """Facts of `Meta` that every report states.

    Nobody knows whose a rejected line is: only who may see everything is told how many there are.
    """
    known = connection.execute(select(clusters).order_by(clusters.c.name)).all()
    ingests = last_ingests(connection)
    last = min(ingests.values(), default=None)
    return {
        "source": f"ledger {ledger.source}{_only(known)}",
        "clusters": tuple(one.name for one in known),
        "gpus_not_tracked": tuple(one.name for one in known if one.tracks_gpus is False),
        "last_ingest": last,
        "data_age": None if last is None else max(now - last, 0),
        "last_people_sync": connection.scalar(select(func.max(people_syncs.c.at))),
        "rejects": _rejects(connection) if scope.is_everything else None,
        "made": now,
    }


def of_window(
    connection: Connection, window: tuple[int, int], zone: Zone, now: int
) -> dict[str, Any]:
    """Facts of `Meta` about what the books have of a window."""
    begin, end = window
    names = {row[0]: row[1] for row in connection.execute(select(clusters.c.id, clusters.c.name))}
    spans = {number: covered(connection, number) for number in names}
    begins = [each[0][0] for each in spans.values() if each]
    missing = max(begins, default=begin)
    holes = (
        (names[number], *map(zone.show, gap))
        for number in names
        for gap in gaps(connection, number)
        if gap[0] < end and gap[1] > begin
    )
    return {
        "window": (zone.show(begin), zone.show(end)),
        "timezone": zone.name,
        "missing_before": zone.show(missing) if begin < missing else None,
        "gaps": tuple(holes),
        "running_until": zone.show(min(now, end)),
    }


def _only(known: Iterable[Any]) -> str:
    """That of some clusters there are one person's runs alone."""
    some = [f"of {one.name} only {one.only_user}'s runs" for one in known if one.only_user]
    return f" ({', '.join(some)})" if some else ""


def _rejects(connection: Connection) -> int | None:
    return connection.scalar(select(func.count()).select_from(rejects).where(UNREAD))
