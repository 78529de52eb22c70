"""Parse rejects again, with what this release can parse."""

from __future__ import annotations

import time
from collections import defaultdict

import msgspec
from sqlalchemy import Connection

from slurmkit_accounting.ingest.enter import (
    IngestCounts,
    begin_ingest,
    enter_batch,
    find_or_add_cluster,
)
from slurmkit_accounting.ingest.file import parse_layout
from slurmkit_accounting.ingest.ingest import finish_ingest
from slurmkit_accounting.ingest.rejects import (
    ALL_REJECTS,
    SACCT,
    RejectSelection,
    StoredReject,
    load_rejects,
    mark_rejects_read,
)
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.sacct.columns import RowLayout, fingerprint
from slurmkit_accounting.sacct.query import SACCT_FIELDS, sacct_layout
from slurmkit_accounting.sacct.rows import RowBatch

SOURCE = "rejects"


def retry_rejects(
    ledger: Ledger, chosen: RejectSelection = ALL_REJECTS, *, dry_run: bool = False
) -> IngestCounts:
    """Enter rejects that can be parsed now, as rows of the past.

    Rejects of a file are parsed with the fields and the time zone of that file.

    Args:
        ledger: open for writing.
        chosen: try only these; dismissed ones are left out in any case.
        dry_run: change nothing.

    Raises:
        BadInput: when the time zone of a file is not known on this machine.
        LedgerError: when an ingest is running, or the database fails.
    """
    total = IngestCounts()
    with (
        hold_ledger_lock(ledger, "ingest"),
        ledger.transaction(rehearsal=dry_run) as connection,
    ):
        waiting: dict[tuple[str, int, str | None], list[StoredReject]] = defaultdict(list)
        for one in load_rejects(connection, chosen=chosen):
            waiting[one.cluster, one.seen, one.layout].append(one)
        for (cluster, seen, text), lines in waiting.items():
            row_layout = _layout(text)
            whole = {
                one.id: parts for one in lines if (parts := _fields(one, row_layout)) is not None
            }
            if whole:
                total += _enter(connection, row_layout, whole, cluster=cluster, seen=seen)
    return total


def _layout(text: str | None) -> RowLayout:
    row_layout = sacct_layout() if text is None else parse_layout(text)
    row_layout.dated = True
    return row_layout


def _fields(one: StoredReject, row_layout: RowLayout) -> list[str] | None:
    """Split a reject into fields; None if it has too few or too many."""
    if one.layout is None and one.source not in {SACCT, SOURCE}:
        return None  # from a file that was read before layouts were stored
    # The last field of a file takes the rest of its row. sacct's rows must have exactly all fields.
    most = -1 if row_layout.fields == SACCT_FIELDS else len(row_layout.fields) - 1
    parts = one.line.split("\x1f", most)
    return parts if len(parts) == len(row_layout.fields) else None


def _enter(
    connection: Connection,
    row_layout: RowLayout,
    lines: dict[int, list[str]],
    *,
    cluster: str,
    seen: int,
) -> IngestCounts:
    """Enter rejects of one layout, given by row id, and mark those that could be parsed as read."""
    now = int(time.time())
    facts = {"source": SOURCE, "window_from": now, "window_to": now}
    current = begin_ingest(connection, find_or_add_cluster(connection, cluster), now, **facts)
    current = msgspec.structs.replace(current, seen=seen)
    rows = list(lines.values())
    prints = [fingerprint("\x1f".join(row).encode()) ^ row_layout.seed for row in rows]
    entered = enter_batch(connection, current, row_layout, RowBatch.of(rows, prints, []))
    _, bad = row_layout.runs(RowBatch.of(rows, prints, []))
    still_bad = current.not_entered.union(reject.line for reject in bad)
    parsed = [number for number, row in lines.items() if "\x1f".join(row) not in still_bad]
    mark_rejects_read(connection, current.id, parsed)
    finish_ingest(connection, current, entered)
    return entered
