"""What keeps the screen's own thread free; how long things take is `make bench`'s matter."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fake_gpus import Recorded
from fake_queue import Scene, ids, job, running, until
from slurmkit_tui import listview
from slurmkit_tui.feed.threads import Latest
from slurmkit_tui.gpugrid import GpuGrid
from slurmkit_tui.views import gpus
from textual.geometry import Region


async def test_of_what_is_asked_for_meanwhile_only_the_last_is_done() -> None:
    latest, begin, done = Latest(), threading.Event(), []

    def work(number: int) -> int:
        begin.wait(10)
        done.append(number)
        return number

    tasks = [asyncio.create_task(latest.run(lambda n=n: work(n))) for n in range(4)]
    await asyncio.sleep(0.05)
    begin.set()
    assert await asyncio.gather(*tasks) == [0, None, None, 3]
    assert done == [0, 3]


async def test_many_rows_are_filtered_and_sorted_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listview, "AT_ONCE", 2)
    app = Scene([job(str(n), UserName="alice" if n % 2 else "bob") for n in range(1, 9)]).app()
    async with running(app) as pilot:
        await pilot.press("slash", *"user", "colon", *"alice", "enter")
        await until(pilot, lambda: ids(app) == ["1", "3", "5", "7"])
        app.view.wish_for(app.view.wish.sorted_by("jobid"))
        app.view.wish_for(app.view.wish.sorted_by("jobid"))
        await until(pilot, lambda: ids(app) == ["7", "5", "3", "1"])


async def test_a_large_map_is_drawn_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "AT_ONCE", 2)
    app = Recorded().app("gpus")
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: bool(app.view.grid.lines))
        await pilot.press("slash", *"node", "colon", *"c3", "enter")
        await until(pilot, lambda: {line.row.name for line in app.view.grid.lines} == {"c3"})


async def test_a_frame_works_out_its_base_style_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every cell, as it was once, that takes 30 ms."""
    app = Recorded().app("gpus")
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: bool(app.view.grid.lines))
        grid, asked = app.view.grid, []
        inherited = type(grid).rich_style.fget
        monkeypatch.setattr(
            GpuGrid, "rich_style", property(lambda self: asked.append(1) or inherited(self))
        )
        grid.refresh()
        grid._styles_cache.clear()
        grid.render_lines(Region(0, 0, *grid.size))
        assert 1 <= len(asked) <= 3  # once by us, and by Textual's own borders
