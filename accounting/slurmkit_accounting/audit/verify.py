"""Verify a ledger: recompute everything that follows from the runs, and compare it; copy a ledger.

The checksum of a ledger is equal on every database and after any order of ingests.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Table,
    and_,
    create_engine,
    distinct,
    func,
    or_,
    select,
    type_coerce,
)

from slurmkit_accounting.ingest.steps import MEASURED_COLUMNS
from slurmkit_accounting.ledger.bulk_write import insert_rows
from slurmkit_accounting.ledger.coverage import load_spans
from slurmkit_accounting.ledger.schema.people import eras
from slurmkit_accounting.ledger.schema.runs import clusters, runs, spans, steps, suspensions
from slurmkit_accounting.ledger.schema.types import metadata
from slurmkit_accounting.ledger.schema.usage import USAGE_COLUMNS, usage_keys
from slurmkit_accounting.sacct.rows import RunRow
from slurmkit_accounting.sacct.steps import StepRow
from slurmkit_accounting.usage.bins import UsageKey
from slurmkit_accounting.usage.redone import find_wrong_redone
from slurmkit_accounting.usage.tables import (
    USAGE_TABLES,
    RunProgress,
    add_all_runs,
    no_progress,
)

_MANY = 10_000  # rows at a time
_UsageRow = tuple[Any, ...]  # bin, id of the usage key, and the sums of USAGE_COLUMNS
_KeyNames = tuple[Any, ...]  # of a usage key: cluster, all fields but this and `redone`, `redone`


class VerifyResult(msgspec.Struct, frozen=True):
    """Result of verifying a ledger.

    Attributes:
        checksum: see `slurmkit_accounting.audit.verify`.
        runs: number of runs.
        wrong: errors in words; empty for a correct ledger.
        notes: in words, what is no error of the ledger, but an administrator should know.
    """

    checksum: str
    runs: int
    wrong: list[str]
    notes: list[str] = msgspec.field(default_factory=list)


def verify(connection: Connection, progress: RunProgress = no_progress) -> VerifyResult:
    """Check the whole ledger; nothing is changed.

    Args:
        connection: to the ledger.
        progress: called with the number of runs done, and of all.
    """
    usage = _usage_hashes(connection)
    wrong = [*_usage_differences(connection, usage, progress), *_invariants(connection)]
    count = connection.scalar(select(func.count()).select_from(runs)) or 0
    whole = _join_hashes(connection, usage)
    return VerifyResult(whole, count, wrong, list(_notes(connection)))


def _usage_differences(
    connection: Connection, hashes: Mapping[str, _UsageHash], progress: RunProgress
) -> Iterator[str]:
    """Yield where the usage tables differ from the usage of the runs; hash their rows."""
    with tempfile.TemporaryDirectory(prefix="slurmkit-verify-") as folder:
        engine = create_engine(f"sqlite:///{Path(folder)}/usage.db")
        try:
            with engine.connect() as scratch:
                # A crash loses nothing: this database is deleted at the end.
                scratch.exec_driver_sql("PRAGMA journal_mode = OFF")
                scratch.exec_driver_sql("PRAGMA synchronous = OFF")
                _work_out(connection, scratch, progress)
                for table in USAGE_TABLES:
                    yield from _compare_tables(table, hashes[table.name], connection, scratch)
        finally:
            engine.dispose()


def _work_out(connection: Connection, scratch: Connection, progress: RunProgress) -> None:
    """Compute the usage tables from the runs, into a scratch database."""
    metadata.create_all(scratch, tables=[clusters, eras, usage_keys, *USAGE_TABLES])
    for table in (clusters, usage_keys):
        names = [column.name for column in table.columns]
        for some in connection.execute(select(table)).partitions(_MANY):
            insert_rows(scratch, table, names, some)
    add_all_runs(connection, scratch, progress)


def _compare_tables(
    table: Table, hashed: _UsageHash, connection: Connection, scratch: Connection
) -> Iterator[str]:
    """Merge the rows of both databases by bin and key, and yield the differences."""
    stored, right = _usage_rows(connection, table), _usage_rows(scratch, table)
    some = hashed.pass_on(stored)
    stored_rows, right_rows = _without_equal_parts(some, right)
    names = hashed.names
    a, b = next(stored_rows, None), next(right_rows, None)
    while a is not None or b is not None:
        here, there = _place(a), _place(b)
        if here < there:
            yield _format_difference(table, names, here, "belongs to no run")
            a = next(stored_rows, None)
        elif there < here:
            yield _format_difference(table, names, there, "is missing")
            b = next(right_rows, None)
        else:
            if a is not None and b is not None and a != b:
                yield _format_difference(table, names, here, _different_sums(a, b))
            a, b = next(stored_rows, None), next(right_rows, None)


def _without_equal_parts(
    stored: Iterator[list[_UsageRow]], right: Iterator[list[_UsageRow]]
) -> tuple[Iterator[_UsageRow], Iterator[_UsageRow]]:
    """Return the rows of both from the first part on in which they differ."""
    nothing: list[_UsageRow] = []
    for a, b in zip_longest(stored, right, fillvalue=nothing):
        if a != b:
            return chain(a, chain.from_iterable(stored)), chain(b, chain.from_iterable(right))
    return iter(()), iter(())


def _usage_rows(connection: Connection, table: Table) -> Iterator[list[_UsageRow]]:
    """Yield the rows of a usage table by bin and key, some at a time."""
    query = select(table.c.bin, table.c.key_id, *(table.c[name] for name in USAGE_COLUMNS))
    query = query.where(_not_empty(table)).order_by(table.c.bin, table.c.key_id)
    with connection.execute(query, execution_options={"yield_per": _MANY}) as found:
        for some in found.partitions():
            yield list(map(tuple, some))  # a Row is compared in Python


def _place(row: _UsageRow | None) -> tuple[float, float]:
    return (float("inf"), 0) if row is None else (row[0], row[1])


def _different_sums(stored_row: _UsageRow, right_row: _UsageRow) -> str:
    """Say which sums of two rows differ."""
    pairs = zip(USAGE_COLUMNS, stored_row[2:], right_row[2:], strict=True)
    return "; ".join(f"{name} is {a}, but from the runs {b}" for name, a, b in pairs if a != b)


def _format_difference(
    table: Table, names: Mapping[int, _KeyNames], place: tuple[float, float], what: str
) -> str:
    when = datetime.fromtimestamp(place[0], UTC).isoformat(sep=" ")
    of = ", ".join(map(str, names.get(int(place[1]), "?")))
    return f"{table.name} at {when} of {of}: {what}"


def _invariants(connection: Connection) -> Iterator[str]:
    yield from _violated_foreign_keys(connection)
    for number, should in find_wrong_redone(connection):
        right, marked = ("redone", "not redone") if should else ("not redone", "redone")
        yield f"run {number} is marked as {marked}, but is {right}"
    known = set(connection.scalars(select(clusters.c.id)))
    for cluster in known:
        if any(a.finish >= b.begin for a, b in pairwise(load_spans(connection, cluster))):
            yield f"spans of cluster {cluster} overlap"
    if connection.scalar(select(spans.c.id).where(spans.c.begin > spans.c.finish).limit(1)):
        yield "a span ends before it begins"
    placed = select(suspensions.c.run_id).join(runs)
    more = placed.group_by(suspensions.c.run_id, runs.c.suspended).having(
        func.sum(suspensions.c.seconds) > runs.c.suspended
    )
    for number in connection.scalars(more):
        yield f"run {number}: its suspensions add up to more than its suspended time"


def _notes(connection: Connection) -> Iterator[str]:
    """Yield which clusters have DBIndexes of several jobs."""
    known = connection.execute(select(clusters.c.id, clusters.c.name))
    names = {number: name for number, name in known}  # noqa: C416 - mypy: a Row is no tuple
    spare = func.count() - func.count(distinct(runs.c.db_index))
    reused = select(runs.c.cluster_id, spare).where(runs.c.db_index.is_not(None))
    for cluster, count in connection.execute(reused.group_by(runs.c.cluster_id)):
        if count:
            yield (
                f"the accounting database of {names[cluster]} was re-created: {count} DBIndexes"
                " belong to several jobs; all are stored"
            )


def _violated_foreign_keys(connection: Connection) -> Iterator[str]:
    """Yield violated foreign keys in SQLite; PostgreSQL allows none."""
    if connection.dialect.name == "sqlite":
        query = 'SELECT "table", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2'
        for table, parent, count in connection.exec_driver_sql(query):
            yield f"{count} rows of {table} refer to {parent} that do not exist"


_INDEX = type_coerce(runs.c.db_index, BigInteger)
_IDENTITY = (clusters.c.name, _INDEX, runs.c.job_id_raw, runs.c.submit)
# The row of a pending array disappears when its tasks appear; whether it was read is chance.
RETIRED = and_(runs.c.gone_since.is_not(None), runs.c.start.is_(None))


def checksum(connection: Connection) -> str:
    """Return the sha256, in hexadecimal, of runs, steps, suspensions and usage.

    Row ids and the records of ingests are left out. Rows are hashed one by one and the hashes are
    summed, so that their order does not matter.
    """
    usage = _usage_hashes(connection)
    for table in USAGE_TABLES:
        for _ in usage[table.name].pass_on(_usage_rows(connection, table)):
            pass
    return _join_hashes(connection, usage)


def _join_hashes(connection: Connection, usage: Mapping[str, _UsageHash]) -> str:
    halts = _of_runs(suspensions, ("begin", "length", "seconds"))
    parts = {
        "runs": _total(connection, _runs(), bools=2),
        "steps": _total(connection, _of_runs(steps, StepRow._fields)),
        # Of a run without an end they reach up to when it was last seen.
        "suspensions": _total(connection, halts.where(runs.c.end.is_not(None))),
        **{name: each.total() for name, each in usage.items()},
    }
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _usage_hashes(connection: Connection) -> dict[str, _UsageHash]:
    """Return a hash for each usage table, by its name."""
    names = _load_key_names(connection)
    return {table.name: _UsageHash(names) for table in USAGE_TABLES}


def _load_key_names(connection: Connection) -> dict[int, _KeyNames]:
    """Return what each usage key stands for, by row id."""
    keys = [usage_keys.c[name] for name in UsageKey._fields if name not in {"cluster_id", "redone"}]
    query = select(usage_keys.c.id, clusters.c.name, *keys, usage_keys.c.redone).join(clusters)
    known: dict[object, Any] = {}  # a name is held once
    with connection.execute(query, execution_options={"yield_per": _MANY}) as found:
        return {
            number: (*(known.setdefault(name, name) for name in names), bool(redone))
            for number, *names, redone in found
        }


class _UsageHash:
    """Hash of the rows of a usage table; see `checksum`.

    Attributes:
        names: what the usage keys stand for.
    """

    def __init__(self, names: Mapping[int, _KeyNames]) -> None:
        self.names = names
        self._count = self._sum = 0

    def pass_on(self, parts: Iterator[list[_UsageRow]]) -> Iterator[list[_UsageRow]]:
        """Hash rows, some at a time, and pass them on; a row without a key has no hash."""
        for some in parts:
            for place, key, *sums in some:
                if names := self.names.get(key):
                    self._count += 1
                    self._sum += _hash([place, *names[:-1], *sums, names[-1]], 0)
            yield some

    def total(self) -> list[str]:
        """Return the count of rows and the sum of their hashes."""
        return _total_as_text(self._count, self._sum)


def _total(connection: Connection, query: Any, bools: int = 0) -> list[str]:
    """Return the count of rows and the sum of their hashes; the last `bools` columns are bool."""
    count, total = 0, 0
    with connection.execute(query, execution_options={"yield_per": _MANY}) as found:
        for some in found.partitions():
            count += len(some)
            total += sum(_hash(list(row), bools) for row in some)
    return _total_as_text(count, total)


def _total_as_text(count: int, total: int) -> list[str]:
    return [str(count), f"{total % 2**256:x}"]


def _hash(values: list[Any], bools: int) -> int:
    """Hash one row; SQLite returns bools as 0 and 1, which are converted first."""
    if bools:
        values[-bools:] = map(bool, values[-bools:])
    return int.from_bytes(hashlib.sha256(msgspec.json.encode(values)).digest(), "big")


def _runs() -> Any:
    # `doubt` is left out too: it depends on the GPUs of the nodes on the day the run was read.
    names = [name for name in RunRow._fields if name not in {"db_index", "fingerprint", "doubt"}]
    columns = [runs.c[name] for name in (*names, *MEASURED_COLUMNS)]
    last = (runs.c.retracted.is_not(None), runs.c.redone)
    query = select(clusters.c.name, _INDEX, *columns, *last).join_from(runs, clusters)
    return query.where(~RETIRED)


def _of_runs(table: Table, names: Sequence[str]) -> Any:
    columns = [table.c[name] for name in names]
    return select(*_IDENTITY, *columns).join_from(table, runs).join(clusters)


def _not_empty(table: Table) -> ColumnElement[bool]:
    """Return the condition of rows with any number; a start and an end may make one of zeros."""
    return or_(*(table.c[name] != 0 for name in USAGE_COLUMNS))
