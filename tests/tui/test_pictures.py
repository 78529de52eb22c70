"""The queue as it looks at three widths, dark, light and without colour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_gpus import Recorded
from fake_queue import Scene, job, until, view, waiting
from textual.pilot import Pilot

CpuOnly = "cpu=16,mem=32G,node=1"
JOBS = [
    job("4711", UserName="alice", NodeList="c[1-2]", NumNodes="2", Name="llama-pretrain"),
    job("4712", UserName="carol", Partition="mig", NodeList="c5", Name="notebook"),
    job("4713_1", UserName="dave", Account="genomics", State="COMPLETING", Name="align"),
    job("4713_2", UserName="dave", Account="genomics", tres_alloc=CpuOnly, Name="align"),
    waiting("4713_[3-40%2]", UserName="dave", Account="genomics", tres_alloc=CpuOnly),
    job("4714", UserName="zoe", State="SUSPENDED", Name="Zoës größter Lauf"),
    waiting("4715", UserName="ivan", Reason="QOSMaxGRESPerUser", Name="数据预处理"),
    waiting("4716", UserName="alice", tres_alloc="", Reason="Resources", Name="evil\n\x1b[2J"),
    job("4717", State="OUT_OF_MEMORY", Name="[red]not markup[/]"),
]
Compare = Callable[..., bool]


async def _answered(pilot: Pilot[Any]) -> None:
    await until(pilot, lambda: view(pilot.app).table.count > 0)  # type: ignore[arg-type]
    await pilot.press("j")


async def _shown(pilot: Pilot[Any]) -> None:
    app: Any = pilot.app
    await until(pilot, lambda: app.session.picture(app.view.ask).prepared is not None)
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
