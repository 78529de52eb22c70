"""Close months: keep what the books say of them, so that later corrections can be told."""

from __future__ import annotations

import hashlib

import msgspec
from sqlalchemy import Connection, insert, select

from slurmkit.errors import BadInput
from slurmkit_accounting.bins import Key
from slurmkit_accounting.coverage import Span, covered
from slurmkit_accounting.held import Sums
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.query import CARRIED, STARTED, Asked, usage
from slurmkit_accounting.reports.periods import month as span_of
from slurmkit_accounting.schema import SUMS, closed_usage, closings, clusters, ingests, usage_keys
from slurmkit_accounting.upkeep import key_numbers
from slurmkit_accounting.zones import Zone, zone

_FINISHED = ingests.c.ended.is_not(None)


class Closing(msgspec.Struct, frozen=True):
    """A closed month of one cluster.

    Attributes:
        at: epoch seconds of its closing.
        ingest: the last one whose rows it has.
        span: of the month, in epoch seconds.
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


def close_month(ledger: Ledger, month: str, where: Zone, now: int) -> tuple[Closing, ...]:
    """Close a month of every cluster; one that is closed stays as it is.

    Of a cluster that came from files alone, what they say is closed; one whose books end before
    the month, as of a cluster that is no more, or begin after it, is left out.

    Raises:
        BadInput: for what is no month, one that is not over, and one that was not read to its end.
        LedgerError: when the ledger cannot be written.
    """
    span = span_of(month, where)
    if span[1] > now:
        raise BadInput(f"{month} is not over yet in {where.name}; close a month that is")
    with ledger.transaction() as connection:
        there = {one.cluster_id for one in known_closings(connection) if one.month == month}
        due = _due(connection, there, (month, span))
        asked = Asked(span, now)
        sums: dict[int, dict[Key, Sums]] = {}
        for (_, key), each in usage(connection, asked).items():
            sums.setdefault(key.cluster_id, {})[key] = _stored(each)
        made = [
            _close(connection, number, (month, where.name, now), sums.get(number, {}))
            for number in due
        ]
        known = known_closings(connection)
    return tuple(
        msgspec.structs.replace(one, new=one.number in made) for one in known if one.month == month
    )


def known_closings(connection: Connection) -> list[Closing]:
    """Every closed month, the oldest first."""
    query = select(closings, clusters.c.name).join(clusters).order_by(closings.c.month)
    return [
        Closing(
            number=row.id,
            cluster_id=row.cluster_id,
            cluster=row.name,
            month=row.month,
            timezone=row.timezone,
            at=row.at,
            ingest=row.ingest_id,
            checksum=row.checksum,
            span=span_of(row.month, zone(row.timezone)),
        )
        for row in connection.execute(query)
    ]


def closed_sums(connection: Connection, closing: Closing) -> dict[Key, Sums]:
    """What the books said when a month was closed, as `query.usage` says it."""
    columns = [usage_keys.c[name] for name in Key._fields]
    query = select(*columns, *(closed_usage.c[name] for name in SUMS)).join_from(
        closed_usage, usage_keys
    )
    found = {}
    for row in connection.execute(query.where(closed_usage.c.closing_id == closing.number)):
        key, sums = Key(*row[: len(columns)]), list(row[len(columns) :])
        sums[CARRIED] -= sums[STARTED]
        found[key] = tuple(sums)
    return found


def _due(connection: Connection, there: set[int], month: tuple[str, tuple[int, int]]) -> list[int]:
    """Clusters to close a month of."""
    due: list[int] = []
    ended: list[str] = []
    finished = set(connection.scalars(select(ingests.c.cluster_id).where(_FINISHED).distinct()))
    known = connection.execute(select(clusters.c.id, clusters.c.name).order_by(clusters.c.id))
    for number, name in known.all():
        if number not in there:
            spans = covered(connection, number)
            begin, end = month[1]
            elsewhere = spans and (spans[-1][1] <= begin or spans[0][0] >= end)
            if number not in finished or elsewhere:
                ended.append(name)
            else:
                _check_read(name, spans, month)
                due.append(number)
    if ended and not (due or there):
        raise _not_read(ended[0], month[0])
    return due


def _check_read(name: str, spans: list[Span], month: tuple[str, tuple[int, int]]) -> None:
    begin, end = month[1]
    begins = max(begin, spans[0][0]) if spans else begin
    if spans and not any(one[0] <= begins and one[1] >= end for one in spans):
        raise _not_read(name, month[0])


def _not_read(name: str, month: str) -> BadInput:
    return BadInput(f"not all of {month} has been read from {name}; run: slurmkit ledger ingest")


def _close(
    connection: Connection, cluster: int, what: tuple[str, str, int], sums: dict[Key, Sums]
) -> int:
    month, timezone, now = what
    done = (ingests.c.cluster_id == cluster, _FINISHED)
    last = connection.scalar(select(ingests.c.id).where(*done).order_by(ingests.c.id.desc()))
    facts = {"cluster_id": cluster, "month": month, "timezone": timezone, "at": now}
    made = connection.execute(
        insert(closings).values(ingest_id=last, checksum=_checksum(sums), **facts)
    )
    (number,) = made.inserted_primary_key or (0,)
    if sums:
        numbers = key_numbers(connection, list(sums))
        rows = [
            {"closing_id": number, "key_id": numbers[key], **dict(zip(SUMS, each, strict=True))}
            for key, each in sums.items()
        ]
        connection.execute(insert(closed_usage), rows)
    return int(number)


def _stored(sums: Sums) -> Sums:
    """With all runs of the month in their place, as in the usage tables."""
    return (*sums[:CARRIED], sums[CARRIED] + sums[STARTED], *sums[CARRIED + 1 :])


def _checksum(sums: dict[Key, Sums]) -> str:
    lines = sorted(msgspec.json.encode([*key, *each]) for key, each in sums.items())
    return hashlib.sha256(b"\n".join(lines)).hexdigest()
