"""Controlling jobs: what is sent, and what is said of refusals."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from jobs_lab import FakeJobs

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import (
    BadInput,
    DatabaseDown,
    JobOver,
    NoSuchJob,
    Refused,
)
from slurmkit.testing import FakeSlurm

DOWN = DatabaseDown("slurmdbd does not answer")


def test_jobs_are_cancelled_together_and_failures_named(jobs: FakeJobs) -> None:
    said = (
        "scancel: Terminating job 7\n"
        "scancel: error: Kill job error on job id 8: Access/permission denied\n"
        "scancel: error: Kill job error on job id 9: Job/step already completing or completed\n"
        "scancel: error: Kill job error on job id 10: Invalid job id specified\n"
    )

    def scancel(argv: Sequence[str], stdin: str | None) -> str:
        raise Refused("; ".join(said.splitlines()))

    jobs.ends("9", "FAILED")
    slurm = FakeSlurm({**jobs.slurm._answers, "scancel": scancel})
    failed = Cluster(slurm).cancel(["7", "8", "9", "10"])
    assert slurm.asked[0] == ["scancel", "--verbose", "7", "8", "9", "10"]
    assert {job_id: type(error) for job_id, error in failed.items()} == {
        "8": Refused,
        "9": JobOver,
        "10": NoSuchJob,
    }
    assert [str(error) for error in failed.values()] == [
        "job 8: Access/permission denied; the job is not yours, or only operators may do that",
        "job 9 has already ended (FAILED)",
        "no job 10 in the queue or in the accounting database",
    ]


def test_jobs_that_could_not_be_cancelled_are_looked_up_together(jobs: FakeJobs) -> None:
    ids = [str(number) for number in range(100, 200)]
    for job_id in ids[:60]:
        jobs.ends(job_id, "FAILED")
    jobs.runs += [{"JobID": job_id, "State": "TIMEOUT"} for job_id in ids[60:99]]
    words = "scancel: error: Kill job error on job id {}: Invalid job id specified\n"
    said = "".join(map(words.format, ids))
    slurm = FakeSlurm({**jobs.slurm._answers, "scancel": lambda a, s: said})
    failed = Cluster(slurm).cancel(ids)
    assert [argv[0] for argv in slurm.asked] == ["scancel", "squeue", "sacct"]
    assert str(failed["100"]) == "job 100 has already ended (FAILED)"
    assert str(failed["160"]) == "job 160 has already ended (TIMEOUT)"
    assert type(failed["199"]) is NoSuchJob


def test_an_outage_is_no_refusal_of_single_jobs() -> None:
    def scancel(argv: Sequence[str], stdin: str | None) -> str:
        raise DOWN

    with pytest.raises(DatabaseDown):
        Cluster(FakeSlurm({"scancel": scancel})).cancel(["7"])


def test_a_waiting_job_takes_no_signal(jobs: FakeJobs) -> None:
    """Scancel would ask slurmctld again for ten seconds."""
    jobs.waits("7")
    jobs.runs_now("8")
    slurm = FakeSlurm({**jobs.slurm._answers, "scancel": lambda argv, stdin: ""})
    failed = Cluster(slurm).cancel(["7", "8"], signal="b:sigusr1")
    assert list(failed) == ["7"]
    assert "only a running job can" in str(failed["7"])
    assert slurm.asked[-1] == ["scancel", "--verbose", "--signal=USR1", "--batch", "8"]


@pytest.mark.parametrize("signal", ["NOPE", "X:USR1", "0", "99", ""])
def test_what_is_no_signal(jobs: FakeJobs, signal: str) -> None:
    with pytest.raises(BadInput, match="no signal"):
        jobs.cluster().job("7").cancel(signal=signal or "-")


class Scontrol:
    def __init__(self, words: str = "") -> None:
        self.words = words

    def __call__(self, argv: Sequence[str], stdin: str | None) -> str:
        if self.words:
            raise Refused(self.words)
        return ""


def test_control_commands(jobs: FakeJobs) -> None:
    slurm = FakeSlurm({"scontrol": Scontrol()})
    job = Cluster(slurm).job("7_3")
    job.hold()
    job.release()
    job.requeue()
    job.update(time_limit="1:00:00", priority=5, partition="gpu", qos="high", nice=-3)
    job.update(job_name='a b=c "x"')
    assert slurm.asked == [
        ["scontrol", "hold", "7_3"],
        ["scontrol", "release", "7_3"],
        ["scontrol", "requeue", "7_3"],
        "scontrol update JobId=7_3 TimeLimit=1:00:00 Priority=5 Partition=gpu QOS=high"
        " Nice=-3".split(),
        ["scontrol", "update", "JobId=7_3", 'JobName=a b=c "x"'],
    ]


def test_a_refusal_of_a_longer_time_limit_says_what_slurm_allows(jobs: FakeJobs) -> None:
    jobs.runs_now("7", TimeLimit="10:00")
    denied = Scontrol("Access/permission denied for job 7")
    job = Cluster(FakeSlurm({**jobs.slurm._answers, "scontrol": denied})).job("7")
    with pytest.raises(
        Refused, match="time limit is 10:00; users may lower the limit of a running"
    ):
        job.update(time_limit="20:00")
    with pytest.raises(Refused, match=r"denied for job 7; the job is not yours, or only operators"):
        job.update(priority=9)


def test_refusals_say_what_is_allowed(jobs: FakeJobs) -> None:
    jobs.runs_now("7")
    words = "Invalid user id for job 7; slurm_suspend error: Invalid user id"
    job = Cluster(FakeSlurm({**jobs.slurm._answers, "scontrol": Scontrol(words)})).job("7")
    for act in (job.hold, job.release, job.requeue):
        with pytest.raises(
            Refused, match=r"^Invalid user id for job 7; the job is not yours, or only"
        ):
            act()
    words = "Job is no longer pending execution for job 7"
    job = Cluster(FakeSlurm({**jobs.slurm._answers, "scontrol": Scontrol(words)})).job("7")
    with pytest.raises(
        Refused,
        match="job 7 is no longer pending, so Slurm does not allow this change of --partition",
    ):
        job.update(partition="gpu")


def test_what_has_ended_cannot_be_controlled(jobs: FakeJobs) -> None:
    jobs.ends("7", "TIMEOUT")
    over = Scontrol("Job has already finished for job 7; slurm_suspend error: Job has already ...")
    job = Cluster(FakeSlurm({**jobs.slurm._answers, "scontrol": over})).job("7")
    for act in (job.hold, job.release, lambda: job.update(nice=1)):
        with pytest.raises(JobOver, match=r"job 7 has already ended \(TIMEOUT\)"):
            act()


@pytest.mark.parametrize("said", ["7_0: {}; 7_1-5: No error", "7_0: {}", "7_[0]: {}"])
def test_an_array_that_has_ended_in_part_is_controlled(jobs: FakeJobs, said: str) -> None:
    """Slurm ends badly, though it did what was asked for all tasks that have not ended."""
    jobs.ends("7_0")
    jobs.waits("7_[1-5]", JobID="7")
    over = Scontrol(said.format("Job has already finished"))
    job = Cluster(FakeSlurm({**jobs.slurm._answers, "scontrol": over})).job("7")
    job.hold()
    jobs.queue = {"7_0": jobs.queue["7_0"]}
    if "No error" not in said:
        with pytest.raises(JobOver, match=r"job 7 has already ended \(COMPLETED\)"):
            job.hold()


def test_what_slurm_refuses_for_some_tasks_is_named(jobs: FakeJobs) -> None:
    jobs.waits("7_[3-5]", JobID="7")
    waits = "Job is pending execution"
    says = {
        "7_0: Job has already finished; 7_1-2: Job is no longer pending execution": "job 7_1-2: Job"
        " is no longer pending execution; its other tasks are done",
        f"7_3-5: {waits}": f"job 7_3-5: {waits}",
    }
    for said, told in says.items():
        slurm = FakeSlurm({**jobs.slurm._answers, "scontrol": Scontrol(said)})
        with pytest.raises(Refused, match=told):
            Cluster(slurm).job("7").requeue()
    slurm = FakeSlurm({"scontrol": Scontrol(f"7_0-2: No error; 7_3-5: {waits}")})
    Cluster(slurm).job("7").requeue()


def test_a_job_with_a_special_exit_waits(jobs: FakeJobs) -> None:
    """Squeue then has a word of its own for PENDING."""
    jobs.waits("7", PriorityLong="0", StartTime="1700000900", Reason="job requeued in held state")
    jobs.queue["7"] = {**jobs.queue["7"], "State": "SPECIAL_EXIT"}
    info = jobs.cluster().job("7").info()
    assert (info.state, info.started, info.is_over) == ("PENDING", None, False)
    with pytest.raises(Refused, match="only a running job can take a signal"):
        jobs.cluster().job("7").cancel(signal="USR1")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "nothing to change; give one of --time, "),
        ({"time_limit": "soon"}, "not one of Slurm's forms"),
        ({"time_limit": "0"}, "would mean no limit"),
        ({"priority": -1}, "is a number from 0"),
        ({"partition": "a b"}, "is not a Slurm name"),
        ({"qos": "x\nSLURM"}, "without a line break"),
        ({"job_name": "x\0y"}, "NUL"),
        ({"memory": "9G"}, "what can be changed: time_limit"),
    ],
)
def test_changes_that_cannot_be_meant(jobs: FakeJobs, changes: dict[str, str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        jobs.cluster().job("7").update(**changes)
    assert jobs.asked("scontrol") == []
