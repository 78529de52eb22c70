"""The section [tui]: what may stand there, and what it does; and what is kept of one's choice."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from fake_queue import Scene, expect_text, job, running, table, until
from slurmkit_tui.actions.keymap import parse_keymap
from slurmkit_tui.app.startup import TuiSection, load_options
from slurmkit_tui.screens.help import key_sections
from slurmkit_tui.state_files import load_choices, save_columns, saved_choices_path

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.config.files import load_section
from slurmkit.errors import BadConfig, BadInput


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(text: str) -> None:
        file = tmp_path / "config.toml"
        file.write_text(text)
        monkeypatch.setenv("SLURMKIT_CONFIG", str(file))

    return write


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("theem = 'dark'", "has no key 'theem'; did you mean 'theme'?"),
        (
            "theme = 'drak'",
            "theme: 'drak' is not allowed; write one of 'dark', 'light', 'no-colour'",
        ),
        ("interval = 1", "Expected `float` >= 2.0 - at `$.interval`"),
        ("view = 'gpu'", "there is no view 'gpu'; did you mean 'gpus'? - at `$.view`"),
        ("columns.queue = ['jobid', 'usr']", "queue has no column 'usr'; did you mean 'user'?"),
        ("columns.queue = []", "view queue would show nothing; name a column"),
        ("columns.gpus = ['node']", "view gpus has no columns"),
        ("keys.cancle = 'x'", "there is no action 'cancle'; did you mean 'cancel'?"),
        ("keys.cancel = 'h'", "the key h is used twice: for 'cancel' and 'hold'"),
        ("keys = {cancel = 'x', hold = 'x'}", "the key x is used twice: for 'cancel' and 'hold'"),
        ("keys.cancel = 'space'", "the key space is used twice: for 'cancel' and 'choose'"),
        ("keys.next = 's'", "the key s is used twice: for 'next' and 'script'"),
        ("keys.next-run = 'U'", "the key U is used twice: for 'next-run' and 'gpus'"),
        ("keys.cancel = 'f'", "the key f is used twice: for 'cancel' and 'facts'"),
        ("keys.send = 'ctrl+t'", "the key ctrl+t is used twice: for 'send' and 'preview'"),
        ("keys.cancel = '3'", "cancel: 3 switches to a view"),
        ("keys.cancel = 'ctrl+p'", "cancel: ctrl+p always means the palette"),
        ("keys.cancel = 'bakcspace'", "cancel: there is no key 'bakcspace'; write a key as x"),
        ("keys.cancel = ''", "cancel: there is no key ''"),
    ],
)
def test_what_is_wrong_is_said(
    text: str, words: str, configure, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(f"[tui]\n{text}\n")
    with pytest.raises(BadConfig) as caught:
        load_section("tui", TuiSection)
    assert words in str(caught.value)
    assert "config.toml" in str(caught.value)
    assert run_to_exit_code(cli, ["config", "check"]) == 2
    said = capsys.readouterr()
    key = text.partition(" ")[0].partition(".")[0]
    assert key in said.out + said.err


@pytest.mark.parametrize(
    ("key", "named"),
    [("X", "X"), ("?", "question_mark"), ("ctrl+x", "ctrl+x"), ("F5", "f5"), ("z,X", "z,X")],
)
def test_keys_are_named_as_people_write_them(key: str, named: str) -> None:
    wanted = {"cancel": key} | ({"help": "Z"} if key == "?" else {})
    assert parse_keymap(wanted)["cancel"] == named


def test_the_form_has_keys_of_its_own() -> None:
    assert parse_keymap({"time-limit": "ctrl+l", "send": "ctrl+x"}) == {
        "time-limit": "ctrl+l",
        "send": "ctrl+x",
    }


def test_one_name_is_one_key_in_table_map_and_log() -> None:
    assert parse_keymap({"down": "z"}) == {"down": "z"}
    with pytest.raises(BadInput, match="'down' and 'next'"):
        parse_keymap({"down": "z", "next": "z"})


async def test_it_starts_as_configured(configure) -> None:
    configure(
        "[tui]\ntheme='light'\ninterval=30\nview='queue'\nread_only=true\n"
        "columns.queue=['user','jobid']\nkeys.cancel='X'\n"
    )
    made = load_options({"interval": None, "view": None, "read_only": None})
    assert (made.interval, made.read_only) == (30, True)
    assert load_options({"interval": 5.0, "read_only": False}).read_only is False
    app = Scene([job("11", UserName="alice")]).app(
        theme=made.theme, columns=made.columns, keys=made.keys, read_only=False
    )
    async with running(app) as pilot:
        assert not app.current_theme.dark
        assert [column.name for column in table(app).columns] == ["user", "jobid"]
        assert dict(dict(key_sections(app.screen))["This view"])["X"] == "Cancel jobs"
        await pilot.press("c")
        await pilot.pause()
        assert len(app.screen_stack) == 1
        await pilot.press("X")
        await expect_text(pilot, "scancel 11")


async def test_without_colour_no_colour_is_drawn() -> None:
    app = Scene([job("11", UserName="alice")]).app(theme="no-colour")
    async with running(app):
        strips = app.screen._compositor.render_strips()
        styles = [segment.style for strip in strips for segment in strip if segment.style]
        colours = {c.triplet for s in styles for c in (s.color, s.bgcolor) if c and c.triplet}
        assert colours
        assert all(c.red == c.green == c.blue for c in colours)


async def test_columns_chosen_are_there_at_the_next_start() -> None:
    app = Scene([job("11")]).app(keep_columns=save_columns)
    async with running(app) as pilot:
        before = [column.name for column in table(app).columns]
        await pilot.press("C", "space", "enter")  # the first one goes
        await until(pilot, lambda: len(app.screen_stack) == 1)
    made = load_options({})
    assert list(made.columns["queue"]) == before[1:]
    again = Scene([job("11")]).app(columns=made.columns)
    async with running(again):
        assert [column.name for column in table(again).columns] == before[1:]


def test_what_is_kept_is_whole_and_private() -> None:
    save_columns("queue", ["job"])
    save_columns("nodes", ["node"])
    assert load_choices()[0].columns == {"queue": ("job",), "nodes": ("node",)}
    assert stat.S_IMODE(saved_choices_path().stat().st_mode) == 0o600
    assert [file.name for file in saved_choices_path().parent.iterdir()] == ["tui.json"]


@pytest.mark.parametrize("broken", ["", "{", '{"columns": 3}', "\x00"])
async def test_a_broken_file_is_told_and_ignored(broken: str) -> None:
    saved_choices_path().parent.mkdir(parents=True)
    saved_choices_path().write_text(broken)
    made = load_options({})
    assert dict(made.columns) == {}
    app = Scene([job("11")]).app(trouble=made.trouble)
    async with running(app) as pilot:
        await expect_text(pilot, "your saved columns cannot be read")
    save_columns("queue", ["job"])
    assert load_choices() == (load_choices()[0], "")


async def test_a_column_that_is_no_more_is_left_out() -> None:
    app = Scene([job("11")]).app(columns={"queue": ("gone", "jobid")})
    async with running(app):
        assert [column.name for column in table(app).columns] == ["jobid"]


def test_keys_and_columns_of_a_later_file_leave_those_of_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "site.toml", tmp_path / "own.toml"]
    files[0].write_text("[tui]\nkeys = {cancel = 'X', hold = 'Z'}\ncolumns.nodes = ['node']\n")
    files[1].write_text("[tui]\nkeys.hold = 'Q'\ncolumns.queue = ['jobid', 'user']\n")
    monkeypatch.setattr("slurmkit.config.files.config_paths", lambda: files)
    section = load_section("tui", TuiSection)
    assert section.keys == {"cancel": "X", "hold": "Q"}
    assert section.columns == {"nodes": ("node",), "queue": ("jobid", "user")}
