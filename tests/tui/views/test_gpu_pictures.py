"""The map by use, and the page of a job's GPUs, as they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fake_gpus import Recorded
from fake_queue import NOW, Scene, expect_text, job, until
from gpu_runs import GPUS_OF_JOB
from slurmkit_tui.jobform.gpu_use import GpusNow
from slurmkit_tui.widgets.gpu_curves import GpuCurves
from stub_feed import StubFeed
from textual.pilot import Pilot
from usage_values import VALUES, gpu_now

from slurmkit.cluster.cluster import Cluster
from slurmkit.state.gpumap import read_gpus

Compare = Callable[..., bool]
USE = GpusNow(
    (
        gpu_now("1", "c1", 0, 100),
        gpu_now("1", "c1", 1, 80),
        gpu_now("3", "c1", 2, *[90] * 30, *[0] * 30),
        gpu_now("3", "c1", 3, 45),
        gpu_now("2", "c3", 0, 15),
        gpu_now("4", "c3", 1, *[0] * 60),
        gpu_now("5", "c3", 1, *[0] * 60),
        gpu_now("9", "c5", 0, 65),
    ),
    NOW,
)


@pytest.mark.parametrize("look", ["80", "120", "no-colour", "vt100"])
def test_the_map_by_use(look: str, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_look(look, monkeypatch)
    found = msgspec.structs.replace(read_gpus(Recorded().slurm), taken=NOW)
    app = StubFeed(**{"gpus": found, "gpus-now": USE}).app("gpus")

    async def filled(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: bool(app.view.grid.lines))
        await expect_text(pilot, "! 2 held")
        await pilot.press("b", "b", "b")
        await expect_text(pilot, "by use")

    size = (120 if look == "120" else 80, 24)
    assert snap_compare(app, terminal_size=size, run_before=filled)


@pytest.mark.parametrize("look", ["80", "120", "no-colour", "vt100"])
def test_the_gpus_of_a_job(
    look: str, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_look(look, monkeypatch)
    info = Cluster(Scene([job("4711", UserName="alice", NodeList="c[1-2]")]).slurm).job("4711")
    given = {"job": info.info(), "restarts": (), "gpus-of-job": GPUS_OF_JOB}
    app = StubFeed(**{**VALUES, **given}).app("mine")

    async def opened(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: app.view.table.count > 0)
        await pilot.press("U")
        await expect_text(pilot, "c1 GPU 0  a100", "c2 GPU 4  a100")
        await until(pilot, lambda: not any(gpu.is_unplotted for gpu in on_screen(app)))

    size = (120, 34) if look == "120" else (80, 24)
    assert snap_compare(app, terminal_size=size, run_before=opened)


def on_screen(app: Any) -> list[GpuCurves]:
    return [gpu for gpu in app.screen.query(GpuCurves) if gpu.region.overlaps(app.screen.region)]


def choose_look(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    if look == "vt100":
        monkeypatch.setenv("TERM", "vt100")
