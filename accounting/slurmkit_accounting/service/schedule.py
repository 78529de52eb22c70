"""The schedule of the service's tasks: each at its configured times, one at a time.

Tasks that must not wait for the others have a thread of their own each.

Tasks and times (five cron fields) come from the configuration at every start; the last run of each
task is stored in the ledger. A task that was missed while the service was down, or that was cut
off, runs once at the start. A task that fails runs again some minutes later, then at growing
intervals.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

import msgspec
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import Connection, insert, select, update

from slurmkit.errors import BadConfig, SlurmkitError
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.notices import task_runs
from slurmkit_accounting.service.log import Log

RETRY_SECONDS = 600
_DOUBLINGS = 5  # of RETRY_SECONDS while a task keeps failing: at most about five hours
_SECOND = timedelta(seconds=1)


class ServiceStopped(Exception):
    """Raised within a task, between two batches, when the service shall stop."""


class ScheduledTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of the schedule.

    Attributes:
        when: the times at which it is due.
        run: does the task and returns one line on what was done. Its argument is the list of
            months to handle (the month before each time due); empty unless the task is monthly.
        at_first: whether it runs at the first start ever.
        monthly: whether it handles months.
        apart: whether it runs in a thread of its own, and often. It is logged only when its result
            is new, and is not run again early when it fails.
        own_thread: as `apart`, but it is logged and run again as usual.
    """

    name: str
    when: BaseTrigger
    run: Callable[[list[str]], str]
    at_first: bool = True
    monthly: bool = False
    apart: bool = False
    own_thread: bool = False

    @property
    def thread(self) -> str:
        """Name of the thread in which it runs."""
        return self.name if self.apart or self.own_thread else "default"


class Schedule:
    """The scheduler of the tasks: one at a time, except those that are `apart` or `own_thread`.

    Attributes:
        tasks: all tasks.
        seconds: duration of the last run since the start, by task.
        failures: number of failed runs since the start, by task.
        running: name of the task that runs now in the common thread.
    """

    def __init__(
        self,
        tasks: list[ScheduledTask],
        open_ledger: Callable[[], AbstractContextManager[Ledger]],
        log: Log,
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.tasks: list[ScheduledTask] = []
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, int] = {}
        self.add(tasks)
        self.running: str | None = None
        self._open_ledger = open_ledger
        self._log = log
        self._retry = timedelta(seconds=retry_seconds)
        self._in_a_row: Counter[str] = Counter()  # failures
        self._last_results: dict[str, str] = {}  # last result or error of a task that is apart
        self._stopping = threading.Event()
        # It warns of every long run, and long runs are normal here.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )

    def add(self, tasks: list[ScheduledTask]) -> None:
        """Add tasks, before the start."""
        self.tasks += tasks
        self.failures |= {task.name: 0 for task in tasks}

    def start(self) -> None:
        """Start the schedule; tasks that were missed run now.

        Raises:
            LedgerError: when the last runs cannot be read.
        """
        now = int(time.time())
        for task in self.tasks:
            if task.apart or task.own_thread:
                self._scheduler.add_executor(ThreadPoolExecutor(1), task.name)
            if self._missed(task, now):
                self._scheduler.add_job(self._run, args=[task], executor=task.thread)
            self._scheduler.add_job(
                self._run, task.when, args=[task], id=task.name, executor=task.thread
            )
        self._scheduler.start()

    @property
    def is_alive(self) -> bool:
        """Whether the schedule was started and starts tasks when they are due."""
        thread = self._scheduler._thread  # noqa: SLF001 - `running` does not say that it ended
        return thread is not None and thread.is_alive() and not self._stopping.is_set()

    def stop(self) -> None:
        """Stop the schedule; wait for the running task, which ends after its present batch."""
        self._stopping.set()
        # Its thread would fail if it were stopped while it starts a task that runs once.
        self._scheduler.pause()
        self._scheduler.get_jobs()  # waits until that thread has done what it is doing
        self._scheduler.shutdown(wait=True)

    def check(self) -> None:
        """Raise `ServiceStopped` if the service shall stop; tasks call this between batches.

        Raises:
            Stopped: when the service shall stop.
        """
        if self._stopping.is_set():
            raise ServiceStopped

    def _missed(self, task: ScheduledTask, now: int) -> bool:
        """Return whether a task must run at the start; put a new task on record."""
        with self._open_ledger() as ledger, ledger.transaction() as connection:
            last = last_runs(connection).get(task.name)
            if last is None:
                record_new_task(connection, task.name, now)
                return task.at_first
        cut_off = last.started is not None and last.ended is None
        return cut_off or last.error is not None or any(times_passed(task.when, last.due, now))

    def _run(self, task: ScheduledTask) -> None:
        if self._stopping.is_set():
            return
        start = time.monotonic()
        if task.thread == "default":
            self.running = task.name
        try:
            done = self._run_and_record(task)
        except ServiceStopped:
            self._log("task stopped", task=task.name)
        except Exception as error:  # noqa: BLE001 - a failing task must not stop the service
            self._fail(task, error)
        else:
            self._in_a_row[task.name] = 0
            if self._is_news(task, done):
                seconds = f"{time.monotonic() - start:.1f}"
                self._log("done", task=task.name, seconds=seconds, said=done)
        finally:
            if task.thread == "default":
                self.running = None
            self.seconds[task.name] = time.monotonic() - start

    def _is_news(self, task: ScheduledTask, result: str) -> bool:
        """Return whether to log the result of a run: of a task that is apart only a new one."""
        before = self._last_results.get(task.name)
        self._last_results[task.name] = result
        return not task.apart or result != before

    def _run_and_record(self, task: ScheduledTask) -> str:
        """Run a task, and record its start and its success in the ledger."""
        now = int(time.time())
        with self._open_ledger() as ledger:
            with ledger.transaction() as connection:
                due = last_runs(connection)[task.name].due
                record_start(connection, task.name)
            done = task.run(months_before(task.when, due, now) if task.monthly else [])
            with ledger.transaction() as connection:
                record_success(connection, task.name, now)
        return done

    def _fail(self, task: ScheduledTask, error: Exception) -> None:
        """Log and record a failure, and schedule the task again."""
        expected = isinstance(error, SlurmkitError)
        words = str(error) if expected else f"{type(error).__name__}: {error}"
        self.failures[task.name] += 1
        self._in_a_row[task.name] += 1
        if self._is_news(task, words):
            self._log("failed", task=task.name, why=words)
        try:
            with self._open_ledger() as ledger, ledger.transaction() as connection:
                record_failure(connection, task.name, words)
        except SlurmkitError as also:
            self._log("failed", task=task.name, why=also)
        if not self._stopping.is_set() and not task.apart:
            # The pause doubles while a task keeps failing, as for a mail to an invalid address.
            doublings = min(self._in_a_row[task.name] - 1, _DOUBLINGS)
            again = datetime.now(UTC) + self._retry * 2**doublings
            name = f"{task.name} again"
            self._scheduler.add_job(
                self._run,
                "date",
                run_date=again,
                args=[task],
                id=name,
                replace_existing=True,
                executor=task.thread,
            )


def parse_cron(key: str, text: str, zone: Zone) -> CronTrigger:
    """Parse minute, hour, day, month and weekday as in a crontab.

    Other than in cron, both day and weekday must match if both are given.

    Args:
        key: key of `[ledger.schedule]`, for the error.
        text: the five fields.
        zone: time zone of the times.

    Raises:
        BadConfig: when the text is not valid.
    """
    fields = text.split()
    if len(fields) == 5:
        fields[4] = ",".join(map(_from_monday, fields[4].split(",")))
    try:
        return CronTrigger.from_crontab(" ".join(fields), zone.rules)
    except ValueError as error:
        raise BadConfig(
            f"[ledger.schedule] {key}: {text!r} is not a valid schedule ({error}); write minute,"
            " hour, day, month and weekday, such as '*/10 * * * *' or '0 6 3 * *'"
        ) from error


def every_seconds(seconds: int) -> IntervalTrigger:
    """Return the trigger of a task that runs every so many seconds."""
    return IntervalTrigger(seconds=seconds, timezone=UTC)


def times_passed(when: BaseTrigger, after: int, until: int) -> Iterator[datetime]:
    """Yield the times of a trigger after `after` and up to `until` (epoch seconds)."""
    at = datetime.fromtimestamp(after, UTC) + _SECOND
    last = datetime.fromtimestamp(until, UTC)
    while (fired := when.get_next_fire_time(None, at)) is not None and fired <= last:
        yield fired
        at = fired.astimezone(UTC) + _SECOND


def months_before(when: BaseTrigger, after: int, until: int) -> list[str]:
    """Return the month before each time that `times_passed` gives; `YYYY-MM`, each once."""
    times = times_passed(when, after, until)
    return sorted({f"{moment.replace(day=1) - timedelta(days=1):%Y-%m}" for moment in times})


def _from_monday(part: str) -> str:
    """Return a weekday field with days numbered from Monday (APScheduler), not Sunday (cron).

    Names of days are the same in both.
    """
    days, slash, step = part.partition("/")
    return re.sub(r"[0-7]", lambda day: str((int(day[0]) + 6) % 7), days) + slash + step


class TaskRun(msgspec.Struct, frozen=True):
    """The last run of a task; times are epoch seconds.

    Attributes:
        due: everything due up to this time is done.
        started: None if it never ran.
        ended: None while it runs, or if it was cut off.
        well: when it last succeeded.
        error: why the last run failed; None if it succeeded.
    """

    task: str
    due: int
    started: int | None
    ended: int | None
    well: int | None
    error: str | None


def last_runs(connection: Connection) -> dict[str, TaskRun]:
    """Return the last run of every task that was ever scheduled, by name."""
    return {row.task: TaskRun(*row) for row in connection.execute(select(task_runs))}


def record_new_task(connection: Connection, task: str, due: int) -> TaskRun:
    """Put a new task on record; whatever was due up to then counts as done."""
    row = {"task": task, "due": due, "started": None, "ended": None, "well": None, "error": None}
    connection.execute(insert(task_runs).values(**row))
    return TaskRun(**row)  # type: ignore[arg-type]


def record_start(connection: Connection, task: str) -> None:
    """Record that a run of a task has begun."""
    _update_task(connection, task, started=int(time.time()), ended=None)


def record_success(connection: Connection, task: str, due: int) -> None:
    """Record that a run has succeeded, and has done everything due up to `due`."""
    now = int(time.time())
    _update_task(connection, task, due=due, ended=now, well=now, error=None)


def record_failure(connection: Connection, task: str, error: str) -> None:
    """Record that a run has failed; everything due remains due."""
    _update_task(connection, task, ended=int(time.time()), error=error)


def _update_task(connection: Connection, task: str, **values: object) -> None:
    connection.execute(update(task_runs).where(task_runs.c.task == task).values(**values))
