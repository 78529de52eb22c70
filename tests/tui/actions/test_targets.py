"""What an action acts on: the job on its screen, else the rows of the view."""

from __future__ import annotations

import pytest
from fake_queue import NOW, Scene, expect_text, job, running, table, text, until, waiting
from form_scene import FormScene, form, typed
from msgspec.structs import replace
from slurmkit_tui.actions.commands import refuse_unless_pending, refuse_unless_started
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.screens.shells import shell_refusal
from slurmkit_tui.widgets.dialogs import ChoiceDialog, ConfirmDialog, ValueDialog
from stub_feed import StubFeed
from textual.widgets import Input
from usage_values import VALUES

from slurmkit.cluster.cluster import Cluster
from slurmkit.jobs.info import JobInfo, info_from_row
from slurmkit.jobs.lookup import summarize_parts


def two_jobs() -> Scene:
    """Job 11 of bob, and job 12 of alice."""
    return Scene([job("11"), job("12", UserName="alice")])


def with_an_ended_job() -> SlurmkitApp:
    """Mine, with job 9 in its last row, which ended a minute ago."""
    run = JobInfo(
        job_id="9", raw_id="9", name="old", user="alice", account="vision", partition="gpu",
        state="COMPLETED", node_list="c2", tres="cpu=1", elapsed="1:00", submitted=1, started=2,
        ended=int(NOW) - 60, exit_code="0:0", source="sacct",
    )  # fmt: skip
    return StubFeed(**VALUES | {"mine": replace(VALUES["mine"], ended=(run,))}).app("mine")


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("c", "scancel 12"),
        ("R", "scontrol requeue 12"),
        ("a", "Actions on job 12 of alice"),
        ("S", "srun --jobid 12"),
        ("h", "job 12 does not wait"),
        ("H", "job 12 does not wait"),
    ],
)
async def test_on_a_jobs_screen_a_key_acts_on_that_job(key: str, shown: str) -> None:
    app = two_jobs().app()
    async with running(app) as pilot:
        await pilot.press("j", "enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        table(app).cursor = 0  # as when the list below changes
        await pilot.press(key)
        await expect_text(pilot, shown)
        assert "job 11" not in text(app)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [("K", "USR1", "scancel --signal=USR1 12"), ("L", "5", "JobId=12 TimeLimit=5")],
)
async def test_on_a_jobs_screen_a_value_is_for_that_job(key: str, value: str, shown: str) -> None:
    app = two_jobs().app()
    async with running(app) as pilot:
        await pilot.press("j", "enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        table(app).cursor = 0
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, ValueDialog))
        app.screen.query_one(Input).value = value
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await expect_text(pilot, shown)


async def test_the_palette_of_a_jobs_screen_acts_on_that_job() -> None:
    app = two_jobs().app()
    async with running(app) as pilot:
        await pilot.press("j", "enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        table(app).cursor = 0
        offered = {
            each.title.partition("  ")[0]: each for each in app.get_system_commands(app.screen)
        }
        app.call_later(offered["Cancel"].callback)
        await expect_text(pilot, "Cancel job 12 of alice?")


async def test_a_new_jobs_screen_cancels_the_new_job() -> None:
    scene = FormScene()
    scene.jobs.append(job("3", UserName="alice"))
    async with form(scene) as pilot:
        await typed(pilot, what="true", time="10")
        scene.jobs[:] = [job("3", UserName="alice"), waiting("7", UserName="alice")]
        await pilot.press("ctrl+s")
        await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmDialog))
        await pilot.press("y")
        await until(pilot, lambda: isinstance(pilot.app.screen, JobScreen))
        await until(pilot, lambda: bool(pilot.app.screen.targets))
        await pilot.press("c")
        await expect_text(pilot, "Cancel job 7 of alice?")


async def test_a_screen_whose_job_is_not_read_yet_says_so() -> None:
    app = two_jobs().app()
    async with running(app) as pilot:
        app.session.feed.fetch = lambda _ask: pytest.fail("nothing is asked here")
        app.ask_for = lambda _ask: None  # type: ignore[method-assign]
        app.push_screen(JobScreen("12", [("Name", "asking…")]))
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.press("c")
        await expect_text(pilot, "job 12 has not been read yet")
        await pilot.press("a")
        assert isinstance(app.screen, JobScreen)


async def test_a_job_that_ended_on_its_screen_is_not_replaced_by_another() -> None:
    cluster = two_jobs()
    app = cluster.app()
    async with running(app) as pilot:
        await pilot.press("j", "enter")
        await expect_text(pilot, "squeue at")
        cluster.jobs[:] = [job("11"), job("12", UserName="alice", State="COMPLETED")]
        await pilot.press("r")
        await expect_text(pilot, "COMPLETED")
        for key in ("c", "R", "K", "S", "L"):
            await pilot.press(key)
            await expect_text(pilot, "is refused: job 12 has ended")
            assert isinstance(app.screen, JobScreen)
            app.clear_notifications()
        await pilot.press("a")
        await expect_text(pilot, "Actions on job 12 of alice", "not possible: job 12 has ended")
        assert cluster.commands("scancel") == []


async def test_a_task_of_a_pending_array_is_cancelled_alone_on_its_screen() -> None:
    app = Scene([waiting("12_[4-9%2]", UserName="alice")]).app()
    async with running(app) as pilot:
        await pilot.press("enter", "c")
        await expect_text(pilot, "Job 12_4", "scancel 12_4")


async def test_a_node_is_not_drained_from_a_jobs_screen() -> None:
    """`d` on a job opened from the map drained the node below."""
    app = two_jobs().app()
    async with running(app) as pilot:
        await app.push_screen(JobScreen("12", [("Name", "x")]))
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        assert not app.check_action("propose", ("drain",))
        assert app.check_action("propose", ("cancel",))


@pytest.mark.parametrize("key", ["c", "h", "K", "L", "S", "R"])
async def test_an_action_on_an_ended_job_of_the_list_says_that_it_has_ended(key: str) -> None:
    app = with_an_ended_job()
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.view.table.count > 0)
        await pilot.press("end")
        await pilot.press(key)
        await expect_text(pilot, "is refused: job 9 has ended")


async def test_the_actions_of_an_ended_job_are_listed_with_the_reason() -> None:
    app = with_an_ended_job()
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.view.table.count > 0)
        await pilot.press("end", "a")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await expect_text(pilot, "Cancel", "not possible: job", "has ended")


async def test_actions_where_nothing_can_be_changed_say_so() -> None:
    app = StubFeed(**VALUES).app("fairshare")
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.view.table.count > 0)
        await pilot.press("a")
        await expect_text(pilot, "nothing here can be changed")


def test_a_whole_array_takes_the_actions_of_each_of_its_states() -> None:
    """An array sent from the form is one job on its screen."""
    rows = Cluster(Scene([job("9_1"), waiting("9_2")]).slurm).queue().rows
    parts = {row.job_id: info_from_row(row) for row in rows}
    whole = summarize_parts("9", parts)
    assert refuse_unless_pending(whole) == ""
    assert refuse_unless_started(whole) == ""
    assert "open one of them" in shell_refusal(whole, "bob")


@pytest.mark.parametrize("options", [{"read_only": True}, {}])
async def test_what_is_always_refused_is_not_offered(options: dict[str, bool]) -> None:
    app = two_jobs().app(**options)
    async with running(app) as pilot:
        offered = [each.title.partition("  ")[0] for each in app.get_system_commands(app.screen)]
        last_line = text(app).splitlines()[-1]
        for name in ("New job", "Cancel", "Actions"):
            assert (name in offered) is not bool(options)
            assert (name in last_line) is not bool(options)
        await pilot.press("a")
        if options:
            await expect_text(pilot, "actions are refused: read-only")
            assert len(app.screen_stack) == 1
