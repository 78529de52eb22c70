"""The upsert of runs into the ledger, batch by batch.

A new run is inserted. A changed run keeps a revision with its old values. A row that cannot be
parsed is stored as a reject, and so is a row that the ledger cannot count or store. The usage
tables follow in the same transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from operator import not_
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from slurmkit_accounting.ingest.rejects import mark_rejects_of_runs_read, store_rejects
from slurmkit_accounting.ingest.steps import update_measured_use
from slurmkit_accounting.ingest.stored import (
    StoredRun,
    find_by_db_index,
    find_by_first_meaning,
    find_ids_by_db_index,
    find_runs,
    has_db_indices,
    load_runs,
    load_usage_runs,
)
from slurmkit_accounting.ledger.bulk_write import (
    in_values,
    insert_columns,
    insert_rows,
    update_rows,
)
from slurmkit_accounting.ledger.coverage import CoveredSpan, is_covered, load_spans
from slurmkit_accounting.ledger.database_errors import first_line, is_value_error
from slurmkit_accounting.ledger.schema.runs import clusters, ingests, revisions, runs, suspensions
from slurmkit_accounting.sacct.columns import RowLayout
from slurmkit_accounting.sacct.rows import (
    Reject,
    RowBatch,
    RunColumns,
    RunKey,
    RunRow,
)
from slurmkit_accounting.sacct.values import NodeGpus
from slurmkit_accounting.usage.bins import Eras, UsageRun
from slurmkit_accounting.usage.redone import mark_redone
from slurmkit_accounting.usage.tables import MOST_STORED, KeyIds, UsageChange, load_eras

COUNT_NAMES = ("read", "new", "changed", "rejected", "reused")
_FINGERPRINT = RunRow._fields.index("fingerprint")
# The columns of a run that its usage depends on, in the order of `UsageRun`.
_COUNTED = RunRow._fields[RunRow._fields.index("user") : RunRow._fields.index("energy_joules") + 1]


class IngestCounts(msgspec.Struct):
    """Counts of the rows that an ingest entered.

    Attributes:
        read: rows, rejected ones included.
        new: rows that the ledger did not have.
        changed: rows that differ from the stored run. The old values are stored as a revision.
        rejected: lines that could not be parsed.
        reused: new runs whose DBIndex another job has: slurmdbd's database was re-created.
        why: the reason of the first reject.
    """

    read: int = 0
    new: int = 0
    changed: int = 0
    rejected: int = 0
    reused: int = 0
    why: str = ""

    def __iadd__(self, other: IngestCounts) -> IngestCounts:
        for name in COUNT_NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.why = self.why or other.why
        return self

    def reuse_warning(self, cluster: str) -> str:
        """Say that DBIndexes belong to other jobs now; empty if none does."""
        if not self.reused:
            return ""
        return (
            f"the accounting database of {cluster} was re-created: {self.reused} DBIndexes belong"
            " to other jobs now; both are stored"
        )


class OngoingIngest(msgspec.Struct, frozen=True):
    """One ingest in progress.

    Attributes:
        id: row id of the ingest.
        cluster: row id of its cluster.
        started: epoch seconds.
        seen: epoch seconds at which the runs without an end still existed. 0 for a file: its last
            time is known only after the whole file was read.
        open: row ids of the runs without an end that were read while `seen` was 0.
        keys: row ids of the usage keys used so far.
        not_entered: the lines that could be parsed, but not counted or stored.
        shapes: the GPUs of the nodes as they are now. None when the rows come from a file.
        shown: row ids of the stored runs that sacct has shown, until somebody clears it. Empty for
            a file.
    """

    id: int
    cluster: int
    started: int
    seen: int
    open: set[int] = msgspec.field(default_factory=set)
    keys: KeyIds = msgspec.field(default_factory=KeyIds)
    not_entered: set[str] = msgspec.field(default_factory=set)
    shapes: NodeGpus | None = None
    shown: set[int] = msgspec.field(default_factory=set)


class _Transaction(msgspec.Struct):
    """State of one transaction: what is written once, after the last batch.

    Attributes:
        eras: see `bins.Eras`.
        settled: spans already read from sacct itself. A file changes no run that ended there.
        together: whether usage is written once, after all batches.
        usage: changes of the usage tables.
        jobs: JobIDRaw of the runs that were written.
    """

    eras: Eras
    settled: Sequence[CoveredSpan]
    together: bool
    usage: UsageChange = msgspec.field(default_factory=UsageChange)
    jobs: set[int] = msgspec.field(default_factory=set)


class _RunChanges(msgspec.Struct):
    """Updates of runs that the ledger already has."""

    changed: list[tuple[int, RunRow, RunRow]] = msgspec.field(
        default_factory=list
    )  # id, before, after
    same: list[tuple[int, int]] = msgspec.field(default_factory=list)  # id, fingerprint
    foreign: list[tuple[RunKey, str]] = msgspec.field(default_factory=list)  # whose run it is


def find_or_add_cluster(connection: Connection, name: str) -> int:
    """Return the row id of a cluster; insert the cluster if it is new."""
    kind = sqlite if connection.dialect.name == "sqlite" else postgresql
    connection.execute(kind.insert(clusters).values(name=name).on_conflict_do_nothing())
    return int(
        connection.execute(select(clusters.c.id).where(clusters.c.name == name)).scalar_one()
    )


def begin_ingest(connection: Connection, cluster: int, started: int, **facts: Any) -> OngoingIngest:
    """Insert the row of a new ingest of sacct; for a file, set `seen` to 0 afterwards."""
    values = {"cluster_id": cluster, "started": started, **facts}
    inserted = connection.execute(insert(ingests).values(values))
    (ingest_id,) = inserted.inserted_primary_key or (0,)
    return OngoingIngest(ingest_id, cluster, started, started)


def enter_batch(
    connection: Connection, ingest: OngoingIngest, row_layout: RowLayout, batch: RowBatch
) -> IngestCounts:
    """Enter one batch with its usage. Entering the same batch again changes nothing.

    A row whose usage does not fit to what is stored is rejected, as any other that cannot be
    stored.
    """
    transaction = _begin_transaction(connection, ingest, row_layout, together=False)
    return _upsert_or_reject(connection, ingest, transaction, row_layout, batch)


def enter_batches(
    connection: Connection,
    ingest: OngoingIngest,
    row_layout: RowLayout,
    batches: Iterable[RowBatch],
) -> IngestCounts:
    """Enter the batches of one ingest; write the change of usage once, after the last batch.

    Raises:
        SQLAlchemyError: also if the usage of some row does not fit to what is stored; `enter_batch`
            finds that row.
    """
    transaction = _begin_transaction(connection, ingest, row_layout, together=True)
    total = IngestCounts()
    for batch in batches:
        total += _upsert_or_reject(connection, ingest, transaction, row_layout, batch)
        del batch  # free it before the next one is read, see `SacctFileReader.batches`
    _write_usage(connection, ingest, transaction)
    return total


def _begin_transaction(
    connection: Connection, ingest: OngoingIngest, row_layout: RowLayout, *, together: bool
) -> _Transaction:
    settled = load_spans(connection, ingest.cluster) if row_layout.dated else []
    return _Transaction(load_eras(connection), settled, together)


def _write_usage(connection: Connection, ingest: OngoingIngest, transaction: _Transaction) -> None:
    """Write the changes of usage that a transaction has collected."""
    _update_redone(connection, ingest.cluster, transaction.jobs, transaction.usage)
    transaction.usage.write(connection, ingest.keys, MOST_STORED)
    transaction.usage, transaction.jobs = UsageChange(), set()


def _upsert_or_reject(
    connection: Connection,
    ingest: OngoingIngest,
    transaction: _Transaction,
    row_layout: RowLayout,
    batch: RowBatch,
) -> IngestCounts:
    """Upsert a batch; if one of its rows cannot be counted or stored, reject that row alone.

    One row must not keep all others out of the ledger. The row is found by halving the batch.
    """
    savepoint = connection.begin_nested()
    try:
        with transaction.usage.undone_on_error():
            counts = _upsert(connection, ingest, transaction, row_layout, batch)
            transaction.usage.refuse_overflow()
            if not transaction.together:
                _write_usage(connection, ingest, transaction)
    except Exception as error:
        if not batch.fingerprints or not is_value_error(error):
            raise  # the whole transaction is rolled back
        savepoint.rollback()
        ingest.keys.clear()  # some of them may not be stored any more
        if len(batch.fingerprints) == 1:
            return _reject_row(connection, ingest, row_layout, batch, first_line(error))
        counts = IngestCounts()
        for half in _halves(batch):
            counts += _upsert_or_reject(connection, ingest, transaction, row_layout, half)
        return counts
    savepoint.commit()
    return counts


def _reject_row(
    connection: Connection, ingest: OngoingIngest, row_layout: RowLayout, batch: RowBatch, why: str
) -> IngestCounts:
    """Store the only row of a batch as a reject."""
    reject = row_layout.reject(batch.row(0), f"the row cannot be entered: {why}")
    ingest.not_entered.add(reject.line)
    store_rejects(connection, ingest.cluster, ingest.id, [*batch.rejects, reject])
    return IngestCounts(read=len(batch), rejected=len(batch), why=reject.reason)


def _halves(batch: RowBatch) -> tuple[RowBatch, RowBatch]:
    rows = len(batch.fingerprints)
    first, second = batch.some(range(rows // 2)), batch.some(range(rows // 2, rows))
    return RowBatch((), first.texts, first.fingerprints, batch.rejects), second


def _upsert(
    connection: Connection,
    ingest: OngoingIngest,
    transaction: _Transaction,
    row_layout: RowLayout,
    batch: RowBatch,
) -> IngestCounts:
    """Upsert the runs of a batch, store its rejects, and return the counts."""
    keys, indices = row_layout.keys(batch), row_layout.db_indices(batch)
    if second := row_layout.second_submits(batch):
        batch = _with_stored_submits(connection, ingest.cluster, row_layout, batch, second)
        keys = row_layout.keys(batch)
    if row_layout.dated and (layers := _occurrences(keys)):
        # Two dumps in one file: a later line may show an earlier state, which `_merge` knows.
        total = IngestCounts()
        for number, rows in enumerate(layers):
            some = batch.some(rows)
            rejects = [] if number else batch.rejects
            part = RowBatch((), some.texts, some.fingerprints, rejects)
            total += _upsert(connection, ingest, transaction, row_layout, part)
        return total
    # Of several rows of one run in a batch, the last one counts.
    last = {key: number for number, key in enumerate(keys) if key is not None}
    known, reused = _find_stored(
        connection, ingest.cluster, indices, last, from_file=row_layout.dated
    )
    stored = [known[key] for key in last if key in known] if known else []
    if not row_layout.dated:
        ingest.shown.update(one.id for one in stored)
        ingest.shown.update(_ids_of_rows_without_key(connection, ingest.cluster, keys, indices))
    if not known and len(last) == len(keys):  # all rows are of different runs, and new
        columns, bad = row_layout.columns(batch, list(last))
    else:
        columns, bad = row_layout.columns(_rows_to_parse(batch, keys, last, known))
    if ingest.shapes:
        ingest.shapes.look(columns)
    bad = [*batch.rejects, *bad]
    new, old = split_known(columns, known)
    changes = _compare(
        connection, row_layout, [(known[run.key], run) for run in old], transaction.settled
    )
    bad += [row_layout.reject(batch.row(last[key]), why) for key, why in changes.foreign]
    _insert_new(connection, ingest, transaction, new)
    _update_changed(connection, ingest, transaction, changes)
    _mark_seen_by_ingest(connection, ingest, stored, changes)
    if not row_layout.dated:
        _mark_shown_again(connection, stored)
    _replace_rejects(connection, ingest, last, indices, bad)
    counts = len(new["submit"]), len(changes.changed), len(bad), _count_reused(new, reused)
    return IngestCounts(len(batch), *counts, bad[0].reason if bad else "")


def _occurrences(keys: Sequence[RunKey | None]) -> list[list[int]]:
    """Return the numbers of first rows, of second rows …; nothing if each run has one row."""
    layers: list[list[int]] = []
    seen: Counter[RunKey] = Counter()
    for number, key in enumerate(keys):
        layer = 0 if key is None else seen[key]
        if key is not None:
            seen[key] += 1
        if layer == len(layers):
            layers.append([])
        layers[layer].append(number)
    return layers if len(layers) > 1 else []


def _with_stored_submits(
    connection: Connection,
    cluster: int,
    row_layout: RowLayout,
    batch: RowBatch,
    second: Mapping[int, int],
) -> RowBatch:
    """Give a Submit that the clock showed twice its second meaning if the ledger has that run."""
    keys = row_layout.keys(batch)
    both = {
        number: (key, (key[0], time))
        for number, time in second.items()
        if (key := keys[number]) is not None
    }
    known = find_runs(connection, cluster, {key for pair in both.values() for key in pair})
    meant = {
        number: second[number]
        for number, (one, other) in both.items()
        if one not in known and other in known
    }
    return row_layout.with_submits(batch, meant)


def _find_stored(
    connection: Connection,
    cluster: int,
    indices: Sequence[int | None],
    last: Mapping[RunKey, int],
    *,
    from_file: bool,
) -> tuple[dict[RunKey, StoredRun], set[int]]:
    """Find the runs that the ledger has, and the DBIndexes of rows that other runs have."""
    known = find_runs(connection, cluster, last)
    if known and (early := find_by_first_meaning(connection, last.keys() - known, known)):
        own = {known[key].id for key in last if key in known}
        known |= {key: one for key, one in early.items() if one.id not in own}
    new = {key: number for key, number in last.items() if key not in known} if known else last
    unknown = {key: index for key, number in new.items() if (index := indices[number]) is not None}
    if not has_db_indices(connection, cluster, unknown.values()):
        return known, set()
    matches = find_by_db_index(connection, cluster, unknown, from_file=from_file)
    taken = {known[key].id for key in last if key in known} if matches.runs else set()
    return known | {
        key: one for key, one in matches.runs.items() if one.id not in taken
    }, matches.reused


def _ids_of_rows_without_key(
    connection: Connection,
    cluster: int,
    keys: Sequence[RunKey | None],
    indices: Sequence[int | None],
) -> Sequence[int]:
    """Return the row ids of stored runs that are shown, though their Submit cannot be parsed."""
    if None not in keys:
        return []
    shown = [
        index for key, index in zip(keys, indices, strict=True) if key is None and index is not None
    ]
    return find_ids_by_db_index(connection, cluster, shown)


def _count_reused(new: RunColumns, reused: Collection[int]) -> int:
    """Return the number of new runs whose DBIndex another run has, stored or new too."""
    given = list(filter(None, new["db_index"]))
    distinct = set(given)
    return len(given) - len(distinct) + len(distinct.intersection(reused))


def _rows_to_parse(
    batch: RowBatch,
    keys: Sequence[RunKey | None],
    last: Mapping[RunKey, int],
    known: Mapping[RunKey, StoredRun],
) -> RowBatch:
    """Return the rows to parse: each run's last row if new or changed, and rows without a key."""
    prints = batch.fingerprints
    rows = [
        number
        for key, number in last.items()
        if (one := known.get(key)) is None or one.fingerprint != prints[number]
    ]
    rows += [number for number, key in enumerate(keys) if key is None]
    return batch if rows == list(range(len(keys))) else batch.some(rows)


def _compare(
    connection: Connection,
    row_layout: RowLayout,
    old: Sequence[tuple[StoredRun, RunRow]],
    settled: Sequence[CoveredSpan],
) -> _RunChanges:
    """Sort runs that were read again into changed and unchanged.

    A row of a file changes no run that ended within `settled`, the spans read from sacct itself.
    """
    changes = _RunChanges()
    before = load_runs(connection, [stored.id for stored, _ in old])
    for stored, run in old:
        run_id, was = stored.id, before[stored.id]
        if _is_of_other_user(was, run):
            whose = f"the ledger has this JobIDRaw and Submit as a run of {was.user}, which stays"
            changes.foreign.append((run.key, whose))
            continue
        stays = not stored.gone and is_covered(settled, was.end)
        after = was if stays else _merge(row_layout, was, run)
        if after[:_FINGERPRINT] != was[:_FINGERPRINT]:
            changes.changed.append((run_id, was, after))
        else:
            changes.same.append((run_id, after.fingerprint))
    return changes


def _is_of_other_user(was: RunRow, run: RunRow) -> bool:
    """Return whether two rows with the same key are of jobs of two users.

    A database that was re-created may give a number again in the same second. No job changes its
    user; a user may get another name, and a file may lack the UID or the name.
    """
    if was.uid is not None and run.uid is not None:
        return was.uid != run.uid
    return bool(was.user and run.user) and was.user != run.user


def _merge(row_layout: RowLayout, was: RunRow, run: RunRow) -> RunRow:
    """Return the run to store, merged from the stored run and the row.

    Columns that the row lacks keep their stored values. A row of a file never takes a run back to
    an earlier state, for example from ended to running.
    """
    if row_layout.dated and _run_stage(run) < _run_stage(was):
        return was
    if len(row_layout.given) != len(RunRow._fields):
        pairs = zip(RunRow._fields, was, run, strict=True)
        run = RunRow._make(b if name in row_layout.given else a for name, a, b in pairs)
    # Keep the doubt that came from the GPUs of its nodes, see `NodeGpus`.
    same = (run.alloc_tres, run.node_list) == (was.alloc_tres, was.node_list)
    return run._replace(doubt=was.doubt) if same and run.doubt is None else run


def _run_stage(run: RunRow) -> int:
    """Return 0 for a pending run, 1 for one that started, 2 for one that ended."""
    return 2 if run.end is not None else int(run.start is not None)


def _insert_new(
    connection: Connection, ingest: OngoingIngest, transaction: _Transaction, new: RunColumns
) -> None:
    if not new["submit"]:
        return
    insert_runs(connection, new, cluster=ingest.cluster, ingest=ingest.id, seen=ingest.seen)
    transaction.usage.add_columns(usage_run_columns(ingest.cluster, new, transaction.eras))
    transaction.jobs.update(new["job_id_raw"])


def _update_changed(
    connection: Connection, ingest: OngoingIngest, transaction: _Transaction, changes: _RunChanges
) -> None:
    if changes.same:
        update_rows(connection, runs, ("id", "fingerprint"), changes.same)
    if not changes.changed:
        return
    run_ids = [run_id for run_id, _, _ in changes.changed]
    transaction.usage.take(load_usage_runs(connection, run_ids))
    _store_revisions(connection, ingest, changes.changed)
    transaction.usage.put(load_usage_runs(connection, run_ids))
    update_measured_use(connection, run_ids)
    transaction.jobs.update(run.job_id_raw for _, _, run in changes.changed)


def update_redone(connection: Connection, cluster: int, jobs: Collection[int]) -> None:
    """Recompute which runs of some jobs were redone, and update the usage tables."""
    usage = UsageChange()
    _update_redone(connection, cluster, jobs, usage)
    usage.write(connection)


def _update_redone(
    connection: Connection, cluster: int, jobs: Collection[int], usage: UsageChange
) -> None:
    changed = load_usage_runs(connection, mark_redone(connection, cluster, jobs))
    usage.take([run._replace(redone=not run.redone) for run in changed])
    usage.put(changed)


def _store_revisions(
    connection: Connection, ingest: OngoingIngest, changed: Sequence[tuple[int, RunRow, RunRow]]
) -> None:
    old = [(run_id, ingest.id, _differences(was, run)) for run_id, was, run in changed]
    insert_rows(connection, revisions, ("run_id", "ingest_id", "old"), old)
    values = [(run_id, *run) for run_id, _, run in changed]
    update_rows(connection, runs, ("id", *RunRow._fields), values)
    ended = [(run_id, None) for run_id, _, run in changed if run.end is not None]
    update_rows(connection, runs, ("id", "last_seen"), ended)
    # Intervals that no longer fit; the next ingest of sacct asks again when the run was suspended.
    unfit = [
        run_id
        for run_id, was, run in changed
        if run.suspended < was.suspended or (was.end is None and run.end is not None)
    ]
    intervals = in_values(connection, suspensions.c.run_id, unfit)
    connection.execute(delete(suspensions).where(intervals))


def _differences(old: RunRow, new: RunRow) -> str:
    """Return the old values of the columns that changed, as JSON."""
    pairs = zip(RunRow._fields, old, new, strict=True)
    changed = {name: a for name, a, b in pairs if a != b and name != "fingerprint"}
    return msgspec.json.encode(changed).decode()


def _mark_seen_by_ingest(
    connection: Connection, ingest: OngoingIngest, stored: Sequence[StoredRun], changes: _RunChanges
) -> None:
    """Record that the runs without an end were seen by this ingest."""
    still = {one.id for one in stored if one.open}
    still |= {run_id for run_id, _, run in changes.changed if run.end is None}
    if not ingest.seen:
        ingest.open.update(still)
    elif still:
        mark_seen(connection, sorted(still), ingest.seen)


def _mark_shown_again(connection: Connection, stored: Sequence[StoredRun]) -> None:
    """Clear `gone_since` of runs that sacct shows again."""
    if back := [one.id for one in stored if one.gone]:
        where = in_values(connection, runs.c.id, back)
        connection.execute(update(runs).where(where).values(gone_since=None))


def _replace_rejects(
    connection: Connection,
    ingest: OngoingIngest,
    last: Mapping[RunKey, int],
    indices: Sequence[int | None],
    bad: Sequence[Reject],
) -> None:
    """Store the rejects of a batch; those of runs that could be parsed now are settled."""
    rejected = {reject.key for reject in bad}
    parsed = ((key, indices[number]) for key, number in last.items() if key not in rejected)
    mark_rejects_of_runs_read(connection, ingest.cluster, ingest.id, parsed)
    store_rejects(connection, ingest.cluster, ingest.id, bad)


def mark_seen(connection: Connection, run_ids: Sequence[int], moment: int) -> None:
    """Set `last_seen` of those of the given runs that have no end; `moment` in epoch seconds."""
    earlier = or_(runs.c.last_seen.is_(None), runs.c.last_seen < moment)
    where = (in_values(connection, runs.c.id, run_ids), runs.c.end.is_(None), earlier)
    connection.execute(update(runs).where(*where).values(last_seen=moment))


def split_known(columns: RunColumns, known: Collection[RunKey]) -> tuple[RunColumns, list[RunRow]]:
    """Split runs into new ones, as columns, and those whose key is in `known`."""
    keys = zip(columns["job_id_raw"], columns["submit"], strict=True)
    old = [key in known for key in keys] if known else []
    if not any(old):
        return columns, []
    fresh = list(map(not_, old))
    new: RunColumns = {name: list(compress(values, fresh)) for name, values in columns.items()}
    return new, [RunRow._make(row) for row in compress(zip(*columns.values(), strict=True), old)]


def insert_runs(
    connection: Connection, columns: RunColumns, *, cluster: int, ingest: int, seen: int | None
) -> None:
    """Insert new runs, given as columns.

    Args:
        connection: to the ledger.
        columns: the values of the runs.
        cluster: row id of their cluster.
        ingest: row id of the ingest.
        seen: epoch seconds at which the runs without an end still existed.
    """
    same = {"cluster_id": cluster, "first_ingest_id": ingest}
    if seen is not None:
        last = [seen if end is None else None for end in columns["end"]]
        columns = {**columns, "last_seen": last}
    insert_columns(connection, runs, columns, same)


def usage_run_columns(cluster: int, columns: RunColumns, known: Eras) -> list[Sequence[Any]]:
    """Return the columns of new runs in the order of `UsageRun`.

    No run is redone, and nothing is measured yet.
    """
    count = len(columns["submit"])
    never = [None] * count
    found = {name: columns[name] for name in _COUNTED}
    found |= {"cluster_id": [cluster] * count, "redone": [False] * count}
    found["era"] = known.each(columns["submit"])
    return [found.get(name, never) for name in UsageRun._fields]
