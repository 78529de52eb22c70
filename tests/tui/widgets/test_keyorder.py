"""Several keys read at once do what they would do one by one."""

from __future__ import annotations

import asyncio

import pytest
from fake_queue import Scene, expect_text, job, until
from form_scene import FormScene, form, the_form
from slurmkit_tui.submit.inputs import FieldRow
from slurmkit_tui.widgets.keyboard import OrderedKeysApp
from textual.app import ComposeResult
from textual.events import Key
from textual.geometry import NULL_REGION
from textual.widgets import Input

KEYS = {"\x15": "ctrl+u", "\r": "enter", "\t": "tab", "\x7f": "backspace", "\x0c": "ctrl+l"}


def read_at_once(app, keys: str) -> None:
    for char in keys:
        key = Key(KEYS.get(char, char), char)
        key.set_sender(app)  # as the terminal's driver does
        app.post_message(key)
        app.call_later(asyncio.sleep, 0.01)  # it has other things to do, too


async def test_a_new_time_limit_read_at_once_is_that_time_limit() -> None:
    app = Scene([job("11", UserName="alice", TimeLimit="10:00")]).app()
    async with app.run_test(size=(120, 30)) as pilot:
        await expect_text(pilot, "11")
        await pilot.press("L")
        await expect_text(pilot, "Time limit")
        read_at_once(app, "\x155\r")
        await expect_text(pilot, "TimeLimit=5")


async def test_what_is_typed_after_tab_goes_into_the_next_field() -> None:
    async with form(FormScene()) as pilot:
        read_at_once(pilot.app, "ls\ta1\x7f:2\ttask\t")
        shown = the_form(pilot.app)
        await until(pilot, lambda: "gpus-for" in shown.texts)
        await pilot.pause()
        assert shown.texts == {"what": "ls", "gpus": "a:2", "gpus-for": "task"}


async def test_tab_goes_to_the_next_field_though_others_have_no_place_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under load some fields are there that were not laid out."""
    early, laid_out = ("what", "gpus", "gpus-for", "job-name"), FieldRow.virtual_region.fget
    late = property(lambda row: laid_out(row) if row.field.name in early else NULL_REGION)
    async with form(FormScene()) as pilot:
        await pilot.pause()
        monkeypatch.setattr(FieldRow, "virtual_region", late)
        read_at_once(pilot.app, "ls\ta100:2\tnode")
        shown = the_form(pilot.app)
        await until(pilot, lambda: shown.texts.get("gpus-for") == "node")
        assert shown.texts == {"what": "ls", "gpus": "a100:2", "gpus-for": "node"}


class Stuck(OrderedKeysApp):
    """Its first field lets no key through."""

    def compose(self) -> ComposeResult:
        yield Input()

    async def on_key(self) -> None:
        self.keys_seen = getattr(self, "keys_seen", 0) + 1


@pytest.mark.parametrize("gone", [False, True])
async def test_keys_go_on_when_a_field_is_gone(gone: bool) -> None:
    app = Stuck()
    async with app.run_test() as pilot:
        read_at_once(app, "ab\x15c")
        if gone:
            app.query_one(Input).remove()
        await until(pilot, lambda: app._on_its_way is None and not app._held)
        read_at_once(app, "\x0c")
        await until(pilot, lambda: getattr(app, "keys_seen", 0) > 0)
        if not gone:
            assert app.query_one(Input).value == "c"
