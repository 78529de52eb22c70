"""Reports: SQL in, `Report(meta, rows)` out. Rendering comes after."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from sqlalchemy import Connection, func, select

from slurmkit.errors import BadInput
from slurmkit.jobs.ids import check_job_id
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.schema import (
    UNREAD,
    clusters,
    people,
    people_syncs,
    rejects,
    spans,
    usernames,
)
from slurmkit_accounting.usage import Counted, newest_ingests, usage_by_column, usage_by_pi
from slurmkit_accounting.zones import Zone

if TYPE_CHECKING:
    import pandas

By = Literal["pi", "account", "user"]
UNMAPPED = "unmapped"
HOUR_SECONDS = 3600


class Row(msgspec.Struct, frozen=True):
    """Usage of one key.

    Attributes:
        key: a PI's user name, an account or a user.
        jobs: runs that overlap the window.
        gpu_seconds: None where the cluster does not track GPUs.
        mapped: false for the one row of the jobs that have no PI.
    """

    key: str
    jobs: int
    gpu_seconds: int | None
    cpu_seconds: int
    mapped: bool = True

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours, unrounded; None where they are not tracked."""
        return None if self.gpu_seconds is None else self.gpu_seconds / HOUR_SECONDS

    @property
    def cpu_hours(self) -> float:
        """CPU-hours, unrounded."""
        return self.cpu_seconds / HOUR_SECONDS


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What a report is about and how far it can be trusted. Times are epoch seconds.

    Attributes:
        by: what its rows are summed by.
        window: [from, to), as local times with offset.
        job: the one job it is about, None for all.
        timezone: the zone in which the window was given.
        clusters: clusters in the ledger.
        gpus_not_tracked: those of them whose AccountingStorageTRES lacks gres/gpu.
        source: where the numbers are from.
        last_ingest: start of the last finished ingest of the cluster longest not ingested.
        data_age: seconds from then to `made`.
        missing_before: local time before which a cluster's books say nothing, where the window
            begins earlier than that.
        last_people_sync: None while no directory was read.
        runs: runs counted.
        running: those of them without an end, counted up to `running_until`.
        unseen: those of them without an end that sacct does not show any more, counted up to
            the ingest that last saw them.
        unmapped: runs without a PI; None where PIs are not asked for.
        rejects: lines of sacct, of any time, whose runs could not be read to this day.
        made: when the report was made.
    """

    by: By
    window: tuple[str, str]
    job: str | None
    timezone: str
    clusters: tuple[str, ...]
    gpus_not_tracked: tuple[str, ...]
    source: str
    last_ingest: int | None
    data_age: int | None
    missing_before: str | None
    last_people_sync: int | None
    runs: int
    running: int
    unseen: int
    running_until: str
    unmapped: int | None
    rejects: int
    made: int


class Report(msgspec.Struct, frozen=True):
    """Rows, largest first and `unmapped` last, and what they rest on."""

    meta: Meta
    rows: tuple[Row, ...]

    def records(self) -> list[dict[str, Any]]:
        """Rows as in JSON: hours at full precision, None where GPUs are not tracked."""
        return [
            {
                self.meta.by: row.key,
                "jobs": row.jobs,
                "gpu_hours": row.gpu_hours,
                "cpu_hours": row.cpu_hours,
            }
            for row in self.rows
        ]

    def frame(self) -> pandas.DataFrame:
        """The rows as a DataFrame, for a notebook."""
        import pandas as pd  # noqa: PLC0415  a quarter of a second that only notebooks pay

        return pd.DataFrame(
            self.records(), columns=[self.meta.by, "jobs", "gpu_hours", "cpu_hours"]
        )


def usage_report(
    ledger: Ledger,
    window: tuple[str, str],
    *,
    by: By,
    zone: Zone,
    job: str | None = None,
    now: int | None = None,
) -> Report:
    """Sum GPU-hours and CPU-hours of a window, whatever became of the jobs.

    GPU-seconds of a run are its GPUs times the overlap of [Start, End) with the window, also
    while it was suspended; a run without an end counts up to `now`, or to when sacct last
    showed it.

    Args:
        ledger: open for reading.
        window: from and to, dates or date-times in `zone`; `to` is not included.
        by: PI at the time of submission, account, or user.
        zone: what local times mean.
        job: only this job, `12` (with all its parts), `12_3` or `12+1`.
        now: epoch seconds; the clock's when left out.

    Raises:
        BadInput: when a date or job id is none, or the window is empty.
        LedgerError: when the ledger cannot be read.
    """
    begin, end = map(zone.epoch, window)
    if begin >= end:
        raise BadInput(
            f"--to {window[1]} must be after --from {window[0]}; it is not included itself"
        )
    moment = int(time.time()) if now is None else now
    counted = Counted((begin, end), moment, job if job is None else check_job_id(job))
    query = usage_by_pi(counted) if by == "pi" else usage_by_column(by, counted)
    with ledger.transaction() as connection:
        sums = connection.execute(query).all()
        rows = _rows(sums, _pi_names(connection) if by == "pi" else None)
        facts = _facts(connection, moment)
        books_from = _books_from(connection)
    meta = Meta(
        by=by,
        window=(zone.show(begin), zone.show(end)),
        job=job,
        timezone=zone.name,
        source=f"ledger {ledger.source}",
        runs=sum(row.jobs for row in rows),
        running=sum(int(found.running - found.unseen) for found in sums),
        unseen=sum(int(found.unseen) for found in sums),
        running_until=zone.show(min(moment, end)),
        missing_before=zone.show(books_from) if begin < books_from else None,
        unmapped=sum(row.jobs for row in rows if not row.mapped) if by == "pi" else None,
        **facts,
    )
    return Report(meta, rows)


def _rows(sums: Iterable[Sequence[Any]], names: Mapping[int, str] | None) -> tuple[Row, ...]:
    rows = []
    for key, jobs, _, _, gpus, cpus in sums:
        mapped = key is not None
        name = (names[key] if mapped else UNMAPPED) if names is not None else key
        gpu_seconds = None if gpus is None else int(gpus)
        rows.append(Row(name, int(jobs), gpu_seconds, int(cpus), mapped))
    return tuple(sorted(rows, key=_largest_first))


def _largest_first(row: Row) -> tuple[object, ...]:
    return (not row.mapped, -(row.gpu_seconds or 0), -row.cpu_seconds, row.key)


def _pi_names(connection: Connection) -> dict[int, str]:
    """Everybody's latest user name; with their display name where two had the same one."""
    names = select(usernames.c.person_id, usernames.c.username).order_by(usernames.c.id)
    latest = {row[0]: row[1] for row in connection.execute(names)}
    displayed = connection.execute(select(people.c.id, people.c.display_name))
    called = {row[0]: row[1] for row in displayed}
    holders = Counter(latest.values())
    return {
        person: username if holders[username] == 1 else f"{username} ({called[person]})"
        for person, username in latest.items()
    }


def _books_from(connection: Connection) -> int:
    first = select(func.min(spans.c.begin).label("begin")).group_by(spans.c.cluster_id).subquery()
    return connection.scalar(select(func.max(first.c.begin))) or 0


def _facts(connection: Connection, now: int) -> dict[str, Any]:
    last = connection.scalar(select(func.min(newest_ingests().c.started)))
    known = connection.execute(select(clusters).order_by(clusters.c.name)).all()
    return {
        "clusters": tuple(one.name for one in known),
        "gpus_not_tracked": tuple(one.name for one in known if one.tracks_gpus is False),
        "last_ingest": last,
        "data_age": None if last is None else now - last,
        "last_people_sync": connection.scalar(select(func.max(people_syncs.c.at))),
        "rejects": connection.scalar(select(func.count()).select_from(rejects).where(UNREAD)),
        "made": now,
    }
