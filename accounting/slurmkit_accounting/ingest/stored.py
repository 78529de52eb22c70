"""Look up runs that the ledger already has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Connection, select, type_coerce

from slurmkit.errors import BadInput
from slurmkit_accounting.calendar import find_stored_zone
from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.schema.runs import ingests, runs
from slurmkit_accounting.sacct.rows import RunKey, RunRow
from slurmkit_accounting.usage.bins import UsageRun
from slurmkit_accounting.usage.tables import IS_COUNTED, USAGE_RUN_COLUMNS, load_eras

# Seconds between two time zones: from UTC-12 to UTC+14, by quarters of an hour.
_MOST_ZONES, _LEAST_ZONES = 26 * 3600, 900
_MOST_REPEATED = 2 * 3600  # seconds that a clock shows twice; it is set back by two hours at most
# As it is stored: a signed 64-bit number. With `IS NOT NULL` SQLite would scan the whole index.
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
    """Return the runs of some jobs that the ledger has, by key: those asked for, and others."""
    job_id = runs.c.job_id_raw
    if not keys or not _any(connection, cluster, job_id, min(keys)[0], max(keys)[0]):
        return {}
    jobs = in_values(connection, job_id, {job for job, _ in keys})
    query = select(job_id, runs.c.submit, *_FACTS).where(runs.c.cluster_id == cluster, jobs)
    return {(row[0], row[1]): StoredRun(*row[2:]) for row in connection.execute(query)}


class DBIndexMatches(NamedTuple):
    """What the ledger has with the DBIndexes of some rows.

    Attributes:
        runs: the same runs, but with a Submit of another time zone; by the key of the row.
        reused: DBIndexes of other runs, from before slurmdbd's database was re-created.
    """

    runs: dict[RunKey, StoredRun]
    reused: set[int]


def find_by_db_index(
    connection: Connection, cluster: int, rows: Mapping[RunKey, int], *, from_file: bool
) -> DBIndexMatches:
    """Look up the DBIndexes of rows that `find_runs` did not find.

    The times of a file may have been read in a wrong time zone, or mean the other one of two hours
    with the same name. So a run with the same DBIndex and JobIDRaw is the same run if its Submit
    differs by as much as time zones do.

    Args:
        connection: to the ledger.
        cluster: row id of the cluster.
        rows: the DBIndex of each row, by its key.
        from_file: whether the rows come from a file. Times of two rows of sacct itself never
            differ by a time zone: such runs are two.
    """
    matches = DBIndexMatches({}, set())
    wanted = {(index, key[0]): key for key, index in rows.items()}
    given = in_values(connection, _INDEX, set(rows.values()))
    query = select(_INDEX, runs.c.job_id_raw, runs.c.submit, ingests.c.source != "sacct", *_FACTS)
    query = query.join(ingests, runs.c.first_ingest_id == ingests.c.id)
    found = connection.execute(query.where(runs.c.cluster_id == cluster, given))
    for index, job, submit, was_in_file, *facts in found:
        key = wanted.get((index, job))
        dated = from_file or was_in_file
        if key is not None and dated and _differ_by_zone(submit, key[1]):
            matches.runs[key] = StoredRun(*facts)
        else:
            matches.reused.add(index)
    return matches


def find_by_first_meaning(
    connection: Connection, keys: Collection[RunKey], known: Mapping[RunKey, StoredRun]
) -> dict[RunKey, StoredRun]:
    """Find runs of files whose Submit is an hour early, since the clock showed that time twice.

    `LocalTimes` takes the first of two times with the same name. A row that says the second time,
    as sacct does, is of the same run.

    Args:
        connection: to the ledger.
        keys: of rows that `find_runs` did not find.
        known: what it found: runs of the same jobs.
    """
    submits: dict[int, list[int]] = defaultdict(list)
    for job, submit in known:
        submits[job].append(submit)
    pairs = [
        (key, known[key[0], submit])
        for key in keys
        for submit in submits.get(key[0], ())
        if 0 < key[1] - submit <= _MOST_REPEATED
    ]
    if not pairs:
        return {}
    query = select(runs.c.id, runs.c.submit, ingests.c.layout)
    query = query.join(ingests, runs.c.first_ingest_id == ingests.c.id)
    ids = in_values(connection, runs.c.id, {one.id for _, one in pairs})
    second = {
        number: _second_meaning(submit, layout)
        for number, submit, layout in connection.execute(query.where(ids))
    }
    return {key: one for key, one in pairs if second.get(one.id) == key[1]}


def _second_meaning(submit: int, layout: str | None) -> int | None:
    """Return the second time that a Submit of a file may mean; None if it has one meaning."""
    if layout is None:
        return None
    try:
        rules = find_stored_zone(msgspec.json.decode(layout)["zone"]).rules
    except BadInput:
        return None
    first = datetime.fromtimestamp(submit, rules)
    second = int(first.replace(fold=1).timestamp())
    return second if first.fold == 0 and second != submit else None


def has_db_indices(connection: Connection, cluster: int, indices: Collection[int]) -> bool:
    """Return whether any stored DBIndex lies in the range of some."""
    if not indices:
        return False
    return _any(connection, cluster, _INDEX, min(indices), max(indices))


def find_ids_by_db_index(
    connection: Connection, cluster: int, indices: Collection[int]
) -> Sequence[int]:
    """Return the row ids of the runs that have some DBIndexes."""
    if not indices:
        return []
    where = (runs.c.cluster_id == cluster, in_values(connection, _INDEX, indices))
    return connection.scalars(select(runs.c.id).where(*where)).all()


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


def _any(
    connection: Connection, cluster: int, column: ColumnElement[Any], first: int, last: int
) -> bool:
    """Return whether any stored run lies in the range; new rows mostly have higher numbers."""
    some = (runs.c.cluster_id == cluster, column.between(first, last))
    return connection.scalar(select(runs.c.id).where(*some).limit(1)) is not None


def _differ_by_zone(one: int, other: int) -> bool:
    """Return whether two times, in epoch seconds, differ by as much as two time zones can."""
    return one != other and abs(one - other) <= _MOST_ZONES and (one - other) % _LEAST_ZONES == 0
