"""Status of a ledger: its coverage, the age of its data, and what needs attention."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, func, select, text

from slurmkit_accounting.ledger.coverage import CoveredSpan, load_gaps, load_spans
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import (
    DOUBTFUL,
    GONE,
    OPEN,
    RETRACTED,
    UNREAD,
    clusters,
    ingests,
    rejects,
    runs,
)
from slurmkit_accounting.ledger.schema.types import REVISION

# Seconds that a run may exceed its time limit, for KillWait and the epilog.
_GRACE = 3600
# Named explicitly: two columns of rejects refer to ingests.
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


class IngestedFileStatus(msgspec.Struct, frozen=True):
    """A file that was ingested. It need not have all runs between its first and last time.

    Attributes:
        begin: epoch seconds of the first Submit in it.
        end: epoch seconds of the last time in it.
        rows: number of rows when it was last ingested.
    """

    source: str
    begin: int
    end: int
    rows: int


class ClusterStatus(msgspec.Struct, frozen=True):
    """Status of one cluster in the ledger. Times are epoch seconds, None if not known.

    Attributes:
        only_user: the one user whose runs the ledger has, if slurmdbd shows no others.
        covers: spans of time that were read from sacct in full.
        files: files that were ingested too.
        gaps: gaps between the spans.
        lag: seconds since the end of the last span.
        open: runs without an end that sacct still shows.
        runaways: JobIDRaw of open runs that should have ended by their time limit.
        gone: runs that sacct no longer shows.
        doubtful: runs whose number of GPUs cannot be trusted.
        rejects: rows that could not be parsed to this day.
        reused: runs that were new with the DBIndex of another job: slurmdbd's database was
            re-created.
    """

    name: str
    tracks_gpus: bool | None
    only_user: str | None
    last: LastIngest | None
    covers: list[CoveredSpan]
    files: list[IngestedFileStatus]
    gaps: list[CoveredSpan]
    lag: int | None
    runs: int
    open: int
    runaways: list[int]
    gone: int
    doubtful: int
    retracted: int
    rejects: int
    reused: int


class LedgerStatus(msgspec.Struct, frozen=True):
    """Status of a ledger; `size` in bytes, None if unknown."""

    source: str
    schema: str
    size: int | None
    made: int
    clusters: list[ClusterStatus]


def load_ledger_status(ledger: Ledger, now: int | None = None) -> LedgerStatus:
    """Return the status of a ledger with all its clusters.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    moment = int(time.time()) if now is None else now
    with ledger.transaction() as connection:
        known = connection.execute(
            select(clusters.c.id, clusters.c.name, clusters.c.tracks_gpus).order_by(clusters.c.name)
        ).all()
        each = [
            _cluster(connection, row[0], name=row[1], tracks_gpus=row[2], now=moment)
            for row in known
        ]
        return LedgerStatus(ledger.source, REVISION, _size(ledger, connection), moment, each)


def _cluster(
    connection: Connection, number: int, *, name: str, tracks_gpus: bool | None, now: int
) -> ClusterStatus:
    spans = load_spans(connection, number)

    def count(*where: Any) -> int:
        query = select(func.count()).select_from(runs).where(runs.c.cluster_id == number, *where)
        return connection.scalar(query) or 0

    shown = runs.c.gone_since.is_(None)
    return ClusterStatus(
        name=name,
        tracks_gpus=tracks_gpus,
        only_user=connection.scalar(select(clusters.c.only_user).where(clusters.c.id == number)),
        last=_last(connection, number),
        covers=spans,
        files=_files(connection, number),
        gaps=load_gaps(connection, number),
        lag=now - spans[-1].finish if spans else None,
        runs=count(),
        open=count(text(OPEN), shown),
        runaways=_runaways(connection, number, now),
        gone=count(text(GONE)),
        # `+ 0` makes SQLite use the index of the few doubtful runs, not that of the cluster.
        doubtful=connection.scalar(
            select(func.count())
            .select_from(runs)
            .where(text(DOUBTFUL), runs.c.cluster_id + 0 == number)
        )
        or 0,
        retracted=count(text(RETRACTED)),
        rejects=_rejects(connection, number),
        reused=_reused(connection, number),
    )


def _rejects(connection: Connection, cluster: int) -> int:
    query = select(func.count()).select_from(rejects.join(ingests, _BY_INGEST))
    return connection.scalar(query.where(UNREAD, ingests.c.cluster_id == cluster)) or 0


def _reused(connection: Connection, cluster: int) -> int:
    query = select(func.sum(ingests.c.rows_reused)).where(ingests.c.cluster_id == cluster)
    return int(connection.scalar(query) or 0)


def _files(connection: Connection, cluster: int) -> list[IngestedFileStatus]:
    """Load the files that were read to their end, each as last ingested."""
    columns = (ingests.c.source, ingests.c.window_from, ingests.c.window_to, ingests.c.rows_read)
    whole = (ingests.c.ended.is_not(None), ingests.c.layout.is_not(None))
    query = select(*columns).where(ingests.c.cluster_id == cluster, *whole)
    found = connection.execute(query.order_by(ingests.c.id))
    return list({(row.source, row.window_from): IngestedFileStatus(*row) for row in found}.values())


def _last(connection: Connection, cluster: int) -> LastIngest | None:
    columns = [ingests.c[name] for name in LastIngest.__struct_fields__]
    query = select(*columns).where(ingests.c.cluster_id == cluster).order_by(ingests.c.id.desc())
    row = connection.execute(query.limit(1)).first()
    return None if row is None else LastIngest(*row)


def _runaways(connection: Connection, cluster: int, now: int) -> list[int]:
    """Return JobIDRaw of open runs that are past their time limit."""
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
