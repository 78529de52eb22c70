"""Enter runs into the ledger: new ones, changed ones with what they said before, rejects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import Insert as PostgresqlInsert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

from slurmkit_accounting.bins import Held
from slurmkit_accounting.bulk import among
from slurmkit_accounting.redone import mark_redone
from slurmkit_accounting.sacct_rows import Key, Reject, Run, identify
from slurmkit_accounting.schema import (
    HAS_DB_INDEX,
    NO_DB_INDEX,
    UNREAD,
    clusters,
    ingests,
    rejects,
    revisions,
    runs,
)
from slurmkit_accounting.upkeep import COUNTED, HELD, change, eras

COUNTS = ("read", "new", "changed", "rejected")
_COLUMNS = [runs.c[field.name] for field in msgspec.structs.fields(Run)]
_BY_DB_INDEX = ["cluster_id", "db_index"]
_BY_SUBMIT = ["cluster_id", "job_id_raw", "submit"]


class Entered(msgspec.Struct):
    """What became of rows that were read.

    Attributes:
        read: rows, rejected ones included.
        new: rows the ledger did not have.
        changed: rows that said something else before; that is kept as a revision.
        rejected: lines that could not be read.
        why: the reason of the first of them.
    """

    read: int = 0
    new: int = 0
    changed: int = 0
    rejected: int = 0
    why: str = ""

    def __iadd__(self, other: Entered) -> Entered:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.why = self.why or other.why
        return self


def cluster_id(connection: Connection, name: str) -> int:
    """Find a cluster's number, giving it one when it is new."""
    connection.execute(upsert(connection, clusters).values(name=name).on_conflict_do_nothing())
    return int(
        connection.execute(select(clusters.c.id).where(clusters.c.name == name)).scalar_one()
    )


def enter(connection: Connection, ingest: int, rows: Sequence[Run | Reject]) -> Entered:
    """Enter one batch of one ingest; entering it again changes nothing."""
    cluster, started = connection.execute(
        select(ingests.c.cluster_id, ingests.c.started).where(ingests.c.id == ingest)
    ).one()
    given = {row.key: row for row in rows if isinstance(row, Run)}
    stored = _stored(connection, cluster, given)
    changed = {key: old for key, old in stored.items() if given[key] != old[1]}
    new = [row for key, row in given.items() if key not in stored]
    _keep_old(connection, ingest, [(*old, given[key]) for key, old in changed.items()])
    before = _held(connection, [number for number, _ in changed.values()])
    _write(connection, cluster, [*new, *(given[key] for key in changed)])
    written = [*new, *(given[key] for key in changed)]
    found = _stored(connection, cluster, [run.key for run in written])
    numbers = [number for number, _ in found.values()]
    change(connection, before, _held(connection, numbers))
    _mark_redone(connection, cluster, written)
    open_ones = [key for key, row in given.items() if row.end is None]
    _saw_open(connection, cluster, open_ones, started)
    _count_no_longer(connection, ingest, cluster, given)
    bad = [row for row in rows if isinstance(row, Reject)]
    _keep_rejects(connection, ingest, bad)
    return Entered(len(rows), len(new), len(changed), len(bad), bad[0].reason if bad else "")


def _held(connection: Connection, numbers: Sequence[int]) -> list[Held]:
    """Runs that usage counts, with their eras."""
    where = (COUNTED, among(connection, runs.c.id, numbers))
    found = [Held(*row) for row in connection.execute(select(*HELD).where(*where))]
    known = eras(connection)
    return [run._replace(era=known.of(run.submit)) for run in found]


def _mark_redone(connection: Connection, cluster: int, written: Sequence[Run]) -> None:
    numbers = mark_redone(connection, cluster, [run.job_id_raw for run in written])
    now = _held(connection, numbers)
    change(connection, [run._replace(redone=not run.redone) for run in now], now)


def open_runs(connection: Connection, cluster: int) -> dict[Key, int]:
    """JobIDRaw of every run without an end."""
    columns = (runs.c.db_index, runs.c.job_id_raw, runs.c.submit)
    query = select(*columns).where(runs.c.cluster_id == cluster, runs.c.end.is_(None))
    return {identify(*row): row.job_id_raw for row in connection.execute(query)}


def upsert(connection: Connection, table: Table) -> SqliteInsert | PostgresqlInsert:
    """Make an INSERT that knows ON CONFLICT, in the connection's dialect."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


def _stored(
    connection: Connection, cluster: int, given: Iterable[Key]
) -> dict[Key, tuple[int, Run]]:
    query = select(runs.c.id, *_COLUMNS).where(runs.c.cluster_id == cluster, _one_of(list(given)))
    found = ((row[0], Run(*row[1:])) for row in connection.execute(query))
    return {run.key: (number, run) for number, run in found}


def _one_of(keys: Sequence[Key]) -> ColumnElement[bool]:
    indices = [key[0] for key in keys if len(key) == 1]
    submits = [key for key in keys if len(key) == 2]
    by_submit = tuple_(runs.c.job_id_raw, runs.c.submit).in_(submits)
    return or_(and_(HAS_DB_INDEX, runs.c.db_index.in_(indices)), and_(NO_DB_INDEX, by_submit))


def _write(connection: Connection, cluster: int, rows: Sequence[Run]) -> None:
    for identity, where, chosen in (
        (_BY_DB_INDEX, HAS_DB_INDEX, [row for row in rows if row.db_index is not None]),
        (_BY_SUBMIT, NO_DB_INDEX, [row for row in rows if row.db_index is None]),
    ):
        if chosen:
            statement = upsert(connection, runs)
            news = {c.name: statement.excluded[c.name] for c in _COLUMNS if c.name not in identity}
            statement = statement.on_conflict_do_update(
                index_elements=identity, index_where=where, set_=news
            )
            values = [msgspec.structs.asdict(row) | {"cluster_id": cluster} for row in chosen]
            connection.execute(statement, values)


def _keep_old(connection: Connection, ingest: int, changes: Sequence[tuple[int, Run, Run]]) -> None:
    if changes:
        values = [
            {"run_id": number, "ingest_id": ingest, "old": _differences(old, new)}
            for number, old, new in changes
        ]
        connection.execute(insert(revisions), values)


def _saw_open(connection: Connection, cluster: int, seen: Sequence[Key], started: int) -> None:
    if seen:
        where = (runs.c.cluster_id == cluster, _one_of(seen))
        connection.execute(update(runs).where(*where).values(last_seen=started))


def _count_no_longer(
    connection: Connection, ingest: int, cluster: int, read: Iterable[Key]
) -> None:
    """What was rejected before and can be read now."""
    ours = select(ingests.c.id).where(ingests.c.cluster_id == cluster)
    where = (rejects.c.identity.in_(map(_text, read)), UNREAD, rejects.c.ingest_id.in_(ours))
    connection.execute(update(rejects).where(*where).values(read_since=ingest))


def _text(key: Key) -> str:
    return "@".join(map(str, key))


def _differences(old: Run, new: Run) -> str:
    before, after = msgspec.structs.asdict(old), msgspec.structs.asdict(new)
    changed = {name: value for name, value in before.items() if value != after[name]}
    return msgspec.json.encode(changed).decode()


def _keep_rejects(connection: Connection, ingest: int, bad: Sequence[Reject]) -> None:
    if bad:
        values = [
            {
                "ingest_id": ingest,
                "digest": hashlib.sha256(reject.line.encode()).hexdigest(),
                "reason": reject.reason,
                "line": reject.line,
                "identity": reject.key and _text(reject.key),
            }
            for reject in bad
        ]
        statement = upsert(connection, rejects).on_conflict_do_update(
            index_elements=["digest"], set_={"read_since": None}
        )
        connection.execute(statement, values)
