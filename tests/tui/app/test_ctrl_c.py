"""Ctrl-C goes back, as Esc does, and loses nothing: it quits nowhere."""

from __future__ import annotations

import pytest
from fake_queue import Scene, expect_text, job, running, until, waiting
from form_scene import FormScene, form, the_form
from slurmkit_tui.submit.form import SubmitForm
from slurmkit_tui.widgets.filter_line import FilterLine
from textual.widgets import Input


def scene() -> Scene:
    return Scene([job("11", UserName="alice"), waiting("12", UserName="alice")])


async def test_on_a_view_it_says_what_quits() -> None:
    app = scene().app(keys={"quit": "Q"})
    async with running(app) as pilot:
        await pilot.press("ctrl+c")
        await expect_text(pilot, "Q quits")
        await pilot.press("slash", "1", "2", "ctrl+c")
        await expect_text(pilot, "Esc clears, Q quits")
        assert app.view.query_one(FilterLine).text == "12"
        assert app._exit is False


@pytest.mark.parametrize(
    "opened", ["c", "L", "a", "o", "C", "e", "question_mark", "enter", "l", "J", "ctrl+p"]
)
async def test_it_closes_what_is_open(opened: str) -> None:
    cluster = scene()
    app = cluster.app()
    async with running(app) as pilot:
        await pilot.press(opened)
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert app._exit is False
        assert not cluster.commands("scancel")


async def test_in_the_form_it_copies_what_is_selected_and_else_leaves_with_the_draft() -> None:
    async with form(FormScene()) as pilot:
        app = pilot.app
        await pilot.press("tab", "tab", "tab", *"train")
        name = the_form(app).row("job-name").query_one(Input)
        assert name.value == "train"
        name.select_all()
        await pilot.press("ctrl+c")
        await until(pilot, lambda: app.clipboard == "train")
        assert isinstance(app.screen, SubmitForm)
        await pilot.press("end", "ctrl+c")
        await until(pilot, lambda: not isinstance(app.screen, SubmitForm))
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, SubmitForm))
        assert the_form(app).texts == {"job-name": "train"}
