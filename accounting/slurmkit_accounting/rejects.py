"""Lines that could not be read: kept once each, counted until their run can be read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from sqlalchemy import Connection, case, func, select, update

from slurmkit_accounting.bulk import among, insert_missing
from slurmkit_accounting.rows import Key, Reject, key_text
from slurmkit_accounting.schema import UNREAD, clusters, ingests, rejects

_COLUMNS = ("ingest_id", "digest", "reason", "line", "identity")


def keep_rejects(connection: Connection, cluster: int, ingest: int, bad: Sequence[Reject]) -> None:
    """Keep lines verbatim; one that is there already is no longer read."""
    if not bad:
        return
    values = {}
    for one in bad:
        digest, whose = _digest(cluster, one.line), None if one.key is None else key_text(one.key)
        values[digest] = (ingest, digest, one.reason, one.line, whose)
    again = among(connection, rejects.c.digest, list(values))
    connection.execute(update(rejects).where(again, ~UNREAD).values(read_since=None))
    insert_missing(connection, rejects, _COLUMNS, list(values.values()))


def read_after_all(
    connection: Connection, cluster: int, ingest: int, keys: AbstractSet[Key | None]
) -> None:
    """Count no longer what was rejected before and can be read now."""
    waiting = set(_unread(connection, cluster))
    if not waiting:
        return
    read = sorted(waiting.intersection(key_text(key) for key in keys if key is not None))
    if read:
        ours = select(ingests.c.id).where(ingests.c.cluster_id == cluster)
        where = (among(connection, rejects.c.identity, read), UNREAD, rejects.c.ingest_id.in_(ours))
        connection.execute(update(rejects).where(*where).values(read_since=ingest))


def _unread(connection: Connection, cluster: int) -> Iterable[str]:
    query = select(rejects.c.identity).join(ingests, ingests.c.id == rejects.c.ingest_id)
    where = (UNREAD, ingests.c.cluster_id == cluster, rejects.c.identity.is_not(None))
    return connection.scalars(query.where(*where))


def _digest(cluster: int, line: str) -> str:
    return hashlib.sha256(f"{cluster}\x1f{line}".encode()).hexdigest()


def read_now(connection: Connection, ingest: int, numbers: Sequence[int]) -> None:
    """Lines that could not be read before, and can be now."""
    where = (among(connection, rejects.c.id, numbers), UNREAD)
    connection.execute(update(rejects).where(*where).values(read_since=ingest))


class Kept(NamedTuple):
    """A line that could not be read.

    Attributes:
        source: `sacct`, or the name of a file.
        at: epoch seconds of the ingest that read it first.
        read: whether its run could be read since.
        seen: epoch seconds of when it said so, as far as is known.
        layout: of a file, how its lines are read.
    """

    id: int
    cluster: str
    source: str
    at: int
    reason: str
    line: str
    read: bool
    seen: int
    layout: str | None


def kept(connection: Connection, *, all_: bool = False) -> list[Kept]:
    """Lines whose runs could not be read to this day, or all that ever were rejected."""
    seen = case(
        (ingests.c.layout.is_(None), ingests.c.started), else_=func.coalesce(ingests.c.done_to, 0)
    )
    columns = (
        rejects.c.id, clusters.c.name, ingests.c.source, ingests.c.started, rejects.c.reason,
        rejects.c.line, rejects.c.read_since.is_not(None), seen, ingests.c.layout,
    )  # fmt: skip
    query = select(*columns).join(ingests, ingests.c.id == rejects.c.ingest_id).join(clusters)
    query = query if all_ else query.where(UNREAD)
    return [Kept(*row) for row in connection.execute(query.order_by(rejects.c.id))]
