"""Job handles: where their facts come from, and what can be done to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from jobs_lab import FakeJobs
from waiting import PATIENCE

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import (
    BadInput,
    ControllerDown,
    DatabaseDown,
    NoSuchJob,
    NotOver,
    Refused,
    SentUnknown,
    SlurmError,
    SlurmTimeout,
)
from slurmkit.jobs.backends.commands import SubmitOverrides
from slurmkit.jobs.describe import format_state
from slurmkit.jobs.info import parse_gpu_indices
from slurmkit.planning.planner import Plan
from slurmkit.slurm.commands import slurm_error
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.submission import Submission
from slurmkit.testing import FakeSlurm, squeue_text

_FAILED = "sbatch: error: Batch job submission failed"
Answer = Callable[[Sequence[str], str | None], str]
DOWN = DatabaseDown("slurmdbd does not answer")


def plan_of(*submissions: Submission) -> Plan:
    return Plan(submissions=submissions, spec=JobSpec(command=("true",)), capabilities_taken=0)


def submission(name: str, *after: int, **options: str) -> Submission:
    return Submission(f"#!/bin/bash\n{name}\n", tuple(options.items()), after)


class Sbatch:
    """Takes jobs, numbered from 7, until it refuses one."""

    def __init__(self, refuses: str | None = None) -> None:
        self.sent: list[tuple[list[str], str | None]] = []
        self._refuses = refuses

    def __call__(self, argv: Sequence[str], stdin: str | None) -> str:
        if self._refuses and self._refuses in (stdin or ""):
            raise Refused("sbatch: error: Invalid qos specification")
        self.sent.append((list(argv), stdin))
        return f"{6 + len(self.sent)};lab\n"


def test_a_plan_is_sent_byte_for_byte() -> None:
    sbatch = Sbatch()
    job = Cluster(FakeSlurm({"sbatch": sbatch})).submit(plan_of(submission("one")))
    assert (job.id, job.parts) == ("7", (job,))
    assert sbatch.sent == [(["sbatch", "--parsable"], "#!/bin/bash\none\n")]


def test_submissions_wait_for_those_they_come_after() -> None:
    sbatch = Sbatch()
    made = plan_of(
        submission("a"),
        submission("b"),
        submission("c", 0, 1),
        submission("d", 2, dependency="singleton"),
        submission("e", 0, **{"kill-on-invalid-dep": "no"}),
    )
    job = Cluster(FakeSlurm({"sbatch": sbatch})).submit(made)
    assert job.id == "7,8,9,10,11"
    assert [part.id for part in job.parts] == ["7", "8", "9", "10", "11"]
    waits = ["--dependency=afterok:7:8", "--kill-on-invalid-dep=yes"]
    own = ["--dependency=singleton,afterok:9", "--kill-on-invalid-dep=yes"]
    assert [argv[2:] for argv, _ in sbatch.sent] == [[], [], waits, own, ["--dependency=afterok:7"]]
    assert [stdin for _, stdin in sbatch.sent] == [one.script for one in made.submissions]


def test_what_stands_beside_a_plan_joins_each_of_its_submissions() -> None:
    sbatch = Sbatch()
    made = plan_of(submission("a", comment="mine"), submission("b", 0, dependency="singleton"))
    overrides = SubmitOverrides(after=("afterany:3",), hold=True, comment="tag")
    Cluster(FakeSlurm({"sbatch": sbatch})).submit(made, overrides=overrides)
    waits = ["--dependency=afterany:3", "--kill-on-invalid-dep=yes", "--hold"]
    own = ["--dependency=singleton,afterany:3,afterok:7", *waits[1:]]
    assert [argv[2:] for argv, _ in sbatch.sent] == [
        [*waits, "--comment=mine tag"],
        [*own, "--comment=tag"],
    ]


def test_a_plan_is_sent_whole_or_not_at_all() -> None:
    slurm = FakeSlurm({"sbatch": Sbatch(refuses="c"), "scancel": lambda argv, stdin: ""})
    made = plan_of(submission("a"), submission("b", 0), submission("c", 1))
    with pytest.raises(
        Refused, match=r"Invalid qos.*; the jobs sent before \(7, 8\) are cancelled"
    ):
        Cluster(slurm).submit(made)
    assert slurm.asked[-1] == ["scancel", "--verbose", "7", "8"]


def test_an_alternative_dependency_cannot_be_joined() -> None:
    made = plan_of(submission("a"), submission("b", 0, dependency="afterok:1?afterok:2"))
    cluster = Cluster(FakeSlurm({"sbatch": Sbatch(), "scancel": lambda argv, stdin: ""}))
    with pytest.raises(BadInput, match="waits for any of several"):
        cluster.submit(made)


@pytest.mark.parametrize(
    "printed",
    [
        "Welcome to the cluster\n7\n",
        "7\nYour project has 12 hours left\n",
        "note: 3 jobs wait\n7;lab\nbye\n",
        "Submitted batch job 7\n",
        "Submitted batch job 7 on cluster lab\n",
    ],
)
def test_the_job_id_is_found_among_what_a_wrapper_of_sbatch_prints(printed: str) -> None:
    cluster = Cluster(FakeSlurm({"sbatch": lambda a, s: printed}))
    assert cluster.submit(plan_of(submission("a"))).id == "7"


@pytest.mark.parametrize(
    "answer",
    [
        "ok",
        "7\n8\n",
        slurm_error("sbatch", f"{_FAILED}: Socket timed out on send/recv operation", 1),
        slurm_error("sbatch", f"{_FAILED}: Connection reset by peer", 1),
        ControllerDown("slurmctld does not answer (Unable to contact … (receive failure))"),
        SlurmTimeout("sbatch gave no answer in 60 s"),
    ],
)
def test_a_job_whose_answer_is_lost_may_have_been_submitted(
    answer: str | SlurmError, jobs: FakeJobs
) -> None:
    def sbatch(argv: Sequence[str], stdin: str | None) -> str:
        jobs.waits("7", Name="train", Comment="slurmkit-array:0123456789ab:0:4")
        jobs.waits("8", Name="other")
        if isinstance(answer, str):
            return answer
        raise answer

    jobs.slurm._answers["sbatch"] = sbatch
    sent = plan_of(submission("a", **{"job-name": "train"}))
    with pytest.raises(SentUnknown, match=r"may have been .*of that name: 7; look before"):
        jobs.cluster().submit(sent)
    tag = SubmitOverrides(comment="slurmkit-array:0123456789ab:0:4")
    assert jobs.cluster().submit(sent, overrides=tag).id == "7"
    jobs.squeue_fails = ControllerDown("slurmctld does not answer")
    with pytest.raises(SentUnknown, match="may have been submitted"):
        jobs.cluster().submit(sent)


def test_a_job_in_the_queue_needs_no_database(jobs: FakeJobs) -> None:
    jobs.runs_now("7")
    info = jobs.cluster().job("7").info()
    assert (info.state, info.source, info.is_over) == ("RUNNING", "squeue", False)
    assert jobs.asked("sacct") == []


def test_a_handle_shows_its_id(jobs: FakeJobs) -> None:
    assert repr(Cluster(jobs.slurm).job("7_3")) == "Job('7_3')"


def test_an_ended_job_is_looked_up_and_keeps_its_log(jobs: FakeJobs) -> None:
    jobs.ends("7", "FAILED", STDOUT="/log", ExitCode="3:0", JobName="a\nb")
    info = jobs.cluster().job("7").info()
    assert (info.source, info.exit_code, info.output, info.name) == ("sacct", "3:0", "/log", "a\nb")


def test_a_late_database_does_not_hide_the_end(jobs: FakeJobs) -> None:
    jobs.ends("7")
    jobs.runs = [{"JobID": "7", "State": "RUNNING", "End": "Unknown"}]
    info = jobs.cluster().job("7").info()
    assert (info.state, info.source, info.is_over) == ("COMPLETED", "squeue", True)


@pytest.mark.parametrize("why", [DOWN, Refused("Slurm accounting storage is disabled")])
def test_an_absent_database_does_not_hide_the_end(jobs: FakeJobs, why: SlurmError) -> None:
    jobs.ends("7")
    jobs.sacct_fails = why
    info = jobs.cluster().job("7").info()
    assert (info.state, info.source, info.is_over) == ("COMPLETED", "squeue", True)


def test_a_job_that_left_the_queue_is_its_newest_run(jobs: FakeJobs) -> None:
    jobs.runs = [
        {"JobID": "7", "State": "NODE_FAIL"},
        {"JobID": "7", "State": "CANCELLED by 0", "Submit": "1700000100"},
    ]
    info = jobs.cluster().job("7").info()
    assert (info.state, info.cancelled_by) == ("CANCELLED", "root")


def test_a_job_nobody_knows(jobs: FakeJobs) -> None:
    unknown = "scancel: error: Kill job error on job id 7: Invalid job id specified\n"
    job = Cluster(FakeSlurm({**jobs.slurm._answers, "scancel": lambda a, s: unknown})).job("7")
    for ask in (job.info, job.wait, job.outcome, job.cancel, lambda: list(job.log())):
        with pytest.raises(NoSuchJob, match="no job 7"):
            ask()


@pytest.mark.parametrize("job_id", ["", "x", "7;8", "-1", "7 8", "7_", "all"])
def test_what_is_no_job_id(job_id: str) -> None:
    with pytest.raises(BadInput, match="not a job id"):
        Cluster(FakeSlurm({})).job(job_id)


def test_gpu_indices_only_of_own_nodes() -> None:
    text = (
        "JobId=7 JobName=x\n"
        "     Nodes=c9 CPU_IDs=0 Mem=1 GRES=gpu:a100:1(IDX:5)\n"  # forged by the job's name
        "   JOB_GRES=gpu:a100:6\n"
        "     Nodes=c1 CPU_IDs=0-1 Mem=1024 GRES=gpu:a100:2(IDX:0,3)\n"
        "     Nodes=c[2-3] CPU_IDs=0 Mem=1024 GRES=gpu:a100:2(IDX:6-7)\n"
        "     Nodes=c4 CPU_IDs=0 Mem=1024 GRES=\n"
    )
    assert parse_gpu_indices(text, "c[1-4]") == {"c1": [0, 3], "c2": [6, 7], "c3": [6, 7]}


# ---- arrays and het jobs ---------------------------------------------------------------------


def test_an_array_is_tallied(jobs: FakeJobs) -> None:
    """Tasks that slurmctld forgot come from the database, those that wait count each."""
    jobs.runs_now("7_4", NodeList="c1", **{"tres-alloc": "cpu=1,mem=1G,gres/gpu=2"})
    jobs.runs_now("7_5", NodeList="c2", **{"tres-alloc": "cpu=1,mem=1G,gres/gpu=2"})
    jobs.waits("7_[6-9%2]", JobID="7")
    jobs.runs = [
        {"JobID": "7_1", "State": "COMPLETED"},
        {"JobID": "7_2", "State": "FAILED"},
        {"JobID": "7_[4-9%2]", "State": "PENDING", "JobIDRaw": "7"},
    ]
    info = jobs.cluster().job("7").info()
    assert info.tally == {"COMPLETED": 1, "FAILED": 1, "RUNNING": 2, "PENDING": 4}
    assert (info.state, info.is_over, info.node_list) == ("RUNNING", False, "c[1-2]")
    assert info.tres == "cpu=2,gres/gpu=4"
    assert info.part == "7_1"


def test_a_task_that_waits_among_others_has_facts_of_its_own(jobs: FakeJobs) -> None:
    jobs.waits("7_[6-9%2]", JobID="7", STDOUT="/out-%a")
    info = jobs.cluster().job("7_8").info()
    assert (info.job_id, info.state, info.tally, info.output) == ("7_8", "PENDING", {}, "/out-8")


def test_a_task_that_never_ran_is_among_those_of_its_array(jobs: FakeJobs) -> None:
    """Sacct shows nothing for `7_8` when it was cancelled among `7_[6-9]`."""
    jobs.runs = [{"JobID": "7_[6-9%2]", "JobIDRaw": "7", "State": "CANCELLED by 0"}]
    info = jobs.cluster().job("7_8").info()
    assert (info.job_id, info.state) == ("7_8", "CANCELLED")


def test_stale_records_of_an_array_are_not_counted_twice(jobs: FakeJobs) -> None:
    """Slurm 22.05 keeps `7_[1,3-4]` beside `7_3`."""
    jobs.runs = [
        {"JobID": "7_2", "State": "CANCELLED"},
        {"JobID": "7_3", "State": "CANCELLED"},
        {"JobID": "7_[1,3-4]", "State": "CANCELLED", "JobIDRaw": "7"},
    ]
    assert jobs.cluster().job("7").info().tally == {"CANCELLED": 4}


def test_an_array_that_all_runs_has_nothing_that_waits(jobs: FakeJobs) -> None:
    """Slurmdbd's record of the whole is older than that its last task has started."""
    for task in ("7_1", "7_2"):
        jobs.runs_now(task, NodeList="c1")
    jobs.runs = [{"JobID": "7", "State": "PENDING"}, {"JobID": "7_1", "State": "RUNNING"}]
    assert jobs.cluster().job("7").info().tally == {"RUNNING": 2}


LONG_AGO = {"Submit": "1600000000", "Start": "1600000001", "End": "1600000002"}


def test_tasks_of_another_years_array_are_not_its_own(jobs: FakeJobs) -> None:
    """Also while slurmdbd has not heard of the new one."""
    jobs.waits("7_[0-1]", JobID="7")
    jobs.runs = [{"JobID": f"7_{at}", "State": "FAILED", **LONG_AGO} for at in range(5)]
    job = jobs.cluster().job("7")
    assert job.info().tally == {"PENDING": 2}
    jobs.queue.clear()
    jobs.runs += [{"JobID": "7_0", "State": "COMPLETED"}, {"JobID": "7_1", "State": "COMPLETED"}]
    assert job.info().tally == {"COMPLETED": 2}
    assert job.outcome().tally == {"COMPLETED": 2}


def test_a_job_is_not_the_array_that_had_its_id(jobs: FakeJobs) -> None:
    jobs.runs = [{"JobID": f"7_{at}", **LONG_AGO} for at in range(5)]
    jobs.runs.append({"JobID": "7", "State": "COMPLETED"})
    info = jobs.cluster().job("7").info()
    assert (info.job_id, info.tally) == ("7", {})


def test_tasks_requeued_hours_after_others_ended_are_of_one_array(jobs: FakeJobs) -> None:
    hours = 3600
    first = {"Submit": "1700000000", "Start": "1700000000"}
    jobs.runs = [
        {"JobID": "7_0", "State": "COMPLETED", **first, "End": "1700000010"},
        {"JobID": "7_1", "State": "NODE_FAIL", **first, "End": str(1700000000 + 9 * hours)},
    ]
    jobs.runs_now("7_1", SubmitTime=str(1700000000 + 9 * hours))
    assert jobs.cluster().job("7").info().tally == {"COMPLETED": 1, "RUNNING": 1}


def test_tasks_cancelled_while_they_waited_together(jobs: FakeJobs) -> None:
    """Slurmdbd knows who cancelled them; their reason is still that for which they waited."""
    jobs.ends("7_0", "COMPLETED")
    jobs.queue["7_[1-3%1]"] = {"JobID": "7", "State": "CANCELLED", "Reason": "JobHeldUser"}
    jobs.runs.append({"JobID": "7_[1-3]", "JobIDRaw": "7", "State": "CANCELLED by 0"})
    info = jobs.cluster().job("7").info()
    assert (info.tally, info.source) == ({"COMPLETED": 1, "CANCELLED": 3}, "sacct")
    asked = len(jobs.asked("sacct"))
    outcome = jobs.cluster().job("7").outcome()
    assert (outcome.cancelled_by, len(jobs.asked("sacct")) - asked) == ("root", 1)
    assert "cancelled by root" in outcome.words


def test_who_cancelled_a_held_job_is_unknown_while_slurmdbd_is_away(jobs: FakeJobs) -> None:
    jobs.queue["7"] = {"State": "CANCELLED", "Reason": "JobHeldUser"}
    jobs.sacct_fails = DatabaseDown("slurmdbd does not answer")
    assert jobs.cluster().job("7").outcome().words == "cancelled on c1"


def test_a_het_job_and_its_components(jobs: FakeJobs) -> None:
    """Squeue shows all components whichever was asked for; sacct calls a waiting one by its id."""
    jobs.waits("7+0", JobID="7")
    jobs.waits("7+1", JobID="8")
    jobs.runs = [{"JobID": "7", "State": "PENDING"}]
    cluster = jobs.cluster()
    assert cluster.job("7").info().tally == {"PENDING": 2}
    assert [cluster.job(i).info().job_id for i in ("7+0", "7+1", "8")] == ["7+0", "7+1", "7+1"]


def test_an_array_is_waited_for_and_as_bad_as_its_worst_task(jobs: FakeJobs) -> None:
    jobs.ends("7_1")
    jobs.ends("7_2", "FAILED", ExitCode="4:0")
    jobs.ends("7_3", "CANCELLED by 0")
    jobs.steps = [{"JobID": "7_2", "State": "FAILED", "ExitCode": "4:0"}]
    job = jobs.cluster().job("7")
    assert job.wait(timeout=PATIENCE).tally == {"COMPLETED": 1, "FAILED": 1, "CANCELLED": 1}
    outcome = job.outcome()
    assert (outcome.kind, outcome.exit_code, outcome.exit_status) == ("failed", 4, 4)
    assert outcome.tally == {"COMPLETED": 1, "FAILED": 1, "CANCELLED": 1}
    assert "7_2: failed with exit code 4" in outcome.words


def test_a_plans_jobs_are_one(jobs: FakeJobs) -> None:
    cluster = Cluster(
        FakeSlurm({**jobs.slurm._answers, "sbatch": Sbatch(), "scancel": lambda a, s: ""}),
        pace=jobs.cluster()._pace,
    )
    job = cluster.submit(plan_of(submission("a"), submission("b", 0)))
    jobs.ends("7")
    jobs.runs_now("8")
    assert job.info().tally == {"COMPLETED": 1, "RUNNING": 1}
    with pytest.raises(NotOver, match="job 8 has not ended"):
        job.outcome()
    jobs.ends("8", "TIMEOUT")
    assert job.wait(timeout=PATIENCE).state == "TIMEOUT"
    assert (job.outcome().kind, job.outcome().tally) == ("timeout", {"completed": 1, "timeout": 1})
    with pytest.raises(BadInput, match=r"several jobs; name one of them, e\.g\. 7"):
        job.log()


def test_an_array_as_a_whole_holds_the_gpus_of_its_tasks() -> None:
    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        tres = {"tres-alloc": "cpu=1,gres/gpu=1", "State": "RUNNING", "NodeList": "c4"}
        return squeue_text(argv, [{"JobArrayID": f"7_{task}", **tres} for task in (1, 2)])

    text = "".join(
        f"JobId={task} ArrayJobId=7\n     Nodes=c4 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:{task})\n"
        for task in (1, 3)
    )
    answers: dict[str, Answer] = {
        "squeue": squeue,
        "sacct": lambda argv, stdin: "",
        "scontrol": lambda argv, stdin: text,
    }
    assert Cluster(FakeSlurm(answers)).job("7").info().gpu_indices == {"c4": [1, 3]}


@pytest.mark.parametrize(
    "line",
    [
        "     Nodes=@x`id` CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:2)",
        "     Nodes=c[1 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:2)",
        "     Nodes=c1 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:2-)",
        "     Nodes=c1 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0-99999999999)",
        "     Nodes=c[1-99999999999] CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:2)",
        "     Nodes=c[1-999999999] CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:2)",
        "     Nodes=c[1-2]d[3-4]1000000000000 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:2)",
        "     Nodes=19[1-65535]- CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:2)",
    ],
)
def test_a_line_that_slurm_cannot_have_written_says_nothing(line: str) -> None:
    """A job's name may hold it; it must not crash, fill the memory, or reach a shell."""
    true = "     Nodes=c1 CPU_IDs=0 Mem=1 GRES=gpu:a100:2(IDX:0-1)"
    assert parse_gpu_indices(f"JobName=x\n{line}\n{true}\n", "c[1-4]") == {"c1": [0, 1]}


@pytest.mark.parametrize(
    ("reason", "words"),
    [("", "PENDING"), ("None", "PENDING"), ("Resources", "PENDING (Resources)")],
)
def test_a_state_has_its_reason_once_slurm_has_one(reason: str, words: str) -> None:
    assert format_state("PENDING", reason) == words
