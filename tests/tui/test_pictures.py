"""The queue as it looks at three widths, dark, light and without colour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_gpus import Recorded
from fake_queue import NOW, Scene, job, until, view, waiting
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.feed.pictures import Fairness, Health, Now, Usage, Utilization
from stub_feed import StubFeed
from test_sums import FACTORS, SHARES
from textual.pilot import Pilot

from slurmkit import Cluster
from slurmkit.doctor.model import Diagnosis
from slurmkit.jobs.efficiency import Efficiency, Uses
from slurmkit.jobs.mine import Mine
from slurmkit.jobs.pages import Piece

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
_USED = [41.0, 96.5, 120.0, 183.25, 60.0, 12.5, 190.0, 240.0, 171.0, 88.0]
VALUES = {
    "fairshare": Fairness(SHARES, (FACTORS,), "", "7-00:00:00", NOW),
    "usage": Usage(
        (
            {"month": "2026-10", "pi": "vogel", "user": "alice", "jobs": 31, "gpu_hours": 1234.5,
             "gpu_hours_completed": 1100.0, "gpu_hours_lost": 134.5, "cpu_hours": 9800.0},
            {"month": "2026-11", "pi": "vogel", "user": "alice", "jobs": 7, "gpu_hours": 320.25,
             "gpu_hours_completed": 300.0, "gpu_hours_lost": 20.25, "cpu_hours": 2500.0},
            {"month": "2026-11", "pi": "vogel", "user": "bob", "jobs": 2, "gpu_hours": 12.0,
             "gpu_hours_completed": 12.0, "gpu_hours_lost": 0.0, "cpu_hours": 96.0},
        ),
        ({"pi": "vogel", "from": "2026-01-01", "to": "2027-01-01", "runs_out": "2026-12-24",
          "gpu_hours_budget": 2000.0, "gpu_hours_used": 1566.75, "gpu_hours_left": 433.25},),
        ("ledger of the site; ingested 60 s before",),
        NOW,
    ),
    "utilization": Utilization(
        Now({"a100": 8, "h100": 2}, {"a100": 5, "h100": 2}, 12, 640, 512),
        tuple(
            {"day": f"2026-11-{day:02}", "jobs": 9, "gpu_hours": hours, "gpu_hours_lost": 3.0}
            for day, hours in enumerate(_USED, 10)
        ),
        "day", 30.0, "", NOW,
    ),
    "health": Health(
        (
            Diagnosis("slurmctld", "ok", "slurmctld answers, 24.11.5 on ctld"),
            Diagnosis("gpu-tres", "error", "AccountingStorageTRES lacks gres/gpu"),
            Diagnosis("scheduler", "note", "main scheduler: last cycle 0.7 s, mean 310.0 ms,"
                      " longest 2.5 s of 4,711, 150 jobs looked at in the mean, 50,123 in its"
                      " queue"),
            Diagnosis("reservations", "note", "reservation maintenance: c[1-7] from 2023-11-15"
                      " 08:00 UTC until 2023-11-15 18:00 UTC for root (MAINT)"),
            Diagnosis("nodes-out", "warning", "c3 drained: bad DIMM (root, 2023-11-05 22:13 UTC)"),
            Diagnosis("enforce", "warning", "AccountingStorageEnforce lacks safe"),
        ),
        NOW,
    ),
    "uses": Uses(
        {"4711": Efficiency(900.0, 1000.0, 60.0 * 2**30, 64.0 * 2**30),
         "4720": Efficiency(20.0, 1000.0, None, 64.0 * 2**30)},
        "", "sacct and sstat", NOW - 5, 0.4,
    ),
    "mine": Mine(
        Cluster(
            Scene([JOBS[0], JOBS[7], job("4720_1", UserName="alice", Name="sweep", NodeList="c2"),
                   waiting("4720_[2-40%2]", UserName="alice", Name="sweep")]).slurm
        ).queue().rows,
        {"4711": {"c1": [0, 1], "c2": [4, 5]}, "4720": {"c2": [7]}},
        (),
        "",
        NOW,
        0.0,
    ),
}  # fmt: skip


async def _answered(pilot: Pilot[Any]) -> None:
    await until(pilot, lambda: view(pilot.app).table.count > 0)  # type: ignore[arg-type]
    await pilot.press("j")


async def _shown(pilot: Pilot[Any]) -> None:
    app: Any = pilot.app
    await until(pilot, lambda: app.session.picture(app.view.ask).prepared is not None)
    if app.view.NAME == "mine":
        await until(pilot, lambda: app.session.picture(Ask("uses")).answer is not None)
        await pilot.pause(0.2)
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


def test_the_log_of_a_job(snap_compare: Compare) -> None:
    lines = [f"epoch 1 step {number}  loss 2.{number}" for number in range(30)]
    lines += ["[31m[red] hostile", "Traceback (most recent call last):", "ValueError: too bad"]
    data = "\n".join(lines).encode()
    scene = Scene(JOBS)
    app = scene.app()
    live = app.session.feed.fetch

    def fetch(ask: Ask) -> Answer:
        if ask.what == "logpath":
            return Answer("/home/alice/slurm-4711.out", "squeue", NOW, 0.0)
        if ask.what == "piece":
            begin, length = map(int, ask.about[1:])
            return Answer(Piece(data[begin : begin + length], begin, len(data)), "file", NOW, 0.0)
        return live(ask)

    app.session.feed.fetch = fetch  # type: ignore[method-assign]

    async def opened(pilot: Pilot[Any]) -> None:
        await _answered(pilot)
        await pilot.press("home", "l")
        await until(pilot, lambda: bool(pilot.app.screen.query_one("#log").lines.page.lines))
        await pilot.pause()

    assert snap_compare(app, terminal_size=(100, 24), run_before=opened)
