"""Find when runs were suspended: sacct -T truncates `Suspended` to a window, so halve windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    TextClause,
    case,
    delete,
    func,
    select,
    text,
)

from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.queue_rows import record_mark
from slurmkit_accounting.ledger.bulk_write import in_values, insert_rows
from slurmkit_accounting.ledger.schema.runs import OPEN, SUSPENDED, runs, suspensions
from slurmkit_accounting.ledger.schema.usage import DAY
from slurmkit_accounting.sacct import values
from slurmkit_accounting.sacct.rows import RunKey

# Seconds; midnight of every time zone is at a quarter of an hour UTC.
_LEAST = 900
_FIELDS = ("JobIDRaw", "Submit", "Suspended")
_IDS_PER_CALL = 1000


class SuspendedRun(NamedTuple):
    """A run that was suspended; `seconds` are at most the length of the run."""

    id: int
    key: RunKey
    job: int
    start: int
    end: int
    seconds: int


def load_unknown_suspensions(connection: Connection, cluster: int) -> list[SuspendedRun]:
    """Load ended runs whose suspension intervals are still unknown, oldest first."""
    return _load_unplaced(connection, cluster, runs.c.end)


def spread_suspensions_of_open_runs(connection: Connection, cluster: int) -> None:
    """Spread the suspended seconds of runs without an end evenly, up to when they were last seen.

    Where they lie is asked once the run has ended: until then it would be asked at each ingest.
    """
    halted = _load_unplaced(connection, cluster, runs.c.last_seen, text(OPEN))
    whole = [(run.id, run.start, run.end - run.start, run.seconds) for run in halted if run.seconds]
    store_suspensions(connection, halted, whole)


def _load_unplaced(
    connection: Connection, cluster: int, end: Column[int], *which: ColumnElement[bool] | TextClause
) -> list[SuspendedRun]:
    """Load runs whose suspension intervals do not add up to their suspended time, oldest first."""
    placed = func.coalesce(
        select(func.sum(suspensions.c.seconds))
        .where(suspensions.c.run_id == runs.c.id)
        .scalar_subquery(),
        0,
    )
    # A runaway job with a corrected end may have been suspended for longer than it lasted.
    lasted = end - runs.c.start
    most = case((lasted < 0, 0), (lasted < runs.c.suspended, lasted), else_=runs.c.suspended)
    columns = (runs.c.id, runs.c.job_id_raw, runs.c.submit, runs.c.start, end, most)
    where = (
        text(SUSPENDED), runs.c.cluster_id == cluster, runs.c.start.is_not(None),
        end.is_not(None), runs.c.gone_since.is_(None), placed != most, *which,
    )  # fmt: skip
    found = connection.execute(select(*columns).where(*where).order_by(runs.c.start, runs.c.id))
    return [
        SuspendedRun(run_id, (job, submit), job, start, end, seconds)
        for run_id, job, submit, start, end, seconds in found
    ]


def locate_suspensions(
    slurm: SlurmCommands, halted: Sequence[SuspendedRun]
) -> list[tuple[int, int, int, int]]:
    """Ask sacct when runs were suspended; return rows of run, begin, length and seconds.

    If sacct does not place all suspended seconds of a run, one row covers the whole run.
    """
    rows: list[tuple[int, int, int, int]] = []
    for day in sorted(
        {day for run in halted for day in range(run.start // DAY * DAY, run.end, DAY)}
    ):
        there = [run for run in halted if run.start < day + DAY and day < run.end]
        rows += _locate_in_window(slurm, there, day, DAY)
    for run in halted:
        rest = run.seconds - sum(row[3] for row in rows if row[0] == run.id)
        if rest:
            rows = [row for row in rows if row[0] != run.id]
            if run.seconds:
                rows.append((run.id, run.start, run.end - run.start, run.seconds))
    return rows


def store_suspensions(
    connection: Connection,
    halted: Iterable[SuspendedRun],
    rows: Sequence[tuple[int, int, int, int]],
) -> None:
    """Replace the stored suspension intervals of some runs."""
    run_ids = [run.id for run in halted]
    connection.execute(
        delete(suspensions).where(in_values(connection, suspensions.c.run_id, run_ids))
    )
    insert_rows(connection, suspensions, ("run_id", "begin", "length", "seconds"), rows)


def _locate_in_window(
    slurm: SlurmCommands, there: Sequence[SuspendedRun], begin: int, length: int
) -> list[tuple[int, int, int, int]]:
    """Ask for a window; halve it for runs that were suspended in part of it."""
    suspended = _ask(slurm, there, begin, begin + length)
    rows, partly = [], []
    for run in there:
        seconds = suspended.get(run.key, 0)
        first, last = max(run.start, begin), min(run.end, begin + length)
        if 0 < seconds < last - first and length > _LEAST:
            partly.append(run)
        elif seconds > 0:
            rows.append((run.id, first, last - first, seconds))
    half = length // 2 if length // 2 % _LEAST == 0 else length // 2 // _LEAST * _LEAST
    for start, part in ((begin, half), (begin + half, length - half)) if partly else ():
        some = [run for run in partly if run.start < start + part and start < run.end]
        rows += _locate_in_window(slurm, some, start, part) if some else []
    return rows


def _ask(
    slurm: SlurmCommands, there: Sequence[SuspendedRun], begin: int, end: int
) -> dict[RunKey, int]:
    """Return the suspended seconds of runs within a window."""
    found: dict[RunKey, int] = {}
    for first in range(0, len(there), _IDS_PER_CALL):
        mark = record_mark()
        ids = ",".join(str(run.job) for run in there[first : first + _IDS_PER_CALL])
        argv = ["sacct", "--local", "-a", "-X", "-D", "-T", "--noheader", "-p",
                f"--delimiter={mark}", f"--format={','.join(_FIELDS)}", f"--jobs={ids}",
                "-S", f"uts{begin}", "-E", f"uts{end}"]  # fmt: skip
        for line in slurm.run(argv).split("\n"):
            parts = line.split(mark)
            if len(parts) == len(_FIELDS) + 1:
                # A row that cannot be parsed places nothing: its seconds then cover the whole run.
                with suppress(ValueError):
                    key, seconds = _parse_row(parts)
                    found[key] = seconds
    return found


def _parse_row(parts: Sequence[str]) -> tuple[RunKey, int]:
    """Return the key of the run of a row, and its suspended seconds."""
    job, submit, seconds = parts[: len(_FIELDS)]
    key = values.parse_number(job), values.parse_required_time(submit)
    return key, values.parse_elapsed_seconds(seconds)
