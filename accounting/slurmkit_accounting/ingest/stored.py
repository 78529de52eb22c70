"""Look up runs that the ledger already has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import BigInteger, Connection, select, type_coerce

from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.schema.runs import HAS_DB_INDEX, NO_DB_INDEX, runs
from slurmkit_accounting.sacct.rows import RunKey, RunRow
from slurmkit_accounting.usage.bins import UsageRun
from slurmkit_accounting.usage.tables import IS_COUNTED, USAGE_RUN_COLUMNS, load_eras

RowT = TypeVar("RowT")
# As it is stored: a signed 64-bit number.
_INDEX = type_coerce(runs.c.db_index, BigInteger)
_COLUMNS = [_INDEX, *(runs.c[name] for name in RunRow._fields[1:])]


class StoredRun(NamedTuple):
    """A stored run, as far as needed to compare it with a row of sacct.

    Attributes:
        fingerprint: of the row that was last read.
        open: whether the run has no end.
        gone: whether sacct no longer showed the run when last asked.
    """

    id: int
    fingerprint: int | None
    open: bool
    gone: bool


_FACTS = (runs.c.id, runs.c.fingerprint, runs.c.end.is_(None), runs.c.gone_since.is_not(None))


def find_runs(
    connection: Connection, cluster: int, keys: Collection[RunKey]
) -> dict[RunKey, StoredRun]:
    """Return those of the runs that the ledger has, by key."""
    pairs = [key for key in keys if isinstance(key, tuple)] if tuple in set(map(type, keys)) else []
    indices: Collection[Any] = keys
    if pairs:
        indices = [key for key in keys if isinstance(key, int)]
    found: dict[RunKey, StoredRun] = {}
    if indices and _any(connection, cluster, indices):
        where = (HAS_DB_INDEX, runs.c.cluster_id == cluster, in_values(connection, _INDEX, indices))
        query = select(_INDEX, *_FACTS).where(*where)
        found |= {row[0]: StoredRun(*row[1:]) for row in connection.execute(query).all()}
    if pairs:
        jobs = sorted({job for job, _ in pairs})
        where = (
            NO_DB_INDEX,
            runs.c.cluster_id == cluster,
            in_values(connection, runs.c.job_id_raw, jobs),
        )
        query = select(runs.c.job_id_raw, runs.c.submit, *_FACTS).where(*where)
        found |= {(row[0], row[1]): StoredRun(*row[2:]) for row in connection.execute(query)}
    return found


# For each type of key: the runs stored with the other type, sorted as in their partial index.
# Without that order SQLite would scan all runs.
_OTHER_KEY_TYPES = (
    (int, NO_DB_INDEX, (runs.c.job_id_raw, runs.c.submit)),
    (tuple, HAS_DB_INDEX, (runs.c.db_index,)),
)


def find_runs_by_submit(
    connection: Connection,
    cluster: int,
    rows: Mapping[RunKey, RowT],
    pair: Callable[[RowT], tuple[int, int] | None],
) -> dict[RunKey, StoredRun]:
    """Find runs that were stored under the other type of key: with a DBIndex, or without one.

    Args:
        connection: to the ledger.
        cluster: row id of the cluster.
        rows: rows whose keys were not found, by key.
        pair: parses JobIDRaw and Submit of a row. slurmdbd has one run for each such pair.
    """
    found: dict[RunKey, StoredRun] = {}
    kinds = set(map(type, rows))
    for kind, where, order in _OTHER_KEY_TYPES:
        ours = (where, runs.c.cluster_id == cluster)
        some = select(runs.c.id).where(*ours).order_by(*order).limit(1)
        if kind not in kinds or connection.scalar(some) is None:
            continue
        others = {key: row for key, row in rows.items() if isinstance(key, kind)}
        wanted = {both: key for key, row in others.items() if (both := pair(row)) is not None}
        jobs = in_values(connection, runs.c.job_id_raw, sorted({job for job, _ in wanted}))
        query = select(runs.c.job_id_raw, runs.c.submit, *_FACTS).where(*ours, jobs)
        for job, submit, *facts in connection.execute(query.order_by(runs.c.id)):
            key = wanted.pop((job, submit), None)
            if key is not None:
                found[key] = StoredRun(*facts)
    return found


def load_runs(connection: Connection, run_ids: Sequence[int]) -> dict[int, RunRow]:
    """Load runs by row id."""
    if not run_ids:
        return {}
    query = select(runs.c.id, *_COLUMNS).where(in_values(connection, runs.c.id, run_ids))
    return {row[0]: RunRow(*row[1:]) for row in connection.execute(query)}


def load_usage_runs(connection: Connection, run_ids: Sequence[int]) -> list[UsageRun]:
    """Load those of the runs that usage counts, each with its era."""
    if not run_ids:
        return []
    where = (IS_COUNTED, in_values(connection, runs.c.id, run_ids))
    known = load_eras(connection)
    found = (UsageRun(*row) for row in connection.execute(select(*USAGE_RUN_COLUMNS).where(*where)))
    return [run._replace(era=known.of(run.submit)) for run in found]


def _any(connection: Connection, cluster: int, indices: Collection[int]) -> bool:
    """Return whether any stored DBIndex lies in the range; those of new rows are mostly higher."""
    between = _INDEX.between(min(indices), max(indices))
    query = select(runs.c.id).where(HAS_DB_INDEX, runs.c.cluster_id == cluster, between).limit(1)
    return connection.scalar(query) is not None
