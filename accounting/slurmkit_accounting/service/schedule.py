"""Run tasks at the times of the configuration, one at a time, each once for what was missed.

The tasks and their times are made from the configuration at every start; what was done last is in
the ledger. So a task whose time passed while the service was down, or whose run was cut off or
failed, runs again: at the start, or some minutes after it failed, then later and later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

import msgspec
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger

from slurmkit.errors import SlurmkitError
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.service import store
from slurmkit_accounting.service.crontext import months_before, passed
from slurmkit_accounting.service.log import Log

RETRY_SECONDS = 600
_DOUBLINGS = 5  # of that, while it goes on failing: at most some five hours


class Stopped(Exception):
    """Raised within a task, at the edge of a batch, when the service is to stop."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do at certain times.

    Attributes:
        run: does it and says what was done, on one line; gets the months before the times that
            have come, which for all but monthly tasks are none.
        at_first: whether it runs at the very first start too.
    """

    name: str
    when: CronTrigger
    run: Callable[[list[str]], str]
    at_first: bool = True
    monthly: bool = False


class Schedule:
    """Runs tasks, never two at a time.

    Attributes:
        seconds: how long the last run took, by task, since the start.
        failures: failed runs, by task, since the start.
        running: the task that runs now.
    """

    def __init__(
        self,
        tasks: list[Task],
        books: Callable[[], AbstractContextManager[Ledger]],
        log: Log,
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.tasks: list[Task] = []
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, int] = {}
        self.add(tasks)
        self.running: str | None = None
        self._books = books
        self._log = log
        self._retry = timedelta(seconds=retry_seconds)
        self._in_a_row: Counter[str] = Counter()  # failures
        self._stopping = threading.Event()
        logging.getLogger("apscheduler").setLevel(logging.ERROR)  # a run that takes long is usual
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )

    def add(self, tasks: list[Task]) -> None:
        """Add tasks, before the start."""
        self.tasks += tasks
        self.failures |= {task.name: 0 for task in tasks}

    def start(self) -> None:
        """Begin, with what was missed.

        Raises:
            LedgerError: when the last runs cannot be read.
        """
        now = int(time.time())
        for task in self.tasks:
            if self._missed(task, now):
                self._scheduler.add_job(self._run, args=[task])
            self._scheduler.add_job(self._run, task.when, args=[task], id=task.name)
        self._scheduler.start()

    def stop(self) -> None:
        """End; waits for the task that runs, which ends at the edge of its next batch."""
        self._stopping.set()
        self._scheduler.shutdown(wait=True)

    def check(self) -> None:
        """For tasks, between batches.

        Raises:
            Stopped: when the service is to stop.
        """
        if self._stopping.is_set():
            raise Stopped

    def _missed(self, task: Task, now: int) -> bool:
        with self._books() as ledger, ledger.transaction() as connection:
            last = store.last_runs(connection).get(task.name)
            if last is None:
                store.first_met(connection, task.name, now)
                return task.at_first
        cut = last.started is not None and last.ended is None
        return cut or last.error is not None or any(passed(task.when, last.due, now))

    def _run(self, task: Task) -> None:
        if self._stopping.is_set():
            return
        begun, self.running = time.monotonic(), task.name
        try:
            said = self._recorded(task)
        except Stopped:
            self._log("stopped", task=task.name)
        except Exception as error:  # noqa: BLE001 - the service outlives whatever a task raises
            self._fail(task, error)
        else:
            self._in_a_row[task.name] = 0
            self._log("done", task=task.name, seconds=f"{time.monotonic() - begun:.1f}", said=said)
        finally:
            self.running = None
            self.seconds[task.name] = time.monotonic() - begun

    def _recorded(self, task: Task) -> str:
        now = int(time.time())
        with self._books() as ledger:
            with ledger.transaction() as connection:
                due = store.last_runs(connection)[task.name].due
                store.begun(connection, task.name)
            said = task.run(months_before(task.when, due, now) if task.monthly else [])
            with ledger.transaction() as connection:
                store.ended(connection, task.name, now)
        return said

    def _fail(self, task: Task, error: Exception) -> None:
        known = isinstance(error, SlurmkitError)
        words = str(error) if known else f"{type(error).__name__}: {error}"
        self.failures[task.name] += 1
        self._in_a_row[task.name] += 1
        self._log("failed", task=task.name, why=words)
        try:
            with self._books() as ledger, ledger.transaction() as connection:
                store.failed(connection, task.name, words)
        except SlurmkitError as also:
            self._log("failed", task=task.name, why=also)
        if not self._stopping.is_set():
            again = datetime.now(UTC) + self._pause(task)
            name = f"{task.name} again"
            self._scheduler.add_job(
                self._run, "date", run_date=again, args=[task], id=name, replace_existing=True
            )

    def _pause(self, task: Task) -> timedelta:
        """What fails for hours, such as a mail to an address that is no more, need not be hasty."""
        times: int = 2 ** min(self._in_a_row[task.name] - 1, _DOUBLINGS)
        return self._retry * times
