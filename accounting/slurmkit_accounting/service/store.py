"""The last runs of the schedule's tasks, kept in the ledger: they outlive the service."""

from __future__ import annotations

import time

import msgspec
from sqlalchemy import Connection, insert, select, update

from slurmkit_accounting.schema import task_runs


class TaskRun(msgspec.Struct, frozen=True):
    """The last run of a task; times are epoch seconds.

    Attributes:
        due: what was to be done up to then is done.
        started: None when it never ran.
        ended: None while it runs, or when it was cut off.
        well: when it last ended well.
        error: why the last run did not; None when it did.
    """

    task: str
    due: int
    started: int | None
    ended: int | None
    well: int | None
    error: str | None


def last_runs(connection: Connection) -> dict[str, TaskRun]:
    """Every task that was ever on the schedule."""
    return {row.task: TaskRun(*row) for row in connection.execute(select(task_runs))}


def first_met(connection: Connection, task: str, due: int) -> TaskRun:
    """Put a new task on record: what was due up to then is none of its business."""
    row = {"task": task, "due": due, "started": None, "ended": None, "well": None, "error": None}
    connection.execute(insert(task_runs).values(**row))
    return TaskRun(**row)  # type: ignore[arg-type]


def begun(connection: Connection, task: str) -> None:
    """A run has begun."""
    _set(connection, task, started=int(time.time()), ended=None)


def ended(connection: Connection, task: str, due: int) -> None:
    """A run has ended well, and done what was due up to then."""
    now = int(time.time())
    _set(connection, task, due=due, ended=now, well=now, error=None)


def failed(connection: Connection, task: str, error: str) -> None:
    """A run has failed; what was due still is."""
    _set(connection, task, ended=int(time.time()), error=error)


def _set(connection: Connection, task: str, **values: object) -> None:
    connection.execute(update(task_runs).where(task_runs.c.task == task).values(**values))
