"""Retract runs that sacct no longer shows, so that they do not count; or undo that."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, select, text, update

from slurmkit.errors import BadInput
from slurmkit_accounting.ingest.enter import update_redone
from slurmkit_accounting.ingest.stored import load_usage_runs
from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import OPEN, clusters, runs
from slurmkit_accounting.sacct.query import TimeWindow
from slurmkit_accounting.usage.tables import change_usage


class RetractedRun(msgspec.Struct, frozen=True):
    """A run that was retracted or restored; times in epoch seconds."""

    cluster: str
    job_id: str
    user: str
    state: str
    submit: int
    start: int | None
    end: int | None
    gpus: int


def retract(
    ledger: Ledger, jobs: Collection[str], cluster: str | None, *, undo: bool, dry_run: bool
) -> list[RetractedRun]:
    """Retract all runs of some jobs that are gone from sacct.

    Args:
        ledger: open for writing.
        jobs: job ids as sacct prints them: `12`, `12_3`, `12+1`.
        cluster: name of the cluster; may be left out if the ledger has only one.
        undo: restore retracted runs instead.
        dry_run: change nothing.

    Raises:
        BadInput: when a job has no such run, or sacct still shows it.
    """
    with ledger.transaction(rehearsal=dry_run) as connection:
        number, name = _cluster(connection, cluster)
        chosen = [_runs_to_retract(connection, number, job, undo=undo) for job in sorted(jobs)]
        ids = [run for some in chosen for run in some]
        _set_retracted(connection, ids, undo=undo)
        columns = [runs.c[field] for field in RetractedRun.__struct_fields__[1:]]
        query = select(*columns, runs.c.job_id_raw).where(in_values(connection, runs.c.id, ids))
        found = connection.execute(query.order_by(runs.c.submit)).all()
        update_redone(connection, number, {row[-1] for row in found})
        return [RetractedRun(name, *row[:-1]) for row in found]


def _set_retracted(connection: Connection, ids: Sequence[int], *, undo: bool) -> None:
    """Set or clear `retracted` of runs, and update the usage tables."""
    before = load_usage_runs(connection, ids)
    values = {"retracted": None if undo else int(time.time())}
    connection.execute(update(runs).where(in_values(connection, runs.c.id, ids)).values(values))
    change_usage(connection, before, load_usage_runs(connection, ids))


def _cluster(connection: Connection, name: str | None) -> tuple[int, str]:
    """Return row id and name of the cluster that is meant."""
    known = {row.name: row.id for row in connection.execute(select(clusters))}
    if name is None and len(known) == 1:
        name = next(iter(known))
    if name is None or name not in known:
        raise BadInput(
            "name a cluster of the ledger with --cluster:"
            f" {', '.join(sorted(known)) or 'it has none'}"
        )
    return known[name], name


def _runs_to_retract(connection: Connection, cluster: int, job: str, *, undo: bool) -> list[int]:
    """Return the row ids of the runs of a job to retract or restore."""
    ours = (runs.c.cluster_id == cluster, runs.c.job_id == job)
    some = runs.c.retracted.is_not(None) if undo else runs.c.retracted.is_(None)
    found = connection.execute(select(runs.c.id, runs.c.gone_since).where(*ours, some)).all()
    if not found:
        raise BadInput(f"job {job} has no {'retracted run' if undo else 'run'} in the ledger")
    gone = [row.id for row in found if undo or row.gone_since is not None]
    if not gone:
        raise BadInput(
            f"sacct still shows job {job}; only jobs that sacct no longer shows can be retracted"
        )
    return gone


_SHOWN = runs.c.gone_since.is_(None)


class ExpectedRuns:
    """The runs that an ingest should read: those without an end, and those ended in its windows.

    slurmdbd may have corrected the end of a run to a time before the window. sacct then shows the
    run by its id only. The row of a pending array is not shown even by id once its tasks have
    replaced it: it is then marked as gone.
    """

    def __init__(self, connection: Connection, cluster: int) -> None:
        self._cluster = cluster
        self._left: dict[int, int] = {}  # JobIDRaw by row id of the run
        self._add(connection, text(OPEN))

    def add_ended(self, connection: Connection, window: TimeWindow) -> None:
        """Add the stored runs that ended in a window; call it before the window is read."""
        ended = runs.c.end.between(window.begin, window.end - 1)
        # sacct's windows leave out jobs that never became eligible.
        self._add(connection, ended & runs.c.eligible.is_not(None))

    def mark_read(self, run_ids: Iterable[int]) -> None:
        """Remove runs that were read."""
        for run_id in run_ids:
            self._left.pop(run_id, None)

    def jobs(self) -> list[int]:
        """Return the JobIDRaw of the runs that are missing, sorted."""
        return sorted(set(self._left.values()))

    def mark_gone(self, connection: Connection, since: int) -> int:
        """Mark the missing runs as gone since a time, in epoch seconds; return their number."""
        run_ids = sorted(self._left)
        if run_ids:
            where = (in_values(connection, runs.c.id, run_ids), _SHOWN)
            connection.execute(update(runs).where(*where).values(gone_since=since))
        return len(run_ids)

    def _add(self, connection: Connection, which: ColumnElement[bool] | object) -> None:
        ours = (runs.c.cluster_id == self._cluster, _SHOWN, which)
        query = select(runs.c.id, runs.c.job_id_raw).where(*ours)  # type: ignore[arg-type]
        self._left.update((run_id, job) for run_id, job in connection.execute(query))
