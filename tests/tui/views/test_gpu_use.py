"""What GPUs do: columns of my jobs, the map by use, and the page of one job."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from fake_gpus import Recorded
from fake_queue import NOW, Scene, expect_text, job, text, until, waiting
from gpu_lab import steady, store_running, use_of
from gpu_runs import BEFORE, BEGIN, GPUS, GPUS_OF_JOB, RUN, busy, gpu, one_gpu
from slurmkit_accounting.gpu_use.samples import GpuName
from slurmkit_accounting.gpu_use.store import store_uses
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.feed import FeedQuestion, composed
from slurmkit_tui.jobform.gpu_use import GpusNow, GpusOfJob, JobUse, is_idle, sum_up
from slurmkit_tui.widgets.gpu_curves import (
    MEASURES,
    GpuCurves,
    curve_columns,
    frame_of,
    time_axis,
)
from stored_runs import ran, store_runs
from stub_feed import StubFeed
from usage_values import VALUES, gpu_now

from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.my_jobs import MyJobs
from slurmkit.errors import BadInput, LedgerError
from slurmkit.jobs.info import JobInfo
from slurmkit.state.gpu_use import CurvePoint, GpuUseNow, GpuUseOfRun
from slurmkit.state.gpumap import read_gpus
from slurmkit.state.gpumap_model import Gpu

HOUR = 60  # samples


def test_the_mean_of_a_jobs_gpus_and_their_curve() -> None:
    found = sum_up([gpu_now("1", "c1", 0, *[100] * HOUR), gpu_now("1", "c1", 1, *[0] * 30)], 2)
    assert (found.percent, found.known, found.words) == (50.0, 2, "50%")
    assert found.curve == (100.0,) * 6 + (50.0,) * 6
    assert found.sparkline(plain=False) == "██████▅▅▅▅▅▅"
    assert found.sparkline(plain=True) == "888888555555"


def test_unknown_is_never_zero() -> None:
    assert sum_up([], 4).words == "?"
    lost = gpu_now("1", "c1", 0, *[None] * HOUR)
    assert (sum_up([lost], 1).words, sum_up([lost], 1).sparkline(plain=False)) == ("?", "")
    some = sum_up([gpu_now("1", "c1", 0, None, None, 80), lost], 2)
    assert (some.percent, some.words) == (80.0, "80% 1/2")
    assert some.curve == (None,) * 11 + (80.0,)


@pytest.mark.parametrize(
    ("age", "passed", "words"), [(30, 0, "7%"), (30, 170, "7% 3m ago"), (1500, 0, "7% 25m ago")]
)
def test_old_samples_have_their_age(age: float, passed: float, words: str) -> None:
    assert sum_up([gpu_now("1", "c1", 0, 7, age=age)], 1, passed).words == words


@pytest.mark.parametrize(
    ("seconds", "age", "marked"),
    [(900, 20, True), (820, 20, True), (600, 20, False), (None, 20, False), (3600, 1200, False)],
)
def test_a_gpu_is_marked_after_15_idle_minutes(
    seconds: float | None, age: float, marked: bool
) -> None:
    """After twenty minutes without a sample nobody knows what it does now."""
    gpu = gpu_now("1", "c1", 0, 0, age=age)
    since = None if seconds is None else gpu.last - seconds
    assert is_idle(msgspec.structs.replace(gpu, idle_since=since)) is marked


def test_a_ledger_of_several_clusters_mixes_no_jobs() -> None:
    here, there = gpu_now("1", "c1", 0, 50), gpu_now("1", "c1", 0, 60)
    both = GpusNow((here, msgspec.structs.replace(there, cluster="other")), NOW)
    assert both.by_job("lab") == {"1": [here]}
    assert len(both.by_job(None)["1"]) == 2


def mine(app_jobs: list[dict[str, str]], *rows, **other) -> SlurmkitApp:
    queue = Cluster(Scene(app_jobs).slurm).queue().rows
    now = other.pop("gpus", GpusNow(tuple(rows), NOW))
    return StubFeed(**{**VALUES, "mine": MyJobs(queue, {}, (), "", NOW, 0.0), "gpus-now": now}).app(
        "mine"
    )


CPU = "cpu=4,mem=1G,node=1"


async def test_my_jobs_say_what_their_gpus_do_now_and_did_in_the_last_hour() -> None:
    app = mine(
        [
            job("11", UserName="alice"),
            job("12_1", UserName="alice", JobID="120"),
            job("12_2", UserName="alice", JobID="121"),
            job("13", UserName="alice", tres_alloc=CPU),
            job("14", UserName="alice"),
            waiting("15", UserName="alice"),
        ],
        gpu_now("11", "c1", 0, *[80] * HOUR),
        gpu_now("11", "c1", 1, *[90] * HOUR),
        gpu_now("12_1", "c2", 0, 0),
        gpu_now("12_2", "c2", 1, 100),
    )
    async with app.run_test(size=(160, 24)) as pilot:
        await expect_text(pilot, "85%", "▇▇▇▇▇▇▇▇▇▇▇▇")
        rows = {row.key: row.use for row in app.view.table.rows_shown}
        assert rows["11"] == JobUse(85.0, 2, 2, 12.0, (85.0,) * 12)
        assert rows["12"].words == "50% 2/4"
        assert (rows["13"], rows["15"]) == (None, None)
        assert rows["14"].words == "?"
        await pilot.press("slash", *"use<60", "enter")
        await until(pilot, lambda: [row.key for row in app.view.table.rows_shown] == ["12"])
        assert "USE unknown" not in text(app)


def over(job_id: str, *, at: int, tres: str = "cpu=1,gres/gpu=2") -> JobInfo:
    return JobInfo(
        job_id=job_id, raw_id=job_id, name="old", user="alice", account="vision", partition="gpu",
        state="COMPLETED", node_list="c2", tres=tres, elapsed="01:00:00", submitted=at - 10,
        started=at, ended=at + 3600, exit_code="0:0", source="sacct",
    )  # fmt: skip


def did(job_id: str, at: int, *percents: float | None, covered: float = 1.0) -> GpuUseOfRun:
    gpus = tuple(
        one_gpu(
            node="c2", gpu=str(index), index=index, covered=covered, utilization=percent
        )
        for index, percent in enumerate(percents)
    )  # fmt: skip
    return GpuUseOfRun(
        cluster="lab",
        job_id=job_id,
        job_id_raw=1,
        user="alice",
        start=at,
        end=at + 3600,
        held=len(gpus),
        gpus=gpus,
    )


async def test_ended_jobs_say_what_their_gpus_did_as_far_as_the_ledger_knows() -> None:
    begin = int(NOW) - 7200
    jobs = MyJobs(
        (), {}, (
            over("21", at=begin), over("22", at=begin), over("23", at=begin),
            over("24", at=begin, tres="cpu=1"), over("25", at=begin), over("26_1", at=begin),
            over("26_2", at=begin),
        ), "", NOW, 0.0,
    )  # fmt: skip
    runs = (
        did("21", begin - 9000, 0, 0),  # before it was requeued
        did("21", begin, 80, 90),
        did("22", begin, 30, None, covered=0.2),
        did("25", begin, 4, 6),
        did("26_1", begin, 100, 100),
        msgspec.structs.replace(did("26_2", begin, 40, 40), end=begin + 1800),
    )
    feed = StubFeed(**{**VALUES, "mine": jobs, "gpus-ended": GpusOfJob(runs, NOW)})
    asked: list[FeedQuestion] = []
    fetch = feed.fetch
    feed.fetch = lambda ask: asked.append(ask) or fetch(ask)  # type: ignore[method-assign, func-returns-value]
    app = feed.app("mine")
    async with app.run_test(size=(160, 24)) as pilot:
        await expect_text(pilot, "85%", "~30% 1/2")
        words = {row.key: row.use and row.use.words for row in app.view.table.rows_shown}
        assert words == {
            "21": "85%", "22": "~30% 1/2", "23": "?", "24": None, "25": "5%", "26": "80%"
        }  # fmt: skip
        await pilot.press("slash", *"use<10", "enter")
        await until(pilot, lambda: [row.key for row in app.view.table.rows_shown] == ["25"])
        for looks in (2, 3):
            app._ask_now()  # as the timer does
            await until(pilot, lambda looks=looks: asked.count(FeedQuestion("mine")) == looks)
            await until(pilot, lambda: not app.workers)
    of_ended = [ask.about for ask in asked if ask.what == "gpus-ended"]
    assert of_ended == [("21,22,23,25,26_1,26_2",)]


async def test_one_question_is_asked_for_all_jobs() -> None:
    app = mine([job(str(at), UserName="alice") for at in range(11, 31)], gpu_now("11", "c1", 0, 5))
    asked: list[FeedQuestion] = []
    fetch = app.session.feed.fetch

    def counted(ask: FeedQuestion):
        asked.append(ask)
        return fetch(ask)

    app.session.feed.fetch = counted  # type: ignore[method-assign]
    async with app.run_test(size=(160, 40)) as pilot:
        await expect_text(pilot, "5% 1/2", "?")
    assert asked.count(FeedQuestion("gpus-now")) == 1


async def test_without_a_ledger_my_jobs_are_there_and_say_why_use_is_unknown() -> None:
    app = mine([job("11", UserName="alice")], gpus=LedgerError("the service is away"))
    async with app.run_test(size=(200, 24)) as pilot:
        await expect_text(pilot, "USE unknown: the service is away")
        assert app.view.table.rows_shown[0].use.words == "?"


async def test_a_terminal_without_block_characters_gets_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "vt100")
    app = mine([job("11", UserName="alice")], gpu_now("11", "c1", 0, *[0] * 30, *[100] * 30))
    async with app.run_test(size=(160, 24)) as pilot:
        await expect_text(pilot, "111111888888")


def many(*rows: GpuUseNow, **values: Any) -> SlurmkitApp:
    """The map of a recorded cluster; the first two GPUs of each node are held."""
    found = msgspec.structs.replace(read_gpus(Recorded().slurm), taken=NOW)
    return StubFeed(**{"gpus": found, "gpus-now": GpusNow(rows, NOW), **values}).app("gpus")


def cells(app: SlurmkitApp) -> dict[str, str]:
    return {line.row.name: "".join(line.cells) for line in app.view.grid.lines}


async def test_the_map_by_use_has_signs_for_idle_and_for_unknown() -> None:
    app = many(
        gpu_now("1", "c1", 0, *[100] * HOUR),
        gpu_now("1", "c1", 1, *[90] * 30, *[0] * 30),
        gpu_now("3", "c1", 2, *[90] * 50, *[0] * 10),
        gpu_now("3", "c1", 3, *[50] * HOUR, age=400.0),  # five minutes and more are too old
        gpu_now("11", "c6", 0, 30),  # shared by two
        gpu_now("12", "c6", 0, 40),
        gpu_now("7", "c1", 7, *[0] * HOUR),  # free by now
    )
    async with app.run_test(size=(120, 30)) as pilot:
        await expect_text(pilot, "! 1 held, idle for 15 min", "by user")
        await pilot.press("b", "b", "b")
        await expect_text(pilot, "GPUs by use")
        assert cells(app)["c1"][:5] == "█!▁??"
        assert cells(app)["c1"].endswith("...")
        assert cells(app)["c6"][0] == "▆"  # 70 %
        shown = text(app)
        assert "▁▂▃▄▅▆▇█ used 0% to 100% now" in shown
        assert "! held and idle for 15 minutes or more: 1" in shown
        assert "? held, use unknown: " in shown
        assert ". free" in shown
        await pilot.press("b")
        await expect_text(pilot, "GPUs by user", "alice:")


def test_a_gpu_whose_other_jobs_one_may_not_see_is_unknown() -> None:
    """Nor do the samples of a job that has just ended say anything about the next one."""
    idle = [0] * HOUR
    mine = msgspec.structs.replace(gpu_now("5", "c3", 1, *idle), shared=True)
    alone = msgspec.structs.replace(gpu_now("2", "c3", 0, *idle), shared=True)
    ended = gpu_now("99", "c1", 0, *[100] * HOUR)
    gpus = read_gpus(Recorded().slurm).gpus
    assert GpusNow((mine, alone, ended), NOW).by_gpu("lab", gpus, NOW) == {}
    other = msgspec.structs.replace(gpu_now("4", "c3", 1, 90), shared=True)
    both = GpusNow((mine, other, ended, gpu_now("1", "c1", 0, 7)), NOW).by_gpu("lab", gpus, NOW)
    assert both == {("c3", 1): (90, False), ("c1", 0): (7, False)}


async def test_help_explains_the_signs_of_use() -> None:
    app = many()
    async with app.run_test(size=(120, 80)) as pilot:
        await expect_text(pilot, "GPUs by user")
        await pilot.press("question_mark")
        await expect_text(pilot, "Marks of the map by use", "held and idle for 15 minutes or more")


async def test_without_a_ledger_every_held_gpu_is_unknown_and_the_map_says_why() -> None:
    app = many(**{"gpus-now": LedgerError("there is no ledger")})
    async with app.run_test(size=(200, 30)) as pilot:
        await pilot.press("b", "b", "b")
        await expect_text(pilot, "use unknown: there is no ledger")
        assert set(cells(app)["c1"]) == {"?", "."}


async def test_the_map_by_use_on_a_terminal_without_block_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "vt220")
    app = many(gpu_now("1", "c1", 0, *[100] * HOUR), gpu_now("1", "c1", 1, 0))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("b", "b", "b")
        await expect_text(pilot, "12345678 used 0% to 100% now")
        assert cells(app)["c1"][:2] == "81"


def job_app(answer: Any, **values: Any) -> SlurmkitApp:
    """My jobs, with one that can be opened."""
    scene = Scene([job("4711", UserName="alice", NodeList="c[1-2]", Name="llama-pretrain")])
    info = Cluster(scene.slurm).job("4711").info()
    given = {**VALUES, "job": info, "restarts": (), "gpus-of-job": answer, **values}
    return StubFeed(**given).app("mine")


async def test_the_page_of_a_job_has_curves_and_names_the_idle_gpu() -> None:
    app = job_app(GPUS_OF_JOB)
    async with app.run_test(size=(80, 24)) as pilot:
        await expect_text(pilot, "▸4711", "57%")
        await pilot.press("U")
        await expect_text(pilot, "c1 GPU 0  a100", "c2 GPU 4  a100", "··", "0┤▁▁▁▁")
        shown = text(app)
        assert "! 1 of 4 GPUs does nothing: c1 GPU 1" in shown
        assert "what 1 of 4 GPUs did is unknown" in shown
        assert "c1 GPU 1  a100  IDLE: it did nothing  covered 100%" in shown
        assert "covered only 25%" in shown
        assert "~0.6 kWh" in shown  # by power
        assert "memory 43.0 of 80 GiB" in shown
        lines = shown.splitlines()
        first = next(at for at, line in enumerate(lines) if "c1 GPU 0" in line)
        assert "··" in lines[first + 5]  # the gap without samples
        idle = next(at for at, line in enumerate(lines) if "c1 GPU 1  a100" in line)
        assert "0┤▁▁▁▁" in lines[idle + 5]  # known zeros are no gap
        assert lines[-2].count("20:13") == lines[-2].count("22:13") == 3


async def test_the_time_axis_is_right_below_the_last_curve() -> None:
    two = msgspec.structs.replace(RUN, held=2, gpus=GPUS[:2])
    app = job_app(GpusOfJob((two,), NOW))
    async with app.run_test(size=(100, 50)) as pilot:
        await expect_text(pilot, "▸4711", "57%")
        await pilot.press("U")
        await expect_text(pilot, "c1 GPU 1", "0┤▁▁▁▁", "22:13")
        await until(pilot, lambda: not any(gpu.is_unplotted for gpu in app.screen.query(GpuCurves)))
        lines = text(app).splitlines()
        axis = next(at for at, line in enumerate(lines) if line.count("22:13") == 3)
        assert "0┤▁▁▁▁" in lines[axis - 1]


async def test_of_many_gpus_each_has_a_line_and_enter_shows_its_curves() -> None:
    gpus = (*GPUS[:2], *(gpu("c2", at, busy) for at in range(4)))
    run = msgspec.structs.replace(RUN, held=8, gpus=gpus)
    scene = Scene([job("4711", UserName="alice")])
    held = {"c1": [0, 1, 2], "c2": [0, 1, 2, 3, 4]}
    info = msgspec.structs.replace(Cluster(scene.slurm).job("4711").info(), gpu_indices=held)
    app = job_app(GpusOfJob((run,), NOW), job=info)
    async with app.run_test(size=(120, 40)) as pilot:
        await expect_text(pilot, "▸4711", "57%")
        await pilot.press("U")
        await expect_text(pilot, "▸c1 GPU 0", " c2 GPU 3", "nobody measured c1 GPU 2, c2 GPU 4")
        idle = next(line for line in text(app).splitlines() if line.startswith("  c1 GPU 1"))
        assert "▁▁▁▁▁▁" in idle
        assert "use 0%, p95 95%" in idle
        assert "IDLE: it did nothing" in idle
        assert "0┤" not in text(app)
        await pilot.press("down", "enter")
        await expect_text(pilot, "0┤▁▁▁▁", "22:13", " c1 GPU 0", " c2 GPU 0")
        await pilot.press("enter")
        await until(pilot, lambda: "0┤" not in text(app))
        assert "▸c1 GPU 1" in text(app)


async def test_the_runs_of_a_requeued_job_have_a_page_each() -> None:
    app = job_app(GPUS_OF_JOB)
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(pilot, "▸4711", "57%")
        await pilot.press("enter", "U")
        await expect_text(pilot, "run 2 of 2 ([ ])")
        await pilot.press("left_square_bracket")
        await expect_text(pilot, "run 1 of 2", "c3 GPU 2", "no curve is stored")
        await until(pilot, lambda: "c1 GPU 0" not in text(app))
        await pilot.press("right_square_bracket")
        await expect_text(pilot, "run 2 of 2", "c1 GPU 0")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (LedgerError("the ledger's service does not answer"), "unknown: the ledger's service"),
        (GpusOfJob((), NOW), "the ledger has no run of this job that held GPUs"),
        (
            GpusOfJob((msgspec.structs.replace(RUN, gpus=()),), NOW),
            "what 4 of 4 GPUs did is unknown: nobody measured them",
        ),
        (
            GpusOfJob((msgspec.structs.replace(RUN, cluster="other"),), NOW),
            "the ledger has no run of this job",
        ),
    ],
    ids=["no ledger", "no run", "no samples", "another cluster"],
)
async def test_a_page_without_samples_says_why(answer: Any, words: str) -> None:
    app = job_app(answer)
    async with app.run_test(size=(100, 24)) as pilot:
        await expect_text(pilot, "▸4711", "57%")
        await pilot.press("U")
        await expect_text(pilot, words)
        assert "0┤" not in text(app)


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([waiting("4711", UserName="alice")], "the job has not begun"),
        (
            [job("4711", UserName="alice")],
            "that you may see; it knows a new job some minutes after",
        ),
    ],
    ids=["waits", "has just begun"],
)
async def test_a_job_that_the_ledger_does_not_know_yet(
    jobs: list[dict[str, str]], words: str
) -> None:
    info = Cluster(Scene(jobs).slurm).job("4711").info()
    unknown = BadInput("the ledger has no run of job 4711 that you may see")
    app = job_app(unknown, job=info)
    async with app.run_test(size=(120, 24)) as pilot:
        await expect_text(pilot, "▸4711", "57%")
        await pilot.press("enter")
        await expect_text(pilot, "squeue at")
        await pilot.press("U")
        await expect_text(pilot, words)


async def test_the_page_of_a_running_job_is_asked_for_again() -> None:
    app = job_app(GPUS_OF_JOB)
    app.session.interval = 0.2
    async with app.run_test(size=(100, 40)) as pilot:
        await expect_text(pilot, "▸4711", "57%")
        await pilot.press("U")
        await expect_text(pilot, "c2 GPU 4")
        later = msgspec.structs.replace(RUN, gpus=(*GPUS, gpu("c2", 5, busy)))
        app.session.feed.values["gpus-of-job"] = GpusOfJob((BEFORE, later), NOW)
        await expect_text(pilot, "c2 GPU 5")
        await until(pilot, lambda: "is unknown" not in text(app))


def test_a_curve_in_columns_has_gaps_where_nothing_is_known() -> None:
    frame = frame_of(RUN)
    use, memory, _ = MEASURES
    assert curve_columns(GPUS[2], frame, use, 8) == [None] * 6 + [60.0] * 2
    short = one_gpu(points=(CurvePoint(BEGIN, 1, 7.0, None, None),), step=10)
    assert curve_columns(short, frame, use, 4) == [7.0, None, None, None]
    points = tuple(CurvePoint(BEGIN + at, 1, at, 1024 * at, None) for at in range(10))
    whole = one_gpu(points=points, step=1)
    both = frame._replace(end=BEGIN + 10)
    assert curve_columns(whole, both, use, 2) == [2.0, 7.0]  # means
    assert curve_columns(whole, both, memory, 2) == [4.0, 9.0]  # GiB, the most
    assert curve_columns(whole, both, use, 20)[:4] == [0.0, 0.0, 1.0, 1.0]


def test_the_time_axis_has_days_for_long_runs_and_fits() -> None:
    frame = frame_of(RUN)
    assert time_axis(frame, 80).split() == ["20:13", "21:13", "22:13"] * 3
    assert time_axis(frame, 50).split() == ["20:13", "22:13"] * 3
    days = frame._replace(end=frame.begin + 5 * 86400)
    assert time_axis(days, 80).split()[:2] == ["14", "Nov"]
    assert all(len(time_axis(frame, width)) <= max(width, 38) for width in range(30, 200))


def test_a_curve_that_ended_before_now_is_not_moved_up_to_now() -> None:
    old = sum_up([gpu_now("1", "c1", 0, *[100] * HOUR, age=1500.0)], 1)
    assert old.curve == (100.0,) * 7 + (None,) * 5


def test_the_ledger_answers_both_questions() -> None:
    start = int(time.time()) - 1500
    idle = GpuName("GPU-2", "", 1)
    with open_for_writing() as ledger:  # in the default place
        store_runs(ledger, ran(start, 1500) | {"end": None, "state": "RUNNING"})
        store_running(
            ledger,
            (use_of(start=start), steady(start, 1490)),
            (use_of(start=start, gpu=idle), steady(start, 1490, busy=0)),
        )
    now = composed.read_gpus_now()
    found = {row.index: row for row in now.rows}
    assert (found[0].job_id, found[0].node, found[0].utilization) == ("1", "c1", 80.0)
    assert (found[0].memory_mib, found[0].watts) == (10240, 300)
    assert [is_idle(found[0]), is_idle(found[1])] == [False, True]
    assert sum_up(now.by_job(None)["1"], 2).words == "40%"
    held = [Gpu(node="c1", index=at, type="a100", state="held", job_id="1") for at in (0, 1)]
    assert now.by_gpu(None, held, now.taken)["c1", 1] == (0.0, True)
    with pytest.raises(BadInput, match="no run of job 77"):
        composed.read_gpus_of_job("77")


def test_the_ledger_gives_the_curves_of_an_ended_job() -> None:
    start = int(time.time()) - 5000
    with open_for_writing() as ledger:
        store_runs(ledger, ran(start, 600))
        with ledger.transaction() as connection:
            store_uses(connection, [use_of(*steady(start, 600), start=start)], run_id=1)
    (run,) = composed.read_gpus_of_job("1").runs
    (found,) = run.gpus
    assert (run.end, found.utilization, found.idle) == (start + 600, pytest.approx(80), False)
    assert found.step > 0
    assert found.points[5].utilization == pytest.approx(80.0)
    assert found.points[5].watts == 300
    (brief,) = composed.read_ended_gpus("1,77").runs
    assert brief == msgspec.structs.replace(
        run, gpus=(msgspec.structs.replace(found, points=(), step=0),)
    )
