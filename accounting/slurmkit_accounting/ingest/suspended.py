"""Find when runs were suspended: sacct -T truncates `Suspended` to a window, so halve windows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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
from slurmkit.slurm.records import record_mark
from slurmkit_accounting.ledger.bulk_write import in_values, insert_rows
from slurmkit_accounting.ledger.schema.runs import OPEN, SUSPENDED, ingests, runs, suspensions
from slurmkit_accounting.ledger.schema.usage import DAY, HOUR
from slurmkit_accounting.sacct import values
from slurmkit_accounting.sacct.rows import RunKey
from slurmkit_accounting.usage.partial import load_last_ingests

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


class SuspensionRow(NamedTuple):
    """One row of table `suspensions`: of that length, the run was suspended for some seconds."""

    run_id: int
    begin: int
    length: int
    seconds: int


def load_unknown_suspensions(connection: Connection, cluster: int) -> list[SuspendedRun]:
    """Load ended runs whose suspension intervals are still unknown, oldest first."""
    return _load_unplaced(connection, cluster, runs.c.end)


def place_suspensions_of_open_runs(connection: Connection, cluster: int) -> None:
    """Place the suspended seconds of runs without an end, as far as that is known without asking.

    sacct adds the seconds of a suspension when the job goes on. So those that are new lie after the
    last ingest, or end now if there are more of them. Where they lie exactly is asked once the run
    has ended: until then it would be asked at each ingest.
    """
    halted = _load_unplaced(connection, cluster, runs.c.last_seen, text(OPEN))
    here = (ingests.c.cluster_id == cluster, ingests.c.source == "sacct")
    last = load_last_ingests(connection, *here).get(cluster)
    known = _load_intervals(connection, halted)
    rows = [row for run in halted for row in _with_new_seconds(run, known[run.id], last)]
    store_suspensions(connection, halted, rows)


def _load_intervals(
    connection: Connection, halted: Sequence[SuspendedRun]
) -> defaultdict[int, list[SuspensionRow]]:
    """Load the stored suspension intervals of some runs, by run and in the order of their begin."""
    span = (suspensions.c.begin, suspensions.c.length, suspensions.c.seconds)
    ours = in_values(connection, suspensions.c.run_id, [run.id for run in halted])
    query = select(suspensions.c.run_id, *span).where(ours).order_by(suspensions.c.begin)
    found: defaultdict[int, list[SuspensionRow]] = defaultdict(list)
    for row in connection.execute(query):
        found[row[0]].append(SuspensionRow(*row))
    return found


def _with_new_seconds(
    run: SuspendedRun, known: Sequence[SuspensionRow], last: int | None
) -> Iterator[SuspensionRow]:
    """Yield the intervals of a run, with the seconds that no interval has yet.

    Args:
        run: a run without an end; its `end` is when it was last seen.
        known: its intervals up to now.
        last: epoch seconds of the last ingest; None if there was none.
    """
    new = run.seconds - sum(row.seconds for row in known)
    if last is None or run.start >= last or new < 0:
        if run.seconds:
            yield SuspensionRow(run.id, run.start, run.end - run.start, run.seconds)
        return
    begin = max(min(last, run.end - new), run.start)
    unchanged = list(known)
    if unchanged and unchanged[-1].begin // HOUR == run.end // HOUR:  # no row for each ingest
        newest = unchanged.pop()
        begin, new = newest.begin, new + newest.seconds
    yield from unchanged
    yield SuspensionRow(run.id, begin, run.end - begin, new)


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


def locate_suspensions(slurm: SlurmCommands, halted: Sequence[SuspendedRun]) -> list[SuspensionRow]:
    """Ask sacct when runs were suspended; return rows of run, begin, length and seconds.

    If sacct does not place all suspended seconds of a run, one row covers the whole run.
    """
    rows: list[SuspensionRow] = []
    for day in sorted(
        {day for run in halted for day in range(run.start // DAY * DAY, run.end, DAY)}
    ):
        there = [run for run in halted if run.start < day + DAY and day < run.end]
        rows += _locate_in_window(slurm, there, day, DAY)
    for run in halted:
        rest = run.seconds - sum(row.seconds for row in rows if row.run_id == run.id)
        if rest:
            rows = [row for row in rows if row.run_id != run.id]
            if run.seconds:
                whole = (run.id, run.start, run.end - run.start, run.seconds)
                rows.append(SuspensionRow(*whole))
    return rows


def store_suspensions(
    connection: Connection,
    halted: Iterable[SuspendedRun],
    rows: Sequence[SuspensionRow],
) -> None:
    """Replace the stored suspension intervals of some runs."""
    run_ids = [run.id for run in halted]
    connection.execute(
        delete(suspensions).where(in_values(connection, suspensions.c.run_id, run_ids))
    )
    insert_rows(connection, suspensions, SuspensionRow._fields, rows)


def _locate_in_window(
    slurm: SlurmCommands, there: Sequence[SuspendedRun], begin: int, length: int
) -> list[SuspensionRow]:
    """Ask for a window; halve it for runs that were suspended in part of it."""
    suspended = _ask(slurm, there, begin, begin + length)
    rows: list[SuspensionRow] = []
    partly: list[SuspendedRun] = []
    for run in there:
        seconds = suspended.get(run.key, 0)
        first, last = max(run.start, begin), min(run.end, begin + length)
        if 0 < seconds < last - first and length > _LEAST:
            partly.append(run)
        elif seconds > 0:
            rows.append(SuspensionRow(run.id, first, last - first, seconds))
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
