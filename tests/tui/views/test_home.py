"""Home: what its boxes say, where they lead, what it asks, and what it keeps."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fake_queue import NOW, Scene, expect_text, job, text, until, waiting
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.app.startup import load_options
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.jobform.gpu_use import GpusNow, JobUse
from slurmkit_tui.options import AppOptions
from slurmkit_tui.themes import state_style
from slurmkit_tui.views import home_boxes, overview
from slurmkit_tui.views.home import share_lines
from slurmkit_tui.views.home_boxes import HomeBox
from slurmkit_tui.views.mine import MY_JOBS
from slurmkit_tui.views.overview import Attention, failed_jobs
from slurmkit_tui.widgets.listing import RowContext
from stub_feed import StubFeed
from textual._compositor import Compositor
from textual.content import Content
from usage_values import VALUES, gpu_now
from waiting import PATIENCE

from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.my_jobs import MyJobs
from slurmkit.errors import LedgerError, SlurmError
from slurmkit.jobs.info import JobInfo
from slurmkit.state.nodes import NodesSnapshot

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
        await expect_text(pilot, "vogel", "all  ", "17 of 32 held", "a100", "433.25", "9 FAILED",
                          "14 eval", "Needs attention  3", "runs out 2026-12-24")  # fmt: skip
        assert "a100" in inside(app, "gpus")
        assert "4 free" in inside(app, "gpus")
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
        assert "─ all  • wanted  ░ held" in inside(app, "curve")


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
        await expect_text(pilot, "17 of 32 held", "12 ")
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
     ("failed", "mine"), ("budget", "usage"), ("attention", "mine")],
)  # fmt: skip
async def test_each_box_opens_the_view_it_is_taken_from(name: str, view: str) -> None:
    app = home(gpus=SlurmError("no map here"))
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "17 of 32 held", "1 node is out")
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
        await expect_text(pilot, "17 of 32 held")
        assert box(app, "gpus").has_focus
        steps = {"right": "curve", "down": "waiting", "left": "running", "up": "gpus",
                 "k": "gpus", "j": "running"}  # fmt: skip
        for key, name in steps.items():
            await pilot.press(key)
            assert box(app, name).has_focus
        await pilot.press("down", "down", "down", "right")
        assert box(app, "attention").has_focus  # it is the last one, and as wide as the screen
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


async def test_another_focus_repaints_boxes_and_not_the_whole_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = home()
    painted: list[str] = []

    def note(kind: str) -> None:
        paint = getattr(Compositor, kind)

        def noted(*args: Any, **more: Any) -> Any:
            painted.append(kind)
            return paint(*args, **more)

        monkeypatch.setattr(Compositor, kind, noted)

    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "Needs attention")
        await pilot.press("right", "down")
        await pilot.pause()
        note("render_full_update")
        note("render_partial_update")
        await pilot.press("left")
        await until(pilot, lambda: box(app, "running").has_focus and len(painted) > 0)
        await pilot.pause()
        assert set(painted) == {"render_partial_update"}


async def test_home_and_the_views_share_their_answers() -> None:
    feed = CountingFeed(**VALUES)
    app = feed.app("home")
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "17 of 32 held", "433.25")
        once = dict.fromkeys("nodes utilization usage site rights gpus-now".split(), 1)
        # The queue alone, and what ended alone.
        await until(pilot, lambda: feed.asked == once | {"mine": 2})
        await pilot.press("1")
        await expect_text(pilot, "GPU INDICES")
        nodes = app.session.last_answer(FeedQuestion("nodes"))
        await until(pilot, lambda: nodes.pace.interval == 30)
        await pilot.press("4")
        await expect_text(pilot, "drained")
        # As often as the view on the screen asks.
        await until(pilot, lambda: nodes.pace.interval == 10)
        await pilot.press("5")
        await expect_text(pilot, "LOST")
        await pilot.press("0")
        await expect_text(pilot, "17 of 32 held")
        await until(pilot, lambda: feed.asked - Counter(uses=9) == once | {"mine": 3})
        await pilot.press("r")
        await until(pilot, lambda: feed.asked["usage"] == 2)


async def test_the_new_answers_of_home_are_seen_in_the_view() -> None:
    feed = StubFeed(**VALUES)
    app = feed.app("nodes")
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "drained")
        rows = [
            msgspec.structs.replace(row, name=f"new-{row.name}") for row in VALUES["nodes"].rows
        ]
        feed.values["nodes"] = msgspec.structs.replace(VALUES["nodes"], rows=tuple(rows))
        await pilot.press("0")
        await expect_text(pilot, "17 of 32 held")
        await pilot.press("r")
        await expect_text(pilot, "6 GPUs: new-c2")
        await pilot.press("4")
        await expect_text(pilot, "new-c1", "drained")


def reserved() -> NodesSnapshot:
    rows = (
        msgspec.structs.replace(row, states=(*row.states, "MAINTENANCE"))
        for row in VALUES["nodes"].rows
    )
    return msgspec.structs.replace(VALUES["nodes"], rows=tuple(rows))


async def test_gpus_of_reserved_nodes_are_not_free() -> None:
    app = home(nodes=reserved())
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "17 of 32 held", "- 9 blocked", "lab  ·  0 GPUs free")
        assert "0 free" in inside(app, "gpus")


def test_of_an_array_only_the_tasks_that_failed_since_then_count() -> None:
    def task(number: int, ended: float, state: str) -> JobInfo:
        run = failed(f"20_{number}", ended)
        return msgspec.structs.replace(run, raw_id=str(20 + number), state=state)

    tasks = [task(1, NOW - 10, "COMPLETED"), task(2, NOW - 5000, "FAILED")]
    assert failed_jobs(mine(ended=tuple(tasks)), NOW - 100) == ()
    assert [job.job_id for job in failed_jobs(mine(ended=tuple(tasks)), None)] == ["20_2"]
    tasks[:0] = [task(number, NOW - 20, "TIMEOUT") for number in (3, 4)]
    (row,) = failed_jobs(mine(ended=tuple(tasks)), NOW - 100)
    assert (row.job_id, row.state) == ("20_[…]", "TO 2")


def test_a_job_that_failed_and_ran_again_well_has_not_failed() -> None:
    runs = (msgspec.structs.replace(failed("9", NOW), state="COMPLETED"), failed("9", NOW - 50))
    assert failed_jobs(mine(ended=runs), None) == ()


def test_a_job_that_i_cancelled_has_not_failed() -> None:

    def cancelled(job_id: str, by: str | None) -> JobInfo:
        run = failed(job_id, NOW)
        return msgspec.structs.replace(run, state="CANCELLED", user="alice", cancelled_by=by)

    runs = (cancelled("9", "alice"), cancelled("8", "root"), cancelled("7", None))
    assert [job.job_id for job in failed_jobs(mine(ended=runs), None)] == ["8", "7"]
    assert state_style("CANCELLED") == "state--done"


async def test_held_gpus_that_work_are_a_part_of_the_bar_and_the_age_is_named() -> None:
    async with home().run_test(size=TALL) as pilot:
        await expect_text(pilot, "1.7 used of 2 measured, 0:15 ago", "8 of 18 held, 1.7 used")
        gpus = inside(pilot.app, "gpus")  # type: ignore[arg-type]
        (bar,) = (line for line in gpus.splitlines() if "a100 " in line)
        assert "█░" in bar
        assert "█▓▒▌▄ used  ░ held  · free" in gpus
        assert gpus.count("▓") == 1  # untyped: nobody measured them
    async with home().run_test(size=SMALL) as pilot:
        await expect_text(pilot, "1.7 used of 2 measured", "█used ░held", "12 wanted")


@pytest.mark.parametrize(
    "now", [LedgerError("there is no ledger"), GpusNow((), NOW)], ids=["no ledger", "no samples"]
)
async def test_how_many_gpus_work_is_unknown_without_samples(now: Any) -> None:
    async with home(**{"gpus-now": now}).run_test(size=TALL) as pilot:
        await expect_text(pilot, "used: unknown", "8 of 18 held")
        assert "░" not in inside(pilot.app, "gpus")  # type: ignore[arg-type]
        assert "█▓▒▌▄ held" in inside(pilot.app, "gpus")  # type: ignore[arg-type]


def test_only_gpus_that_are_held_alone_and_were_just_measured_count_as_used() -> None:
    nodes = VALUES["nodes"].rows
    shared = msgspec.structs.replace(gpu_now("1", "c1", 1, 90), shared=True)
    known = (
        gpu_now("1", "c1", 0, 50),
        gpu_now("9", "c1", 0, 100, age=100.0),  # the job before it
        shared,
        gpu_now("3", "c1", 2, 90, age=400.0),
        gpu_now("3", "c1", 3, None),
        gpu_now("7", "c1", 7, 100),  # free by now
        gpu_now("8", "c99", 0, 100),  # a node that is not there
    )
    (use,) = GpusNow(known, NOW).by_type("lab", nodes).values()
    assert (use.used, use.measured, use.oldest) == (0.5, 1, NOW - 12)
    assert use.is_recent(NOW + 280)
    assert not use.is_recent(NOW + 300)
    assert GpusNow(known, NOW).by_type("other", nodes) == {}


async def test_what_gpus_of_a_running_job_do_is_beside_it() -> None:
    app = home()
    async with app.run_test(size=(160, 40)) as pilot:
        await expect_text(pilot, "llama-pretrain", "57% ██████▇▇▅▅▅▅")
        assert "~35%" in inside(app, "running")  # it is old
        await expect_text(pilot, "1 GPU of job 4711 llama-pretrain idle for 15 minutes or more")


@pytest.mark.parametrize(
    ("percent", "on_home", "in_mine"),
    [(0, "$warning", "cell--warn"), (9.9, "$warning", "cell--warn"),
     (10, "$secondary", "cell--gpus"), (100, "$secondary", "cell--gpus")],
)  # fmt: skip
def test_a_use_has_one_colour_on_home_and_in_mine(
    percent: float, on_home: str, in_mine: str
) -> None:
    row: Any = SimpleNamespace(use=JobUse(percent, 1, 1))
    assert home_boxes._use(row)[2] == on_home
    columns = [each for each in MY_JOBS.columns if each.name in ("use", "curve")]
    assert [each.style(row, RowContext()) for each in columns] == [in_mine] * 2


@pytest.mark.parametrize(
    ("height", "wants", "lines"),
    [
        (20, [3, 4, 4], [9, 3, 4, 4]),
        (20, [30, 30, 30], [8, 3, 3, 6]),
        (50, [4, 3, 4], [39, 4, 3, 4]),
        (50, [90, 3, 4], [18, 25, 3, 4]),
        (8, [3, 3, 3], [3, 3, 3, 3]),
    ],
)
def test_rows_of_boxes_share_the_lines(height: int, wants: list[int], lines: list[int]) -> None:
    assert share_lines(height, wants) == lines


async def test_without_a_budget_its_box_is_not_there() -> None:
    app = home(usage=msgspec.structs.replace(VALUES["usage"], budgets=()))
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "17 of 32 held", "nothing failed")
        await until(pilot, lambda: not box(app, "budget").display)
        assert box(app, "failed").region.width == app.view.region.width
        box(app, "waiting").focus()
        await pilot.press("down")
        assert box(app, "failed").has_focus


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
        assert "Failed in the last two days  ?" in inside(app, "failed")
        assert "Needs attention  0, more unknown" in inside(app, "attention")
        assert "unknown: my jobs that ended, nodes" in inside(app, "attention")
        assert " held" not in inside(app, "gpus")
        assert "lab  ·  ? GPUs free" in text(app)
        assert "no curve: slurmctld is away" in inside(app, "curve")
        assert "12" in inside(app, "running")


async def test_an_old_number_of_wanted_gpus_has_its_age() -> None:
    old = msgspec.structs.replace(VALUES["utilization"], taken=NOW - 300)
    for size, words in ((TALL, "12 wanted 5:0"), (SMALL, "12 wanted")):
        async with home(utilization=old).run_test(size=size) as pilot:
            await expect_text(pilot, words)


async def test_without_squeue_the_other_boxes_are_there() -> None:
    app = home(mine=SlurmError("squeue is away"))
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "✗ squeue is away", "17 of 32 held", "433.25")
        for name in ("running", "waiting"):
            assert "unknown: squeue is away" in inside(app, name)
        assert "My running jobs  ?" in inside(app, "running")
        assert "? of my jobs running  ·  ? waiting" in text(app)
        assert "1 node is out" in inside(app, "attention")


async def test_a_slow_squeue_holds_up_no_other_box() -> None:
    gate = threading.Event()

    class SlowQueue(StubFeed):
        def fetch(self, ask: FeedQuestion) -> FeedAnswer:
            if ask == FeedQuestion("mine", ("queue",)):
                assert gate.wait(PATIENCE)
            return super().fetch(ask)

    app = SlowQueue(**VALUES).app("home")
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "17 of 32 held", "433.25", "nothing failed")
        assert "asking squeue…" in inside(app, "running")
        gate.set()
        await expect_text(pilot, "22:03:20 left")


async def test_the_age_of_a_box_grows_while_nothing_answers() -> None:
    app = home()
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "17 of 32 held", "433.25")
        assert "scontrol at" not in inside(app, "gpus")
        app.session.clock = lambda: NOW + 200
        app.view._show_ages()  # as it does every ten seconds
        await expect_text(pilot, "scontrol at 22:13", "ledger at 22:13")


async def test_home_asks_for_the_queue_often_and_for_ended_jobs_seldom() -> None:
    asked: list[FeedQuestion] = []

    class NotingFeed(StubFeed):
        def fetch(self, ask: FeedQuestion) -> FeedAnswer:
            asked.append(ask)
            return super().fetch(ask)

    app = NotingFeed(**VALUES).app("home")
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "17 of 32 held", "433.25")
        queue, ended = FeedQuestion("mine", ("queue",)), FeedQuestion("mine", ("ended",))
        assert FeedQuestion("mine") not in asked
        assert app.session.last_answer(queue).pace.interval == 10
        assert app.session.last_answer(ended).pace.interval == 60


async def test_a_slow_look_at_older_answers_does_not_hide_newer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed = StubFeed(**VALUES)
    app = feed.app("home")
    gate, held = threading.Event(), threading.Event()
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "17 of 32 held", "433.25", "57%")
        await until(pilot, lambda: not app.workers)
        make = app.view.make

        def slow(*args: Any) -> Any:
            prepared = make(*args)
            if not held.is_set():
                held.set()
                assert gate.wait(PATIENCE)
            return prepared

        monkeypatch.setattr(app.view, "make", slow)
        app._prepare(app.session, app.view)  # with the nodes of before
        await until(pilot, held.is_set)
        last = app.session.last_answer(FeedQuestion("nodes"))
        last.answer = msgspec.structs.replace(last.answer, value=reserved(), taken=NOW + 1)
        app._prepare(app.session, app.view)
        await expect_text(pilot, "9 blocked")
        gate.set()
        await until(pilot, lambda: not app.workers)
        assert "9 blocked" in inside(app, "gpus")


def test_each_part_of_my_jobs_is_one_command() -> None:
    scene = Scene([job("12", UserName="alice")])
    feed = LiveFeed(Cluster(scene.slurm), "alice")
    assert len(feed.fetch(FeedQuestion("mine", ("queue",))).value.rows) == 1
    assert {argv[0] for argv in scene.slurm.asked} == {"squeue"}
    scene.slurm.asked.clear()
    feed.fetch(FeedQuestion("mine", ("ended",)))
    assert {argv[0] for argv in scene.slurm.asked} == {"sacct"}


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


async def test_the_most_urgent_point_decides_where_attention_leads() -> None:
    app = home(mine=mine(job("13", UserName="alice", Name="train", TimeUsed="23:50:00")))
    async with app.run_test(size=TALL) as pilot:
        await expect_text(pilot, "ends in 10:00")
        await expect_text(pilot, "1 node is out with 6 GPUs")
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
        await expect_text(pilot, "Last 24 hours", "17 of 32 held")


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
                assert gate.wait(PATIENCE)
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


def test_rows_of_my_jobs_are_made_once_for_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six answers made 20,000 rows six times, all at once: the screen stood still for 250 ms."""
    made = []

    def count(found: MyJobs, **_: Any) -> tuple[str, ...]:
        made.append(found)
        return ("row",)

    monkeypatch.setattr(overview, "my_job_rows", count)
    rows, jobs = overview.JobRowsMaker(), mine(job("12", UserName="alice"))
    for _ in range(3):
        assert rows.make(jobs, None, "lab") == ("row",)
    assert len(made) == 1
    assert made[0].ended == ()
    rows.make(jobs, VALUES["gpus-now"], "lab")
    rows.make(mine(job("12", UserName="alice")), VALUES["gpus-now"], "lab")
    assert len(made) == 3
    assert rows.make(None, None, "lab") == ()
