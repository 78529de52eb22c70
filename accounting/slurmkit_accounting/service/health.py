"""`GET /health`: whether the books are kept up to date, and if not, why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus

import msgspec

from slurmkit.durations import format_duration
from slurmkit.errors import SlurmkitError
from slurmkit_accounting.service.app import Page
from slurmkit_accounting.service.config import ServiceSection
from slurmkit_accounting.service.crontext import passed
from slurmkit_accounting.service.schedule import Task
from slurmkit_accounting.service.state import State

JSON = "application/json"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What /health shows; ages in seconds, None before the first.

    Attributes:
        reasons: why it is not well; none when it is.
        ingest_age: by cluster.
        overdue: by task, since when it should have been done.
        running: the task that runs now.
        errors: by task, why its last run failed.
    """

    reasons: tuple[str, ...] = ()
    ingest_age: dict[str, int | None] = {}
    people_age: int | None = None
    overdue: dict[str, int] = {}
    running: str | None = None
    errors: dict[str, str] = {}


def page(look: Callable[[], Health]) -> Page:
    """The page: 200 when all is well, else 503; JSON either way."""
    try:
        health = look()
    except SlurmkitError as error:
        health = Health(reasons=(str(error),))
    status = HTTPStatus.SERVICE_UNAVAILABLE if health.reasons else HTTPStatus.OK
    return status, JSON, msgspec.json.encode(health) + b"\n"


def judge(
    state: State, tasks: list[Task], section: ServiceSection, *, running: str | None = None
) -> Health:
    """Judge the books by the age of what the schedule should have done."""
    now, on = state.taken, {task.name for task in tasks}
    health = Health(
        ingest_age={each.name: _age(each.last_ingest, now) for each in state.clusters},
        people_age=_age(state.last_people_sync, now),
        overdue={task.name: _overdue(task, state) for task in tasks},
        running=running,
        errors={name: run.error for name, run in state.tasks.items() if run.error},
    )
    return msgspec.structs.replace(health, reasons=tuple(_reasons(health, on, state, section)))


def _reasons(health: Health, on: set[str], state: State, section: ServiceSection) -> Iterator[str]:
    if "ingest" in on:
        # A cluster whose rows come from files has no age; where none has, nothing was ingested.
        live = [each for each in state.clusters if each.last_ingest is not None]
        if not live:
            yield f"nothing was ingested yet{_why(health, 'ingest')}"
        for each in live:
            age = health.ingest_age[each.name] or 0
            if age > section.stale_after:
                since = format_duration(age)
                yield f"{each.name} was last ingested {since} ago{_why(health, 'ingest')}"
    if "people" in on:
        yield from _people(health, section)
    for task, overdue in health.overdue.items():
        if overdue > section.stale_after and task not in {"ingest", "people", health.running}:
            yield f"{task} should have run {format_duration(overdue)} ago{_why(health, task)}"


def _people(health: Health, section: ServiceSection) -> Iterator[str]:
    if health.people_age is None:
        yield f"people were not read yet{_why(health, 'people')}"
    elif health.people_age > section.people_stale_after:
        since = format_duration(health.people_age)
        yield f"people were last read {since} ago{_why(health, 'people')}"


def _why(health: Health, task: str) -> str:
    return f": {health.errors[task]}" if task in health.errors else ""


def _age(at: int | None, now: int) -> int | None:
    return None if at is None else max(now - at, 0)


def _overdue(task: Task, state: State) -> int:
    run = state.tasks.get(task.name)
    first = next(passed(task.when, run.due, state.taken), None) if run else None
    return 0 if first is None else state.taken - int(first.timestamp())
