"""How the books stand: what they cover, how old they are, and what should be looked at."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, func, select, text

from slurmkit_accounting.coverage import Span, covered, gaps
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.schema import (
    DOUBTFUL,
    GONE,
    OPEN,
    RETRACTED,
    REVISION,
    UNREAD,
    clusters,
    ingests,
    rejects,
    runs,
)

# A run goes on past its limit for KillWait and its epilog; after this it is none any more.
_GRACE = 3600
# Two columns refer to ingests.
_BY_INGEST = rejects.c.ingest_id == ingests.c.id


class LastIngest(msgspec.Struct, frozen=True):
    """The newest ingest of a cluster. Times are epoch seconds; `ended` is None while it runs."""

    source: str
    started: int
    ended: int | None
    rows_read: int
    rows_new: int
    rows_changed: int
    rows_rejected: int


class ReadFile(msgspec.Struct, frozen=True):
    """A file that rows came from; the times in it are no proof that all runs of then are there.

    Attributes:
        begin: epoch seconds of the first Submit in it, like `end`, of the last time.
        rows: that were read the last time.
    """

    source: str
    begin: int
    end: int
    rows: int


class ClusterStatus(msgspec.Struct, frozen=True):
    """How the books of one cluster stand. Times are epoch seconds, None where not known.

    Attributes:
        only_user: whose runs alone are in the books, where slurmdbd shows no others.
        covers: spans of time that sacct was asked for in full.
        files: what came beside that.
        gaps: what lies between them.
        lag: seconds since the end of what is covered.
        open: runs without an end that sacct still shows.
        runaways: those of them that should have ended by their time limit, in JobIDRaw.
        gone: runs that sacct shows no more.
        doubtful: runs whose number of GPUs cannot be trusted.
        rejects: lines that could not be read to this day.
    """

    name: str
    tracks_gpus: bool | None
    only_user: str | None
    last: LastIngest | None
    covers: list[Span]
    files: list[ReadFile]
    gaps: list[Span]
    lag: int | None
    runs: int
    open: int
    runaways: list[int]
    gone: int
    doubtful: int
    retracted: int
    rejects: int


class Status(msgspec.Struct, frozen=True):
    """How a ledger stands; `size` in bytes, None where it cannot be told."""

    source: str
    schema: str
    size: int | None
    made: int
    clusters: list[ClusterStatus]


def status(ledger: Ledger, now: int | None = None) -> Status:
    """Look at all clusters of a ledger.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    moment = int(time.time()) if now is None else now
    with ledger.transaction() as connection:
        known = connection.execute(
            select(clusters.c.id, clusters.c.name, clusters.c.tracks_gpus).order_by(clusters.c.name)
        ).all()
        each = [_cluster(connection, (row[0], row[1], row[2]), moment) for row in known]
        return Status(ledger.source, REVISION, _size(ledger, connection), moment, each)


def _cluster(connection: Connection, one: tuple[int, str, bool | None], now: int) -> ClusterStatus:
    number, name, tracks = one
    found = covered(connection, number)

    def count(*where: Any) -> int:
        query = select(func.count()).select_from(runs).where(runs.c.cluster_id == number, *where)
        return connection.scalar(query) or 0

    shown = runs.c.gone_since.is_(None)
    return ClusterStatus(
        name=name,
        tracks_gpus=tracks,
        only_user=connection.scalar(select(clusters.c.only_user).where(clusters.c.id == number)),
        last=_last(connection, number),
        covers=found,
        files=_files(connection, number),
        gaps=gaps(connection, number),
        lag=now - found[-1][1] if found else None,
        runs=count(),
        open=count(text(OPEN), shown),
        runaways=_runaways(connection, number, now),
        gone=count(text(GONE)),
        doubtful=_doubtful(connection, number),
        retracted=count(text(RETRACTED)),
        rejects=_rejects(connection, number),
    )


def _doubtful(connection: Connection, cluster: int) -> int:
    # Added to, so that SQLite goes through the few in doubt rather than all of the cluster's.
    where = (text(DOUBTFUL), runs.c.cluster_id + 0 == cluster)
    return connection.scalar(select(func.count()).select_from(runs).where(*where)) or 0


def _rejects(connection: Connection, cluster: int) -> int:
    query = select(func.count()).select_from(rejects.join(ingests, _BY_INGEST))
    return connection.scalar(query.where(UNREAD, ingests.c.cluster_id == cluster)) or 0


def _files(connection: Connection, cluster: int) -> list[ReadFile]:
    """Those read to their ends, each as of the last time."""
    columns = (ingests.c.source, ingests.c.window_from, ingests.c.window_to, ingests.c.rows_read)
    whole = (ingests.c.ended.is_not(None), ingests.c.layout.is_not(None))
    query = select(*columns).where(ingests.c.cluster_id == cluster, *whole)
    found = connection.execute(query.order_by(ingests.c.id))
    return list({(row.source, row.window_from): ReadFile(*row) for row in found}.values())


def _last(connection: Connection, cluster: int) -> LastIngest | None:
    columns = [ingests.c[name] for name in LastIngest.__struct_fields__]
    query = select(*columns).where(ingests.c.cluster_id == cluster).order_by(ingests.c.id.desc())
    row = connection.execute(query.limit(1)).first()
    return None if row is None else LastIngest(*row)


def _runaways(connection: Connection, cluster: int, now: int) -> list[int]:
    query = select(runs.c.job_id_raw, runs.c.start, runs.c.time_limit).where(
        runs.c.cluster_id == cluster, text(OPEN), runs.c.start.is_not(None),
        runs.c.gone_since.is_(None), runs.c.suspended == 0,
    )  # fmt: skip
    return sorted(
        job
        for job, start, limit in connection.execute(query)
        if limit.isdigit() and now > start + int(limit) * 60 + _GRACE
    )


def _size(ledger: Ledger, connection: Connection) -> int | None:
    if connection.dialect.name == "postgresql":
        return int(connection.scalar(text("SELECT pg_database_size(current_database())")) or 0)
    files = [Path(ledger.source), Path(f"{ledger.source}-wal")]
    return sum(file.stat().st_size for file in files if file.exists())
