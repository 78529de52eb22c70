"""A log on a slow disk: it is followed all the same, and what is not wanted any more is dropped."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fake_queue import expect_text, running, until
from job_scene import scene, view
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.widgets import log_view
from waiting import PATIENCE


async def test_a_disk_slower_than_the_rhythm_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_view, "_FOLLOW_SECONDS", 0.05)
    path = tmp_path / "out"
    path.write_text("begun\n")
    app = scene(path).app()
    live, most = app.session.feed.fetch, 0

    def slow(ask: FeedQuestion) -> FeedAnswer:
        nonlocal most
        if ask.what == "piece":
            most = max(most, sum("slurmkit-tui" in each.name for each in threading.enumerate()))
            time.sleep(0.15)
        return live(ask)

    async with running(app) as pilot:
        app.session.feed.fetch = slow  # type: ignore[method-assign]
        await pilot.press("l")
        await expect_text(pilot, "begun")
        with path.open("a") as file:
            file.write("one more\n")
        await expect_text(pilot, "one more")
        assert most <= 3


async def test_no_key_is_lost_while_a_page_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("".join(f"line {number}\n" for number in range(500)))
    app = scene(path).app()
    live, gate = app.session.feed.fetch, threading.Event()

    def gated(ask: FeedQuestion) -> FeedAnswer:
        if ask.what == "piece":
            gate.wait(PATIENCE)
        return live(ask)

    async with running(app) as pilot:
        await pilot.press("l")
        await expect_text(pilot, "line 499")
        await pilot.press("g")
        await until(pilot, lambda: view(app).lines.page.begin == 0)
        rows = view(app).lines.size.height
        app.session.feed.fetch = gated  # type: ignore[method-assign]
        await pilot.press("pagedown", "pagedown", "k", "j", "j")
        gate.set()
        first = f"line {2 * rows + 1}\n"
        await until(pilot, lambda: view(app).lines.page.begin == path.read_text().index(first))


async def test_a_search_ends_with_the_next_page_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("step\n" * 200_000 + "ValueError\n")
    app = scene(path).app()
    live, gate, reads = app.session.feed.fetch, threading.Event(), 0

    def gated(ask: FeedQuestion) -> FeedAnswer:
        nonlocal reads
        if ask.what == "piece" and int(ask.about[2]) > 1 << 17:  # as a search reads
            reads += 1
            gate.wait(PATIENCE)
        return live(ask)

    async with running(app) as pilot:
        await pilot.press("l")
        await expect_text(pilot, "ValueError")
        app.session.feed.fetch = gated  # type: ignore[method-assign]
        await pilot.press("E")
        await until(pilot, lambda: reads == 1)
        await pilot.press("g")
        await until(pilot, lambda: view(app).lines.page.begin == 0)
        gate.set()
        await pilot.pause(0.3)
        assert reads == 1
        assert view(app).lines.found is None


async def test_long_lines_are_made_ready_beside_the_screen(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(("漢" * 4000 + "\n") * 60)
    app = scene(path).app()
    asked: list[str] = []

    def noting(text: bytes) -> str:
        asked.append(threading.current_thread().name)
        return log_view_shown(text)

    log_view_shown = log_view.safe_line
    async with running(app) as pilot:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log_view, "safe_line", noting)
            await pilot.press("l")
            await expect_text(pilot, "漢漢")
            await pilot.press("right", "left")
            await pilot.pause()
    assert set(asked) == {"slurmkit-tui"}
