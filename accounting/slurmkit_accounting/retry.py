"""Read again what could not be read, with what is known now."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection

from slurmkit_accounting.books import Entered, begin_ingest, cluster_id, enter
from slurmkit_accounting.columns import Layout, fingerprint
from slurmkit_accounting.dump_ingest import layout_of
from slurmkit_accounting.ingest import finish_ingest
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.locks import alone
from slurmkit_accounting.rejects import Kept, kept, read_now
from slurmkit_accounting.rows import Batch
from slurmkit_accounting.sacct_rows import FIELDS, layout

SOURCE = "rejects"


def retry(ledger: Ledger) -> Entered:
    """Enter rejects that can be read now, as what they are: lines of the past.

    Those of a file are read with the fields and the time zone that it was read with.

    Raises:
        BadInput: where the time zone of a file is not known here.
        LedgerError: when an ingest is running, or the database fails.
    """
    total = Entered()
    with alone(ledger, "ingest"), ledger.transaction() as connection:
        waiting: dict[tuple[str, int, str | None], list[Kept]] = defaultdict(list)
        for one in kept(connection):
            waiting[one.cluster, one.seen, one.layout].append(one)
        for (cluster, seen, text), lines in waiting.items():
            how = _layout(text)
            whole = {one.id: parts for one in lines if (parts := _fields(one, how)) is not None}
            if whole:
                total += _enter(connection, (cluster, seen), how, whole)
    return total


def _layout(text: str | None) -> Layout:
    how = layout() if text is None else layout_of(text)
    how.dated = True
    return how


def _fields(one: Kept, how: Layout) -> list[str] | None:
    if one.layout is None and one.source not in {"sacct", SOURCE}:
        return None  # of a file that was read before its layout was kept
    # The last field of a file takes the rest of its line; more than all of sacct's are no row.
    most = -1 if how.fields == FIELDS else len(how.fields) - 1
    parts = one.line.split("\x1f", most)
    return parts if len(parts) == len(how.fields) else None


def _enter(
    connection: Connection, whose: tuple[str, int], how: Layout, lines: dict[int, list[str]]
) -> Entered:
    now = int(time.time())
    facts = {"source": SOURCE, "window_from": now, "window_to": now}
    which = begin_ingest(connection, cluster_id(connection, whose[0]), now, **facts)
    which = msgspec.structs.replace(which, seen=whose[1])
    rows = list(lines.values())
    prints = [fingerprint("\x1f".join(row).encode()) ^ how.seed for row in rows]
    entered = enter(connection, which, how, Batch.of(rows, prints, []))
    read_now(connection, which.id, _readable(how, lines, prints))
    finish_ingest(connection, which, entered)
    return entered


def _readable(how: Layout, lines: dict[int, list[str]], prints: Sequence[int]) -> list[int]:
    _, bad = how.runs(Batch.of(list(lines.values()), list(prints), []))
    broken = {reject.line for reject in bad}
    return [number for number, row in lines.items() if "\x1f".join(row) not in broken]
