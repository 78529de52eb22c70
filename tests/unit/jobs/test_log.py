"""A job's log, read once or followed to the end of the job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs_lab import FakeJobs
from waiting import wait_until

import slurmkit.jobs.log
from slurmkit.errors import BadInput, ControllerDown, LogUnavailable, Refused
from slurmkit.jobs.log import LogFile


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    monkeypatch.setattr(slurmkit.jobs.log, "_FILE_SECONDS", 0.002)
    return FakeJobs()


def course(jobs: FakeJobs, *steps: Callable[[], None]) -> None:
    """One step before each look at squeue; the last one stays."""
    left: Iterator[Callable[[], None]] = iter(steps)

    def look() -> None:
        step = next(left, None)
        if step is not None:
            step()

    jobs.look = look  # type: ignore[method-assign]


def until(condition: Callable[[], bool]) -> Callable[[], None]:
    """A step that lets the other thread get there."""

    return lambda: wait_until(condition)


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


class Reader:
    """Follows a log to its end, and keeps what it read and was told."""

    def __init__(self, jobs: FakeJobs) -> None:
        self._jobs = jobs
        self.read = b""
        self.said: list[str] = []

    def follow(self) -> bytes:
        for chunk in self._jobs.cluster().job("7").log(follow=True, notice=self.said.append):
            self.read += chunk
        return self.read


def test_a_log_is_followed_to_its_end(jobs: FakeJobs, tmp_path: Path) -> None:
    """Lines written between the last read and the end of the job are not lost."""
    path = tmp_path / "out"

    def starts() -> None:
        jobs.runs_now("7", STDOUT=str(path))
        append(path, "started\n")

    def ends() -> None:
        jobs.ends("7", STDOUT=str(path))
        append(path, "ended\n")

    reader = Reader(jobs)
    course(jobs, lambda: jobs.waits("7", STDOUT=str(path)), starts, ends)
    assert reader.follow() == b"started\nended\n"
    assert reader.said == ["job 7 has not started; waiting"]


def test_a_log_that_appears_late_is_waited_for_and_told(
    jobs: FakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    monkeypatch.setattr(slurmkit.jobs.log, "_LATE_SECONDS", 0)
    jobs.runs_now("7", STDOUT=str(path))

    def ends() -> None:
        path.write_text("late\n")
        jobs.ends("7", STDOUT=str(path))

    reader = Reader(jobs)
    course(jobs, lambda: None, until(lambda: bool(reader.said)), ends)
    assert reader.follow() == b"late\n"
    assert reader.said == [f"{path} does not exist here yet; it may be on a disk of the node"]


def test_a_log_on_a_node_only_does_not_block(jobs: FakeJobs, tmp_path: Path) -> None:
    jobs.ends("7", STDOUT=str(tmp_path / "none"))
    with pytest.raises(LogUnavailable, match="does not exist here"):
        Reader(jobs).follow()


def test_a_requeued_jobs_new_output_is_followed_too(jobs: FakeJobs, tmp_path: Path) -> None:
    """Slurm empties the file when the job starts again."""
    path = tmp_path / "out"
    path.write_text("a first run of some length\n")

    def second() -> None:
        jobs.runs_now("7", STDOUT=str(path), SubmitTime="1700000100")
        path.write_text("second run, which is longer than the first one was\n")

    reader = Reader(jobs)
    course(
        jobs,
        lambda: jobs.runs_now("7", STDOUT=str(path)),
        until(lambda: b"first" in reader.read),
        lambda: jobs.waits("7", STDOUT=str(path), SubmitTime="1700000100", Reason="BeginTime"),
        until(lambda: len(reader.said) == 1),
        second,
        until(lambda: b"second" in reader.read),
        lambda: jobs.ends("7", STDOUT=str(path), Submit="1700000100"),
    )
    assert reader.follow() == (
        b"a first run of some length\nsecond run, which is longer than the first one was\n"
    )
    assert reader.said == [
        "job 7 has not started (BeginTime); waiting",
        "job 7 was requeued and writes its file from the start",
    ]


def test_output_that_is_appended_is_followed_from_run_to_run(
    jobs: FakeJobs, tmp_path: Path
) -> None:
    """As of a job that survives: each line once, and nothing is written anew."""
    path = tmp_path / "out"
    reader = Reader(jobs)

    def goes_back(at: str) -> None:
        append(path, "back to the queue\n")
        jobs.waits("7", STDOUT=str(path), SubmitTime=at, Reason="BeginTime")

    def begins(run: int, at: str) -> None:
        jobs.runs_now("7", STDOUT=str(path), SubmitTime=at, NodeList=f"c{run}")
        append(path, f"run {run} begins\n")

    course(
        jobs,
        lambda: begins(0, "1700000000"),
        until(lambda: b"run 0" in reader.read),
        lambda: goes_back("1700000100"),
        until(lambda: len(reader.said) == 1),
        lambda: begins(1, "1700000100"),
        lambda: goes_back("1700000200"),  # a run that was not seen to run
        until(lambda: len(reader.said) == 2),
        lambda: begins(2, "1700000200"),
        until(lambda: b"run 2" in reader.read),
        lambda: jobs.ends("7", STDOUT=str(path), Submit="1700000200", NodeList="c2"),
    )
    assert reader.follow() == path.read_bytes()
    assert reader.read.count(b"begins") == 3
    assert reader.said == ["job 7 has not started (BeginTime); waiting"] * 2


def test_a_requeued_job_on_another_node_writes_to_another_file(
    jobs: FakeJobs, tmp_path: Path
) -> None:
    (tmp_path / "c1").write_text("one\n")
    (tmp_path / "c2").write_text("two\n")
    pattern = str(tmp_path / "%N")
    reader = Reader(jobs)
    course(
        jobs,
        lambda: jobs.waits("7", STDOUT=pattern),
        lambda: jobs.runs_now("7", STDOUT=pattern),
        until(lambda: b"one" in reader.read),
        lambda: jobs.runs_now("7", STDOUT=pattern, NodeList="c2", SubmitTime="1700000100"),
        until(lambda: b"two" in reader.read),
        lambda: jobs.ends("7", STDOUT=pattern, NodeList="c2", Submit="1700000100"),
    )
    assert reader.follow() == b"one\ntwo\n"


def test_an_outage_is_told_and_outlasted(jobs: FakeJobs, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("all\n")
    jobs.runs_now("7", STDOUT=str(path))

    def fails(error: ControllerDown | None) -> Callable[[], None]:
        return lambda: setattr(jobs, "squeue_fails", error)

    reader = Reader(jobs)
    course(
        jobs,
        lambda: None,
        fails(ControllerDown("slurmctld does not answer")),
        until(lambda: bool(reader.said)),
        fails(None),
        lambda: jobs.ends("7", STDOUT=str(path)),
    )
    assert reader.follow() == b"all\n"
    assert reader.said == ["slurmctld does not answer; asking again"]


def test_logs_that_cannot_be_read(jobs: FakeJobs, tmp_path: Path) -> None:
    job = jobs.cluster().job("7")
    jobs.waits("7", STDOUT=str(tmp_path / "none"), Reason="Priority")
    with pytest.raises(
        LogUnavailable, match=r"has not started \(Priority\); wait for its output with -f"
    ):
        list(job.log())
    jobs.runs_now("7", STDOUT=str(tmp_path / "none"))
    with pytest.raises(LogUnavailable, match="does not exist here"):
        list(job.log())
    jobs.runs_now("7", STDOUT=str(tmp_path))
    with pytest.raises(LogUnavailable, match="Is a directory"):
        list(job.log())
    jobs.runs_now("7", STDOUT="/dev/null")
    with pytest.raises(LogUnavailable, match="no output was saved"):
        list(job.log())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"Start": "None"}, "before it started"),
        ({"ExitCode": "0:53"}, "could not open .*/none or its directory"),
    ],
)
def test_a_job_that_wrote_nothing(
    jobs: FakeJobs, tmp_path: Path, fields: dict[str, str], why: str
) -> None:
    jobs.ends("7", "FAILED", STDOUT=str(tmp_path / "none"), **fields)
    for following in (False, True):
        with pytest.raises(LogUnavailable, match=why):
            list(jobs.cluster().job("7").log(follow=following))


def test_a_log_slurm_forgot(jobs: FakeJobs) -> None:
    """Slurm 22.05 keeps no path in its database."""
    kept = jobs.slurm._answers["sacct"]

    def sacct(argv: object, stdin: str | None) -> str:
        assert isinstance(argv, list)
        if any("StdOut" in word for word in argv):
            raise Refused('sacct: error: Invalid field requested: "StdOut"')
        return kept(argv, stdin)

    jobs.slurm._answers["sacct"] = sacct
    jobs.runs = [{"JobID": "7"}]
    with pytest.raises(LogUnavailable, match="no longer knows where job 7 wrote its output"):
        list(jobs.cluster().job("7").log())


def test_the_path_of_an_ended_job_is_in_the_database(jobs: FakeJobs, tmp_path: Path) -> None:
    """26.05 prints the default relative to the working directory."""
    (tmp_path / "slurm-7.out").write_text("kept\n")
    jobs.runs = [{"JobID": "7", "StdOut": "slurm-%j.out", "WorkDir": str(tmp_path)}]
    assert b"".join(jobs.cluster().job("7").log()) == b"kept\n"


def test_restarts_in_a_path_are_a_pattern_of_new_releases_only(tmp_path: Path) -> None:
    for release, known in (("25.05.8", True), ("25.11.0", False), ("26.05.3", False)):
        jobs = FakeJobs(release)
        jobs.runs = [{"JobID": "7", "StdOut": "out-%r", "WorkDir": str(tmp_path)}]
        job = jobs.cluster().job("7")
        if known:
            assert job.log_path() == str(tmp_path / "out-%r")
            continue
        with pytest.raises(LogUnavailable, match="no longer knows"):
            job.log_path()
        with pytest.raises(LogUnavailable, match=r"depends on the run \(%r, %S\)"):
            job.log_path(LogFile(pattern="s-%r"))


def test_an_array_has_a_log_for_each_task(jobs: FakeJobs, tmp_path: Path) -> None:
    (tmp_path / "log-7_2").write_text("two\n")
    for task in (1, 2):
        jobs.runs_now(f"7_{task}", STDOUT=str(tmp_path / "log-%A_%a"), JobID=str(6 + task))
    with pytest.raises(
        BadInput, match=r"several parts \(2 RUNNING\); name one of them, e\.g\. 7_1"
    ):
        list(jobs.cluster().job("7").log(follow=True))
    with pytest.raises(
        LogUnavailable, match=r"each part of 7 has its own file; name a part, e\.g\. 7_1"
    ):
        jobs.cluster().job("7").log_path()
    assert b"".join(jobs.cluster().job("7_2").log()) == b"two\n"


@pytest.mark.parametrize("job_id", ["7", "7+0", "7+1", "8"])
def test_a_het_jobs_log_is_that_of_its_first_component(
    jobs: FakeJobs, tmp_path: Path, job_id: str
) -> None:
    """Its script runs there; squeue names a file for each component that nobody writes."""
    (tmp_path / "7").write_text("all of it\n")
    jobs.runs_now("7+0", JobID="7", STDOUT=str(tmp_path / "%j"))
    jobs.runs_now("7+1", JobID="8", STDOUT=str(tmp_path / "%j"))
    job = jobs.cluster().job(job_id)
    assert b"".join(job.log()) == b"all of it\n"
    assert job.log_path() == str(tmp_path / "7")
    assert jobs.cluster().job("7+1").info().output is None


def test_slurm_is_asked_once_where_the_errors_of_a_run_go(jobs: FakeJobs, tmp_path: Path) -> None:
    (tmp_path / "err").write_text("oops\n")
    paths = {"STDOUT": str(tmp_path / "out"), "STDERR": str(tmp_path / "err")}
    jobs.runs_now("7", **paths)
    course(jobs, *[lambda: None] * 9, lambda: jobs.ends("7"))
    read = jobs.cluster().job("7").log(follow=True, file=LogFile(stderr=True))
    assert b"".join(read) == b"oops\n"
    asked = [argv for argv in jobs.asked("squeue") if "STDERR" in argv[-1]]
    assert (len(asked), len(jobs.asked("squeue")) > 9) == (1, True)


def test_the_default_path_of_an_arrays_tasks_on_22_05(jobs: FakeJobs) -> None:
    """It prints `slurm-95.out` for what is written to `slurm-93_1.out`."""
    jobs.runs_now("93_1", JobID="95", STDOUT="/home/alice/slurm-95.out")
    assert jobs.cluster().job("93_1").info().output == "/home/alice/slurm-93_1.out"


@pytest.mark.parametrize(
    ("error", "where"), [("/e-%j", "/e-7"), ("(null)", "/o-7"), ("/o-%j", "/o-7")]
)
def test_standard_error(jobs: FakeJobs, error: str, where: str) -> None:
    jobs.runs_now("7", STDOUT="/o-%j", STDERR=error)
    assert jobs.cluster().job("7").log_path(LogFile(stderr=True)) == where


def test_standard_error_of_a_job_long_ended(jobs: FakeJobs) -> None:
    job = jobs.cluster().job("7")
    jobs.runs = [{"JobID": "7", "StdErr": "e-%x", "StdOut": "/o", "WorkDir": "/w"}]
    assert job.log_path(LogFile(stderr=True)) == "/w/e-train"
    jobs.runs = [{"JobID": "7", "StdErr": "", "StdOut": "/o"}]
    assert job.log_path(LogFile(stderr=True)) == "/o"


def test_the_file_of_a_rank(jobs: FakeJobs) -> None:
    jobs.runs_now("7", WorkDir="/w", NodeList="c[1-2]")
    job = jobs.cluster().job("7")
    assert job.log_path(LogFile(pattern="out-%j.%s-%3t", rank=5)) == "/w/out-7.0-005"
    with pytest.raises(LogUnavailable, match="write the node's name in its place"):
        job.log_path(LogFile(pattern="out-%N-%t", rank=5))
    jobs.leaves("7")
    jobs.runs = [{"JobID": "7", "WorkDir": "/kept"}]
    assert job.log_path(LogFile(pattern="out-%t", rank=5)) == "/kept/out-5"
    jobs.slurm.asked.clear()
    assert job.log_path(LogFile(pattern="/abs/out-%t", rank=5)) == "/abs/out-5"
    assert not any("WorkDir" in word for argv in jobs.slurm.asked for word in argv[2:3] + argv[-1:])
    with pytest.raises(BadInput, match="either --error or --file"):
        LogFile(stderr=True, pattern="x")


def test_the_last_lines(jobs: FakeJobs, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("1\n2\n3\n")
    jobs.runs_now("7", STDOUT=str(path))
    assert b"".join(jobs.cluster().job("7").log(lines=2)) == b"2\n3\n"


def test_a_job_that_waits_again_has_an_earlier_log(jobs: FakeJobs, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("first run\n")
    jobs.waits("7", STDOUT=str(path), Reason="BeginTime")
    said: list[str] = []
    assert b"".join(jobs.cluster().job("7").log(notice=said.append)) == b"first run\n"
    assert said == ["job 7 has not started (BeginTime); this is older output"]


def test_a_requeued_job_has_started_before(jobs: FakeJobs, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("first run\n")
    jobs.waits("7", STDOUT=str(path), Reason="BeginTime", RestartCnt="1")
    said: list[str] = []
    job = jobs.cluster().job("7")
    assert b"".join(job.log(notice=said.append)) == b"first run\n"
    waits = "job 7 was requeued and waits for its next run (BeginTime)"
    assert said == [f"{waits}; this is the output of its last run"]
    path.unlink()
    with pytest.raises(LogUnavailable, match=f"{re.escape(waits)}; wait for its output with -f"):
        list(job.log())


def test_a_requeued_job_is_followed_to_its_next_run(jobs: FakeJobs, tmp_path: Path) -> None:
    path = tmp_path / "out"
    jobs.waits("7", STDOUT=str(path), Reason="BeginTime", RestartCnt="2")
    reader = Reader(jobs)
    course(
        jobs,
        lambda: None,
        until(lambda: bool(reader.said)),
        lambda: append(path, "next\n"),
        lambda: jobs.ends("7", STDOUT=str(path)),
    )
    assert reader.follow() == b"next\n"
    assert reader.said == ["job 7 was requeued and waits for its next run (BeginTime); waiting"]


def test_the_whole_log_as_text(jobs: FakeJobs, tmp_path: Path) -> None:
    """`job.log()` was a generator of bytes only."""
    path = tmp_path / "out"
    path.write_bytes("größe\n".encode() + b"\xff\n")
    jobs.runs_now("7", STDOUT=str(path))
    job = jobs.cluster().job("7")
    assert job.log().text() == "größe\n\ufffd\n"
    assert job.log(lines=1).text() == "\ufffd\n"
    assert next(job.log()) == path.read_bytes()
    assert b"".join(job.log()) == path.read_bytes()
