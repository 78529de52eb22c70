"""Runs as the ledger has them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import BigInteger, Connection, select, type_coerce

from slurmkit_accounting.bins import Held
from slurmkit_accounting.bulk import among
from slurmkit_accounting.rows import Key, Run
from slurmkit_accounting.schema import HAS_DB_INDEX, NO_DB_INDEX, runs
from slurmkit_accounting.upkeep import COUNTED, HELD, eras

RowT = TypeVar("RowT")
# As it is stored: with a sign.
_INDEX = type_coerce(runs.c.db_index, BigInteger)
_COLUMNS = [_INDEX, *(runs.c[name] for name in Run._fields[1:])]


class Stored(NamedTuple):
    """What is asked of a run that is read again.

    Attributes:
        fingerprint: of the line last read.
        open: whether it has no end.
        gone: whether sacct did not show it when it was asked.
    """

    id: int
    fingerprint: int | None
    open: bool
    gone: bool


_FACTS = (runs.c.id, runs.c.fingerprint, runs.c.end.is_(None), runs.c.gone_since.is_not(None))


def find(connection: Connection, cluster: int, keys: Collection[Key]) -> dict[Key, Stored]:
    """Those of some runs that the ledger has."""
    pairs = [key for key in keys if isinstance(key, tuple)] if tuple in set(map(type, keys)) else []
    indices: Collection[Any] = keys
    if pairs:
        indices = [key for key in keys if isinstance(key, int)]
    found: dict[Key, Stored] = {}
    if indices and _any(connection, cluster, indices):
        where = (HAS_DB_INDEX, runs.c.cluster_id == cluster, among(connection, _INDEX, indices))
        query = select(_INDEX, *_FACTS).where(*where)
        found |= {row[0]: Stored(*row[1:]) for row in connection.execute(query).all()}
    if pairs:
        jobs = sorted({job for job, _ in pairs})
        where = (
            NO_DB_INDEX, runs.c.cluster_id == cluster, among(connection, runs.c.job_id_raw, jobs),
        )  # fmt: skip
        query = select(runs.c.job_id_raw, runs.c.submit, *_FACTS).where(*where)
        found |= {(row[0], row[1]): Stored(*row[2:]) for row in connection.execute(query)}
    return found


# In the order of the index that has just these runs, or SQLite would look at all others.
_OTHERS = (
    (int, NO_DB_INDEX, (runs.c.job_id_raw, runs.c.submit)),
    (tuple, HAS_DB_INDEX, (runs.c.db_index,)),
)


def find_by_submit(
    connection: Connection,
    cluster: int,
    rows: Mapping[Key, RowT],
    pair: Callable[[RowT], tuple[int, int] | None],
) -> dict[Key, Stored]:
    """Of rows whose keys were not found, runs that came without a DBIndex before, or with one.

    Args:
        connection: to the ledger.
        cluster: whose runs.
        rows: by their keys.
        pair: reads JobIDRaw and Submit of a row, of which slurmdbd has one run each.
    """
    found: dict[Key, Stored] = {}
    kinds = set(map(type, rows))
    for kind, where, order in _OTHERS:
        ours = (where, runs.c.cluster_id == cluster)
        some = select(runs.c.id).where(*ours).order_by(*order).limit(1)
        if kind not in kinds or connection.scalar(some) is None:
            continue
        others = {key: row for key, row in rows.items() if isinstance(key, kind)}
        wanted = {both: key for key, row in others.items() if (both := pair(row)) is not None}
        jobs = among(connection, runs.c.job_id_raw, sorted({job for job, _ in wanted}))
        query = select(runs.c.job_id_raw, runs.c.submit, *_FACTS).where(*ours, jobs)
        for job, submit, *facts in connection.execute(query.order_by(runs.c.id)):
            key = wanted.pop((job, submit), None)
            if key is not None:
                found[key] = Stored(*facts)
    return found


def read_runs(connection: Connection, numbers: Sequence[int]) -> dict[int, Run]:
    """What is stored of some runs."""
    if not numbers:
        return {}
    query = select(runs.c.id, *_COLUMNS).where(among(connection, runs.c.id, numbers))
    return {row[0]: Run(*row[1:]) for row in connection.execute(query)}


def held_runs(connection: Connection, numbers: Sequence[int]) -> list[Held]:
    """Those of some runs that usage counts, with their eras."""
    if not numbers:
        return []
    where = (COUNTED, among(connection, runs.c.id, numbers))
    known = eras(connection)
    found = (Held(*row) for row in connection.execute(select(*HELD).where(*where)))
    return [run._replace(era=known.of(run.submit)) for run in found]


def _any(connection: Connection, cluster: int, indices: Collection[int]) -> bool:
    """Whether it has any run in their range; new rows of a cluster mostly lie after all others."""
    between = _INDEX.between(min(indices), max(indices))
    query = select(runs.c.id).where(HAS_DB_INDEX, runs.c.cluster_id == cluster, between).limit(1)
    return connection.scalar(query) is not None
