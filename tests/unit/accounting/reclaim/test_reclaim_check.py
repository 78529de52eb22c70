"""Policies in the configuration, and what they would have done about recorded runs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from idle_lab import (
    INTERVAL,
    START,
    History,
    brute_force,
    make_job,
    random_history,
    random_policy,
)
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli.reclaim import reclaim_group
from slurmkit_accounting.config import ScheduleSection
from slurmkit_accounting.gpu_use.store import store_uses
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.schema.runs import steps
from slurmkit_accounting.reclaim.check import check_report, check_runs
from slurmkit_accounting.reclaim.policy import (
    ReclaimPolicy,
    choose_policy,
    load_policies,
)
from slurmkit_accounting.reclaim.reclaimer import Reclaimer, refuse_forgeable_pages
from slurmkit_accounting.service.tasks import ServiceTasks
from sqlalchemy import insert
from stored_runs import ran, store_runs

from slurmkit.errors import BadConfig, BadInput
from slurmkit.testing import FakeSlurm

UTC = find_zone("UTC")
NOW = START + 20 * 86400
HOUR = 3600
NOVEMBER = (UTC.epoch("2026-11-01"), UTC.epoch("2026-12-01"))
CANCEL = ReclaimPolicy(action="cancel", minutes=10, skip_minutes=0, warn_minutes=5)


def record(ledger: Ledger, *histories: History) -> None:
    """Runs that have ended, with the curves of their GPUs."""
    rows = [
        ran(
            history.job.start, history.end - history.job.start, db_index=history.job.job_id_raw,
            user=history.job.user, qos=history.job.qos, gpus=history.job.gpus,
            job_id=f"{history.job.job_id}+0" if history.job.het else history.job.job_id,
            alloc_tres=history.job.alloc_tres, reservation=history.job.reservation,
            suspended=history.job.suspended,
        )
        for history in histories
    ]  # fmt: skip
    store_runs(ledger, *rows)
    with ledger.transaction() as connection:
        for number, history in enumerate(histories, start=1):
            uses = [use for use in history.uses(history.end) if use.samples]
            store_uses(connection, uses, run_id=number, final=True)
            if not history.job.batch:
                values = {"run_id": number, "step": "interactive", "state": "", "name": ""}
                connection.execute(insert(steps).values(**values))


def constant(percents: list[int | None], number: int = 1, gpus: int = 1, **other: Any) -> History:
    return History(make_job(number, gpus, **other), tuple(tuple(percents) for _ in range(gpus)))


def found_by(ledger: Ledger, policy: ReclaimPolicy) -> dict[str, list[tuple[str, int]]]:
    with ledger.transaction() as connection:
        results = list(check_runs(connection, {"idle": policy}, NOVEMBER, zone=UTC))
    return {
        each.job.job_id.partition("+")[0]: [(step, int(what.at)) for step, what in each.done]
        for each in results
        if each.done
    }


@pytest.mark.sql
@pytest.mark.parametrize("seed", range(5))
def test_the_check_of_recorded_runs_finds_what_the_brute_force_finds(
    ledger: Ledger, seed: int
) -> None:
    dice = random.Random(1000 + seed)
    policy = random_policy(dice)
    histories = [random_history(dice, number) for number in range(1, 41)]
    record(ledger, *histories)
    expected = {
        history.job.job_id: steps_
        for history in histories
        if (steps_ := brute_force(history, policy, UTC))
    }
    assert found_by(ledger, policy) == expected
    assert expected


def test_what_a_policy_would_have_won_back(ledger: Ledger) -> None:
    idle = [0] * 240  # two hours
    record(
        ledger,
        constant(idle, 1, gpus=2),
        constant(idle, 2, user="bob"),
        constant([0] * 60 + [90] * 100, 3, user="bob"),
        constant([90] * 240, 4),
        constant([None] * 240, 5),
        constant([0, None, None] * 80, 6),
        constant([0] * 10, 7),
    )
    seen: list[tuple[int, int]] = []
    report = check_report(
        ledger, {"idle": CANCEL}, "2026-11", zone=UTC, now=NOW, progress=lambda *at: seen.append(at)
    )
    (row,) = report.rows
    taken = 2 * HOUR - 15 * 60  # seconds from the cancellation of 1 and 2 to their real end
    assert row["gpu_hours_won_back"] == pytest.approx((3 * taken + 160 * INTERVAL - 15 * 60) / HOUR)
    counts = ("runs", "unknown", "idle_runs", "people", "mails", "taken", "worked_again")
    assert [row[name] for name in counts] == [7, 2, 3, 2, 3, 3, 1]
    assert report.meta.notes == ("2 of 7 runs: cannot tell; they have no samples, or too few",)
    assert seen[-1] == (7, 7)
    by_run = check_report(ledger, {"idle": CANCEL}, "2026-11", zone=UTC, now=NOW, by_run=True)
    assert [each["job"] for each in by_run.rows] == ["1", "2", "3"]
    assert [each["worked_again"] for each in by_run.rows] == ["no", "no", "yes"]
    assert by_run.meta.total["gpu_hours_won_back"] == pytest.approx(row["gpu_hours_won_back"])


def test_a_dry_run_wins_nothing_back_and_says_how_much_there_is(ledger: Ledger) -> None:
    record(ledger, constant([0] * 240))
    policy = ReclaimPolicy(minutes=10, skip_minutes=0)
    (row,) = check_report(ledger, {"idle": policy}, "2026-11", zone=UTC, now=NOW).rows
    assert (row["taken"], row["gpu_hours_won_back"]) == (0, 0)
    assert row["gpu_hours_idle"] == pytest.approx(110 / 60)


@pytest.mark.sql
def test_a_curve_that_was_deleted_is_unknown(ledger: Ledger) -> None:
    record(ledger, constant([0] * 240))
    with ledger.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM gpu_curves")
    (row,) = check_report(ledger, {"idle": CANCEL}, "2026-11", zone=UTC, now=NOW).rows
    assert (row["runs"], row["unknown"], row["taken"]) == (1, 1, 0)


def test_the_first_policy_that_is_for_a_job_decides(configure: Callable[[str], None]) -> None:
    configure(
        '[reclaim.big]\npartitions = ["big"]\nexcept_users = ["alice"]\n'
        '[reclaim.vision]\naccounts = ["vision"]\nqos = ["normal"]\n[reclaim.rest]\n'
    )
    policies = load_policies()
    chosen = [
        choose_policy(policies, make_job(**facts))
        for facts in ({"partition": "big"}, {}, {"qos": "high"}, {"account": "x"})
    ]
    assert [each[0] for each in chosen if each] == ["big", "vision", "rest", "rest"]
    assert policies["big"].exemption(make_job(partition="big")) == "its user is exempt"
    assert policies["rest"].action == "report"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('action = "kill"', "'report', 'mail', 'requeue', 'cancel'"),
        ("minutes = 0", "Expected `int` >= 1"),
        ("below = 0", "Expected `float` > 0"),
        ("covered = 0.2", "Expected `float` >= 0.5"),
        ("idle_share = 1.5", "Expected `float` <= 1"),
        ("minuts = 60", "did you mean 'minutes'?"),
        ('hours = "8 to 18"', "write two hours of day, e.g. 8-18 or 22-6"),
        ('hours = "8-25"', "write two hours of day"),
        ('hours = "8-8"', "write two hours of day"),
        ('except_users = "olga"', "Expected `array`"),
    ],
)
def test_a_policy_that_is_not_valid(configure: Callable[[str], None], line: str, said: str) -> None:
    configure(f"[reclaim.idle]\n{line}\n")
    with pytest.raises(BadConfig) as raised:
        load_policies()
    assert "[reclaim.idle]" in str(raised.value)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("hours", "within"), [("8-18", [8, 17]), ("22-6", [22, 5]), ("0-24", [0, 23]), ("", [3])]
)
def test_hours_of_day(hours: str, within: list[int]) -> None:
    policy = ReclaimPolicy(hours=hours)
    midnight = UTC.epoch("2026-11-02")
    assert all(policy.acts_at(midnight + hour * HOUR, UTC) for hour in within)
    outside = {"8-18": [7, 18], "22-6": [6, 21]}.get(hours, [])
    assert not any(policy.acts_at(midnight + hour * HOUR, UTC) for hour in outside)


def test_interactive_jobs_have_a_window_of_their_own() -> None:
    policy = ReclaimPolicy(minutes=30, interactive_minutes=240)
    shell, notebook = make_job(batch=False), make_job(name="My-Jupyter-Server")
    assert policy.window_seconds(make_job(name="train")) == 30 * 60
    assert {policy.window_seconds(shell), policy.window_seconds(notebook)} == {240 * 60}
    for name in ("code-server", "ssh-gpu"):  # of slurmkit code-server and ssh-config
        assert policy.window_seconds(make_job(name=name)) == 240 * 60
    left_alone = ReclaimPolicy(interactive_minutes=0)
    assert left_alone.exemption(shell) == "interactive jobs are exempt"
    assert left_alone.exemption(make_job()) == ""


def test_a_service_without_samples_of_running_jobs_refuses_policies(
    configure: Callable[[str], None],
) -> None:
    def tasks() -> list[str]:
        work = ServiceTasks(open_for_writing, FakeSlurm({}), lambda: None, UTC)
        return [task.name for task in work.tasks(ScheduleSection())]

    configure('[gpu_use]\nsource = "exporters"\n')
    assert "reclaim" not in tasks()
    configure('[gpu_use]\nsource = "exporters"\n[reclaim.idle]\n')
    assert "reclaim" in tasks()
    configure("[reclaim.idle]\n")
    with pytest.raises(BadConfig, match=r'write \[gpu_use\] source = "exporters"'):
        tasks()


@pytest.mark.parametrize("action", ["report", "mail", "requeue", "cancel"])
def test_no_job_is_taken_by_pages_that_a_job_can_forge(
    configure: Callable[[str], None], action: str
) -> None:
    """A job that takes the port of an exporter that is down says that others' GPUs are idle."""
    policy = f'[reclaim.idle]\naction = "{action}"\n'
    for url in ("http://{node}:6832/metrics", "http://{node}:1024/"):
        configure(f'[gpu_use]\nsource = "exporters"\nurl = "{url}"\n{policy}')
        taken = pytest.raises(BadConfig, match=r"taken by \[reclaim.idle\]; .* port below 1024")
        with taken if action in {"requeue", "cancel"} else nullcontext():
            refuse_forgeable_pages(load_policies())
    for url in ("http://{node}:1023/metrics", "https://{node}:6832/"):
        configure(f'[gpu_use]\nsource = "exporters"\nurl = "{url}"\n{policy}')
        refuse_forgeable_pages(load_policies())
    configure(policy)  # the default
    refuse_forgeable_pages(load_policies())


@pytest.mark.usefixtures("ledger")
def test_a_policy_that_takes_jobs_is_refused_when_the_service_starts_and_in_each_round(
    configure: Callable[[str], None],
) -> None:
    configure(
        '[gpu_use]\nsource = "exporters"\nurl = "http://{node}:6832/"\n'
        '[reclaim.idle]\naction = "cancel"\n'
    )
    with pytest.raises(BadConfig, match="port below 1024"):
        ServiceTasks(open_for_writing, FakeSlurm({}), lambda: None, UTC).tasks(ScheduleSection())
    with pytest.raises(BadConfig, match="port below 1024"):
        Reclaimer(open_for_writing, FakeSlurm({}), UTC, patience=1).run("lab")


def run(*words: str) -> Any:
    return CliRunner().invoke(reclaim_group, words, catch_exceptions=True)


@pytest.mark.usefixtures("ledger")
def test_the_command_reads_a_file_with_policies(
    ledger: Ledger, configure: Callable[[str], None], tmp_path: Path
) -> None:
    record(ledger, constant([0] * 240))
    configure("")
    asked = ("check", "--month", "2026-11", "--timezone", "UTC")
    failed = run(*asked)
    assert isinstance(failed.exception, BadConfig)
    assert "the configuration has no policy" in str(failed.exception)
    file = tmp_path / "strict.toml"
    assert "no such file" in str(run(*asked, "--policy", str(file)).exception)
    file.write_text('[reclaim.strict]\naction = "cancel"\nminutes = 10\nwarn_minutes = 5\n')
    shown = json.loads(run(*asked, "--policy", str(file), "--json").stdout)
    assert shown["schema"] == "slurmkit.report.reclaim/1"
    assert [(row["policy"], row["taken"]) for row in shown["rows"]] == [("strict", 1)]
    file.write_text("[other]\n")
    assert "has no policy" in str(run(*asked, "--policy", str(file)).exception)
    wrong = run("check", "--month", "November", "--policy", str(file))
    assert isinstance(wrong.exception, BadInput)


def test_to_keep_a_job_needs_the_service(configure: Callable[[str], None]) -> None:
    configure("")
    failed = run("keep", "12", "--reason", "data")
    assert "this site has no ledger service" in str(failed.exception)
