"""My jobs on one screen: arrays in one row, what they hold, how the last ones ended."""

from __future__ import annotations

from fake_queue import NOW, Scene, expect_text, ids, job, text, until, waiting
from slurmkit_tui.jobform.my_jobs import MyJobRow, my_job_rows
from slurmkit_tui.views.queue import COLUMNS

from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.my_jobs import MyJobs
from slurmkit.errors import DatabaseDown
from slurmkit.jobs.info import JobInfo
from slurmkit.state.arrays import ArrayTag


def ended(job_id: str, state: str, at: int) -> JobInfo:
    return JobInfo(
        job_id=job_id, raw_id=job_id, name="old", user="alice", account="vision", partition="gpu",
        state=state, node_list="c2", tres="cpu=1,gres/gpu=1,gres/gpu:a100=1", elapsed="00:01:00",
        submitted=at - 100, started=at - 60, ended=at, exit_code="1:0", source="sacct",
    )  # fmt: skip


def mine(*runs: JobInfo) -> dict[str, MyJobRow]:
    scene = Scene(
        [
            job("11", UserName="alice", NodeList="c1"),
            job("12_1", UserName="alice", NodeList="c2", JobID="120", TimeUsed="23:55:00"),
            waiting("12_[2-40%2]", UserName="alice"),
        ]
    )
    rows = Cluster(scene.slurm).queue().rows
    found = MyJobs(rows, {"11": {"c1": [0, 1, 3]}}, runs, "", NOW, 0.1)
    return {each.key: each for each in my_job_rows(found)}


def test_an_array_is_one_row_with_a_tally() -> None:
    jobs = mine()
    assert list(jobs) == ["11", "12"]
    assert jobs["12"].state == "R 1, PD 39"
    assert jobs["12"].left == 300
    assert jobs["12"].where == "c2 (Priority)"
    assert jobs["11"].held == "c1:0-1,3"
    assert jobs["11"].gpus == "2 a100"


def test_ended_jobs_come_last_and_the_worst_of_an_array_shows() -> None:
    jobs = mine(
        ended("9_1", "COMPLETED", 50), ended("9_2", "FAILED", 40), ended("12_0", "COMPLETED", 30)
    )
    assert list(jobs) == ["11", "12", "9", "12 ended"]
    assert (jobs["9"].state, jobs["9"].kind, jobs["9"].whole) == ("CD 1, F 1", "FAILED", "9")
    assert jobs["12 ended"].job_id == "12_0"
    assert not jobs["9"].rows
    assert jobs["9"].elapsed == "1:00"  # as squeue writes it


def test_an_array_in_several_of_slurms_is_one_row() -> None:
    first = ArrayTag("0123456789ab", 0, 1500)
    later = ArrayTag("0123456789ab", 1001, 1500, "12").comment_text()
    scene = Scene(
        [
            waiting("12_[900-1000%2]", UserName="alice", Comment=first.comment_text()),
            job("13_4", UserName="alice", JobID="130", Comment=later),
            waiting("13_[9-498%2]", UserName="alice", Comment=later),
        ]
    )
    rows = Cluster(scene.slurm).queue().rows
    runs = (ended("9_1", "COMPLETED", 50), ended("8_1000", "FAILED", 40))
    (queued, over) = my_job_rows(MyJobs(rows, {}, runs, "", NOW, 0.1, {"9": "8"}))
    assert (queued.job_id, queued.whole, queued.state) == ("12_[…]", "12", "R 1, PD 591")
    assert len(queued.rows) == 3
    assert (over.whole, over.state) == ("8", "CD 1, F 1")
    by_name = {column.name: column for column in COLUMNS}
    shown = [by_name["jobid"].text(row, None) for row in rows]  # type: ignore[arg-type]
    assert shown == ["12_[900-1000%2]", "12_1005", "12_[1010-1499%2]"]


def test_jobs_of_a_workflow_have_its_name() -> None:
    rows = Cluster(Scene([job("12_1", UserName="alice", Name="x")]).slurm).queue().rows
    flows = {"12": "digits/train", "9": "digits/prepare"}
    runs = (ended("9_1", "COMPLETED", 50), ended("8", "COMPLETED", 40))
    found = my_job_rows(MyJobs(rows, {}, runs, "", NOW, 0.1, {}, flows))
    assert [each.name for each in found] == ["digits/train", "digits/prepare", "old"]


async def test_the_queue_has_what_waits_of_it_in_one_row() -> None:
    words = [
        ArrayTag("0123456789ab", 0, 1500).comment_text(),
        ArrayTag("0123456789ab", 1001, 1500, "12").comment_text(),
    ]
    scene = Scene(
        [
            waiting("12_[900-1000%2]", UserName="alice", JobID="12", Comment=words[0]),
            waiting("13_[9-498%2]", UserName="alice", JobID="13", Comment=words[1]),
            job("13_4", UserName="alice", JobID="130", Comment=words[1]),
        ]
    )
    app = scene.app(view="queue")
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: ids(app) == ["12_[900-1000,1010-1499%4]", "13_4"])
        assert "12_1005" in text(app)
        await pilot.press("c")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press("y")
        await until(pilot, lambda: bool(scene.commands("scancel")))
        assert scene.commands("scancel") == [["scancel", "--state=PENDING", "12", "13"]]


async def test_the_view_cancels_a_whole_array_and_names_a_missing_history() -> None:
    scene = Scene([job("12_1", UserName="alice"), waiting("12_[2-40%2]", UserName="alice")])
    app = scene.app(view="mine")
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await expect_text(pilot, "R 1, PD 39")
        assert "1 running  ·  39 pending" in text(app)
        await pilot.press("c")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press("y")
        await until(pilot, lambda: len(scene.commands("scancel")) == 2)
        assert ["scancel", "--state=PENDING", "12"] in scene.commands("scancel")


async def test_my_jobs_are_copied_as_they_are_shown() -> None:
    app = Scene([job("11", UserName="alice", Name="resnet")]).app(view="mine")
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await expect_text(pilot, "resnet")
        await pilot.press("y")
        await expect_text(pilot, "copied 1 job")
        assert app.clipboard.startswith("11\tRUNNING\t1:56:40\t")


def sacct_of(*ids: str) -> str:
    """Each job with a step that runs, in the fields of `slurmkit.jobs.steps`."""
    lines = []
    for job_id in ids:
        rest = ["RUNNING", "100", "Unknown", "50", "", "1", "2", "00:00:00", "mem=1G", *[""] * 3]
        both = [[each, each, *rest, "0:0", "n"] for each in (job_id, f"{job_id}.0")]
        lines += ["".join(word + "MARK" for word in line) for line in both]
    return "\n".join(lines) + "\n"


class Measured(Scene):
    """Two jobs that run; slurmd of the second is away."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slurm._answers |= {"sacct": self._sacct, "sstat": self._sstat}

    def _sacct(self, argv, stdin):
        mark = next(a for a in argv if a.startswith("--delimiter=")).removeprefix("--delimiter=")
        return "" if "-X" in argv else sacct_of("11", "13").replace("MARK", mark)

    def _sstat(self, argv, stdin):
        return "11.0|1|mem=512M|cpu=00:01:30,mem=1M||\n"


async def test_efficiency_so_far_comes_after_the_jobs_and_not_with_each_answer() -> None:
    cluster = Measured([job("11", UserName="alice"), job("13", UserName="alice")])
    app = cluster.app(view="mine")
    async with app.run_test(size=(160, 30), notifications=True) as pilot:
        await expect_text(pilot, "CPU, MEM from sacct and sstat at")
        names = [argv[0] for argv in cluster.slurm.asked]
        assert names.index("squeue") < names.index("sstat")
        lines = [line.strip("▸ ").split() for line in text(app).splitlines() if "RUNNING" in line]
        rows = {line[0]: line for line in lines}
        assert {"90%", "50%"} <= set(rows["11"])
        assert rows["13"].count("?") == 3  # CPU, MEM and USE
        assert len(cluster.commands("sstat")) == 1
        for looks in (2, 3):
            await pilot.press("r")
            await until(pilot, lambda looks=looks: len(_looks(cluster)) == looks)
            await pilot.pause()
        assert len(cluster.commands("sstat")) == 1


def _looks(cluster: Scene) -> list[list[str]]:
    return [argv for argv in cluster.commands("sacct") if "-X" in argv]


async def test_without_efficiency_the_jobs_are_there() -> None:
    app = Scene([job("11", UserName="alice")]).app(view="mine")
    app.session.feed._cluster.slurm._answers["sacct"] = _down
    async with app.run_test(size=(200, 30), notifications=True) as pilot:
        await expect_text(pilot, "CPU, MEM unknown: slurmdbd is away")
        assert "RUNNING" in text(app)


def _down(argv, stdin):
    raise DatabaseDown("slurmdbd is away")


async def test_a_view_shown_again_asks_for_no_efficiency() -> None:
    cluster = Measured([job("11", UserName="alice"), job("13", UserName="alice")])
    app = cluster.app(view="mine")
    async with app.run_test(size=(160, 30), notifications=True) as pilot:
        await expect_text(pilot, "CPU, MEM from sacct and sstat at")
        await pilot.press("p")
        for _ in range(4):
            await pilot.press("4", "1")
            await pilot.pause()
        assert len(cluster.commands("sstat")) == 1
        app.action_pause()
        for looks in (2, 3, 4):
            await pilot.press("r")
            await until(pilot, lambda looks=looks: len(_looks(cluster)) >= looks)
            await pilot.pause()
        await until(pilot, lambda: len(cluster.commands("sstat")) == 2)


async def test_gpus_are_sorted_and_compared_as_numbers() -> None:
    kinds = {"1": "gres/gpu=10,gres/gpu:a100=10", "2": "gres/shard=3", "3": "gres/gpu=2", "4": ""}
    jobs = [job(at, UserName="alice", tres_alloc=tres) for at, tres in kinds.items()]
    app = Scene(jobs).app(view="mine")
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.view.table.count == 4)
        app.view.set_row_query(app.view.row_query.sorted_by("gpus"))
        await until(pilot, lambda: [r.key for r in app.view.table.rows_shown] == list("2314"))
        await pilot.press("slash", *"gpus>=2", "enter")
        await until(pilot, lambda: [r.key for r in app.view.table.rows_shown] == list("31"))
