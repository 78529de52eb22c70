"""Letters over what the keys can be taken to; and pastes, which are no keys."""

from __future__ import annotations

from fake_gpus import Recorded
from fake_queue import Scene, job, running, table, text, until, view
from jump_letters import letters
from slurmkit_tui.screens.help import Jump, jump_targets
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.widgets.filter_line import FilterLine
from slurmkit_tui.widgets.log_view import LogLines
from textual import events
from textual.widgets import Input

HOSTILE = "cyqd\n1\x1b[2Jy\nDy"


def scene() -> Scene:
    return Scene([job("11", UserName="alice"), job("12", UserName="alice")])


async def test_a_letter_stands_over_every_target_and_goes_there() -> None:
    app = scene().app()
    async with running(app) as pilot:
        assert not view(app).filtering
        await pilot.press("J")
        await until(pilot, lambda: isinstance(app.screen, Jump))
        await pilot.pause()
        shown = text(app)
        assert len(letters(shown)) == 11  # views, filter, table
        assert len(letters(shown.splitlines()[0])) == 9
        filter_letter = letters(shown.splitlines()[1])[0]
        await pilot.press(filter_letter)
        await until(pilot, lambda: view(app).filtering and isinstance(app.focused, Input))
        await pilot.press("ctrl+j")  # J is a letter there
        await until(pilot, lambda: isinstance(app.screen, Jump))
        await pilot.pause()
        table_letter = letters(text(app).splitlines()[2])[0]
        await pilot.press(table_letter)
        await until(pilot, lambda: app.focused is table(app))
        await pilot.press("J")
        await until(pilot, lambda: isinstance(app.screen, Jump))
        await pilot.press("s")
        await until(pilot, lambda: app.view.NAME == "mine")
        await pilot.press("J")
        await until(pilot, lambda: isinstance(app.screen, Jump))
        await pilot.press("a")
        await until(pilot, lambda: app.view.NAME == "home")


async def test_another_key_takes_the_letters_away_and_does_nothing() -> None:
    app = scene().app()
    async with running(app) as pilot:
        for key in ("escape", "1", "Q", "space"):
            await pilot.press("J")
            await until(pilot, lambda: isinstance(app.screen, Jump))
            await pilot.press(key)
            await until(pilot, lambda: len(app.screen_stack) == 1)
        assert app.view.NAME == "queue"
        assert not table(app).chosen


async def test_in_a_job_the_log_can_be_gone_to() -> None:
    app = scene().app()
    async with running(app) as pilot:
        app.push_screen(JobScreen("11", [("Name", "x")], "log"))
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.pause()
        assert len(jump_targets(app)) == 1
        await pilot.press("J")
        await until(pilot, lambda: isinstance(app.screen, Jump))
        await pilot.press("a")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        assert type(app.focused) is LogLines


async def test_a_paste_into_the_table_does_nothing() -> None:
    cluster = scene()
    app = cluster.app()
    async with running(app) as pilot:
        app.post_message(events.Paste(HOSTILE))
        await pilot.pause()
        await pilot.pause()
        assert (len(app.screen_stack), app.view.NAME) == (1, "queue")
        assert cluster.commands("scancel") == []
        assert table(app).cursor == 0


async def test_a_paste_into_the_map_does_nothing() -> None:
    app = Recorded().app("gpus")
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: bool(app.view.grid.lines))
        app.post_message(events.Paste(HOSTILE))
        await pilot.pause()
        await pilot.pause()
        assert (len(app.screen_stack), app.view.NAME) == (1, "gpus")
        assert "by user" in text(app)


async def test_a_paste_into_the_filter_is_one_line_of_text() -> None:
    app = scene().app()
    async with running(app) as pilot:
        await pilot.press("slash")
        await pilot.pause()
        app.post_message(events.Paste("user:ali\ncy"))
        await until(pilot, lambda: app.view.query_one(FilterLine).text == "user:ali")
        assert len(app.screen_stack) == 1
