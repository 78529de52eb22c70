"""Where suspended time lies: sacct -T cuts it at a window's edges, so windows are asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import BigInteger, Connection, case, delete, func, select, text, type_coerce

from slurmkit.queue.rows import record_mark
from slurmkit.slurm import Slurm
from slurmkit_accounting import readers
from slurmkit_accounting.bulk import among, insert_rows
from slurmkit_accounting.rows import Key, identify
from slurmkit_accounting.schema import DAY, SUSPENDED, runs, suspensions

# Day edges of time zones lie at quarters of an hour.
_LEAST = 900
_FIELDS = ("DBIndex", "JobIDRaw", "Submit", "Suspended")
_IDS_PER_CALL = 1000


class Halted(NamedTuple):
    """A run that was suspended for a time; `seconds` are no more than it lasted."""

    id: int
    key: Key
    job: int
    start: int
    end: int
    seconds: int


def unplaced(connection: Connection, cluster: int) -> list[Halted]:
    """Runs that ended, and of whose suspended time it is not known where it lies; in order."""
    placed = func.coalesce(
        select(func.sum(suspensions.c.seconds))
        .where(suspensions.c.run_id == runs.c.id)
        .scalar_subquery(),
        0,
    )
    index = type_coerce(runs.c.db_index, BigInteger)
    # A runaway that was put right may have been suspended for longer than it lasted.
    lasted = runs.c.end - runs.c.start
    most = case((lasted < 0, 0), (lasted < runs.c.suspended, lasted), else_=runs.c.suspended)
    columns = (
        runs.c.id, index, runs.c.job_id_raw, runs.c.submit, runs.c.start, runs.c.end, most,
    )  # fmt: skip
    where = (
        text(SUSPENDED), runs.c.cluster_id == cluster, runs.c.start.is_not(None),
        runs.c.end.is_not(None), runs.c.gone_since.is_(None), placed != most,
    )  # fmt: skip
    found = connection.execute(select(*columns).where(*where).order_by(runs.c.start, runs.c.id))
    return [
        Halted(number, identify(index, job, submit), job, start, end, seconds)
        for number, index, job, submit, start, end, seconds in found
    ]


def place(slurm: Slurm, halted: Sequence[Halted]) -> list[tuple[int, int, int, int]]:
    """Ask where it lies: rows of run, begin, length and seconds.

    What sacct does not place lies somewhere in the run.
    """
    rows: list[tuple[int, int, int, int]] = []
    for day in sorted({day for run in halted for day in _days(run)}):
        there = [run for run in halted if run.start < day + DAY and day < run.end]
        rows += _within(slurm, there, day, DAY)
    for run in halted:
        rest = run.seconds - sum(row[3] for row in rows if row[0] == run.id)
        if rest:
            rows = [row for row in rows if row[0] != run.id]
            if run.seconds:
                rows.append((run.id, run.start, run.end - run.start, run.seconds))
    return rows


def keep(
    connection: Connection, halted: Iterable[Halted], rows: Sequence[tuple[int, int, int, int]]
) -> None:
    """Put rows in the place of what was known of some runs."""
    numbers = [run.id for run in halted]
    connection.execute(delete(suspensions).where(among(connection, suspensions.c.run_id, numbers)))
    insert_rows(connection, suspensions, ("run_id", "begin", "length", "seconds"), rows)


def _days(run: Halted) -> range:
    return range(run.start // DAY * DAY, run.end, DAY)


def _within(
    slurm: Slurm, there: Sequence[Halted], begin: int, length: int
) -> list[tuple[int, int, int, int]]:
    """Halve a window where it is neither empty nor suspended throughout."""
    said = _ask(slurm, there, begin, begin + length)
    rows, partly = [], []
    for run in there:
        seconds = said.get(run.key, 0)
        held = min(run.end, begin + length) - max(run.start, begin)
        if 0 < seconds < held and length > _LEAST:
            partly.append(run)
        elif seconds > 0:
            rows.append((run.id, begin, length, seconds))
    half = length // 2 if length // 2 % _LEAST == 0 else length // 2 // _LEAST * _LEAST
    for start, part in ((begin, half), (begin + half, length - half)) if partly else ():
        some = [run for run in partly if run.start < start + part and start < run.end]
        rows += _within(slurm, some, start, part) if some else []
    return rows


def _ask(slurm: Slurm, there: Sequence[Halted], begin: int, end: int) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for first in range(0, len(there), _IDS_PER_CALL):
        mark = record_mark()
        ids = ",".join(str(run.job) for run in there[first : first + _IDS_PER_CALL])
        argv = ["sacct", "-a", "-X", "-D", "-T", "--noheader", "-p", f"--delimiter={mark}",
                f"--format={','.join(_FIELDS)}", f"--jobs={ids}",
                "-S", f"uts{begin}", "-E", f"uts{end}"]  # fmt: skip
        for line in slurm.run(argv).split("\n"):
            parts = line.split(mark)
            if len(parts) == len(_FIELDS) + 1:
                index, job, submit, seconds = parts[:4]
                key = identify(readers.index(index), readers.number(job), readers.moment(submit))
                found[key] = readers.seconds(seconds)
    return found
