"""What keeps the screen's own thread free; how long things take is `make bench`'s matter."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence

import pytest
from fake_gpus import Recorded
from fake_queue import Scene, expect_text, ids, job, running, until, view
from slurmkit_tui.feed import composed
from slurmkit_tui.feed.threads import NewestOnly
from slurmkit_tui.views import base, gpus
from slurmkit_tui.views.queue import QueueView
from slurmkit_tui.widgets.gpu_grid import GpuGrid
from slurmkit_tui.widgets.listing import NO_FILTER, RowContext
from stub_feed import StubFeed
from textual.geometry import Region
from usage_values import VALUES
from waiting import PATIENCE

from slurmkit.state.gpumap import parse_claim_records, read_gpus


async def test_of_what_is_asked_for_meanwhile_only_the_last_is_done() -> None:
    latest, begin, done = NewestOnly(), threading.Event(), []

    def work(number: int) -> int:
        begin.wait(PATIENCE)
        done.append(number)
        return number

    tasks = [asyncio.create_task(latest.run(lambda n=n: work(n))) for n in range(4)]
    await asyncio.sleep(0.05)
    begin.set()
    assert await asyncio.gather(*tasks) == [0, None, None, 3]
    assert done == [0, 3]


async def test_many_rows_are_filtered_and_sorted_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "AT_ONCE", 2)
    app = Scene([job(str(n), UserName="alice" if n % 2 else "bob") for n in range(1, 9)]).app()
    async with running(app) as pilot:
        await pilot.press("slash", *"user", "colon", *"alice", "enter")
        await until(pilot, lambda: ids(app) == ["1", "3", "5", "7"])
        app.view.set_row_query(app.view.row_query.sorted_by("jobid"))
        app.view.set_row_query(app.view.row_query.sorted_by("jobid"))
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


def test_the_garbage_collector_need_not_look_at_nodes_and_gpus() -> None:
    """It stops everything for as long as looking at all objects takes: 40 ms for 80,000 GPUs."""
    found = read_gpus(Recorded().slurm)
    drawn = gpus.draw_map(gpus.GpuMapAnswer(found, RowContext(), []), "user", NO_FILTER)
    records = parse_claim_records(["JobId=1 JobName=a\n", "JobId=2 JobName=b\n"])
    gc.collect()
    assert found.gpus
    of_rows = (part for row in found.nodes for part in (row, row.gres, row.gpus, row.uses))
    kept = [*found.gpus, *of_rows, *drawn.lines, *records.values()]
    assert [each for each in kept if gc.is_tracked(each)] == []


async def test_rows_are_counted_once_not_whenever_one_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted, tally = [], QueueView.tally

    def counting(self: QueueView, rows: Sequence[object], context: RowContext) -> object:
        counted.append(threading.current_thread())
        return tally(self, rows, context)

    monkeypatch.setattr(QueueView, "tally", counting)
    app = Scene([job(str(n)) for n in range(1, 9)]).app()
    async with running(app) as pilot:
        await pilot.press("space", "space")
        await until(pilot, lambda: len(view(app).rows) == 2)
        assert "8 running" in str(dict.fromkeys(view(app).summary()))
    assert len(counted) == 1
    assert counted[0] is not threading.main_thread()


async def test_a_long_queue_is_counted_once_for_each_answer_and_in_parallel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted, count = [], composed.gpus_wanted

    def counting(rows: Sequence[object]) -> int | None:
        counted.append(threading.current_thread())
        return count(rows)

    monkeypatch.setattr(composed, "gpus_wanted", counting)
    app = StubFeed(**VALUES).app("queue")
    async with app.run_test(size=(120, 34)) as pilot:
        await until(pilot, lambda: app.view.NAME == "queue" and bool(app.view.table.count))
        await pilot.press("0")
        await expect_text(pilot, "17 of 32 held", "433.25")
        await pilot.press("2")
        await until(pilot, lambda: app.view.NAME == "queue")
        await pilot.pause()
    assert len(counted) == 1
    assert threading.main_thread() not in counted
