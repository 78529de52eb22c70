"""What the keys do to a job, and that help, palette and keys are one list."""

from __future__ import annotations

import re
import time

import pytest
from fake_gpus import Recorded
from fake_queue import Scene, expect_text, job, running, table, text, until, view, waiting
from rich._palettes import STANDARD_PALETTE
from rich.color import Color, ColorSystem
from slurmkit_tui.actions.commands import (
    CommandsFor,
    cancel_commands,
    query_id,
    scontrol_commands,
    signal_commands,
)
from slurmkit_tui.actions.registry import ACTIONS, WIDGET_ACTIONS
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.screens.status_lines import StatusLine, Summary
from slurmkit_tui.state_files import action_log_path, error_log_path
from slurmkit_tui.views import VIEWS
from slurmkit_tui.views.queue import queue_row_key
from slurmkit_tui.widgets.dialogs import ConfirmDialog, ValueDialog
from slurmkit_tui.widgets.filters import parse_filter
from slurmkit_tui.widgets.key_bar import KeyBar
from slurmkit_tui.widgets.listing import RowQuery
from stub_feed import StubFeed
from textual.command import CommandList, CommandPalette
from textual.strip import Strip
from textual.widgets import Input
from usage_values import VALUES

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import Refused


def scene() -> Scene:
    return Scene([job("11", UserName="alice"), waiting("12_[4-9%2]", UserName="alice")])


async def test_cancel_shows_the_command_asks_and_runs_just_that() -> None:
    cluster = scene()
    app = cluster.app()
    async with running(app) as pilot:
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.pause()
        assert "Cancel job 11 of alice?" in text(app)
        assert "scancel 11" in text(app)
        assert cluster.commands("scancel") == []
        asked = len(cluster.commands("squeue"))
        await pilot.press("y")
        await until(pilot, lambda: cluster.commands("scancel") == [["scancel", "11"]])
        await until(pilot, lambda: len(cluster.commands("squeue")) == asked + 1)
        await expect_text(pilot, "done: scancel 11")


@pytest.mark.parametrize("key", ["n", "escape", "enter"])
async def test_cancel_is_not_run_without_a_yes(key: str) -> None:
    cluster = scene()
    app = cluster.app()
    async with running(app) as pilot:
        await pilot.press("c", key)
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert cluster.commands("scancel") == []


async def test_cancel_of_a_pending_array_spares_its_running_tasks() -> None:
    cluster = scene()
    app = cluster.app()
    async with running(app) as pilot:
        await pilot.press("j", "c", "y")
        wanted = [["scancel", "--state=PENDING", "12"]]
        await until(pilot, lambda: cluster.commands("scancel") == wanted)


async def test_a_refused_cancel_is_told_in_slurms_words() -> None:
    cluster = scene()
    cluster.refusal = Refused("scancel: error: [12] Access/permission denied")
    app = cluster.app()
    async with running(app) as pilot:
        await pilot.press("c", "y")
        await expect_text(pilot, "Access/permission")
        assert "[12]" in text(app)


async def test_a_command_for_each_of_many_jobs_is_run_one_at_a_time() -> None:
    """A slurmctld that gets five hundred at once is one that answers nobody."""
    app = Scene([job(str(n), UserName="alice") for n in range(11, 16)]).app()
    under_way, most, ran = 0, 0, []

    def run(argv: list[str]) -> str:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.02)
        ran.append(argv[2])
        under_way -= 1
        if argv[2] == "JobId=12":
            raise Refused("Access/permission denied")
        return ""

    async with running(app) as pilot:
        app.session.feed.run = run  # type: ignore[method-assign]
        await pilot.press("asterisk", "L")
        await until(pilot, lambda: isinstance(app.screen, ValueDialog))
        app.screen.query_one(Input).value = "5"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("y")
        await expect_text(pilot, "done: 4 of 5 commands; 1 failed")
        assert "Access/permission" in text(app)
    assert most == 1
    assert ran == [f"JobId={n}" for n in range(11, 16)]
    assert action_log_path().read_text().count("TimeLimit=5") == 5


async def test_the_idle_gpus_of_a_job_are_left_alone_with_a_reason() -> None:
    rows = [
        job("11", UserName="alice"), job("12", UserName="alice", State="PENDING"),
        job("13_[4-9]", UserName="alice"),
    ]  # fmt: skip
    app, ran = Scene(rows).app(), []

    def run(argv: list[str]) -> str:
        ran.append(argv)
        raise Refused("nothing was said about idle GPUs of a job 11 of yours")

    async with running(app) as pilot:
        app.session.feed.run = run  # type: ignore[method-assign]
        await app.run_action("propose('keep')")
        await until(pilot, lambda: isinstance(app.screen, ValueDialog))
        await pilot.press("enter")  # a reason is needed
        await expect_text(pilot, "give a reason of one line")
        app.screen.query_one(Input).value = "reads its data until noon"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await expect_text(pilot, "Have the idle GPUs of", "left alone?")
        await pilot.press("y")
        await expect_text(pilot, "nothing was said about idle GPUs")
    assert ran == [["slurmkit", "reclaim", "keep", "11", "--reason", "reads its data until noon"]]


async def test_the_answers_stay_in_sight_below_a_command_for_thousands() -> None:
    app = Scene([job(str(n), UserName="alice") for n in range(100_000, 102_500)]).app()
    async with running(app) as pilot:
        await pilot.press("asterisk", "c")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.pause()
        assert "scancel 100000 100001" in text(app)
        assert text(app).count("signs more") == 3
        assert "Yes, run it (y)" in text(app)


async def test_what_is_chosen_is_looked_for_once_not_for_every_key() -> None:
    """Of 50,000 rows it takes 6 ms, and a dozen keys want to know whether there are any."""
    app = Scene([job(str(n), UserName="alice") for n in range(10, 20)]).app()
    async with running(app) as pilot:
        await pilot.press("asterisk")
        shown = table(app)
        assert shown.chosen_rows is shown.chosen_rows
        assert len(shown.chosen_rows) == 10
        await pilot.press("space")
        assert [row.job_id for row in shown.chosen_rows] == [str(n) for n in range(11, 20)]
        view(app).set_row_query(RowQuery(filter=parse_filter("19", view(app).LISTING)))
        assert [row.job_id for row in shown.chosen_rows] == ["19"]
        await pilot.press("asterisk")
        shown.clear_choice()
        assert [row.job_id for row in shown.chosen_rows] == ["19"]  # under the cursor


@pytest.mark.parametrize("build", [scontrol_commands("hold"), signal_commands, cancel_commands])
def test_no_argument_is_longer_than_linux_takes(build: CommandsFor) -> None:
    rows = Cluster(Scene([job(str(n)) for n in range(10**7, 10**7 + 2500)]).slurm).queue().rows
    commands = build(rows, "USR1")
    assert len(commands) == 3
    assert max(len(word) for argv in commands for word in argv) < 1 << 17
    named = {job for argv in commands for word in argv for job in word.split(",") if job.isdigit()}
    assert named == {row.job_id for row in rows}


async def test_read_only_refuses_and_says_so() -> None:
    cluster = scene()
    app = cluster.app(read_only=True)
    async with running(app) as pilot:
        assert "READ-ONLY" in text(app)
        await pilot.press("c")
        await expect_text(pilot, "cancel is refused: read-only")
        assert len(app.screen_stack) == 1
        await pilot.press("y")
        assert cluster.commands("scancel") == []


async def test_detail_shows_which_gpus_on_which_node() -> None:
    app = scene().app()
    async with running(app) as pilot:
        await pilot.press("enter")
        await expect_text(pilot, "squeue at")
        assert isinstance(app.screen, JobScreen)
        assert "GPUs       2 a100" in text(app)
        assert "  c1       GPU 0, 1" in text(app)
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_detail_of_a_job_that_has_left_keeps_what_the_row_said() -> None:
    cluster = scene()
    app = cluster.app()
    async with running(app) as pilot:
        cluster.error = Refused("Slurm says [no]")
        await pilot.press("enter")
        await expect_text(pilot, "Slurm says [no]")
        assert "alice, account vision" in text(app)


async def test_a_click_selects_and_a_double_click_opens() -> None:
    app = scene().app()
    async with running(app) as pilot:
        await pilot.click(table(app), offset=(3, 2))
        assert table(app).cursor == 1
        await pilot.click(table(app), offset=(3, 1), times=2)
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        assert table(app).cursor == 0


async def test_the_palette_lists_what_can_be_done_here() -> None:
    app = scene().app()
    async with running(app) as pilot:
        commands = [command.help for command in app.get_system_commands(app.screen)]
        missing = [a.help for a in ACTIONS if a.help not in commands]
        here = {"Clear the filter, then the chosen rows"}  # there is none
        assert {each for each in missing if "recording" not in each and "nodes" not in each
                and "Nodes" not in each} <= here  # fmt: skip
        assert commands[-len(VIEWS) :] == [f"Go to {view.title}" for view in VIEWS]
        await pilot.press("slash", *"x")
        await pilot.pause()
        assert here <= {command.help for command in app.get_system_commands(app.screen)}


async def test_the_palette_goes_to_the_view_that_offers_what_this_one_does_not() -> None:
    """`drain` in Queue found nothing, and rows showed no keys."""
    feed = StubFeed(**VALUES)
    app = feed.app("home")
    async with app.run_test(size=(120, 34), notifications=True) as pilot:
        await expect_text(pilot, "17 of 32 held")

        async def run_command(title: str) -> None:
            found = {each.title: each.callback for each in app.get_system_commands(app.screen)}
            await found[title]()

        titles = [each.title for each in app.get_system_commands(app.screen)]
        assert len(titles) == len(set(titles))
        await run_command("Utilization: Span  h")
        await until(pilot, lambda: app.view.ask.about == ("gpu-type", "7d"))
        await run_command("Mine: Cancel  c Ctrl-D F9")
        await expect_text(pilot, "choose a row, then press c", "GPU INDICES")
        assert len(app.screen_stack) == 1
        await pilot.press("0")
        await until(pilot, lambda: app.view.NAME == "home")
        await run_command("Queue: Filter  /")
        await until(pilot, lambda: app.view.NAME == "queue" and isinstance(app.focused, Input))
        titles = [each.title for each in app.get_system_commands(app.screen)]
        assert "Sort  o" in titles
        assert "Nodes: Drain  d" in titles
        assert not [title for title in titles if title.startswith("Queue: ")]


async def test_the_palette_opens_over_the_queue() -> None:
    """Ctrl-P lists what can be done, without a key more."""
    app = scene().app()
    async with running(app, size=(120, 40)) as pilot:
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await expect_text(pilot, "Search for commands")


@pytest.mark.parametrize("view", ["home", "queue", "gpus", "health", "fairshare"])
@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_a_terminal_of_256_colours_shows_the_colours_as_they_are(
    monkeypatch: pytest.MonkeyPatch, theme: str, view: str
) -> None:
    """ssh does not hand COLORTERM on, and dark greys became navy blue."""
    monkeypatch.delenv("COLORTERM")
    monkeypatch.setenv("TERM", "xterm-256color")
    app = Recorded().app(view, theme=theme)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.pause()
        assert app.theme == f"slurmkit-{theme}-256"
        assert _not_shown_as_they_are(app.screen._compositor.render_strips()) == []
        app.action_shade()
        assert app.theme == f"slurmkit-{'light' if theme == 'dark' else 'dark'}-256"


@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_the_command_palette_has_colours_of_the_256(
    monkeypatch: pytest.MonkeyPatch, theme: str
) -> None:
    monkeypatch.delenv("COLORTERM")
    monkeypatch.setenv("TERM", "xterm-256color")
    app = Recorded().app("queue", theme=theme)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await expect_text(pilot, "Search for commands")
        found = app.screen.query_one(CommandList)
        await until(pilot, lambda: found.show_vertical_scrollbar)
        await pilot.pause()
        # Behind the palette, all other colours are dimmed.
        strips = app.screen._compositor.render_strips()[found.region.y : found.region.bottom]
        inside = [each.crop(found.region.x, found.region.right) for each in strips]
        assert _not_shown_as_they_are(inside) == []


@pytest.mark.parametrize("view", ["home", "queue", "gpus", "utilization"])
@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_a_terminal_of_16_colours_has_borders_and_tells_colours_apart(
    monkeypatch: pytest.MonkeyPatch, theme: str, view: str
) -> None:
    monkeypatch.delenv("COLORTERM")
    monkeypatch.setenv("TERM", "xterm")
    app = Recorded().app(view, theme=theme)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.pause()
        assert app.theme == f"slurmkit-{theme}-16"
        drawn = {
            (
                style.color.downgrade(ColorSystem.STANDARD),
                style.bgcolor.downgrade(ColorSystem.STANDARD),
            )
            for line in app.screen._compositor.render_strips()
            for segment in line
            if (style := segment.style) and segment.text.strip() and style.color and style.bgcolor
        }
        assert len({colour for colour, _ in drawn}) >= 4
        assert [pair for pair in drawn if pair[0] == pair[1]] == []
        # The second line and the footer had contrasts of 1.3 to 2.9.
        bars = [app.screen.query_one(kind).region.y for kind in (Summary, StatusLine, KeyBar)]
        strips = app.screen._compositor.render_strips()
        read = {
            (style.color, style.bgcolor)
            for y in bars
            for segment in strips[y]
            if (style := segment.style) and re.search(r"\w", segment.text)
        }
        assert [pair for pair in read if _contrast(*pair) < 3] == []


def _not_shown_as_they_are(strips: list[Strip]) -> list[tuple[str, str]]:
    """Return the colours that a terminal of 256 colours does not have."""
    drawn = {
        (name, colour.name)
        for line in strips
        for segment in line
        if segment.style
        for name in ("color", "bgcolor")
        if (colour := getattr(segment.style, name)) is not None
    }
    assert len(drawn) > 3
    return [each for each in sorted(drawn) if not _is_shown_as_it_is(*each)]


def _contrast(text: Color, ground: Color) -> float:
    """Return the contrast of two of 16 colours as WCAG defines it, from 1 to 21."""

    def light(colour: Color) -> float:
        number = colour.downgrade(ColorSystem.STANDARD).number
        assert number is not None
        parts = (part / 255 for part in STANDARD_PALETTE[number])
        red, green, blue = (p / 12.92 if p <= 0.04 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(text), light(ground)))
    return (high + 0.05) / (low + 0.05)


def _is_shown_as_it_is(name: str, colour: str) -> bool:
    """Of the 256 colours, or near enough: Rich rounds greys, Textual darkens some texts."""
    real = Color.parse(colour).get_truecolor()
    shown = Color.parse(colour).downgrade(ColorSystem.EIGHT_BIT).get_truecolor()
    most = 12 if name == "bgcolor" else 24
    return max(abs(a - b) for a, b in zip(real, shown, strict=True)) <= most


async def test_theme_can_be_switched() -> None:
    app = scene().app()
    async with running(app) as pilot:
        assert app.current_theme.dark
        await pilot.press("t")
        assert not app.current_theme.dark


async def test_quit() -> None:
    app = scene().app()
    async with running(app) as pilot:
        await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.parametrize("focus", ["table", "map", "log"])
def test_no_key_is_given_twice(focus: str) -> None:
    homes = ("job", "log") if focus == "log" else ("app", "view", focus)
    known = [each for each in (*ACTIONS, *WIDGET_ACTIONS) if each.home in homes]
    keys = [key for each in known for key in each.keys.split(",") if key]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("job_id", "argument", "key"),
    [
        ("12", "12", "12"),
        ("12_3", "12_3", "12_3"),
        ("12+1", "12+1", "12+1"),
        ("12_[4-9%2]", "12_4", "12_["),
        ("12_[7]", "12_7", "12_["),
        ("12_[0,2,...]", "12_0", "12_["),
    ],
)
def test_ids_as_commands_take_them(job_id: str, argument: str, key: str) -> None:
    (row,) = Cluster(Scene([job(job_id)]).slurm).queue().rows
    assert (query_id(job_id), queue_row_key(row)) == (argument, key)


@pytest.mark.parametrize(
    ("job_id", "argv"),
    [
        ("12", ["scancel", "12"]),
        ("12_3", ["scancel", "12_3"]),
        ("12+1", ["scancel", "12+1"]),
        ("12_[4-9%2]", ["scancel", "--state=PENDING", "12"]),
    ],
)
def test_the_command_that_cancels(job_id: str, argv: list[str]) -> None:
    (row,) = Cluster(Scene([job(job_id)]).slurm).queue().rows
    assert cancel_commands([row], "") == [argv]


async def test_what_ends_the_app_is_written_down() -> None:
    app = scene().app()

    async def end() -> None:
        async with running(app):
            app.call_later(lambda: 1 / 0)
            await app._exception_event.wait()

    with pytest.raises(ZeroDivisionError):
        await end()
    assert "ZeroDivisionError" in error_log_path().read_text()
