"""The state of the ledger and the service, as /health and /metrics show it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, case, func, select, text

from slurmkit.errors import SlurmkitError
from slurmkit.formats.display import printable
from slurmkit.formats.durations import format_duration
from slurmkit.formats.job_ids import count_tasks
from slurmkit.formats.tres import gpu_count
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ledger.schema.notices import node_events_task, task_runs
from slurmkit_accounting.ledger.schema.people import people_syncs
from slurmkit_accounting.ledger.schema.runs import (
    OPEN,
    UNREAD,
    clusters,
    ingests,
    node_events,
    rejects,
    runs,
)
from slurmkit_accounting.service.schedule import ScheduledTask, TaskRun, last_runs, times_passed
from slurmkit_accounting.service.wsgi import TEXT, Page

SACCT = "sacct"
_FROM_SACCT = ingests.c.ended.is_not(None) & (ingests.c.source == SACCT)
JSON = "application/json"


class ClusterState(msgspec.Struct, frozen=True):
    """The rows of one cluster in the ledger.

    Attributes:
        last_ingest: start of the last finished ingest from sacct, epoch seconds. None before the
            first, and for a cluster whose rows come from files.
        rows: number of rows that all ingests have added.
        open: number of runs without an end.
    """

    name: str
    last_ingest: int | None
    rows: int
    open: int


class QueuedJobs(msgspec.Struct, frozen=True):
    """Jobs of a partition that wait or run, as of the last ingest.

    Attributes:
        state: `pending` or `running`.
        jobs: their number; each task of an array counts.
        gpus: whole GPUs and MIG slices that they ask for; of running jobs, those that they hold.
    """

    cluster: str
    partition: str
    state: str
    jobs: int
    gpus: int


class NodesOut(msgspec.Struct, frozen=True):
    """Nodes that are drained or down, as of the last ingest that read the nodes' events.

    Attributes:
        state: `drained` or `down`.
        nodes: their number.
        gpus: the GPUs of those whose GPUs are known.
    """

    cluster: str
    state: str
    nodes: int
    gpus: int


class LedgerState(msgspec.Struct, frozen=True):
    """The state of the ledger at one moment; times are epoch seconds.

    Attributes:
        taken: when the state was read.
        rejects: number of sacct lines whose runs still could not be read.
        last_people_sync: None before the first.
        tasks: the last run of each task, by name.
        nodes_out: by state, of clusters whose node events could be read.
    """

    taken: int
    clusters: tuple[ClusterState, ...]
    queued: tuple[QueuedJobs, ...]
    rejects: int
    last_people_sync: int | None
    tasks: dict[str, TaskRun]
    nodes_out: tuple[NodesOut, ...] = ()


def read_state(connection: Connection) -> LedgerState:
    """Read the state from the ledger, without a sum over all runs."""
    return LedgerState(
        taken=int(time.time()),
        clusters=tuple(_clusters(connection)),
        queued=tuple(_queued(connection)),
        rejects=connection.scalar(select(func.count()).select_from(rejects).where(UNREAD)) or 0,
        last_people_sync=connection.scalar(select(func.max(people_syncs.c.at))),
        tasks=last_runs(connection),
        nodes_out=tuple(_nodes_out(connection)),
    )


def _clusters(connection: Connection) -> list[ClusterState]:
    newest = func.max(case((_FROM_SACCT, ingests.c.started)))
    read = select(ingests.c.cluster_id, newest, func.sum(ingests.c.rows_new))
    totals = {row[0]: row[1:] for row in connection.execute(read.group_by(ingests.c.cluster_id))}
    count = select(runs.c.cluster_id, func.count()).where(text(OPEN)).group_by(runs.c.cluster_id)
    open_runs = {row[0]: row[1] for row in connection.execute(count)}
    found = []
    for number, name in connection.execute(select(clusters.c.id, clusters.c.name)):
        last_ingest, rows = totals.get(number, (None, 0))
        found.append(ClusterState(name, last_ingest, int(rows), open_runs.get(number, 0)))
    return found


def _queued(connection: Connection) -> Iterator[QueuedJobs]:
    """Yield what each partition's jobs wait for and hold, of what the last ingest saw."""
    ours = (ingests.c.cluster_id == clusters.c.id, _FROM_SACCT)
    newest = select(func.max(ingests.c.started)).where(*ours).scalar_subquery()
    seen = (text(OPEN), runs.c.last_seen >= newest)
    pending_array_id = case((runs.c.job_id.like("%[%"), runs.c.job_id), else_="")
    # A driver may number each parameter anew; to PostgreSQL, an expression with parameters is then
    # another one in GROUP BY.
    open_runs = (
        select(
            clusters.c.name, runs.c.partition, runs.c.start.is_not(None).label("runs_now"),
            pending_array_id.label("array_id"), runs.c.req_tres, runs.c.gpus,
        )
        .join(clusters, clusters.c.id == runs.c.cluster_id)
        .where(*seen, runs.c.gone_since.is_(None), runs.c.retracted.is_(None))
        .subquery()
    )  # fmt: skip
    alike = [
        open_runs.c[name] for name in ("name", "partition", "runs_now", "array_id", "req_tres")
    ]
    query: Select[Any] = select(*alike, func.count(), func.sum(open_runs.c.gpus))
    jobs: Counter[tuple[str, str, str]] = Counter()
    gpus: Counter[tuple[str, str, str]] = Counter()
    for cluster, partition, runs_now, array_id, asked, rows, held in connection.execute(
        query.group_by(*alike)
    ):
        key = (cluster, partition, "running" if runs_now else "pending")
        tasks = rows if runs_now else rows * count_tasks(array_id)
        jobs[key] += tasks
        gpus[key] += int(held) if runs_now else tasks * _gpus_of(asked)
    for key in sorted(jobs):
        yield QueuedJobs(*key, jobs[key], gpus[key])


def _gpus_of(req_tres: str) -> int:
    try:
        return gpu_count(req_tres)
    except ValueError:  # a line of a file that somebody has changed
        return 0


def _nodes_out(connection: Connection) -> Iterator[NodesOut]:
    """Yield the nodes out of use; nothing of a cluster whose node events were never read."""
    columns = (node_events.c.cluster_id, node_events.c.state, node_events.c.gpus)
    lasting = connection.execute(select(*columns).where(node_events.c.end.is_(None))).all()
    known = select(task_runs.c.task).where(task_runs.c.well.is_not(None))
    read = set(connection.scalars(known))
    for number, name in connection.execute(select(clusters.c.id, clusters.c.name)).all():
        if node_events_task(name) not in read:
            continue
        mine = [row for row in lasting if row.cluster_id == number]
        for state in ("drained", "down"):
            gpus = [row.gpus or 0 for row in mine if _kind_of_outage(row.state) == state]
            yield NodesOut(name, state, len(gpus), sum(gpus))


def _kind_of_outage(state: str) -> str:
    return "drained" if state.startswith(("DRAIN", "DRNG")) else "down"


class ServiceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of /health. Ages are seconds, None before the first ingest or sync.

    Attributes:
        reasons: why the service is unhealthy; empty if it is healthy.
        ingest_age: seconds since the last ingest, by cluster.
        people_age: seconds since people were last read.
        overdue: seconds since a task should have run, by task; 0 if it is not due.
        running: the task that runs now.
        errors: why the last run of a task failed, by task.
    """

    reasons: tuple[str, ...] = ()
    ingest_age: dict[str, int | None] = {}
    people_age: int | None = None
    overdue: dict[str, int] = {}
    running: str | None = None
    errors: dict[str, str] = {}


def health_page(look: Callable[[], ServiceHealth]) -> Page:
    """Return the page: status 200 if healthy, else 503; JSON in both cases."""
    try:
        health = look()
    except SlurmkitError as error:
        health = ServiceHealth(reasons=(str(error),))
    status = HTTPStatus.SERVICE_UNAVAILABLE if health.reasons else HTTPStatus.OK
    return status, JSON, msgspec.json.encode(health) + b"\n"


def live_page(is_alive: Callable[[], bool]) -> Page:
    """Return the page of /livez: 503 if the service must be restarted, whatever the ledger says."""
    if is_alive():
        return HTTPStatus.OK, TEXT, b"ok\n"
    return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"the schedule does not run\n"


def ready_page(read: Callable[[], object]) -> Page:
    """Return the page of /readyz: 503 while the ledger cannot be read, so no query can succeed."""
    try:
        read()
    except SlurmkitError as error:
        return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, f"{printable(str(error))}\n".encode()
    return HTTPStatus.OK, TEXT, b"ok\n"


def judge_health(
    state: LedgerState,
    tasks: list[ScheduledTask],
    section: ServiceSection,
    *,
    running: str | None = None,
    broken: Iterable[str] = (),
) -> ServiceHealth:
    """Judge the ledger by how long ago the scheduled tasks were done.

    Args:
        state: of the ledger.
        tasks: that are scheduled.
        section: with the ages from which on something is too old.
        running: the task that runs now.
        broken: what else does not work.
    """
    now, scheduled = state.taken, {task.name for task in tasks}
    health = ServiceHealth(
        ingest_age={each.name: _age(each.last_ingest, now) for each in state.clusters},
        people_age=_age(state.last_people_sync, now),
        overdue={task.name: _overdue(task, state) for task in tasks},
        running=running,
        errors={name: run.error for name, run in state.tasks.items() if run.error},
    )
    reasons = (*_reasons(health, scheduled, state, section), *broken)
    return msgspec.structs.replace(health, reasons=reasons)


def _reasons(
    health: ServiceHealth, scheduled: set[str], state: LedgerState, section: ServiceSection
) -> Iterator[str]:
    """Yield the reasons why the service is unhealthy."""
    if "ingest" in scheduled:
        # A cluster whose rows come from files has no age. If no cluster has one, nothing was
        # ingested from sacct.
        live = [each for each in state.clusters if each.last_ingest is not None]
        if not live:
            yield f"nothing was ingested yet{_why(health, 'ingest')}"
        for each in live:
            age = health.ingest_age[each.name] or 0
            if age > section.stale_after:
                since = format_duration(age)
                yield f"{each.name} was last ingested {since} ago{_why(health, 'ingest')}"
    if "people" in scheduled:
        if health.people_age is None:
            yield f"people were not read yet{_why(health, 'people')}"
        elif health.people_age > section.people_stale_after:
            since = format_duration(health.people_age)
            yield f"people were last read {since} ago{_why(health, 'people')}"
    for task, overdue in health.overdue.items():
        if overdue > section.stale_after and task not in {"ingest", "people", health.running}:
            yield f"{task} should have run {format_duration(overdue)} ago{_why(health, task)}"


def _why(health: ServiceHealth, task: str) -> str:
    return f": {health.errors[task]}" if task in health.errors else ""


def _age(at: int | None, now: int) -> int | None:
    return None if at is None else max(now - at, 0)


def _overdue(task: ScheduledTask, state: LedgerState) -> int:
    """Return the seconds since the first due time that no run has covered; 0 if there is none."""
    run = state.tasks.get(task.name)
    first = next(times_passed(task.when, run.due, state.taken), None) if run else None
    return 0 if first is None else state.taken - int(first.timestamp())
