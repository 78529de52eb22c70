"""Close months: store their usage, so that reports can show later corrections."""

from __future__ import annotations

import hashlib

import msgspec
from sqlalchemy import Connection, insert, select

from slurmkit.errors import BadInput
from slurmkit_accounting.calendar import Zone, find_zone, host_zone_or_utc
from slurmkit_accounting.calendar import month_span as span_of
from slurmkit_accounting.ledger.coverage import CoveredSpan, load_spans
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import clusters, ingests
from slurmkit_accounting.ledger.schema.usage import SUMS, closed_usage, closings, usage_keys
from slurmkit_accounting.usage.bins import UsageKey
from slurmkit_accounting.usage.partial import Sums
from slurmkit_accounting.usage.query import CARRIED, STARTED, UsageQuery, query_usage
from slurmkit_accounting.usage.tables import find_or_add_keys

_FINISHED = ingests.c.ended.is_not(None)


class ClosedMonth(msgspec.Struct, frozen=True):
    """A closed month of one cluster.

    Attributes:
        at: epoch seconds at which it was closed.
        ingest: row id of the last ingest before.
        span: begin and end of the month, in epoch seconds.
        new: whether it was closed just now.
    """

    number: int
    cluster_id: int
    cluster: str
    month: str
    timezone: str
    at: int
    ingest: int
    checksum: str
    span: tuple[int, int]
    new: bool = False


def close_month(ledger: Ledger, month: str, where: Zone, now: int) -> tuple[ClosedMonth, ...]:
    """Close a month of every cluster; a month that is already closed stays as it is.

    A cluster whose rows end before the month (for example one that was shut down) or begin after it
    is left out.

    Raises:
        BadInput: for an invalid month, a month that is not over, and one that was not read whole.
        LedgerError: when the ledger cannot be written.
    """
    window = CoveredSpan(*span_of(month, where))
    if window.finish > now:
        raise BadInput(f"{month} is not over yet in {where.name}; close only past months")
    with ledger.transaction() as connection:
        closed = {one.cluster_id for one in load_closed_months(connection) if one.month == month}
        due = _clusters_to_close(connection, closed, month, window)
        asked = UsageQuery(window, now)
        sums: dict[int, dict[UsageKey, Sums]] = {}
        for (_, key), each in query_usage(connection, asked).items():
            sums.setdefault(key.cluster_id, {})[key] = _stored(each)
        new = [
            _close(
                connection,
                number,
                sums.get(number, {}),
                month=month,
                timezone=where.name,
                now=now,
            )
            for number in due
        ]
        known = load_closed_months(connection)
    return tuple(
        msgspec.structs.replace(one, new=one.number in new) for one in known if one.month == month
    )


def load_closed_months(connection: Connection) -> list[ClosedMonth]:
    """Load every closed month, the oldest first."""
    query = select(closings, clusters.c.name).join(clusters).order_by(closings.c.month)
    return [
        ClosedMonth(
            number=row.id,
            cluster_id=row.cluster_id,
            cluster=row.name,
            month=row.month,
            timezone=row.timezone,
            at=row.at,
            ingest=row.ingest_id,
            checksum=row.checksum,
            span=span_of(row.month, find_zone(row.timezone)),
        )
        for row in connection.execute(query)
    ]


def load_closed_usage(connection: Connection, closing: ClosedMonth) -> dict[UsageKey, Sums]:
    """Load the usage of a closed month as it was then, in the form of `query_usage`."""
    columns = [usage_keys.c[name] for name in UsageKey._fields]
    query = select(*columns, *(closed_usage.c[name] for name in SUMS)).join_from(
        closed_usage, usage_keys
    )
    found = {}
    for row in connection.execute(query.where(closed_usage.c.closing_id == closing.number)):
        key, sums = UsageKey(*row[: len(columns)]), list(row[len(columns) :])
        sums[CARRIED] -= sums[STARTED]
        found[key] = tuple(sums)
    return found


def _clusters_to_close(
    connection: Connection, closed: set[int], month: str, window: CoveredSpan
) -> list[int]:
    """Return the clusters to close the month of: not closed yet, and with rows in the month."""
    due: list[int] = []
    outside: list[str] = []
    known = connection.execute(select(clusters.c.id, clusters.c.name).order_by(clusters.c.id))
    for number, name in known.all():
        if number in closed:
            continue
        read = _read_spans(connection, number)
        if not any(one.begin < window.finish and window.begin < one.finish for one in read):
            outside.append(name)
        elif any(one.begin <= window.begin and window.finish <= one.finish for one in read):
            due.append(number)
        else:
            raise _not_read(name, month, window)
    if outside and not (due or closed):
        raise _not_read(outside[0], month, window)
    return due


def _read_spans(connection: Connection, cluster: int) -> list[CoveredSpan]:
    """Return the spans that were read from sacct or from files, earliest first.

    A file counts from its first Submit to its last time. Spans that touch are one.
    """
    query = select(ingests.c.window_from, ingests.c.window_to).where(
        ingests.c.cluster_id == cluster, _FINISHED, ingests.c.layout.is_not(None)
    )
    files = (CoveredSpan(*row) for row in connection.execute(query))
    merged: list[CoveredSpan] = []
    for one in sorted([*load_spans(connection, cluster), *files]):
        if merged and one.begin <= merged[-1].finish:
            merged[-1] = CoveredSpan(merged[-1].begin, max(merged[-1].finish, one.finish))
        else:
            merged.append(one)
    return merged


def _not_read(name: str, month: str, window: CoveredSpan) -> BadInput:
    first_day = host_zone_or_utc().show(window.begin)[:10]
    return BadInput(
        f"not all of {month} has been read from {name}; read it whole: slurmkit ledger ingest"
        f" --since {first_day}, or with --file from a dump of that time"
    )


def _close(
    connection: Connection,
    cluster: int,
    sums: dict[UsageKey, Sums],
    *,
    month: str,
    timezone: str,
    now: int,
) -> int:
    """Store the usage of a cluster's month; return the row id of the closing."""
    done = (ingests.c.cluster_id == cluster, _FINISHED)
    last = connection.scalar(select(ingests.c.id).where(*done).order_by(ingests.c.id.desc()))
    facts = {"cluster_id": cluster, "month": month, "timezone": timezone, "at": now}
    inserted = connection.execute(
        insert(closings).values(ingest_id=last, checksum=_checksum(sums), **facts)
    )
    (number,) = inserted.inserted_primary_key or (0,)
    if sums:
        numbers = find_or_add_keys(connection, list(sums))
        rows = [
            {"closing_id": number, "key_id": numbers[key], **dict(zip(SUMS, each, strict=True))}
            for key, each in sums.items()
        ]
        connection.execute(insert(closed_usage), rows)
    return int(number)


def _stored(sums: Sums) -> Sums:
    """Return sums as the usage tables have them: `runs` counts all runs of the month."""
    return (*sums[:CARRIED], sums[CARRIED] + sums[STARTED], *sums[CARRIED + 1 :])


def _checksum(sums: dict[UsageKey, Sums]) -> str:
    lines = sorted(msgspec.json.encode([*key, *each]) for key, each in sums.items())
    return hashlib.sha256(b"\n".join(lines)).hexdigest()
