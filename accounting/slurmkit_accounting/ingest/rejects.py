"""Rejects: rows that could not be parsed, stored once each, counted until their run is read."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, case, func, select, update

from slurmkit_accounting.ledger.bulk_write import in_values, insert_missing
from slurmkit_accounting.ledger.schema.runs import UNREAD, clusters, ingests, rejects
from slurmkit_accounting.sacct.rows import Reject, RunKey, format_db_index, format_run_key

SACCT = "sacct"  # the source of what sacct itself printed
_NOT_DISMISSED = {"dismissed": None, "dismissed_by": None, "dismissed_because": None}
_COLUMNS = ("ingest_id", "digest", "reason", "line", "identity")


def store_rejects(connection: Connection, cluster: int, ingest: int, bad: Sequence[Reject]) -> None:
    """Store rows verbatim. A stored one that was marked as read is marked as unread again.

    One that was dismissed stays so, except if it was of a file and sacct itself prints it now.
    """
    if not bad:
        return
    values = {}
    for one in bad:
        digest = hashlib.sha256(f"{cluster}\x1f{one.line}".encode()).hexdigest()
        values[digest] = (ingest, digest, one.reason, one.line, _identity(one))
    again = in_values(connection, rejects.c.digest, list(values))
    read = rejects.c.read_since.is_not(None)
    connection.execute(update(rejects).where(again, read).values(read_since=None))
    if connection.scalar(select(ingests.c.source).where(ingests.c.id == ingest)) == SACCT:
        of_sacct = select(ingests.c.id).where(ingests.c.source == SACCT)
        of_file = rejects.c.ingest_id.not_in(of_sacct) & rejects.c.dismissed.is_not(None)
        back = {**_NOT_DISMISSED, "ingest_id": ingest}
        connection.execute(update(rejects).where(again, of_file).values(back))
    insert_missing(connection, rejects, _COLUMNS, list(values.values()))


def mark_rejects_of_runs_read(
    connection: Connection, cluster: int, ingest: int, read: Iterable[tuple[RunKey, int | None]]
) -> None:
    """Mark rejects as read whose runs were now read, also dismissed ones.

    Args:
        connection: to the ledger.
        cluster: row id of the cluster.
        ingest: row id of the ingest.
        read: key and DBIndex of each run that was read.
    """
    unread = _load_not_read(connection, cluster)
    if not unread:
        return
    settled: list[int] = []
    for key, index in read:
        settled += [reject for reject, _ in unread.get(format_run_key(key), ())]
        if index is not None:
            # A run that was submitted later has the DBIndex of a re-created database.
            some = unread.get(format_db_index(index), ())
            settled += [reject for reject, stored in some if key[1] <= stored]
    if settled:
        mark_rejects_read(connection, ingest, settled)


def _identity(one: Reject) -> str | None:
    """Return the text that identifies the run of a reject, as `rejects.identity` has it."""
    if one.key is not None:
        return format_run_key(one.key)
    return None if one.db_index is None else format_db_index(one.db_index)


def _load_not_read(connection: Connection, cluster: int) -> dict[str, list[tuple[int, int]]]:
    """Load row id and time (epoch seconds) of rejects whose runs were not read, by identity."""
    columns = (rejects.c.identity, rejects.c.id, ingests.c.started)
    query = select(*columns).join(ingests, ingests.c.id == rejects.c.ingest_id)
    not_read = rejects.c.read_since.is_(None)
    where = (not_read, ingests.c.cluster_id == cluster, rejects.c.identity.is_not(None))
    unread = defaultdict(list)
    for identity, reject, stored in connection.execute(query.where(*where)):
        unread[identity].append((reject, stored))
    return unread


def mark_rejects_read(connection: Connection, ingest: int, reject_ids: Sequence[int]) -> None:
    """Mark rejects as read, by row id."""
    where = (in_values(connection, rejects.c.id, reject_ids), rejects.c.read_since.is_(None))
    connection.execute(update(rejects).where(*where).values(read_since=ingest))


class StoredReject(NamedTuple):
    """A stored reject.

    Attributes:
        source: `sacct`, or the name of a file.
        at: epoch seconds of the ingest that rejected it first.
        read: whether its run was read since.
        seen: epoch seconds at which its run was seen; 0 if unknown.
        layout: the layout of its file, as text; None for sacct.
        dismissed: epoch seconds at which it was dismissed; None if it was not.
        dismissed_by: the user who dismissed it.
        dismissed_because: the reason that this user gave.
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
    dismissed: int | None
    dismissed_by: str | None
    dismissed_because: str | None


class RejectSelection(msgspec.Struct, frozen=True):
    """Which rejects are meant: those to which all that is given applies.

    Attributes:
        ids: their row ids; empty for all.
        source: `sacct`, or the name of the file as it was given to the ingest; None for any.
        begin: epoch seconds from which on the ingest that rejected them began; None for any.
        end: epoch seconds before which it began; None for any.
    """

    ids: tuple[int, ...] = ()
    source: str | None = None
    begin: int | None = None
    end: int | None = None

    def where(self, connection: Connection) -> list[ColumnElement[bool]]:
        """Return the conditions on rejects joined with ingests."""
        found = []
        if self.ids:
            found.append(in_values(connection, rejects.c.id, self.ids))
        if self.source is not None:
            found.append(ingests.c.source == self.source)
        if self.begin is not None:
            found.append(ingests.c.started >= self.begin)
        if self.end is not None:
            found.append(ingests.c.started < self.end)
        return found


ALL_REJECTS = RejectSelection()
_BY_INGEST = ingests.c.id == rejects.c.ingest_id


def load_rejects(
    connection: Connection, *, all_: bool = False, chosen: RejectSelection = ALL_REJECTS
) -> list[StoredReject]:
    """Load rejects whose runs were not read since, and that nobody dismissed; `all_`: all rejects.

    Args:
        connection: to the ledger.
        all_: load also those that were read since or dismissed.
        chosen: load only these.
    """
    seen = case(
        (ingests.c.layout.is_(None), ingests.c.started), else_=func.coalesce(ingests.c.done_to, 0)
    )
    columns = (
        rejects.c.id, clusters.c.name, ingests.c.source, ingests.c.started, rejects.c.reason,
        rejects.c.line, rejects.c.read_since.is_not(None), seen, ingests.c.layout,
        rejects.c.dismissed, rejects.c.dismissed_by, rejects.c.dismissed_because,
    )  # fmt: skip
    query = select(*columns).join(ingests, _BY_INGEST).join(clusters)
    query = query.where(*chosen.where(connection), *(() if all_ else (UNREAD,)))
    return [StoredReject(*row) for row in connection.execute(query.order_by(rejects.c.id))]


def dismiss_rejects(
    connection: Connection, chosen: RejectSelection, *, now: int, who: str, because: str
) -> int:
    """Dismiss unread rejects: they stay stored, but reports no longer count them.

    Returns:
        The number of rejects that were dismissed.
    """
    values: dict[str, int | str | None] = {
        "dismissed": now, "dismissed_by": who, "dismissed_because": because
    }  # fmt: skip
    return _set_dismissed(connection, chosen, UNREAD, values)


def restore_rejects(connection: Connection, chosen: RejectSelection) -> int:
    """Undo the dismissal of rejects; return their number."""
    return _set_dismissed(connection, chosen, rejects.c.dismissed.is_not(None), _NOT_DISMISSED)


def _set_dismissed(
    connection: Connection,
    chosen: RejectSelection,
    which: ColumnElement[bool],
    values: Mapping[str, int | str | None],
) -> int:
    query = select(rejects.c.id).join(ingests, _BY_INGEST)
    ids = connection.scalars(query.where(which, *chosen.where(connection))).all()
    these = in_values(connection, rejects.c.id, ids)
    connection.execute(update(rejects).where(these).values(values))
    return len(ids)
