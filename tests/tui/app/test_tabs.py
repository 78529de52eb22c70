"""Tabs of the views and of a job's screen: by mouse, and by digits from a job's screen."""

from __future__ import annotations

from pathlib import Path

from fake_queue import Scene, expect_text, job, running, text, until
from job_scene import scene
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.screens.status_lines import TabLine
from slurmkit_tui.views.nodes import NodesView


async def test_a_click_on_a_view_in_the_first_line_opens_it() -> None:
    app = Scene([job("11", UserName="alice")]).app()
    async with running(app) as pilot:
        column = text(app).splitlines()[0].index("4 Nodes")
        await pilot.click(TabLine, offset=(column + 3, 0))
        await until(pilot, lambda: isinstance(app.view, NodesView))


async def test_a_click_on_a_tab_of_a_job_opens_it(tmp_path: Path) -> None:
    app = scene(tmp_path / "none").app()
    async with running(app) as pilot:
        await pilot.press("enter")
        await expect_text(pilot, "squeue at")
        column = text(app).splitlines()[0].index("s Script")
        await pilot.click("#job-tabs", offset=(column + 3, 0))
        await expect_text(pilot, "python train.py")
        await pilot.click("#job-tabs", offset=(1, 0))  # its id is no tab
        await expect_text(pilot, "python train.py")


async def test_a_digit_goes_from_a_job_to_a_view(tmp_path: Path) -> None:
    app = scene(tmp_path / "none").app()
    async with running(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.press("4")
        await until(pilot, lambda: isinstance(app.view, NodesView))
        assert app.screen is app.main
        assert app.focused is app.view.table
