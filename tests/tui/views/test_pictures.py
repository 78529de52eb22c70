"""The queue as it looks at three widths, dark, light and without colour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_gpus import Recorded
from fake_queue import NOW, Scene, until, view
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from stub_feed import StubFeed
from textual.pilot import Pilot
from usage_values import JOBS, VALUES

from slurmkit.jobs.log import FilePiece

Compare = Callable[..., bool]


async def _answered(pilot: Pilot[Any]) -> None:
    await until(pilot, lambda: view(pilot.app).table.count > 0)  # type: ignore[arg-type]
    await pilot.press("j")


async def _shown(pilot: Pilot[Any]) -> None:
    app: Any = pilot.app
    await until(pilot, lambda: app.session.last_answer(app.view.ask).prepared is not None)
    if app.view.NAME == "mine":
        await until(pilot, lambda: app.session.last_answer(FeedQuestion("uses")).answer is not None)
        await until(pilot, lambda: not app.workers)
    await pilot.pause()


async def _all_boxes(pilot: Pilot[Any]) -> None:
    app: Any = pilot.app
    asked = [each.ask for each in app.view.also]
    await until(pilot, lambda: all(app.session.last_answer(each).answer for each in asked))
    await until(pilot, lambda: not app.workers)
    await pilot.pause()


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_dark(columns: int, snap_compare: Compare) -> None:
    app = Scene(JOBS).app()
    assert snap_compare(app, terminal_size=(columns, 24), run_before=_answered)


def test_light(snap_compare: Compare) -> None:
    async def switch(pilot: Pilot[Any]) -> None:
        await _answered(pilot)
        await pilot.press("t")

    assert snap_compare(Scene(JOBS).app(), terminal_size=(120, 24), run_before=switch)


def test_without_colour(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = Scene(JOBS).app()
    assert snap_compare(app, terminal_size=(80, 24), run_before=_answered)


@pytest.mark.parametrize("columns", [80, 120, 200])
@pytest.mark.parametrize("view", ["gpus", "nodes"])
def test_other_views(view: str, columns: int, snap_compare: Compare) -> None:
    async def filled(pilot: Pilot[Any]) -> None:
        await _shown(pilot)
        await pilot.press("j")

    app = Recorded().app(view)
    assert snap_compare(app, terminal_size=(columns, 24), run_before=filled)


@pytest.mark.parametrize("look", ["light", "without colour"])
def test_the_map_in_other_looks(
    look: str, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    if look == "without colour":
        monkeypatch.setenv("NO_COLOR", "1")

    async def filled(pilot: Pilot[Any]) -> None:
        await _shown(pilot)
        await pilot.press(*(["t"] if look == "light" else []), "j")

    assert snap_compare(Recorded().app("gpus"), terminal_size=(120, 24), run_before=filled)


@pytest.mark.parametrize("key", ["a", "C", "question_mark", "L"])
def test_dialogs(key: str, snap_compare: Compare) -> None:
    async def opened(pilot: Pilot[Any]) -> None:
        await _answered(pilot)
        await pilot.press("home", key)
        await until(pilot, lambda: len(pilot.app.screen_stack) > 1)

    assert snap_compare(Scene(JOBS).app(), terminal_size=(80, 24), run_before=opened)


@pytest.mark.parametrize("columns", [80, 120, 200])
@pytest.mark.parametrize("view", ["fairshare", "usage", "utilization", "health", "mine"])
def test_views_of_sums(view: str, columns: int, snap_compare: Compare) -> None:
    feed = StubFeed(**VALUES)
    assert snap_compare(feed.app(view), terminal_size=(columns, 24), run_before=_shown)


@pytest.mark.parametrize("size", [(80, 24), (120, 34), (200, 50)], ids=["80", "120", "200"])
def test_home(size: tuple[int, int], snap_compare: Compare) -> None:
    app = StubFeed(**VALUES).app("home")
    assert snap_compare(app, terminal_size=size, run_before=_all_boxes)


@pytest.mark.parametrize("look", ["light", "without colour"])
@pytest.mark.parametrize("view", ["home", "utilization"])
def test_curves_in_other_looks(
    view: str, look: str, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    if look == "without colour":
        monkeypatch.setenv("NO_COLOR", "1")

    async def filled(pilot: Pilot[Any]) -> None:
        await (_all_boxes if view == "home" else _shown)(pilot)
        await pilot.press(*(["t"] if look == "light" else []))
        await pilot.pause()

    app = StubFeed(**VALUES).app(view)
    assert snap_compare(app, terminal_size=(100, 34), run_before=filled)


def test_the_log_of_a_job(snap_compare: Compare) -> None:
    lines = [f"epoch 1 step {number}  loss 2.{number}" for number in range(30)]
    lines += ["[31m[red] hostile", "Traceback (most recent call last):", "ValueError: too bad"]
    data = "\n".join(lines).encode()
    scene = Scene(JOBS)
    app = scene.app()
    live = app.session.feed.fetch

    def fetch(ask: FeedQuestion) -> FeedAnswer:
        if ask.what == "logpath":
            return FeedAnswer("/home/alice/slurm-4711.out", "squeue", NOW, 0.0)
        if ask.what == "piece":
            begin, length = map(int, ask.about[1:])
            return FeedAnswer(
                FilePiece(data[begin : begin + length], begin, len(data)), "file", NOW, 0.0
            )
        return live(ask)

    app.session.feed.fetch = fetch  # type: ignore[method-assign]

    async def opened(pilot: Pilot[Any]) -> None:
        await _answered(pilot)
        await pilot.press("home", "l")
        await until(pilot, lambda: bool(pilot.app.screen.query_one("#log").lines.page.lines))
        await pilot.pause()

    assert snap_compare(app, terminal_size=(100, 24), run_before=opened)
