"""A job that was requeued: its runs on its own screen, in Mine, and in its log."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from fake_queue import NOW, Scene, expect_text, job, running, text, until, waiting
from recorded_lab import capabilities
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.feed import FeedQuestion
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.feed.threads import SlurmInTurns
from slurmkit_tui.jobform.my_jobs import my_job_rows
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.widgets.log_view import LogView

from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.my_jobs import MyJobs
from slurmkit.config.paths import state_folder
from slurmkit.slurm.machine import LOCAL_MACHINE, machine_of
from slurmkit.state.cache import cluster_key, save_cached

TIMEOUT = (
    "0\t1699990000\tbegin\tc1\n0\t1699991000\tend\ttimeout requeue 75 timeout: back to the queue\n"
)
LOST = "1\t1699992000\tbegin\tc2\n2\t1699993000\tbegin\tc3\n2\t1699993000\tafter\tnode-fail\n"


def scene(*jobs: dict[str, str], **histories: str) -> Scene:
    """A cluster with a name, whose jobs left their histories on this home: `job_11=…`."""
    made = Scene(list(jobs))
    made.slurm.key = "lab"
    save_cached("capabilities", "lab", msgspec.structs.replace(capabilities(), taken=time.time()))
    for name, history in histories.items():
        file = folder(name.removeprefix("job_")) / "history"
        file.parent.mkdir(parents=True)
        file.write_text(history)
    return made


def folder(job_id: str) -> Path:
    return state_folder("runs") / capabilities().cluster_name / job_id


def on_screen(app: SlurmkitApp) -> str:
    """What is on screen, without the spaces that line it up."""
    return "\n".join(" ".join(line.split()) for line in text(app).splitlines())


async def test_a_job_shows_why_when_and_where_each_run_ended() -> None:
    app = scene(job("11", UserName="alice"), job_11=TIMEOUT + LOST).app()
    async with running(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: "Runs restart 2: node-fail" in on_screen(app))
        said = on_screen(app)
        assert "run 0 on c1, 2023-11-14 " in said
        assert ": timeout: back to the queue" in said
        assert "run 1 on c2" in said
        assert "node-fail: requeued by Slurm" in said
        assert "run 2 on c3, since 2023-11-14" in said


async def test_a_run_that_begins_is_shown_while_its_job_is_looked_at() -> None:
    cluster = scene(waiting("11", UserName="alice"), job_11=TIMEOUT)
    app = cluster.app(interval=0.2)
    async with running(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: "Runs waits for restart 1: timeout" in on_screen(app))
        with (folder("11") / "history").open("a") as file:
            file.write("1\t1699992000\tbegin\tc2\n")
        cluster.jobs[:] = [job("11", UserName="alice")]
        await until(pilot, lambda: "Runs restart 1: timeout" in on_screen(app))
        assert "run 1 on c2, since" in on_screen(app)


async def test_a_job_that_was_never_requeued_says_nothing_of_runs() -> None:
    app = scene(job("11", UserName="alice"), job_11="0\t1699990000\tbegin\tc1\n").app()
    async with running(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen) and "squeue at" in text(app))
        await pilot.pause(0.3)
        assert "Runs" not in text(app)


async def test_mine_says_that_a_job_was_requeued_and_why() -> None:
    waits = waiting("12", UserName="alice", Reason="BeginTime")
    app = scene(job("11", UserName="alice"), waits, job_11=TIMEOUT + LOST, job_12=TIMEOUT).app(
        view="mine"
    )
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: "c1 restart 2: node-fail" in on_screen(app))
        assert "(BeginTime) restart 1: timeout" in on_screen(app)


def test_of_an_array_mine_counts_the_tasks_that_were_requeued() -> None:
    made = scene(job("12_1", NodeList="c2"), waiting("12_[2-4]"), job("13", NodeList="c1"))
    rows = Cluster(made.slurm).queue().rows
    said = {"12_1": "restart 1: oom"}
    array, other = my_job_rows(MyJobs(rows, {}, (), "", NOW, 0.1, restarts=said))
    assert (array.where, other.where) == ("c2 (Priority) 1 restarted", "c1")


def test_what_is_kept_of_a_cluster_is_found_by_who_reads_in_turn() -> None:
    made = scene()
    assert cluster_key(SlurmInTurns(made.slurm)) == "lab"
    assert machine_of(SlurmInTurns(made.slurm)) is LOCAL_MACHINE
    sent = state_folder("arrays") / "any" / "12.json"  # so that the cluster's name is needed
    sent.parent.mkdir(parents=True)
    sent.touch()
    LiveFeed(Cluster(made.slurm), "alice").fetch(FeedQuestion("mine"))
    assert {argv[0] for argv in made.slurm.asked} == {"squeue", "sacct"}


# ---- the log -----------------------------------------------------------------------------------

BEGINS = "slurmkit: run {} of job 11 begins on c{}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three runs of a hundred lines each; the first has an error."""
    lines = []
    for run in range(3):
        lines += [BEGINS.format(run, run + 1), *(f"run {run} step {at}" for at in range(100))]
    lines[50] = "RuntimeError: before the first restart"
    path = tmp_path / "out"
    path.write_text("\n".join(lines) + "\n")
    return path


async def test_the_log_shows_where_runs_begin_and_goes_from_one_to_the_next(log: Path) -> None:
    app = Scene([job("11", UserName="alice", STDOUT=str(log))]).app()

    def is_at(run: int) -> bool:
        view = app.screen.query_one("#log", LogView)
        return view.lines.found == log.read_text().index(BEGINS.format(run, run + 1))

    async with running(app) as pilot:
        await pilot.press("l")
        await expect_text(pilot, "run 2 step 99")
        for run in (2, 1, 0):
            await pilot.press("left_square_bracket")
            await until(pilot, lambda run=run: is_at(run))
        await pilot.press("left_square_bracket")
        await expect_text(pilot, "not found")
        await pilot.press("E")
        await expect_text(pilot, "RuntimeError")
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: is_at(1))
        assert f"{BEGINS.format(1, 2)} ─────" in text(app)
        await pilot.press("n")  # as any search
        await until(pilot, lambda: is_at(2))
        await pilot.press("g", "left_square_bracket")  # from what is on the screen now
        await until(pilot, lambda: is_at(0))
