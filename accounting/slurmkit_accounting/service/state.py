"""How the books and the service are: read once in a while, shown by /health and /metrics."""

from __future__ import annotations

import time

import msgspec
from sqlalchemy import Connection, case, func, select, text

from slurmkit_accounting.schema import (
    OPEN,
    UNREAD,
    clusters,
    ingests,
    people_syncs,
    rejects,
    runs,
)
from slurmkit_accounting.service.store import TaskRun, last_runs

SACCT = "sacct"
_FROM_SACCT = ingests.c.ended.is_not(None) & (ingests.c.source == SACCT)


class Cluster(msgspec.Struct, frozen=True):
    """One cluster's rows.

    Attributes:
        last_ingest: start of the last finished ingest from its sacct, None before the first and
            for a cluster whose rows come from files.
        rows: taken into the books by all ingests so far.
        open: rows without an end.
    """

    name: str
    last_ingest: int | None
    rows: int
    open: int


class Allocated(msgspec.Struct, frozen=True):
    """GPUs that running jobs hold, as of the last ingest."""

    cluster: str
    partition: str
    gpus: int


class State(msgspec.Struct, frozen=True):
    """The books at a moment; times are epoch seconds.

    Attributes:
        rejects: lines whose runs could not be read to this day.
        last_people_sync: None before the first.
    """

    taken: int
    clusters: tuple[Cluster, ...]
    allocated: tuple[Allocated, ...]
    rejects: int
    last_people_sync: int | None
    tasks: dict[str, TaskRun]


def read_state(connection: Connection) -> State:
    """Look at the books; no sum over all rows is made."""
    return State(
        taken=int(time.time()),
        clusters=tuple(_clusters(connection)),
        allocated=tuple(_allocated(connection)),
        rejects=connection.scalar(select(func.count()).select_from(rejects).where(UNREAD)) or 0,
        last_people_sync=connection.scalar(select(func.max(people_syncs.c.at))),
        tasks=last_runs(connection),
    )


def _clusters(connection: Connection) -> list[Cluster]:
    newest = func.max(case((_FROM_SACCT, ingests.c.started)))
    read = select(ingests.c.cluster_id, newest, func.sum(ingests.c.rows_new))
    totals = {row[0]: row[1:] for row in connection.execute(read.group_by(ingests.c.cluster_id))}
    still = select(runs.c.cluster_id, func.count()).where(text(OPEN)).group_by(runs.c.cluster_id)
    opened = {row[0]: row[1] for row in connection.execute(still)}
    return [
        Cluster(name, *_total(totals.get(number)), opened.get(number, 0))
        for number, name in connection.execute(select(clusters.c.id, clusters.c.name))
    ]


def _total(row: tuple[int | None, int] | None) -> tuple[int | None, int]:
    return (None, 0) if row is None else (row[0], int(row[1]))


def _allocated(connection: Connection) -> list[Allocated]:
    ours = (ingests.c.cluster_id == clusters.c.id, _FROM_SACCT)
    newest = select(func.max(ingests.c.started)).where(*ours).scalar_subquery()
    held = (text(OPEN), runs.c.start.is_not(None), runs.c.last_seen >= newest)
    query = (
        select(clusters.c.name, runs.c.partition, func.sum(runs.c.gpus))
        .join(clusters, clusters.c.id == runs.c.cluster_id)
        .where(*held, runs.c.gone_since.is_(None), runs.c.retracted.is_(None))
        .group_by(clusters.c.name, runs.c.partition)
    )
    return [Allocated(name, part, int(gpus)) for name, part, gpus in connection.execute(query)]
