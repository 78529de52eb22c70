"""Take runs out of the books that sacct shows no more, or put them back."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import msgspec
from sqlalchemy import Connection, select, update

from slurmkit.errors import BadInput
from slurmkit_accounting.books import redo
from slurmkit_accounting.bulk import among
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.schema import clusters, runs
from slurmkit_accounting.stored import held_runs
from slurmkit_accounting.upkeep import change


class Retracted(msgspec.Struct, frozen=True):
    """A run that was taken out or put back; times are epoch seconds."""

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
) -> list[Retracted]:
    """Retract all runs of some jobs that are gone from sacct.

    Args:
        ledger: open for writing.
        jobs: as sacct calls them: `12`, `12_3`, `12+1`.
        cluster: whose jobs; may be left out where the ledger has one only.
        undo: put back what was retracted instead.
        dry_run: change nothing.

    Raises:
        BadInput: where a job has no such run, and where sacct still shows it.
    """
    with ledger.transaction(rehearsal=dry_run) as connection:
        number, name = _cluster(connection, cluster)
        chosen = [_chosen(connection, number, job, undo=undo) for job in sorted(jobs)]
        ids = [run for some in chosen for run in some]
        _turn(connection, ids, undo=undo)
        columns = [runs.c[field] for field in Retracted.__struct_fields__[1:]]
        query = select(*columns, runs.c.job_id_raw).where(among(connection, runs.c.id, ids))
        found = connection.execute(query.order_by(runs.c.submit)).all()
        redo(connection, number, {row[-1] for row in found})
        return [Retracted(name, *row[:-1]) for row in found]


def _turn(connection: Connection, ids: Sequence[int], *, undo: bool) -> None:
    before = held_runs(connection, ids)
    values = {"retracted": None if undo else int(time.time())}
    connection.execute(update(runs).where(among(connection, runs.c.id, ids)).values(values))
    change(connection, before, held_runs(connection, ids))


def _cluster(connection: Connection, name: str | None) -> tuple[int, str]:
    known = {row.name: row.id for row in connection.execute(select(clusters))}
    if name is None and len(known) == 1:
        name = next(iter(known))
    if name is None or name not in known:
        raise BadInput(
            f"name a cluster with --cluster: {', '.join(sorted(known)) or 'there is none'}"
        )
    return known[name], name


def _chosen(connection: Connection, cluster: int, job: str, *, undo: bool) -> list[int]:
    ours = (runs.c.cluster_id == cluster, runs.c.job_id == job)
    some = runs.c.retracted.is_not(None) if undo else runs.c.retracted.is_(None)
    found = connection.execute(select(runs.c.id, runs.c.gone_since).where(*ours, some)).all()
    if not found:
        raise BadInput(f"job {job} has no run {'that was retracted' if undo else 'in the books'}")
    gone = [row.id for row in found if undo or row.gone_since is not None]
    if not gone:
        raise BadInput(
            f"sacct still shows job {job}; only what is gone from there can be retracted"
        )
    return gone
