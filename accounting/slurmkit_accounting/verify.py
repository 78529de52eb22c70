"""Check the books: everything that follows from the runs is worked out again and compared."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, create_engine, func, insert, select

from slurmkit_accounting.bins import Key
from slurmkit_accounting.checksum import checksum
from slurmkit_accounting.coverage import covered
from slurmkit_accounting.redone import wrongly_marked
from slurmkit_accounting.schema import (
    SUMS,
    clusters,
    metadata,
    runs,
    spans,
    suspensions,
    usage_days,
    usage_hours,
    usage_keys,
)
from slurmkit_accounting.upkeep import BINS, change, eras, stored

_MANY = 10_000


class Verified(msgspec.Struct, frozen=True):
    """What a check of the books found.

    Attributes:
        checksum: see `slurmkit_accounting.checksum`.
        runs: how many there are.
        wrong: what is not as it should be, in words; nothing in good books.
    """

    checksum: str
    runs: int
    wrong: list[str]


def verify(connection: Connection) -> Verified:
    """Check everything; nothing is changed."""
    wrong = [*differences(connection), *_invariants(connection)]
    count = connection.scalar(select(func.count()).select_from(runs)) or 0
    return Verified(checksum(connection), count, wrong)


def differences(connection: Connection) -> Iterator[str]:
    """Where the usage tables do not say what the runs say."""
    with tempfile.TemporaryDirectory(prefix="slurmkit-verify-") as folder:
        engine = create_engine(f"sqlite:///{Path(folder)}/usage.db")
        try:
            with engine.begin() as scratch:
                _work_out(connection, scratch)
                names = _names(scratch)
                for table, _ in BINS:
                    yield from _compared(table, names, connection, scratch)
        finally:
            engine.dispose()


def _work_out(connection: Connection, scratch: Connection) -> None:
    metadata.create_all(scratch, tables=[clusters, usage_keys, usage_hours, usage_days])
    for table in (clusters, usage_keys):
        for some in connection.execute(select(table)).mappings().partitions(_MANY):
            scratch.execute(insert(table), [dict(row) for row in some])
    known = eras(connection)
    for batch in stored(connection):
        change(scratch, (), [run._replace(era=known.of(run.submit)) for run in batch])


def _names(scratch: Connection) -> dict[int, str]:
    columns = [usage_keys.c[name] for name in Key._fields if name != "cluster_id"]
    query = select(usage_keys.c.id, clusters.c.name, *columns).join(clusters)
    return {
        number: ", ".join(map(str, (cluster, *key)))
        for number, cluster, *key in scratch.execute(query)
    }


def _compared(
    table: Table, names: dict[int, str], connection: Connection, scratch: Connection
) -> Iterator[str]:
    """Merge both by bin and key."""
    query = select(table.c.bin, table.c.key_id, *(table.c[name] for name in SUMS))
    query = query.order_by(table.c.bin, table.c.key_id)
    slowly = {"yield_per": _MANY}
    kept, right = (
        iter(one.execute(query, execution_options=slowly)) for one in (connection, scratch)
    )
    a, b = next(kept, None), next(right, None)
    while a is not None or b is not None:
        here, there = _place(a), _place(b)
        if here < there:
            yield _said(table, names, here, "is in no run")
            a = next(kept, None)
        elif there < here:
            yield _said(table, names, there, "is missing")
            b = next(right, None)
        else:
            if a is not None and b is not None and tuple(a) != tuple(b):
                yield _said(table, names, here, _which(a, b))
            a, b = next(kept, None), next(right, None)


def _place(row: Any) -> tuple[float, float]:
    return (float("inf"), 0) if row is None else (row[0], row[1])


def _which(kept: Iterable[Any], right: Iterable[Any]) -> str:
    pairs = zip(SUMS, list(kept)[2:], list(right)[2:], strict=True)
    return "; ".join(f"{name} is {a}, the runs say {b}" for name, a, b in pairs if a != b)


def _said(table: Table, names: dict[int, str], place: tuple[float, float], what: str) -> str:
    when = datetime.fromtimestamp(place[0], UTC).isoformat(sep=" ")
    return f"{table.name} at {when} of {names.get(int(place[1]), '?')}: {what}"


def _invariants(connection: Connection) -> Iterator[str]:
    yield from _astray(connection)
    for number, should in wrongly_marked(connection):
        yield f"run {number} is{'' if should else ' not'} redone, and the books say otherwise"
    known = set(connection.scalars(select(clusters.c.id)))
    for cluster in known:
        found = covered(connection, cluster)
        if any(a[1] >= b[0] for a, b in pairwise(found)):
            yield f"spans of cluster {cluster} overlap"
    if connection.scalar(select(spans.c.id).where(spans.c.begin > spans.c.finish).limit(1)):
        yield "a span ends before it begins"
    placed = select(suspensions.c.run_id).join(runs)
    more = placed.group_by(suspensions.c.run_id, runs.c.suspended).having(
        func.sum(suspensions.c.seconds) > runs.c.suspended
    )
    for number in connection.scalars(more):
        yield f"run {number} has more suspended time in its windows than in all"


def _astray(connection: Connection) -> Iterator[str]:
    """Rows that speak of others that are not there; PostgreSQL lets none be written."""
    if connection.dialect.name == "sqlite":
        found = 'SELECT "table", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2'
        for table, parent, count in connection.exec_driver_sql(found):
            yield f"{count} rows of {table} speak of {parent} that are not there"
