"""One number for all the books say: equal on every database, after any order of ingests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Connection, Table, and_, select, type_coerce

from slurmkit_accounting.bins import Key
from slurmkit_accounting.rows import Run
from slurmkit_accounting.schema import (
    SUMS,
    clusters,
    runs,
    steps,
    suspensions,
    usage_days,
    usage_hours,
    usage_keys,
)
from slurmkit_accounting.steps import FACTS
from slurmkit_accounting.steps_rows import Step

_MANY = 10_000
_INDEX = type_coerce(runs.c.db_index, BigInteger)
_IDENTITY = (clusters.c.name, _INDEX, runs.c.job_id_raw, runs.c.submit)
# The row of a pending array goes when its tasks come; whether it was ever read is chance.
RETIRED = and_(runs.c.gone_since.is_not(None), runs.c.start.is_(None))


def checksum(connection: Connection) -> str:
    """Hexadecimal sha256 of runs, steps, suspended time and usage.

    Numbers of rows and what an ingest says of itself are no part of it. Rows are hashed one by one
    and added up, so that their order is none either.
    """
    parts = {
        "runs": _total(connection, _runs(), bools=2),
        "steps": _total(connection, _of_runs(steps, Step._fields)),
        "suspensions": _total(connection, _of_runs(suspensions, ("begin", "length", "seconds"))),
        "usage_hours": _total(connection, _usage(usage_hours), bools=1),
        "usage_days": _total(connection, _usage(usage_days), bools=1),
    }
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _total(connection: Connection, query: Any, bools: int = 0) -> list[str]:
    """How many rows, and the sum of their hashes; the last `bools` columns are true or false."""
    count, total = 0, 0
    found = connection.execute(query, execution_options={"yield_per": _MANY})
    for some in found.partitions():
        count += len(some)
        total += sum(map(_hash, _same(some, bools)))
    return [str(count), f"{total % 2**256:x}"]


def _same(rows: Iterable[Sequence[Any]], bools: int) -> Iterable[list[Any]]:
    for row in rows:
        values = list(row)
        if bools:
            values[-bools:] = map(bool, values[-bools:])
        yield values


def _hash(values: list[Any]) -> int:
    return int.from_bytes(hashlib.sha256(msgspec.json.encode(values)).digest(), "big")


def _runs() -> Any:
    # Nor why a run is in doubt, which may lie in the nodes of the day it was read.
    names = [name for name in Run._fields if name not in {"db_index", "fingerprint", "doubt"}]
    columns = [runs.c[name] for name in (*names, *FACTS)]
    last = (runs.c.retracted.is_not(None), runs.c.redone)
    query = select(clusters.c.name, _INDEX, *columns, *last).join_from(runs, clusters)
    return query.where(~RETIRED)


def _of_runs(table: Table, names: Sequence[str]) -> Any:
    columns = [table.c[name] for name in names]
    return select(*_IDENTITY, *columns).join_from(table, runs).join(clusters)


def _usage(table: Table) -> Any:
    keys = [usage_keys.c[name] for name in Key._fields if name not in {"cluster_id", "redone"}]
    sums = [table.c[name] for name in SUMS]
    query = select(table.c.bin, clusters.c.name, *keys, *sums, usage_keys.c.redone)
    return query.join_from(table, usage_keys).join(clusters)
