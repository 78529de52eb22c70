"""Rejects: rows that could not be parsed, stored once each, counted until their run is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from sqlalchemy import Connection, case, func, select, update

from slurmkit_accounting.ledger.bulk_write import in_values, insert_missing
from slurmkit_accounting.ledger.schema.runs import UNREAD, clusters, ingests, rejects
from slurmkit_accounting.sacct.rows import Reject, RunKey, format_run_key

_COLUMNS = ("ingest_id", "digest", "reason", "line", "identity")


def store_rejects(connection: Connection, cluster: int, ingest: int, bad: Sequence[Reject]) -> None:
    """Store rows verbatim. A stored one that was marked as read is marked as unread again."""
    if not bad:
        return
    values = {}
    for one in bad:
        digest = hashlib.sha256(f"{cluster}\x1f{one.line}".encode()).hexdigest()
        identity = None if one.key is None else format_run_key(one.key)
        values[digest] = (ingest, digest, one.reason, one.line, identity)
    again = in_values(connection, rejects.c.digest, list(values))
    connection.execute(update(rejects).where(again, ~UNREAD).values(read_since=None))
    insert_missing(connection, rejects, _COLUMNS, list(values.values()))


def mark_rejects_of_runs_read(
    connection: Connection, cluster: int, ingest: int, keys: AbstractSet[RunKey | None]
) -> None:
    """Mark rejects as read whose runs were now read."""
    unread = set(_unread(connection, cluster))
    if not unread:
        return
    read = sorted(unread.intersection(format_run_key(key) for key in keys if key is not None))
    if read:
        ours = select(ingests.c.id).where(ingests.c.cluster_id == cluster)
        where = (
            in_values(connection, rejects.c.identity, read),
            UNREAD,
            rejects.c.ingest_id.in_(ours),
        )
        connection.execute(update(rejects).where(*where).values(read_since=ingest))


def _unread(connection: Connection, cluster: int) -> Iterable[str]:
    """Load the keys of unread rejects of a cluster, as text."""
    query = select(rejects.c.identity).join(ingests, ingests.c.id == rejects.c.ingest_id)
    where = (UNREAD, ingests.c.cluster_id == cluster, rejects.c.identity.is_not(None))
    return connection.scalars(query.where(*where))


def mark_rejects_read(connection: Connection, ingest: int, reject_ids: Sequence[int]) -> None:
    """Mark rejects as read, by row id."""
    where = (in_values(connection, rejects.c.id, reject_ids), UNREAD)
    connection.execute(update(rejects).where(*where).values(read_since=ingest))


class StoredReject(NamedTuple):
    """A stored reject.

    Attributes:
        source: `sacct`, or the name of a file.
        at: epoch seconds of the ingest that rejected it first.
        read: whether its run was read since.
        seen: epoch seconds at which its run was seen; 0 if unknown.
        layout: the layout of its file, as text; None for sacct.
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


def load_rejects(connection: Connection, *, all_: bool = False) -> list[StoredReject]:
    """Load rejects whose runs were not read since; with `all_`, all rejects."""
    seen = case(
        (ingests.c.layout.is_(None), ingests.c.started), else_=func.coalesce(ingests.c.done_to, 0)
    )
    columns = (
        rejects.c.id, clusters.c.name, ingests.c.source, ingests.c.started, rejects.c.reason,
        rejects.c.line, rejects.c.read_since.is_not(None), seen, ingests.c.layout,
    )  # fmt: skip
    query = select(*columns).join(ingests, ingests.c.id == rejects.c.ingest_id).join(clusters)
    query = query if all_ else query.where(UNREAD)
    return [StoredReject(*row) for row in connection.execute(query.order_by(rejects.c.id))]
