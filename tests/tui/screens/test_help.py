"""Help shows the keys of what is on the screen: all that work, and no others."""

from __future__ import annotations

import re

import pytest
from fake_gpus import Recorded
from fake_queue import Scene, expect_text, job, running, text, until
from form_scene import FormScene, form
from help_rows import check, missing, told, works
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.screens.help import HelpDialog
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.views import VIEWS
from slurmkit_tui.widgets.key_bar import KeyBar
from stub_feed import StubFeed
from textual.pilot import Pilot
from usage_values import VALUES

from slurmkit.state.gpumap import MARK_MEANINGS


def scene() -> Scene:
    return Scene([job("11", UserName="alice")])


async def test_the_queue() -> None:
    app = scene().app()
    async with running(app, size=(120, 90)) as pilot:
        check(app)
        assert missing(app, "app", "view", "table") == []
        assert list(told(app)) == ["The table", "This view", "Everywhere"]
        assert told(app)["This view"]["c Ctrl-D F9"] == "Cancel jobs"
        assert "<" not in told(app)["Everywhere"]  # there is no recording
        await pilot.press("question_mark")
        await expect_text(pilot, "Esc closes")
        assert "Filter: a row must match all terms" in text(app)
        assert text(app).index("The table") < text(app).index("This view")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, HelpDialog))


async def test_what_is_typed_is_not_a_key() -> None:
    app = scene().app()
    async with running(app, size=(120, 90)) as pilot:
        await pilot.press("slash")
        await pilot.pause()
        assert "q" not in works(app)
        assert "The line" in told(app)
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))


async def test_the_map_has_keys_of_its_own() -> None:
    app = Recorded().app("gpus")
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, lambda: bool(app.view.grid.lines))
        await pilot.pause()
        check(app)
        assert missing(app, "app", "view", "map") == []
        assert told(app)["The map"]["b"] == "Show users, accounts, jobs, or the use of each GPU"
        assert "C" not in told(app)["This view"]  # a map has no columns


async def test_help_explains_the_marks_of_the_map() -> None:
    app = Recorded().app("gpus")
    async with app.run_test(size=(120, 100)) as pilot:
        await until(pilot, lambda: bool(app.view.grid.lines))
        await pilot.press("question_mark")
        meanings = ("held by the user, account or job named below the map", *MARK_MEANINGS.values())
        await expect_text(pilot, "Marks of the map: one for each GPU", *meanings)


@pytest.mark.parametrize("view", [view.name for view in VIEWS])
async def test_help_has_none_of_textuals_words(view: str) -> None:
    """`Page Left`, `Focus Next`, `Super-C` stood between ours."""
    app = Recorded().app("gpus") if view == "gpus" else StubFeed(**VALUES).app(view)
    async with app.run_test(size=(120, 60)) as pilot:
        await pilot.pause()
        said = [part for rows in told(app).values() for row in rows.items() for part in row]
        assert said
        assert not [each for each in said if "Super" in each or "command prompt" in each]
        assert not [each for each in said if re.fullmatch(r"(Page|Focus|Scroll) [A-Z]\w+", each)]


@pytest.mark.parametrize("view", ["fairshare", "usage", "utilization", "health", "mine"])
async def test_the_other_views(view: str) -> None:
    app = StubFeed(**VALUES).app(view)
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, lambda: app.session.last_answer(app.view.ask).prepared is not None)
        await pilot.pause()
        check(app)
        if view == "utilization":
            assert missing(app, "app", "view", "plot", view) == []
            await pilot.press("tab")
        assert missing(app, "app", "view", "table", view) == []


async def test_home_has_boxes_and_no_rows() -> None:
    app = StubFeed(**VALUES).app("home")
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, lambda: app.session.last_answer(app.view.ask).prepared is not None)
        await pilot.pause()
        check(app)
        assert missing(app, "app", "box") == []
        assert told(app)["The box"]["Enter"] == "Open the view that the box is taken from"
        assert "This view" not in told(app)


@pytest.mark.parametrize("tab", ["facts", "log", "errors", "why", "script"])
async def test_a_job(tab: str) -> None:
    app = scene().app()
    async with running(app, size=(120, 60)) as pilot:
        app.push_screen(JobScreen("11", [("Name", "x")], tab))
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.pause()
        check(app)
        assert missing(app, "job", *(["log"] if tab in ("log", "errors") else [])) == []
        assert "C" not in {key for rows in told(app).values() for key in rows}


def foot(app: SlurmkitApp) -> str:
    return text(app).splitlines()[-1]


async def resized(pilot: Pilot[None], width: int) -> None:
    await pilot.resize_terminal(width, 24)
    await until(pilot, lambda: pilot.app.query_one(KeyBar).size.width == width)


async def test_on_a_narrow_screen_the_foot_has_what_matters_most_and_nothing_is_cut() -> None:
    app = scene().app()
    async with running(app, size=(130, 24)) as pilot:
        assert "u Mine" in foot(app)
        for width in (80, 60, 40):
            await resized(pilot, width)
            await until(pilot, lambda: "u Mine" not in foot(app))
            await pilot.pause()
            assert foot(app).endswith(("? Help", "q Quit"))
            digits = [word for word in text(app).splitlines()[0].split() if word.isdigit()]
            assert digits == list("012345678")
        await resized(pilot, 80)
        await until(pilot, lambda: "8 Health" in text(app).splitlines()[0])
        await until(pilot, lambda: "c Cancel" in foot(app))
        app.push_screen(JobScreen("11", [("Name", "x")]))
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.pause()
        await expect_text(pilot, "Job 11   f Facts  l Log  e Stderr  w Why")
        await until(pilot, lambda: "esc Back" in foot(app) and "? Help" in foot(app))


async def test_a_click_at_the_foot_presses_the_key() -> None:
    app = scene().app()
    async with running(app, size=(130, 24)) as pilot:
        await pilot.click(KeyBar, offset=(foot(app).index("? Help") + 3, 0))
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))


async def test_the_foot_of_the_form_fits_80_columns() -> None:
    async with form(FormScene(), size=(80, 24)) as pilot:
        await until(pilot, lambda: "esc Close" in foot(pilot.app))
        assert "^s Send" in foot(pilot.app)
        assert "f1 Help" in foot(pilot.app)
