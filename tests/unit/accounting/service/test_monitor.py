"""/health and /metrics: ages, reasons, numbers, and no names."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pytest
from allocation_lab import posting
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families
from slurmkit_accounting.allocations.amounts import HOUR_MS
from slurmkit_accounting.allocations.changes import grant_allocation
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import ScheduleSection, ServiceSection
from slurmkit_accounting.ingest.node_events import NodeEvent, record_node_events, record_reading
from slurmkit_accounting.ledger.database import Ledger, open_for_reading, open_for_writing
from slurmkit_accounting.ledger.schema.notices import node_events_task, task_runs
from slurmkit_accounting.ledger.schema.people import people_syncs
from slurmkit_accounting.ledger.schema.runs import ingests, rejects
from slurmkit_accounting.service import monitoring, schedule
from slurmkit_accounting.service.left_metrics import LeftMetrics
from slurmkit_accounting.service.metrics import LedgerMetrics, MonthGpuHours
from slurmkit_accounting.service.monitoring import ClusterState, LedgerState, QueuedJobs, read_state
from slurmkit_accounting.service.schedule import Schedule, ScheduledTask, TaskRun, parse_cron
from slurmkit_accounting.service.tasks import ServiceTasks
from slurmkit_accounting.service.wsgi import TEXT
from sqlalchemy import delete, insert
from stored_runs import ran, store_runs

from slurmkit.errors import LedgerError
from slurmkit.testing import FakeSlurm

UTC = find_zone("UTC")
NOW = UTC.epoch("2026-10-20T12:00:00")
MONTH = UTC.epoch("2026-10-01")
HOUR = 3600
SECTION = ServiceSection(stale_after=HOUR, people_stale_after=2 * HOUR)
DASHBOARD = Path(__file__).parents[4] / "accounting/slurmkit_accounting/assets/dashboard.json"


def quiet(*_: object, **__: object) -> None: ...


def task(name: str, cron: str = "*/10 * * * *") -> ScheduledTask:
    return ScheduledTask(name=name, when=parse_cron(name, cron, UTC), run=lambda _: "")


def state(**changes: object) -> LedgerState:
    run = TaskRun("ingest", NOW - 60, NOW - 60, NOW - 50, NOW - 50, None)
    well = LedgerState(
        NOW, (ClusterState("lab", NOW - 60, 7, 2),), (), 0, NOW - 90, {"ingest": run}
    )
    return msgspec.structs.replace(well, **changes)


def reasons(of: LedgerState, *names: str, running: str | None = None) -> tuple[str, ...]:
    return monitoring.judge_health(
        of, [task(name) for name in names], SECTION, running=running
    ).reasons


def test_all_is_well() -> None:
    judged = monitoring.judge_health(
        state(), [task("ingest"), task("people")], SECTION, running="people"
    )
    assert (judged.reasons, judged.ingest_age, judged.people_age) == ((), {"lab": 60}, 90)
    assert monitoring.health_page(lambda: judged)[0] == HTTPStatus.OK


def test_old_books_and_why() -> None:
    failed = TaskRun("ingest", NOW - 2 * HOUR, NOW - 60, NOW - 50, NOW - 2 * HOUR, "Slurm is away")
    old = state(clusters=(ClusterState("lab", NOW - 2 * HOUR, 7, 2),), tasks={"ingest": failed})
    assert reasons(old, "ingest") == ("lab was last ingested 2:00:00 ago: Slurm is away",)
    assert reasons(old) == ()  # not on the schedule: somebody else's business
    assert reasons(state(clusters=()), "ingest") == ("nothing was ingested yet",)
    files = ClusterState("old", None, 9, 0)
    assert reasons(state(clusters=(*state().clusters, files)), "ingest") == ()


def test_old_people_and_a_task_that_does_not_run() -> None:
    late = {"mail": TaskRun("mail", NOW - 5 * HOUR, None, None, None, None)}
    old = state(last_people_sync=NOW - 3 * HOUR, tasks=late)
    people, mail = reasons(old, "people", "mail")
    assert people == "people were last read 3:00:00 ago"
    assert mail.startswith("mail should have run 4:50:00 ago")
    assert reasons(old, "mail", running="mail") == ()


def test_people_who_were_never_read_and_why() -> None:
    failed = {"people": TaskRun("people", NOW, NOW - 60, NOW - 50, None, "wrong password")}
    never = state(last_people_sync=None, tasks=failed)
    assert reasons(never, "people") == ("people were not read yet: wrong password",)
    assert reasons(never, "ingest") == ()


def test_a_ledger_that_cannot_be_read_is_a_reason() -> None:
    def broken() -> monitoring.ServiceHealth:
        raise LedgerError("the disk is gone")

    status, _, body = monitoring.health_page(broken)
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(body)["reasons"] == ["the disk is gone"]


@pytest.fixture
def books(ledger: Ledger) -> Ledger:
    two = "billing=8,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G,node=1"
    store_runs(
        ledger,
        ran(MONTH - HOUR, 2 * HOUR, alloc_tres=two),  # half of it in the month
        ran(MONTH + HOUR, HOUR, user="bob", partition="mig", state="TIMEOUT"),
        ran(NOW - HOUR, 0, end=None, state="RUNNING", last_seen=NOW),
        ran(NOW - HOUR, 0, start=None, end=None, state="PENDING", last_seen=NOW),
        # From an old file, of which sacct says nothing.
        ran(NOW - 99 * HOUR, 0, end=None, state="RUNNING", last_seen=NOW - 99 * HOUR),
    )
    window = {"cluster_id": 1, "window_from": 0, "window_to": NOW, "rows_new": 4}
    with ledger.transaction() as connection:
        connection.execute(insert(ingests), window | {"started": NOW - 500, "ended": NOW - 400})
        connection.execute(
            insert(ingests), {"cluster_id": 1, "window_from": 0, "window_to": NOW, "started": NOW}
        )
        connection.execute(insert(people_syncs), {"at": NOW - 30})
        bad = {"ingest_id": 1, "digest": "d", "reason": "r", "line": "l"}
        connection.execute(insert(rejects), bad)
        schedule.record_new_task(connection, "ingest", NOW)
        schedule.record_success(connection, "ingest", NOW)
        record_reading(connection, "lab", NOW - HOUR, NOW)
        events = [
            NodeEvent("c4", NOW - HOUR, None, "DRAIN", "bad DIMM", "root", 4),
            NodeEvent("c5", NOW - HOUR, None, "DRNG*", "slurmkit: ecc", "root", None),
            NodeEvent("c6", NOW - HOUR, None, "DOWN*", "not responding", "slurm", 2),
            NodeEvent("c7", NOW - 2 * HOUR, NOW - HOUR, "DOWN", "mended", "slurm", 8),
        ]
        record_node_events(connection, 1, events, NOW, {"c4", "c5", "c6", "c7"})
    return ledger


def test_the_state_of_the_books(books: Ledger) -> None:
    with books.transaction() as connection:
        found = read_state(connection)
    assert found.clusters == (ClusterState("lab", NOW - 500, 4, 3),)
    assert found.queued == (
        QueuedJobs("lab", "gpu", "pending", 1, 2),
        QueuedJobs("lab", "gpu", "running", 1, 2),
    )
    assert (found.rejects, found.last_people_sync) == (1, NOW - 30)
    assert found.tasks["ingest"].well is not None


def metrics(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> dict[str, dict[str, float]]:
    monkeypatch.setattr("time.time", lambda: float(NOW))
    schedule = Schedule([task("ingest")], open_for_writing, quiet)
    schedule.seconds["ingest"] = 1.5
    schedule.failures["ingest"] = 2
    left = LeftMetrics(UTC, quiet, **settings)
    of = LedgerMetrics(open_for_reading, schedule, MonthGpuHours(UTC, **settings), quiet, left)
    _, _, text = of.page()
    return {
        family.name: {
            ",".join(map("=".join, sorted(sample.labels.items()))): sample.value
            for sample in family.samples
        }
        for family in text_string_to_metric_families(text.decode())
    }  # fmt: skip


@pytest.mark.usefixtures("books")
def test_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    found = metrics(monkeypatch)
    assert found["slurmkit_ledger_up"] == {"": 1}
    assert found["slurmkit_ledger_ingest_lag_seconds"] == {"cluster=lab": 500}
    assert found["slurmkit_ledger_rows"] == {"cluster=lab": 4}
    assert found["slurmkit_ledger_open_rows"] == {"cluster=lab": 3}
    assert found["slurmkit_ledger_rejects"] == {"": 1}
    assert found["slurmkit_ledger_people_age_seconds"] == {"": 30}
    assert found["slurmkit_ledger_gpus_allocated"] == {"cluster=lab,partition=gpu": 2}
    assert found["slurmkit_ledger_gpus_wanted"] == {"cluster=lab,partition=gpu": 2}
    assert found["slurmkit_ledger_jobs"] == {
        "cluster=lab,partition=gpu,state=pending": 1,
        "cluster=lab,partition=gpu,state=running": 1,
    }
    assert found["slurmkit_ledger_task_seconds"] == {"task=ingest": 1.5}
    assert found["slurmkit_ledger_task_failures"] == {"task=ingest": 2}
    assert found["slurmkit_ledger_month_gpu_hours"] == {
        "cluster=lab,gpu_type=a100,outcome=completed,partition=gpu": 2,
        "cluster=lab,gpu_type=a100,outcome=timeout,partition=mig": 2,
        "cluster=lab,gpu_type=a100,outcome=running,partition=gpu": 2,
    }


@pytest.mark.sql
def test_tasks_of_an_array_that_wait_are_counted_each(ledger: Ledger) -> None:
    pending = {"start": None, "end": None, "state": "PENDING", "last_seen": NOW, "gpus": 0}
    four = "billing=8,cpu=4,gres/gpu=4,node=1"
    store_runs(
        ledger,
        ran(NOW - HOUR, 0, job_id="12_[3-9,20-40:10%2]", req_tres=four, **pending),
        ran(NOW - HOUR, 0, job_id="13", req_tres="cpu=1", **pending),
        ran(NOW - HOUR, 0, job_id="15", req_tres="gres/gpu=many", **pending),
        ran(NOW - HOUR, 0, job_id="14_2", req_tres=four, **pending),
    )
    with ledger.transaction() as connection:
        connection.execute(
            insert(ingests),
            {"cluster_id": 1, "window_from": 0, "window_to": NOW, "started": NOW, "ended": NOW},
        )
        (found,) = read_state(connection).queued
    assert (found.state, found.jobs, found.gpus) == ("pending", 7 + 3 + 1 + 1 + 1, (7 + 3 + 1) * 4)


@pytest.mark.usefixtures("books")
def test_metrics_of_nodes_that_are_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = metrics(monkeypatch)
    assert found["slurmkit_ledger_nodes_out"] == {
        "cluster=lab,state=drained": 2,
        "cluster=lab,state=down": 1,
    }
    assert found["slurmkit_ledger_gpus_out"] == {
        "cluster=lab,state=drained": 4,
        "cluster=lab,state=down": 2,
    }


@pytest.mark.sql
def test_nodes_of_a_cluster_whose_events_are_unknown_have_no_metric(
    books: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with books.transaction() as connection:
        connection.execute(delete(task_runs).where(task_runs.c.task == node_events_task("lab")))
    assert metrics(monkeypatch)["slurmkit_ledger_nodes_out"] == {}


def test_metrics_of_what_is_left(
    books: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configure: Any
) -> None:
    """A PI is named only where a site wants names; else the least left counts for all."""
    budgets = tmp_path / "budgets.toml"
    budgets.write_text(
        "".join(
            f'[[budget]]\npi = "{pi}"\ngpu_hours = 10\nfrom = 2026-10-01\nto = 2026-11-01\n'
            for pi in ("vogel", "meyer")
        )
    )
    configure(f'[ledger]\nbudgets = "{budgets}"\n')
    for kind, name in (("account", "vision"), ("pi", "vogel"), ("pi", "meyer")):
        grant_allocation(books, kind, name, 10 * HOUR_MS, MONTH, posting())
    found = metrics(monkeypatch)
    assert found["slurmkit_ledger_budget_left_ratio"] == {"pi=": 1.0}
    left = found["slurmkit_ledger_allocation_left_ratio"]
    assert left.keys() == {"kind=account,name=vision,unit=gpu", "kind=pi,name=,unit=gpu"}
    assert left["kind=account,name=vision,unit=gpu"] == pytest.approx(0.4)  # 2 + 2 + 2 of 10
    assert found["slurmkit_ledger_unmapped_people"][""] >= 1
    assert found["slurmkit_ledger_unmapped_gpu_hours"][""] > 0
    assert "vogel" not in str(found)
    named = metrics(monkeypatch, by_user=True)
    assert named["slurmkit_ledger_budget_left_ratio"] == {"pi=meyer": 1.0, "pi=vogel": 1.0}


@pytest.mark.usefixtures("books")
def test_the_page_is_openmetrics_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: float(NOW))
    schedule = Schedule([task("ingest")], open_for_writing, quiet)
    of = LedgerMetrics(open_for_reading, schedule, MonthGpuHours(UTC), quiet)
    asked = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    status, kind, text = of.page(asked)
    assert status == HTTPStatus.OK
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in parse_openmetrics(text.decode())}
    assert {"slurmkit_ledger_up", "slurmkit_ledger_task_failures"} <= names
    assert of.page("*/*")[1].startswith("text/plain; version=0.0.4")


def test_alive_and_ready() -> None:
    def broken() -> None:
        raise LedgerError("the disk\nis gone")

    assert monitoring.live_page(lambda: True) == (HTTPStatus.OK, TEXT, b"ok\n")
    assert monitoring.live_page(lambda: False)[0] == HTTPStatus.SERVICE_UNAVAILABLE
    assert monitoring.ready_page(lambda: None) == (HTTPStatus.OK, TEXT, b"ok\n")
    status, _, said = monitoring.ready_page(broken)
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    assert said.startswith(b"the disk")
    assert said.count(b"\n") == 1
    schedule = Schedule([], open_for_writing, quiet)
    assert not schedule.is_alive


def test_a_schedule_is_alive_from_its_start_to_its_end(ledger: Ledger) -> None:
    assert ledger.source
    schedule = Schedule([], open_for_writing, quiet)
    schedule.start()
    assert schedule.is_alive
    schedule.stop()
    assert not schedule.is_alive


@pytest.mark.usefixtures("books")
def test_users_only_where_a_site_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "bob" not in str(metrics(monkeypatch))
    assert "user=bob" in str(metrics(monkeypatch, by_user=True))


def test_without_books_the_tasks_are_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = metrics(monkeypatch)
    assert found["slurmkit_ledger_up"] == {"": 0}
    assert "slurmkit_ledger_task_failures" in found
    assert "slurmkit_ledger_rejects" not in found


@pytest.mark.usefixtures("books")
def test_the_dashboard_shows_these_metrics_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = set(re.findall(r"slurmkit_ledger_\w+", DASHBOARD.read_text("utf-8")))
    assert {name.removesuffix("_total") for name in shown} == set(metrics(monkeypatch))
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_people_are_on_the_schedule_where_somebody_knows_them(configure: Any) -> None:
    def names(**section: str) -> list[str]:
        work = ServiceTasks(open_for_writing, FakeSlurm({}), lambda: None, UTC)
        return [each.name for each in work.tasks(ScheduleSection(**section))]

    assert names() == ["ingest", "sweep"]
    configure('[ldap]\nuri = "ldap://x"\n')
    assert names() == ["people", "ingest", "sweep"]
    assert names(people="", sweep="", mail="0 8 4 * *") == ["ingest", "mail"]
