"""Whether a step has room in a running job, and a job that ends while it is looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import why_scene as lab
from running_job import JOB, NOW, Answers, job_of

from slurmkit.diagnose.explain import explain
from slurmkit.diagnose.job_memory import (
    NodeMemory,
    measured_memory,
    memory_fact,
    near_limit,
    why_no_room,
)
from slurmkit.errors import ControllerDown, Refused, SlurmError
from slurmkit.jobs.steps import StepMetrics, StepsSnapshot, StepUse
from slurmkit.testing import sacct_text, squeue_text

MIB = 2.0**20
SAMPLES = "JobAcctGatherParams     = OverMemoryKill\n"


def measured(*uses: StepMetrics, nodes: int | None = None) -> StepsSnapshot:
    steps = (
        StepUse(step_id=f"7.{n}", raw_id=f"7.{n}", state="RUNNING", nodes=nodes, use=each)
        for n, each in enumerate(uses)
    )
    return StepsSnapshot((StepUse(step_id="7", raw_id="7", state="RUNNING"), *steps), "", "", 0, 0)


@pytest.mark.parametrize(
    ("used", "words"),
    [(268, ""), (269, "only 31 MiB of 300 MiB is free"), (310, "only 0 B of 300 MiB is free")],
)
def test_no_step_is_started_in_a_job_that_has_no_memory_for_it(used: int, words: str) -> None:
    row = lab.row("7", state="RUNNING", tres="cpu=1,mem=300M,node=1")
    steps = measured(StepMetrics(mem_now=(used - 8) * MIB), StepMetrics(mem_now=8 * MIB))
    why = why_no_room(measured_memory(row, steps))
    assert (words in why) if words else not why


def test_what_is_not_known_is_no_room() -> None:
    assert "how much it uses is not known" in why_no_room(None)
    assert not why_no_room(NodeMemory(5.0, None, "sstat"))  # it has no limit


def test_the_memory_of_a_node_is_at_most_what_its_tasks_had() -> None:
    two = msgspec.structs.replace(
        lab.row("7", state="RUNNING", tres="cpu=4,mem=200M,node=2"), nodes=2
    )
    use = StepMetrics(tasks=3, mem_now=150 * MIB, task_peak=60 * MIB)
    memory = measured_memory(two, measured(use))
    assert memory == NodeMemory(120 * MIB, 100 * MIB, "sstat", 75 * MIB)
    assert "only 0 B of 100 MiB may be free" in why_no_room(memory)
    (fact,) = memory_fact({"one of its nodes": memory}, NOW)
    assert fact.text == "75 MiB to 120 MiB of 100 MiB on one of its nodes"
    assert [*near_limit({"one of its nodes": memory}, NOW)] == []
    on_one_node = measured_memory(two, measured(use, nodes=1))
    assert on_one_node == NodeMemory(150 * MIB, 100 * MIB, "sstat", 75 * MIB)
    full = NodeMemory(110 * MIB, 100 * MIB, "sstat", 95 * MIB)
    (found,) = near_limit({"one of its nodes": full}, NOW)
    assert found.text == "at least 95 MiB of 100 MiB are in use on one of its nodes"
    assert measured_memory(two, measured(StepMetrics())) is None


def full_job(
    monkeypatch: pytest.MonkeyPatch, folder: Path, config: str, sacct: Callable[..., str]
) -> tuple[list[list[str]], str, tuple[str, ...]]:
    """A job that uses 995 MiB of 1 GiB: what was asked, the answer and the notes."""
    answers: Answers = {
        "sstat": lambda argv, _: f"{JOB}.batch|1|mem=995M|mem=995M|mem=995M|\n",
        "scontrol": lambda argv, _: config if argv[-1] == "config" else "",
        "sacct": sacct,
    }
    cluster = job_of(monkeypatch, folder, answers)
    found = explain(cluster, JOB, probe=True, stacks=True)
    return cluster.slurm.asked, found.answer, found.notes  # type: ignore[attr-defined]


def own_and_another(argv: Sequence[str], _: str | None) -> str:
    """The job, which is a task of an array, and another task, which uses much more."""
    if "--name" in " ".join(argv):
        return ""
    usual = {"State": "RUNNING", "NNodes": "1", "TRESUsageInTot": "mem=9G"}
    ids = ((JOB, JOB), ("9_1", "99999"), ("9_1.0", "99999.0"))
    return sacct_text(argv, [{"JobID": a, "JobIDRaw": b, **usual} for a, b in ids])


def not_heard_of(argv: Sequence[str], _: str | None) -> str:
    """As sacct of 22.05 shows a job in its first seconds."""
    if "--name" in " ".join(argv):
        return ""
    ids = ((JOB, "PENDING"), (f"{JOB}.batch", "RUNNING"))
    return sacct_text(argv, [{"JobID": a, "JobIDRaw": a, "State": state} for a, state in ids])


def refused(argv: Sequence[str], _: str | None) -> str:
    raise Refused("Slurm accounting storage is disabled")


@pytest.mark.parametrize("sacct", [own_and_another, not_heard_of, refused])
def test_where_slurm_samples_memory_a_full_job_is_explained_without_a_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sacct: Callable[..., str]
) -> None:
    asked, answer, notes = full_job(monkeypatch, tmp_path, SAMPLES, sacct)
    assert not any(argv[0] == "srun" for argv in asked)
    assert answer == f"job {JOB} is near its memory limit: 995 MiB of 1 GiB are in use on c1"
    assert any("so no step was started" in note for note in notes)
    assert not any("no process whose stack" in note for note in notes)


def test_where_cgroups_limit_memory_samples_are_no_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sample has the page cache in it there, and the step looks at the cgroup itself."""
    asked, answer, _ = full_job(monkeypatch, tmp_path, "", own_and_another)
    assert any(argv[0] == "srun" for argv in asked)
    assert "memory" not in answer


@pytest.mark.parametrize("state", ["COMPLETED", "COMPLETING", "", "down"])
def test_a_job_that_ends_while_it_is_looked_at_is_explained_as_it_is_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str
) -> None:
    before, ended = job_of(monkeypatch, tmp_path).slurm, list[str]()
    later = job_of(monkeypatch, tmp_path, None, State=state).slurm

    def srun(argv: Sequence[str], stdin: str | None) -> str:
        ended.append(JOB)
        raise SlurmError("srun: error: Terminated")

    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        if ended and state == "down":
            raise ControllerDown("slurmctld does not answer")
        if ended and not state:
            return squeue_text(argv, [])
        return (later if ended else before).run(argv)

    def sacct(argv: Sequence[str], stdin: str | None) -> str:
        run = {"JobID": JOB, "JobIDRaw": JOB, "User": os.environ.get("USER", "root")}
        return sacct_text(argv, [run] if ended and "--name" not in " ".join(argv) else [])

    cluster = job_of(monkeypatch, tmp_path, {"srun": srun, "squeue": squeue, "sacct": sacct})
    answer = explain(cluster, JOB, probe=True, alternatives=False).answer
    words = {
        "COMPLETING": "has ended, and its nodes are being cleaned up",
        "down": "runs; nothing is known of what it does",
    }
    assert answer.startswith(f"job {JOB} {words.get(state, 'completed')}"), answer
