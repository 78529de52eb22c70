"""Read again what could not be read, with what is known now."""

from __future__ import annotations

import time
from collections import defaultdict

from sqlalchemy import Connection

from slurmkit_accounting.books import Entered, begin_ingest, cluster_id, enter
from slurmkit_accounting.columns import fingerprint
from slurmkit_accounting.ingest import finish_ingest
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.locks import alone
from slurmkit_accounting.rejects import Kept, kept
from slurmkit_accounting.rows import Batch
from slurmkit_accounting.sacct_rows import FIELDS, layout

_SOURCE = "rejects"


def retry(ledger: Ledger) -> Entered:
    """Enter rejects of sacct that can be read now; those of files are read with their file.

    Raises:
        LedgerError: when an ingest is running, or the database fails.
    """
    total = Entered()
    with alone(ledger, "ingest"), ledger.transaction() as connection:
        waiting: dict[str, list[list[str]]] = defaultdict(list)
        for one in kept(connection):
            fields = _fields(one)
            if fields is not None:
                waiting[one.cluster].append(fields)
        for cluster, rows in waiting.items():
            total += _enter(connection, cluster, rows)
    return total


def _fields(one: Kept) -> list[str] | None:
    fields = one.line.split("\x1f")
    return fields if one.source == "sacct" and len(fields) == len(FIELDS) else None


def _enter(connection: Connection, cluster: str, rows: list[list[str]]) -> Entered:
    how, now = layout(), int(time.time())
    facts = {"source": _SOURCE, "window_from": now, "window_to": now}
    which = begin_ingest(connection, cluster_id(connection, cluster), now, **facts)
    prints = [fingerprint("\x1f".join(row).encode()) ^ how.seed for row in rows]
    entered = enter(connection, which, how, Batch(rows, prints, []))
    finish_ingest(connection, which, entered)
    return entered
