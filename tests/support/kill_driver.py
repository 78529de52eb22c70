"""Run the service again and again while a cluster goes on, killing it at chosen points.

`kill_driver.py LEDGER BEGIN KILLS SEED`: every round makes a new process from this one, which has
imported everything, so that fifty kills take seconds. It kills itself with SIGKILL at the n-th
call of a function: as sudden as a kill from outside, and repeatable. The last round runs to its
end. Prints as JSON how often it was killed where, and what the books are then.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

from fake_sacct import FakeSacct, halted, job, step
from slurmkit_accounting.audit.verify import verify
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ingest import enter, ingest
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.usage import usage_hours
from slurmkit_accounting.sacct import query as reading
from slurmkit_accounting.service import schedule
from slurmkit_accounting.service.schedule import Schedule, ScheduledTask, parse_cron
from slurmkit_accounting.service.tasks import ServiceTasks
from sqlalchemy import Connection, func, select

from slurmkit.errors import LedgerError

JOBS, ROUNDS, BATCH = 240, 50, 8
# Of fifty kills, where; the order is the seed's.
PLAN = {"parse": 14, "transaction": 14, "commit": 13, "checkpoint": 6, "record": 3}
HOURS = 40  # all within the overlap that each ingest reads again


Function: TypeAlias = Callable[..., Any]
Dies: TypeAlias = Callable[[], None]


def at(wrapped: Function, dies: Dies) -> Function:
    """A function that first asks whether this is the moment."""

    def call(*args: Any, **named: Any) -> Any:
        dies()
        return wrapped(*args, **named)

    return call


def after(wrapped: Function, dies: Dies) -> Function:
    def call(*args: Any, **named: Any) -> Any:
        done = wrapped(*args, **named)
        dies()
        return done

    return call


def parsed(wrapped: Function, dies: Dies) -> Function:
    def each(*args: Any) -> Any:
        for batch in wrapped(*args):
            dies()
            yield batch

    return each


POINTS = {
    # Rows are read, nothing of them is stored.
    "parse": (reading, "parse_batches", parsed),
    # Rows are written, their usage is not.
    "transaction": (enter.UsageChange, "write", at),
    # All of a batch is written, and not committed.
    "commit": (ingest, "enter_batch", after),
    # Batches are committed, and the ingest does not know how far it has got.
    "checkpoint": (ingest, "add_span", at),
    # The ingest is over, and the schedule does not know.
    "record": (schedule, "record_success", at),
}


def mined(point: str, number: int) -> None:
    """Let this process die at the n-th time that it gets to a point."""
    left = [number]

    def dies() -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    module, name, wrap = POINTS[point]
    setattr(module, name, wrap(getattr(module, name), dies))


def cluster(begin: int, now: int) -> FakeSacct:
    """The cluster in a round: jobs come, run, halt, are requeued, end; some rows change late."""
    fake = FakeSacct()
    chance = random.Random(JOBS)
    spread = HOURS * 3600 // JOBS
    for number in range(JOBS):
        comes, lasts = number * ROUNDS // JOBS, chance.randrange(1, 9)
        submit = begin + number * spread
        start, end = submit + 7, submit + 7 + chance.randrange(1, 4 * 3600)
        kind = chance.random()
        if now < comes:
            continue
        over = now >= comes + lasts
        state, account = "COMPLETED" if over else "RUNNING", ("vision", "climate")[number % 2]
        row = job(number + 1, submit, start, end if over else None, State=state, Account=account)
        if over and kind < 0.2:
            again = job(number + 1, end + 5, end + 10, end + 60, DBIndex=9000 + number)
            fake.jobs += [row | {"State": "REQUEUED"}, again]
            continue
        if over and kind < 0.4:
            row = halted(row, (start, start + (end - start) // 2))
        if over and kind > 0.8 and now >= comes + lasts + 3:  # corrected late
            row |= {"End": str(end - (end - start) // 3), "State": "FAILED"}
        fake.jobs.append(row)
        if over:
            fake.steps[row["DBIndex"]] = [step(row, "batch"), step(row, "0")]
    return fake


def serve(db: str, fake: FakeSacct) -> None:
    """The service until its ingest, which the start catches up with or goes on with, is done."""
    done: list[str] = []

    def opened() -> Any:
        return open_for_writing(db)

    vars(ingest)["_BATCH"] = BATCH
    schedule = Schedule([], opened, lambda what, **facts: done.append(f"{what} {facts}"))
    work = ServiceTasks(opened, fake, schedule.check, find_zone("UTC"))
    often = parse_cron("ingest", "* * * * *", find_zone("UTC"))
    schedule.add([ScheduledTask(name="ingest", when=often, run=work.ingest)])
    due(db)
    schedule.start()
    while not done:
        time.sleep(0.002)
    schedule.stop()
    assert done[0].startswith("done"), done


def unlocked(ledger: Ledger) -> None:
    """Wait until the database, too, knows that the last one is dead."""
    while True:
        try:
            with hold_ledger_lock(ledger, "ingest"):
                return
        except LedgerError:
            time.sleep(0.01)


def due(db: str) -> None:
    """As if a minute had passed."""
    with open_for_writing(db) as ledger:
        unlocked(ledger)
        with ledger.transaction() as connection:
            _put_back(connection)


def _put_back(connection: Connection) -> None:
    row = schedule.last_runs(connection).get("ingest")
    if row and row.ended:
        schedule.record_success(connection, "ingest", row.due - 120)


def round_of(db: str, begin: int, now: int, mine: tuple[str, int] | None) -> bool:
    """One life of the service; whether it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if mine:
                mined(*mine)
            serve(db, cluster(begin, now))
            code = 0
        except Exception:  # noqa: BLE001 - told, as nobody else would
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the service failed; what it said is above"
    return False


def main(db: str, begin: int, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    killed: Counter[str] = Counter()
    now = lives = 0
    plan = [point for point, times in PLAN.items() for _ in range(times)][:kills]
    chance.shuffle(plan)
    while plan:
        point = plan[-1]
        number = 1 if point in {"checkpoint", "record"} else chance.randrange(1, 6)
        if round_of(db, begin, now, (point, number)):
            killed[plan.pop()] += 1
        now, lives = min(now + 1, 2 * ROUNDS), lives + 1
        assert lives < 4 * kills, killed
    for _ in range(2):
        assert not round_of(db, begin, 2 * ROUNDS, None)
    with open_for_writing(db) as ledger, ledger.transaction() as connection:
        found = verify(connection)
        usage = connection.scalar(select(func.count()).select_from(usage_hours))
        counts = {"runs": found.runs, "usage": usage, "wrong": found.wrong}
    print(json.dumps({"killed": killed, "checksum": found.checksum, **counts}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
