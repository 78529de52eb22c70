"""The views of nodes and GPUs, on what a real cluster printed; and going from view to view."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fake_gpus import Recorded
from fake_queue import Scene, expect_text, job, running, table, text, until, waiting
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.widgets.dialogs import ConfirmDialog, ValueDialog
from slurmkit_tui.widgets.gpu_grid import GpuGrid
from textual.pilot import Pilot


@asynccontextmanager
async def showing(app: SlurmkitApp, *words: str, size=(120, 30)) -> AsyncIterator[Pilot[None]]:
    async with app.run_test(size=size, notifications=True) as pilot:
        await expect_text(pilot, *words)
        await pilot.pause()
        yield pilot


async def test_the_map_shows_every_gpu_and_who_is_on_it() -> None:
    app = Recorded().app("gpus")
    async with showing(app, "c1", "alice:") as pilot:
        assert re.search(r"c1 +a100 +a a ", text(app))
        assert "largest block on one node" in text(app)
        grid = app.view.query_one(GpuGrid)
        assert (grid.selected.node, grid.selected.index) == ("c1", 0)
        await pilot.press("right", "j")
        assert (grid.selected.node, grid.selected.index) == ("c2", 1)
        await pilot.press("b")
        assert "by account" in text(app)
        assert "vision:" in text(app)


async def test_the_map_is_filtered_like_a_table() -> None:
    app = Recorded().app("gpus")
    async with showing(app, "c1", "alice:") as pilot:
        await pilot.press("slash", *"user", "colon", *"bob")
        await expect_text(pilot, "match user:bob")
        grid = app.view.query_one(GpuGrid)
        assert {gpu.user for line in grid.lines for gpu in line.gpus} <= {"bob", None}
        await pilot.press("escape")
        await until(pilot, lambda: "match user" not in text(app))


async def test_enter_on_a_gpu_opens_its_job() -> None:
    cluster = Recorded()
    app = cluster.app("gpus")
    async with showing(app, "c1", "alice:") as pilot:
        await pilot.press("enter")
        await expect_text(pilot, "Job 1")
        assert "0 of c1, a100" in text(app)


async def test_on_a_narrow_screen_state_and_reason_of_nodes_can_be_read() -> None:
    app = Recorded().app("nodes")
    async with app.run_test(size=(80, 24)) as pilot:
        await expect_text(pilot, "mixed+drain ", "bad DIMM A=3")
        assert "JOBS" not in text(app)


async def test_nodes_with_their_states_and_what_is_used() -> None:
    app = Recorded().app("nodes")
    async with showing(app, "c1", "mixed"):
        assert "a100:" in text(app)
        assert "drained" in text(app)


async def test_only_administrators_drain_and_the_reason_is_asked_for() -> None:
    cluster = Recorded()
    app = cluster.app("nodes")
    async with showing(app, "c1", "mixed") as pilot:
        await pilot.press("d")
        await expect_text(pilot, "only Slurm's administrators may")
    cluster = Recorded(level="Operator")
    app = cluster.app("nodes")
    async with showing(app, "c1", "mixed") as pilot:  # Slurm lets them change jobs, not nodes
        await pilot.press("d")
        await expect_text(pilot, "only Slurm's administrators may")
    cluster = Recorded(level="Administrator")
    app = cluster.app("nodes")
    async with showing(app, "c1", "mixed") as pilot:
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ValueDialog))
        await pilot.press("enter")
        await expect_text(pilot, "give a reason: Slurm requires one")
        await pilot.press(*"fan", "enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("y")
        wanted = ["scontrol", "update", "NodeName=c1", "State=DRAIN", "Reason=fan"]
        await until(pilot, lambda: wanted in cluster.slurm.asked)


async def test_digits_switch_and_what_was_seen_is_there_at_once() -> None:
    cluster = Recorded()
    app = cluster.app("nodes")
    async with showing(app, "c1", "mixed") as pilot:
        await pilot.press("3")
        await expect_text(pilot, "alice:")
        asked = len(cluster.slurm.asked)
        await pilot.press("4")
        await expect_text(pilot, "drained")
        assert len(cluster.slurm.asked) == asked  # the last answer is young enough


def two() -> Scene:
    return Scene(
        [
            job("11", UserName="alice", Name="=cmd|evil"),
            waiting("12", UserName="alice"),
            job("13", UserName="bob"),
        ]
    )


async def test_several_jobs_are_chosen_and_held_together() -> None:
    scene = Scene([waiting("11", UserName="alice"), waiting("12", UserName="alice")])
    app = scene.app()
    async with running(app) as pilot:
        await pilot.press("space", "space")
        assert "2 chosen" in text(app)
        await pilot.press("h", "y")
        await until(pilot, lambda: ["scontrol", "hold", "11,12"] in scene.commands("scontrol"))


async def test_what_cannot_be_done_is_refused_with_the_reason() -> None:
    scene = two()
    app = scene.app()
    async with running(app) as pilot:
        await pilot.press("h")
        await expect_text(pilot, "job 11 does not wait")
        await pilot.press("end", "c")
        await expect_text(pilot, "job 13 is bob's")
        assert len(app.screen_stack) == 1


async def test_a_new_time_limit_is_checked_before_it_is_sent() -> None:
    scene = two()
    app = scene.app()
    async with running(app) as pilot:
        await pilot.press("L")
        await until(pilot, lambda: isinstance(app.screen, ValueDialog))
        await pilot.press("ctrl+u", *"soon", "enter")
        await expect_text(pilot, "soon", "time")
        assert isinstance(app.screen, ValueDialog)
        await pilot.press("ctrl+u", *"30", "enter", "y")
        wanted = ["scontrol", "update", "JobId=11", "TimeLimit=30"]
        await until(pilot, lambda: wanted in scene.commands("scontrol"))


async def test_a_command_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    scene = two()
    app = scene.app()
    async with running(app) as pilot:
        await pilot.press("c", "y")
        await expect_text(pilot, "done: scancel 11")
    path = tmp_path / "slurmkit" / "tui-actions.log"
    assert " lab scancel 11 done\n" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


async def test_columns_and_order_are_chosen() -> None:
    app = two().app()
    async with running(app) as pilot:
        await pilot.press("o")
        await expect_text(pilot, "▸ JOBID")
        await pilot.press("down")
        await expect_text(pilot, "▸ USER")
        await pilot.press("enter")
        await expect_text(pilot, "USER▲")
        await pilot.click(table(app), offset=(2, 0))
        await expect_text(pilot, "JOBID▲")
        await pilot.press("C")
        await expect_text(pilot, "[x]▸JOBID")
        assert re.search(r"\[ \] QOS", text(app))  # in signs, not in colours alone
        await pilot.press("space")
        await expect_text(pilot, "[ ]▸JOBID")
        await pilot.press("enter")
        await until(pilot, lambda: "JOBID" not in text(app))


@pytest.mark.parametrize("ending", ["csv", "json"])
async def test_export(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = two().app()
    path = tmp_path / f"jobs.{ending}"
    monkeypatch.chdir(tmp_path)
    async with running(app) as pilot:
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, ValueDialog))
        await pilot.press("ctrl+u")
        app.screen.query_one("Input").value = path.name
        await pilot.press("enter")
        await until(pilot, path.exists)
        await expect_text(pilot, "wrote 3 jobs")
        assert [said.message for said in app._notifications] == [f"wrote 3 jobs to {path}"]
    if ending == "json":
        names = [row["name"] for row in json.loads(path.read_text())]
        assert names[0] == "=cmd|evil"
    else:
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert rows[0]["name"] == "'=cmd|evil"  # no spreadsheet runs it
        assert len(rows) == 3


async def test_a_bad_filter_says_what_is_wrong_and_keeps_the_rows() -> None:
    app = two().app()
    async with running(app) as pilot:
        await pilot.press("slash", *"usr", "colon", *"x")
        await expect_text(pilot, "did you mean user?")
        assert app.view.row_query.filter.text == "usr"


@pytest.mark.parametrize("view", ["gpus", "nodes"])
async def test_types_of_gpus_are_not_cut_where_there_is_room(view: str) -> None:
    app = Recorded().app(view)
    async with showing(app, "c5", size=(120, 30)):
        (line,) = (each for each in text(app).splitlines() if each[1:].startswith("c5 "))
        assert "a100_3g.20gb:" in line
        assert "a100_1g.5gb:" in line
        assert "…" not in line
