"""Job handles: where their facts come from, and following a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import slurmkit.log
from slurmkit.cluster import Cluster
from slurmkit.errors import BadInput, DatabaseDown, LogUnavailable, NoSuchJob, Refused, SlurmError
from slurmkit.jobinfo import parse_gpu_indices
from slurmkit.planner import plan
from slurmkit.spec import JobSpec
from slurmkit.testing import FakeSlurm, squeue_text

Answer = Callable[[Sequence[str], str | None], str]


def squeue_says(state: str, output: str = "/none", job_id: str = "7") -> Answer:
    """One job, with the mark of the call; a pending one has no node."""

    def answer(argv: Sequence[str], stdin: str | None) -> str:
        node = "" if state == "PENDING" else "c1"
        job = {"JobArrayID": job_id, "JobID": "7", "State": state, "NodeList": node}
        return squeue_text(argv, [{**job, "STDOUT": output, "Name": "name"}])

    return answer


def sacct_says(*states: str) -> Answer:
    """One run per state, submitted one after the other; an ended run has an end."""

    def answer(argv: Sequence[str], stdin: str | None) -> str:
        mark = next(a for a in argv if a.startswith("--delimiter=")).partition("=")[2]
        rows = []
        for number, state in enumerate(states):
            end = "Unknown" if state == "RUNNING" else "1700000100"
            row = f"7|7|alice|vision|gpu|{state}|c1|cpu=1|00:00:05|{1700000000 + number}|1700000001"
            rows.append("".join(f"{part}{mark}" for part in [*row.split("|"), end, "3:0", "a\nb"]))
        return "\n".join(rows) + "\n"

    return answer


def raises(error: SlurmError) -> Answer:
    def answer(argv: Sequence[str], stdin: str | None) -> str:
        raise error

    return answer


def job_with(**answers: Answer) -> slurmkit.cluster.Job:
    return Cluster(FakeSlurm(dict(answers))).job("7")


def test_a_plan_is_sent_byte_for_byte() -> None:
    sent: list[str | None] = []

    def sbatch(argv: Sequence[str], stdin: str | None) -> str:
        sent.append(stdin)
        return "7;lab\n"

    made = plan(JobSpec(command=("true",)))
    assert Cluster(FakeSlurm({"sbatch": sbatch})).submit(made).id == "7"
    assert sent == [made.submissions[0].script]


def test_an_answer_without_a_job_id_is_an_error() -> None:
    with pytest.raises(SlurmError, match="where a job id was expected"):
        Cluster(FakeSlurm({"sbatch": lambda a, s: "ok"})).submit(plan(JobSpec(command=("true",))))


def test_a_job_in_the_queue_needs_no_database() -> None:
    info = job_with(squeue=squeue_says("RUNNING")).info()
    assert (info.state, info.source, info.is_over) == ("RUNNING", "squeue", False)


def test_an_ended_job_is_looked_up_and_keeps_its_log() -> None:
    job = job_with(squeue=squeue_says("FAILED", "/log"), sacct=sacct_says("FAILED"))
    info = job.info()
    assert (info.source, info.exit_code, info.output, info.name) == ("sacct", "3:0", "/log", "a\nb")


@pytest.mark.parametrize("sacct", [sacct_says("RUNNING"), raises(DatabaseDown("down"))])
def test_a_late_or_absent_database_does_not_hide_the_end(sacct: Answer) -> None:
    info = job_with(squeue=squeue_says("COMPLETED"), sacct=sacct).info()
    assert (info.state, info.source, info.is_over) == ("COMPLETED", "squeue", True)


def test_a_job_that_left_the_queue_is_its_newest_run() -> None:
    job = job_with(
        squeue=raises(NoSuchJob("gone")), sacct=sacct_says("NODE_FAIL", "CANCELLED by 10001")
    )
    assert job.info().state == "CANCELLED"


def test_a_job_nobody_knows() -> None:
    with pytest.raises(NoSuchJob, match="no job 7"):
        job_with(squeue=lambda a, s: "", sacct=lambda a, s: "").info()


@pytest.mark.parametrize("job_id", ["", "x", "7;8", "-1", "7 8", "7_", "all"])
def test_what_is_no_job_id(job_id: str) -> None:
    with pytest.raises(BadInput, match="not a job id"):
        Cluster(FakeSlurm({})).job(job_id)


def test_cancelling_what_has_ended_is_refused() -> None:
    job = job_with(squeue=squeue_says("COMPLETED"), sacct=sacct_says("COMPLETED"))
    with pytest.raises(Refused, match="already ended"):
        job.cancel()


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


def test_a_log_is_followed_to_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lines written between the last read and the end of the job are not lost."""
    path = tmp_path / "out"
    states = iter(["PENDING", "RUNNING", "COMPLETED"])

    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        state = next(states)
        if state != "PENDING":
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{state}\n")
        return squeue_says(state, str(path))(argv, stdin)

    monkeypatch.setattr(slurmkit.log, "_FILE_SECONDS", 0)
    monkeypatch.setattr(slurmkit.log, "_STATE_SECONDS", 0)
    job = job_with(squeue=squeue, sacct=sacct_says("COMPLETED"))
    assert b"".join(job.log(until_over=True)) == b"RUNNING\nCOMPLETED\n"


def test_logs_that_cannot_be_read(tmp_path: Path) -> None:
    pending = job_with(squeue=squeue_says("PENDING", str(tmp_path / "none")))
    with pytest.raises(LogUnavailable, match="has not started"):
        list(pending.log())
    running = job_with(squeue=squeue_says("RUNNING", str(tmp_path / "none")))
    with pytest.raises(LogUnavailable, match="does not exist here"):
        list(running.log())
    folder = job_with(squeue=squeue_says("RUNNING", str(tmp_path)))
    with pytest.raises(LogUnavailable, match="Is a directory"):
        list(folder.log())


@pytest.mark.parametrize(
    ("started", "code", "why"),
    [("None", "0:0", "before it started"), ("1700000001", "0:53", "could not open")],
)
def test_a_job_that_wrote_nothing(tmp_path: Path, started: str, code: str, why: str) -> None:
    def sacct(argv: Sequence[str], stdin: str | None) -> str:
        said = sacct_says("FAILED")(argv, stdin)
        return said.replace("1700000001", started).replace("3:0", code)

    job = job_with(squeue=squeue_says("FAILED", str(tmp_path / "none")), sacct=sacct)
    with pytest.raises(LogUnavailable, match=why):
        list(job.log(until_over=True))


def test_a_log_slurm_forgot() -> None:
    def sacct(argv: Sequence[str], stdin: str | None) -> str:
        if any("StdOut" in word for word in argv):
            raise Refused("sacct: fatal: Invalid field requested: StdOut")
        return sacct_says("COMPLETED")(argv, stdin)

    with pytest.raises(LogUnavailable, match="no longer says"):
        list(job_with(squeue=raises(NoSuchJob("gone")), sacct=sacct).log())


def test_a_requeued_jobs_new_output_is_followed_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm empties the file when the job starts again."""
    path = tmp_path / "out"
    path.write_text("a first run of some length\n", "utf-8")
    contents = iter(["second run\n", None])

    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        if not path.exists() or next(asked):
            content = next(contents)
            if content is None:
                return squeue_says("COMPLETED", str(path))(argv, stdin)
            path.write_text(content, "utf-8")
        return squeue_says("RUNNING", str(path))(argv, stdin)

    asked = iter([False, True, True, True])
    monkeypatch.setattr(slurmkit.log, "_FILE_SECONDS", 0)
    monkeypatch.setattr(slurmkit.log, "_STATE_SECONDS", 0)
    job = job_with(squeue=squeue, sacct=sacct_says("COMPLETED"))
    said: list[str] = []
    log = job.log(until_over=True, notice=said.append)
    assert b"".join(log) == b"a first run of some length\nsecond run\n"
    assert said == ["job 7 was requeued and writes its output anew"]


def test_a_path_by_node_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "c1").write_text("hello\n", "utf-8")
    states = iter(["PENDING", "RUNNING", "COMPLETED"])

    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        return squeue_says(next(states), str(tmp_path / "%N"))(argv, stdin)

    monkeypatch.setattr(slurmkit.log, "_FILE_SECONDS", 0)
    monkeypatch.setattr(slurmkit.log, "_STATE_SECONDS", 0)
    job = job_with(squeue=squeue, sacct=sacct_says("COMPLETED"))
    assert b"".join(job.log(until_over=True)) == b"hello\n"


def array_says(*states: str) -> Answer:
    """Tasks 7_1, 7_2, … of array 7, in these states."""

    def answer(argv: Sequence[str], stdin: str | None) -> str:
        tasks = enumerate(states, 1)
        return "".join(squeue_says(s, job_id=f"7_{n}")(argv, stdin) for n, s in tasks)

    return answer


def test_an_array_is_not_one_of_its_tasks() -> None:
    job = job_with(squeue=array_says("FAILED", "RUNNING"))
    for ask in (job.info, lambda: list(job.log())):
        with pytest.raises(BadInput, match=r"7 has several parts; name one of them, e\.g\. 7_1"):
            ask()
    with pytest.raises(BadInput, match="several parts"):
        job_with(squeue=array_says("RUNNING")).info()


def test_an_array_is_cancelled_while_a_task_is_left() -> None:
    slurm = FakeSlurm(
        {"squeue": array_says("CANCELLED", "RUNNING"), "scancel": lambda argv, stdin: ""}
    )
    Cluster(slurm).job("7").cancel()
    assert slurm.asked[-1] == ["scancel", "7"]
    ended = job_with(squeue=array_says("CANCELLED", "COMPLETED"))
    with pytest.raises(Refused, match="already ended"):
        ended.cancel()
