"""Home: what its boxes say, where they lead, what it asks, and what it keeps."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_gpus import Recorded
from fake_queue import NOW, Scene, expect_text, job, text, until, waiting
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.app.startup import load_options
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.options import AppOptions
from slurmkit_tui.views.home import HomeBox
from slurmkit_tui.views.overview import Attention, GpuTypeCount, count_gpus
from stub_feed import StubFeed
from textual.content import Content
from usage_values import VALUES

from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.my_jobs import MyJobs
from slurmkit.errors import LedgerError, SlurmError
from slurmkit.jobs.info import JobInfo
from slurmkit.state.nodes import read_nodes

TALL, SMALL = (120, 34), (80, 24)


def home(**values: Any) -> SlurmkitApp:
    return StubFeed(**{**VALUES, **values}).app("home")


def mine(*jobs: dict[str, str], ended: tuple[JobInfo, ...] = (), **other: Any) -> MyJobs:
    rows = Cluster(Scene(list(jobs)).slurm).queue().rows
    return MyJobs(rows, {}, ended, other.pop("without_history", ""), NOW, 0.0)


def failed(job_id: str, ended: float) -> JobInfo:
    values = {field.name: "" for field in msgspec.structs.fields(JobInfo) if field.required}
    given = {"job_id": job_id, "raw_id": job_id, "name": "tokenize", "state": "FAILED",
             "ended": int(ended), "submitted": int(ended) - 60, "started": int(ended) - 50,
             "elapsed": "0:50", "tres": "", "node_list": "c1", "exit_code": "1:0"}  # fmt: skip
    return JobInfo(**{**values, **given})


def box(app: SlurmkitApp, name: str) -> HomeBox:
    return app.view.query_one(f"#box-{name}", HomeBox)


def inside(app: SlurmkitApp, name: str) -> str:
    """What is on the screen within a box."""
    region = box(app, name).region
    lines = text(app).splitlines()[region.y : region.bottom]
    return "\n".join(line[region.x : region.right] for line in lines)


async def test_one_look_says_how_the_cluster_is_and_how_i_am_doing() -> None:
    app = home(mine=mine(
        job("12", UserName="alice", Name="train", NodeList="c1"),
        job("13", UserName="alice", Name="last", TimeUsed="23:55:00"),
        waiting("14", UserName="alice", Name="eval", Reason="Dependency"),
        ended=(failed("9", NOW - 3600),),
    ))  # fmt: skip
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "vogel", "all  ", "14 of 32 held")
        assert "a100" in inside(app, "gpus")
        assert "5 free" in inside(app, "gpus")
        assert "× 6 down" in inside(app, "gpus")
        running = inside(app, "running").splitlines()
        assert "13 last" in running[1]  # it ends first
        assert "5:00 left" in running[1]
        assert "12 train" in running[2]
        assert "14 eval" in inside(app, "waiting")
        assert "it waits for another job (--dependency)" in inside(app, "waiting")
        assert "9 FAILED" in inside(app, "failed")
        assert "433.25 of 2,000 GPU-hours" in inside(app, "budget")
        assert "runs out 2026-12-24" in inside(app, "budget")
        attention = inside(app, "attention").splitlines()
        assert "job 13 last ends in 5:00" in attention[1]
        assert "Needs attention  3" in attention[0]
        assert "█ a100" in inside(app, "curve")


async def test_a_long_reason_gets_a_line_of_its_own_where_there_is_room() -> None:
    jobs = [waiting(str(n), UserName="alice", Name="eval", Reason="Priority") for n in (14, 15)]
    for size, lines in ((TALL, 4), (SMALL, 2)):
        app = home(mine=mine(*jobs))
        async with app.run_test(size=size) as pilot:
            await expect_text(pilot, "jobs of higher priority wait for the same res")
            rows = [line.strip("│ ") for line in inside(app, "waiting").splitlines()[1:-1]]
            assert len([row for row in rows if row]) == lines


async def test_on_a_small_screen_there_are_fewer_boxes_and_nothing_is_lost_behind_others() -> None:
    app = home(mine=mine(job("12", UserName="alice"), ended=(failed("9", NOW - 3600),)))
    async with app.run_test(size=SMALL) as pilot:
        await expect_text(pilot, "14 of 32 held", "12 ")
        shown = {each.id for each in app.view.query(HomeBox) if each.display}
        assert shown == {f"box-{name}" for name in "gpus curve running waiting attention".split()}
        regions = [each.region for each in app.view.query(HomeBox) if each.display]
        view = app.view.region
        assert all(view.contains_region(region) and region.height >= 3 for region in regions)
        assert sum(region.area for region in regions) == view.area
        assert "1 failed: 9 tokenize" in inside(app, "attention")


@pytest.mark.parametrize(
    ("name", "view"),
    [("gpus", "gpus"), ("curve", "utilization"), ("running", "mine"), ("waiting", "mine"),
     ("failed", "mine"), ("budget", "usage"), ("attention", "nodes")],
)  # fmt: skip
async def test_each_box_opens_the_view_it_is_taken_from(name: str, view: str) -> None:
    app = home(gpus=SlurmError("no map here"))
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "14 of 32 held", "1 node is out")
        box(app, name).focus()
        await pilot.press("enter")
        await until(pilot, lambda: view == app.view.NAME)
        await pilot.press("0")
        await until(pilot, lambda: app.view.NAME == "home")
        await pilot.click(f"#box-{name}")
        await until(pilot, lambda: view == app.view.NAME)


async def test_arrows_go_from_box_to_box_and_rows_are_for_other_views() -> None:
    app = home()
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "14 of 32 held")
        assert box(app, "gpus").has_focus
        await pilot.press("right", "down")
        assert box(app, "running").has_focus
        await pilot.press("k", "up", "left")
        assert box(app, "attention").has_focus
        foot = text(app).splitlines()[-1]
        assert "⏎ Open" in foot
        assert "Actions" not in foot
        assert "Detail" not in foot


class CountingFeed(StubFeed):
    """Counts the questions."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.asked: Counter[str] = Counter()

    def fetch(self, ask: FeedQuestion) -> FeedAnswer:
        self.asked[ask.what] += 1
        return super().fetch(ask)


async def test_home_and_the_views_share_their_answers() -> None:
    feed = CountingFeed(**VALUES)
    app = feed.app("home")
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "14 of 32 held", "433.25")
        once = dict.fromkeys("mine nodes queue utilization usage site rights".split(), 1)
        assert feed.asked == once
        await pilot.press("1")
        await expect_text(pilot, "GPU INDICES")
        nodes = app.session.last_answer(FeedQuestion("nodes"))
        assert nodes.pace.interval == 30
        await pilot.press("4")
        await expect_text(pilot, "drained")
        assert nodes.pace.interval == 10  # as often as the view on the screen asks
        await pilot.press("5")
        await expect_text(pilot, "LOST")
        await pilot.press("0")
        await expect_text(pilot, "14 of 32 held")
        assert feed.asked - Counter(uses=9) == once
        await pilot.press("r")
        await until(pilot, lambda: feed.asked["usage"] == 2)


async def test_the_new_answers_of_home_are_seen_in_the_view() -> None:
    feed = StubFeed(**VALUES)
    app = feed.app("mine")
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "llama-pretrain")
        feed.values["mine"] = mine(job("77", UserName="alice", Name="fresh"))
        await pilot.press("0")
        await expect_text(pilot, "14 of 32 held")
        await pilot.press("r")
        await expect_text(pilot, "77 fresh")
        await pilot.press("1")
        await expect_text(pilot, "77", "fresh", "GPU INDICES")


async def test_what_is_missing_is_named_in_its_box_alone() -> None:
    app = home(
        nodes=SlurmError("scontrol: no such thing"), usage=LedgerError("there is no ledger yet"),
        mine=mine(job("12", UserName="alice"), without_history="slurmdbd is away"),
        utilization=SlurmError("slurmctld is away"),
    )  # fmt: skip
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "unknown: there is no ledger yet")
        assert "unknown: scontrol: no such thing" in inside(app, "gpus")
        assert "unknown: slurmdbd is away" in inside(app, "failed")
        assert "no curve: slurmctld is away" in inside(app, "curve")
        assert "12" in inside(app, "running")


async def test_without_squeue_every_box_says_so() -> None:
    app = home(mine=SlurmError("squeue is away"))
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "✗ squeue is away", "squeue has not answered yet")


async def test_another_colour_alone_is_drawn_too() -> None:
    app = home()
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "22:03:20 left")
        running = box(app, "running")
        assert running.overview is not None
        plain = running.render()
        running.show(running.overview)
        assert running.render() is plain  # nothing has changed
        running._update_lines(Content.styled(plain.plain, "$error"))
        assert not running.render().is_same(plain)


async def test_old_data_names_its_time_and_why() -> None:
    feed = StubFeed(**VALUES)
    app = feed.app("home")
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "433.25")
        feed.values["usage"] = LedgerError("the ledger is locked")
        await pilot.press("r")
        await expect_text(pilot, "ledger at 22:13 · the ledger is locked")
        assert "433.25" in inside(app, "budget")


async def test_failures_are_those_since_home_was_last_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    ended = (failed("9", NOW - 100), failed("8", NOW - 7200))
    values = {**VALUES, "mine": mine(ended=ended)}
    times = [NOW - 3600, NOW]
    shown = []
    for at in times:
        values["mine"] = msgspec.structs.replace(values["mine"], taken=at)
        feed = StubFeed(**values)
        feed.fetch = lambda ask, f=feed, at=at: msgspec.structs.replace(  # type: ignore[method-assign]
            StubFeed.fetch(f, ask), taken=at
        )
        options = AppOptions(clock=lambda at=at: at + 3, keep_history=True)
        app = SlurmkitApp(feed, options)
        async with app.run_test(size=TALL) as pilot:
            await expect_text(pilot, "433.25")
            shown.append(inside(app, "failed"))
        app.session.history.save()
    assert "in the last two days  2" in shown[0]
    assert "since 21:13  1" in shown[1]
    assert "8 FAILED" not in shown[1]


def test_gpus_of_nodes_that_start_no_job_are_neither_held_nor_free() -> None:
    counts = count_gpus(read_nodes(Recorded().slurm).rows)
    assert counts[0] == GpuTypeCount("a100", 7, 5, 6)
    assert sum(each.total for each in counts) == 32


async def test_the_most_urgent_point_decides_where_attention_leads() -> None:
    app = home(mine=mine(job("13", UserName="alice", Name="train", TimeUsed="23:50:00")))
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "ends in 10:00")
        overview = box(app, "attention").overview
        assert overview is not None
        assert overview.attention == (
            Attention("job 13 train ends in 10:00", "mine"),
            Attention("1 node is out with 6 GPUs: c2", "nodes"),
        )
        box(app, "attention").focus()
        await pilot.press("enter")
        await until(pilot, lambda: app.view.NAME == "mine")


async def test_a_job_that_never_starts_and_a_budget_nearly_used_need_attention() -> None:
    budget = {"pi": "vogel", "gpu_hours_budget": 100.0, "gpu_hours_used": 95.0,
              "gpu_hours_left": 5.0}  # fmt: skip
    app = home(
        mine=mine(waiting("14", UserName="alice", Reason="DependencyNeverSatisfied")),
        usage=msgspec.structs.replace(VALUES["usage"], budgets=(budget,)),
    )
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "job 14 waits for you: cancel it", "budget of vogel: 5 GPU-hours")


async def test_hostile_names_are_only_text() -> None:
    app = home(mine=mine(job("12", UserName="alice", Name="evil\n\x1b[2J[red]x")))
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, r"evil\n\x1b[2J[red]x")


async def test_the_app_starts_with_home() -> None:
    app = SlurmkitApp(StubFeed(**VALUES), AppOptions(clock=lambda: NOW))
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "Last 24 hours", "14 of 32 held")


def test_mine_alone_is_the_queue_of_my_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Home has no list of jobs that could be narrowed."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert load_options({"mine": True, "view": None}).view == "queue"
    assert load_options({"mine": False, "view": None}).view == "home"
    assert load_options({"mine": True, "view": "nodes"}).view == "nodes"


async def test_a_view_whose_question_home_has_asked_gets_its_answer() -> None:
    asked, gate = threading.Event(), threading.Event()

    class SlowLedger(StubFeed):
        def fetch(self, ask: FeedQuestion) -> FeedAnswer:
            if ask.what == "utilization":
                asked.set()
                assert gate.wait(60)
            return super().fetch(ask)

    app = SlowLedger(**VALUES).app("home")
    async with app.run_test(size=TALL) as pilot:
        await until(pilot, asked.is_set)
        await pilot.press("5")
        await until(pilot, lambda: app.view.NAME == "utilization")
        gate.set()
        await expect_text(pilot, "GPU-hours")
        assert app._last_answer.prepared_for == "utilization"
        assert app._last_answer.pace.next_at is not None
