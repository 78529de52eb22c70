"""Help and jump mode over the form: `?` is a letter there, F1 and Ctrl-J are not."""

from __future__ import annotations

from fake_queue import text, until
from form_scene import FormScene, form, the_form
from help_rows import check, missing, told
from jump_letters import letters
from slurmkit_tui.screens.help import HelpDialog, Jump, jump_targets
from slurmkit_tui.submit.form import SubmitForm


async def test_help_has_the_keys_of_the_form_and_no_others() -> None:
    async with form(FormScene(), size=(120, 60)) as pilot:
        app = pilot.app
        check(app)
        assert missing(app, "form") == []
        keys = {key for rows in told(app).values() for key in rows}
        assert "Ctrl-S" in keys
        assert not {"c", "n", "q", "1"} & keys  # they are letters there
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))
        await pilot.pause()
        assert "Show the command, and submit the job after you confirm it" in text(app)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, SubmitForm))


async def test_jump_mode_goes_to_a_field() -> None:
    async with form(FormScene(), size=(120, 60)) as pilot:
        app = pilot.app
        await pilot.pause()
        chain = app.screen.focus_chain
        assert len(jump_targets(app)) == len([each for each in chain if each.region.area])
        before = the_form(app).texts
        await pilot.press("ctrl+j")
        await until(pilot, lambda: isinstance(app.screen, Jump))
        await pilot.pause()
        assert len(letters(text(app))) >= 8
        await pilot.press("d")  # the third
        await until(pilot, lambda: app.screen.focused is chain[2])
        assert the_form(app).texts == before


async def test_what_comes_after_it_was_closed_is_dropped() -> None:
    """An answer, and the tick of a clock, find a form whose widgets are gone."""
    scene = FormScene()
    async with form(scene) as pilot:
        app, left = pilot.app, the_form(pilot.app)
        await until(pilot, lambda: left.planner.planned is not None)
        planned = left.planner.planned
        with scene.gate:
            left._typed()
            await pilot.press("escape")
            await until(pilot, lambda: not isinstance(app.screen, SubmitForm))
        await until(pilot, lambda: not left.query("*"))
        left._update_state()
        left.show_planned(planned)
        left._update_hint()
        assert len(app.screen_stack) == 1


async def test_the_field_of_the_command_grows_with_its_text() -> None:
    async with form(FormScene(), size=(80, 24)) as pilot:
        row = the_form(pilot.app).query_one("#field-what")
        for lines, height in ((0, 2), (1, 2), (3, 3), (9, 5), (1, 2)):
            row.text = "\n".join(f"echo {line}" for line in range(lines))
            await until(pilot, lambda height=height: row.region.height == height)
        row.text = "python train.py " + "--seed 1 " * 15  # three lines, wrapped
        await until(pilot, lambda: row.region.height == 3)
