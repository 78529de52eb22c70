"""The preview below a view on a tall screen: facts, GPUs, and the end of one's own log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from fake_queue import Scene, expect_text, job, running, text, until, waiting
from sample_app import sample_app
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.screens import preview
from waiting import PATIENCE

from slurmkit.errors import SlurmError

TALL = (200, 60)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "TALL", 40)
    monkeypatch.setattr(preview, "_REST", 0.0)


def shown(app: SlurmkitApp) -> bool:
    return any(each.display for each in app.query(preview.RowPreview))


async def test_it_shows_facts_gpus_and_the_end_of_the_log() -> None:
    app = sample_app("mine")
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, " Job 667 ", "partition gpu, QOS normal, priority 6286")
        await pilot.press("down", "down")
        await expect_text(pilot, " Job 647 ", "GPU 0 of c1", "96%, 64.0 of 80 GiB, 367 W")
        await expect_text(pilot, "llama-pretrain-647.out", "epoch 336 step 200")
        lines = text(app).splitlines()
        title = next(at for at, line in enumerate(lines) if " Job 647 " in line)
        assert "tokenize" in lines[title - 1]  # no line between the last row and the preview
        await pilot.resize_terminal(120, 30)
        await until(pilot, lambda: not shown(app))
        await pilot.resize_terminal(*TALL)
        await until(pilot, lambda: shown(app))
        await pilot.press("0")
        await until(pilot, lambda: app.view.NAME == "home" and not shown(app))
        await pilot.press("4")
        await expect_text(pilot, " Node c1 ", "64 in use, load")


async def test_it_takes_no_line_of_the_rows() -> None:
    app = Scene([waiting(str(number)) for number in range(100, 200)]).app()
    async with running(app, size=TALL) as pilot:
        await until(pilot, lambda: app._preview is not None)
        assert not shown(app)
        rows = app.view.table.size.height
        assert rows > 50
        await pilot.press("slash", *"19")
        await until(pilot, lambda: shown(app) and app.view.table.count == 11)
        await expect_text(pilot, " Job 119 ", "State      PENDING (Priority)")
        await pilot.press("escape", "escape")
        await until(pilot, lambda: not shown(app) and app.view.table.size.height == rows)


async def test_only_ones_own_logs_are_read(tmp_path: Path) -> None:
    """Nor is that of a job that waits; a text of a user is no markup and no escape sequence."""
    log = tmp_path / "[red]out"
    log.write_bytes(b"x" * 70_000 + b"\nthe [bold]end\x1b]0;title\x07\n")
    scene = Scene(
        [
            job("11", UserName="bob", STDOUT=str(log)),
            waiting("12", UserName="alice", STDOUT=str(log), Name="[red]waits"),
            job("13", UserName="alice", STDOUT=str(log)),
        ]
    )
    app = scene.app()
    live, asked = app.session.feed.fetch, []

    def noted(ask: FeedQuestion) -> FeedAnswer:
        asked.append(ask)
        return live(ask)

    app.session.feed.fetch = noted  # type: ignore[method-assign]
    async with running(app, size=TALL) as pilot:
        await expect_text(pilot, " Job 11 ")
        await pilot.press("down")
        await expect_text(pilot, " Job 12 ", "[red]waits")
        await pilot.press("down")
        await expect_text(pilot, " Job 13 ", "[red]out", "xxxx", "the [bold]end")
        assert [ask.about for ask in asked if ask.what == "logpath"] == [("13", "stdout")]
        log.unlink()
        await pilot.press("r")
        await expect_text(pilot, "cannot read", "such file")


async def test_a_hanging_disk_holds_one_thread(tmp_path: Path) -> None:
    log = tmp_path / "out"
    log.write_text("the end\n")
    app = Scene([job(id_, UserName="alice", STDOUT=str(log)) for id_ in ("11", "12")]).app()
    live, gate, reads = app.session.feed.fetch, threading.Event(), []

    def hung(ask: FeedQuestion) -> FeedAnswer:
        if ask.what == "logpath":
            reads.append(ask.about[0])
            gate.wait(PATIENCE)
        return live(ask)

    app.session.feed.fetch = hung  # type: ignore[method-assign]
    async with running(app, size=TALL) as pilot:
        await until(pilot, lambda: reads == ["11"])
        await pilot.press("r", "down", "up", "down", "r")
        await expect_text(pilot, " Job 12 ")
        assert reads == ["11"]
        gate.set()
        await expect_text(pilot, "the end")
        assert reads == ["11", "12"]


async def test_a_requeued_job_shows_the_log_of_its_new_run(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("run one\n")
    second.write_text("run two\n")
    scene = Scene([job("11", UserName="alice", STDOUT=str(first))])
    app = scene.app()
    async with running(app, size=TALL) as pilot:
        await expect_text(pilot, "run one")
        scene.jobs[:] = [job("11", UserName="alice", STDOUT=str(second), StartTime="1699994000")]
        await pilot.press("r")
        await expect_text(pilot, "run two")


async def test_all_rows_are_back_after_another_screen_and_beside_a_problem() -> None:
    scene = Scene([job(str(number)) for number in range(100, 120)])
    app = scene.app()
    async with running(app, size=TALL) as pilot:
        height = lambda: app.view.table.size.height  # noqa: E731
        await until(pilot, lambda: shown(app) and height() == 21)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.resize_terminal(200, 45)
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1 and height() == 21)
        await pilot.press("slash")
        await until(pilot, lambda: app.view.filtering and height() == 21)
        scene.error = SlurmError("slurmctld is away")
        await pilot.press("escape", "r")
        await expect_text(pilot, "slurmctld is away")
        await until(pilot, lambda: height() == 21)
