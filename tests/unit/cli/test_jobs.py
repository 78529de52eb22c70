"""The commands about jobs: what they print where, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from jobs_lab import QUICK, FakeJobs

import slurmkit.cluster.cluster
import slurmkit.jobs.poller
from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.errors import Refused
from slurmkit.jobs.outcome import Outcome


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    made = FakeJobs()
    monkeypatch.setattr(slurmkit.cluster.cluster, "_LOCAL", made.slurm)
    monkeypatch.setattr(slurmkit.jobs.poller, "PollPace", lambda **given: QUICK)
    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run_it(*args: str) -> tuple[int, str, str]:
        code = run_to_exit_code(cli, list(args))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run_it


Run = Callable[..., tuple[int, str, str]]


def failing(jobs: FakeJobs, job_id: str, code: str = "3:0") -> None:
    jobs.ends(job_id, "FAILED", ExitCode=code)
    jobs.steps.append({"JobID": job_id, "State": "FAILED", "ExitCode": code})


def test_job_shows_how_it_ended(jobs: FakeJobs, run: Run) -> None:
    failing(jobs, "7")
    code, out, err = run("job", "7")
    assert (code, err) == (0, "")
    assert "Outcome    failed with exit code 3, after 0:05 on c1\n" in out
    (shown,) = json.loads(run("job", "7", "--json")[1])["rows"]
    assert (shown["state"], shown["outcome"]["exit_code"]) == ("FAILED", 3)


def test_job_of_several(jobs: FakeJobs, run: Run) -> None:
    jobs.runs_now("7")
    jobs.runs_now("8", Name="evil\n\x1b[2J")
    code, out, err = run("job", "7", "999", "8")
    assert (code, out.count("Job  ")) == (1, 2)
    assert "\x1b" not in out
    assert err == "slurmkit: no job 999 in the queue or in the accounting database\n"
    code, out, err = run("job", "7", "999", "8", "--json")
    assert [(job["job_id"], job["outcome"]) for job in json.loads(out)["rows"]] == [
        ("7", None),
        ("8", None),
    ]
    assert code == 1


def test_job_of_an_array(jobs: FakeJobs, run: Run) -> None:
    jobs.runs_now("7_1")
    jobs.waits("7_[2-5%1]", JobID="7")
    out = run("job", "7")[1]
    assert "Parts      1 RUNNING, 4 PENDING\n" in out
    assert "Output     one file for each part, e.g. for 7_1\n" in out


@pytest.mark.parametrize(
    ("code", "status"), [("3:0", 3), ("0:9", 137), ("0:53", 1), ("255:0", 255)]
)
def test_wait_ends_with_the_jobs_exit_code(
    jobs: FakeJobs, run: Run, code: str, status: int
) -> None:
    failing(jobs, "7", code)
    ended, out, err = run("wait", "7")
    assert (ended, out) == (status, "")
    assert err.startswith("job 7: failed")


def test_wait_for_several_ends_with_the_worst(jobs: FakeJobs, run: Run) -> None:
    failing(jobs, "7", "4:0")
    jobs.ends("8")
    jobs.ends("9", "CANCELLED by 0")
    code, out, err = run("wait", "8", "7", "9")
    assert (code, out) == (4, "")
    assert err.splitlines() == [
        "job 8: completed, after 0:05 on c1",
        "job 7: failed with exit code 4, after 0:05 on c1",
        "job 9: cancelled by root, after 0:05 on c1",
    ]


def test_wait_for_many_that_failed_asks_little(jobs: FakeJobs, run: Run) -> None:
    for number in range(100, 200):
        failing(jobs, str(number), "4:0")
    code, _, err = run("wait", *map(str, range(100, 200)))
    assert code == 4
    assert {line.partition(": ")[2] for line in err.splitlines()} == {
        "failed with exit code 4, after 0:05 on c1"
    }
    assert len(jobs.slurm.asked) < 60


def test_wait_for_many_forgotten_failures_has_their_whole_codes(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    jobs = FakeJobs("24.11.5")  # whose sacct takes 128 off
    monkeypatch.setattr(slurmkit.cluster.cluster, "_LOCAL", jobs.slurm)
    monkeypatch.setattr(slurmkit.jobs.poller, "PollPace", lambda **given: QUICK)
    numbers = range(100, 160)
    jobs.runs = [{"JobID": str(n), "State": "FAILED", "ExitCode": "1:0"} for n in numbers]
    code = {"status": ["ERROR"], "return_code": {"number": 129}}
    jobs.json = json.dumps({"jobs": [{"job_id": n, "exit_code": code} for n in numbers]})
    ended, _, err = run("wait", *map(str, numbers))
    assert ended == 129
    words = {line.partition(": ")[2] for line in err.splitlines()}
    assert words == {"failed with exit code 129 (128 + 1, SIGHUP), after 0:05 on c1"}


def test_wait_does_the_rest_and_names_what_failed(jobs: FakeJobs, run: Run) -> None:
    jobs.ends("8")
    code, _, err = run("wait", "7", "8", "9")
    assert code == 1
    assert err.splitlines() == [
        "job 8: completed, after 0:05 on c1",
        "slurmkit: no job 7 in the queue or in the accounting database",
        "slurmkit: no job 9 in the queue or in the accounting database",
    ]


def test_wait_no_longer_than_asked(jobs: FakeJobs, run: Run) -> None:
    jobs.runs_now("7")
    code, _, err = run("wait", "7", "--timeout", "0.1")
    assert (code, err) == (1, "slurmkit: not over after 0.1 s: job 7\n")


def test_wait_tells_a_job_slurm_forgot(
    jobs: FakeJobs, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurmkit.jobs.poller.GRACE_SECONDS", 0.05)
    jobs.runs_now("7")
    jobs.look = lambda: jobs.queue.clear() if len(jobs.slurm.asked) > 2 else None  # type: ignore[method-assign]
    code, _, err = run("wait", "7")
    assert code == 1
    assert "job 7: unknown: neither slurmctld nor slurmdbd knows how it ended" in err


@pytest.mark.parametrize("command", [["wait"], ["log", "-f"]])
def test_ctrl_c_leaves_the_job_alone(
    jobs: FakeJobs, run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str], tmp_path: Path
) -> None:
    jobs.runs_now("7", STDOUT=str(tmp_path / "log"))

    def interrupted(*args: object, **given: object) -> Iterator[None]:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurmkit.jobs.poller.Watch, "changes", interrupted)
    code, out, err = run(*command, "7")
    assert (code, out) == (130, "")
    assert "but not cancelled: job 7; to cancel: slurmkit cancel 7" in err
    assert "slurmkit cancel 7" in err
    assert err.count("\n") == 1


def test_log_prints_bytes_and_the_end(jobs: FakeJobs, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("1\n2\n3\n")
    jobs.ends("7", STDOUT=str(path))
    assert run("log", "-n", "2", "7") == (0, "2\n3\n", "")
    code, out, err = run("log", "-f", "7")
    assert (code, out, err) == (0, "1\n2\n3\n", "job 7 ended: COMPLETED, exit code 0\n")


def test_cancel_names_each(jobs: FakeJobs, run: Run) -> None:
    def scancel(argv: Sequence[str], stdin: str | None) -> str:
        raise Refused("scancel: error: Kill job error on job id 8: Access/permission denied")

    jobs.slurm._answers["scancel"] = scancel
    code, out, err = run("cancel", "7", "8", "9")
    assert (code, out) == (1, "cancelled job 7\ncancelled job 9\n")
    assert err == (
        "slurmkit: job 8: Access/permission denied; the job is not yours, or only operators may do"
        " that\n"
    )


@pytest.mark.parametrize(
    "args",
    [
        ["cancel"],
        ["cancel", "7", "--me"],
        ["cancel", "7", "--state", "PENDING"],
        ["cancel", "--name", "x"],
        ["cancel", "7", "--signal", "NOPE"],
        ["cancel", "7", "8;9"],
        ["update", "7"],
        ["update", "7", "--time", "soon"],
        ["update", "7", "--partition", "a b"],
        ["log", "7", "--rank", "3", "--error"],
        ["log", "7", "--error", "--file", "x"],
        ["wait", "x"],
        ["hold"],
    ],
)
def test_bad_input_reaches_no_job(jobs: FakeJobs, run: Run, args: list[str]) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert jobs.slurm.asked == []


def mine(jobs: FakeJobs) -> None:
    jobs.slurm._answers["scancel"] = lambda argv, stdin: ""
    jobs.runs_now("7_1")
    jobs.waits("7_[2-5%1]", JobID="7")
    jobs.waits("9+0", JobID="9")
    jobs.waits("9+1", JobID="10")


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ([], ["7", "9"]),
        (["--state", "PENDING,RUNNING"], ["7_1", "7_[2-5]", "9"]),
        (["--signal", "USR1"], ["7"]),
    ],
)
def test_cancel_by_filter(jobs: FakeJobs, run: Run, filters: list[str], ids: list[str]) -> None:
    """An array as a whole only where all of it is meant; what waits takes no signal."""
    mine(jobs)
    code, out, _ = run("cancel", "--me", "--yes", *filters)
    assert code == 0
    assert out.splitlines() == [
        f"{'sent USR1 to' if '--signal' in filters else 'cancelled'} job {job_id}" for job_id in ids
    ]
    assert jobs.asked("scancel")[-1][-len(ids) :] == ids
    assert "--me" in jobs.asked("squeue")[0]


def test_cancel_by_filter_asks(jobs: FakeJobs, run: Run) -> None:
    mine(jobs)
    code, out, err = run("cancel", "--me", "--name", "train")
    assert (code, "7_[2-5%1]" in out) == (2, True)
    assert "no terminal to ask for confirmation on; to cancel jobs without asking: add --yes" in err
    assert jobs.asked("scancel") == []


def test_controlled_one_by_one(jobs: FakeJobs, run: Run) -> None:
    def scontrol(argv: Sequence[str], stdin: str | None) -> str:
        if "8" in argv:
            raise Refused("Access/permission denied for job 8")
        return ""

    jobs.slurm._answers["scontrol"] = scontrol
    for command, done in (("hold", "held"), ("release", "released"), ("requeue", "requeued")):
        code, out, err = run(command, "7", "8", "9")
        assert (code, out) == (1, f"{done} job 7\n{done} job 9\n")
        assert err.startswith("slurmkit: Access/permission denied for job 8; the job is not yours")


def test_update(jobs: FakeJobs, run: Run) -> None:
    args = ["--time", "1:00:00", "--priority", "5", "-p", "gpu", "-q", "high", "-J", "a b"]
    assert run("update", "7", *args, "--nice=-2") == (0, "updated job 7\n", "")
    assert jobs.asked("scontrol") == [
        [
            *("scontrol", "update", "JobId=7", "TimeLimit=1:00:00", "Priority=5"),
            *("Partition=gpu", "QOS=high", "JobName=a b", "Nice=-2"),
        ]
    ]


def test_the_status_of_an_outcome() -> None:
    def status(kind: str, **given: int) -> int:
        return Outcome(job_id="7", kind=kind, source="sacct", **given).exit_status  # type: ignore[arg-type]

    assert status("completed", exit_code=0) == 0
    assert status("failed", exit_code=7) == 7
    assert status("failed", exit_code=139, signal=11) == 139
    assert status("failed") == 1
    assert status("timeout") == status("cancelled") == status("unknown") == 1


def test_the_ledger_of_this_machine_is_not_asked_about_jobs_over_ssh(run: Run) -> None:
    code, out, err = run("--cluster", "lab", "job", "86", "--gpus")
    assert (code, out) == (2, "")
    assert "slurmkit job --gpus does not work over SSH; run it on the login node of lab" in err
