"""Out of memory as Slurm says it: as clusters with cgroups printed it, and in all that we ask for.

`recorded/out-of-memory.json` is what sacct said of three jobs on other people's clusters, and where
they published it; `recorded/24.11/memory*` is sacct's text of each way in which such a job may end
(`recorded/record_memory.py` says how it was made).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ended_jobs import MARK, RECORDED, Ended
from jobs_lab import FakeJobs

import slurmkit.planning
from slurmkit.formats.job_states import STATE_CODES

PUBLISHED = json.loads((RECORDED / "out-of-memory.json").read_text("utf-8"))
STEPS = {"bat+": "batch", "ext+": "extern"}


def whole_state(cut: str) -> str:
    """A state that a table has cut, as `sacct --parsable` prints it: `OUT_OF_ME+`."""
    (found,) = (state for state in STATE_CODES if state.startswith(cut.removesuffix("+")))
    return found


def rows(job: dict[str, Any]) -> list[dict[str, str]]:
    found = []
    for step_id, state, code in job["sacct"]:
        number, dot, step = step_id.partition(".")
        name = f"{number}{dot}{STEPS.get(step, step)}"
        found.append({"JobID": name, "State": whole_state(state), "ExitCode": code})
    return found


@pytest.mark.parametrize("job", PUBLISHED, ids=lambda job: job["job"])
def test_what_clusters_with_cgroups_say(job: dict[str, Any]) -> None:
    jobs = FakeJobs()
    jobs.runs, jobs.steps = rows(job)[:1], rows(job)
    outcome = jobs.cluster().job(job["job"]).outcome()
    assert (outcome.kind, outcome.exit_code) == ("out_of_memory", job["exit_code"])
    assert (outcome.signal, outcome.exit_status) == (None, 1)
    assert outcome.words.startswith("out of memory")


@pytest.mark.parametrize(
    ("kind", "outcome", "says"),
    [
        ("batch", "out_of_memory", "out of memory, after"),
        ("array_1", "out_of_memory", "out of memory, after"),
        ("array_2", "out_of_memory", "out of memory, after"),
        ("array_3", "out_of_memory", "out of memory: step 25_3.0 used more than its limit of 1G"),
        ("array_4", "completed", "completed"),  # its script did not mind
        ("array_5", "failed", "failed with exit code 1"),
        ("array_6", "completed", "completed"),
    ],
)
def test_each_way_in_which_it_is_said(kind: str, outcome: str, says: str, tmp_path: Path) -> None:
    found = Ended("24.11", tmp_path, "memory").job(kind).outcome()
    assert found.kind == outcome
    assert found.words.startswith(says)


def test_an_array_is_as_bad_as_its_worst_task(tmp_path: Path) -> None:
    found = Ended("24.11", tmp_path, "memory").job("array").outcome()
    assert found.kind == "out_of_memory"
    assert found.tally == {"OUT_OF_MEMORY": 2, "FAILED": 2, "COMPLETED": 2}


# ---- inside the job ----------------------------------------------------------------------------


def is_out_of_memory(
    folder: Path, sacct: str, log: str = "", *, job: str = "7", before: str = ""
) -> bool:
    """What the batch shell of a job that survives concludes, before Slurm has ended the job.

    Args:
        folder: holds the cgroups, too.
        sacct: says this of its steps.
        log: output of the job.
        job: its id.
        before: done by the shell after its run has begun.
    """
    (folder / "said").write_text(sacct)
    (folder / "log").write_text(log)
    (folder / "sacct").write_text(f"#!/bin/sh\ncat {folder / 'said'}\n")
    (folder / "sacct").chmod(0o755)
    shell = Path(slurmkit.planning.__file__).with_name("survive") / "slurm.sh"
    script = f"""
. {shell}
slurmkit_id={job} slurmkit_logs=({folder / "log"}) slurmkit_cgroups={folder}
slurmkit_oom_kills && slurmkit_ooms=$slurmkit_value
{before}
slurmkit_is_out_of_memory"""
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": job}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, check=False, capture_output=True, text=True
    )
    assert not done.stderr
    return done.returncode == 0


def recorded_states(job_id: str) -> str:
    """As `sacct -nP -o State` prints them."""
    text = (RECORDED / "24.11" / "memory-steps.txt").read_text("utf-8")
    records = [record.lstrip("\n").split(MARK) for record in text.split(f"{MARK}\n")]
    return "".join(f"{each[1]}\n" for each in records if each[0].partition(".")[0] == job_id)


@pytest.mark.parametrize("job", PUBLISHED, ids=lambda job: job["job"])
def test_the_shell_knows_it_by_sacct_and_by_the_log(job: dict[str, Any], tmp_path: Path) -> None:
    assert is_out_of_memory(tmp_path, "".join(f"{row['State']}\n" for row in rows(job)))
    assert is_out_of_memory(tmp_path, "".join(f"{state} \n" for _, state, _ in job["sacct"]))
    said = bool(job["log"])
    assert is_out_of_memory(tmp_path, "RUNNING\n", job["log"], job=job["job"]) == said


@pytest.mark.parametrize(
    ("line", "job", "said"),
    [
        ("Detected 1 oom_kill event in StepId=70.batch. Some of", "7", False),
        ("Detected 1 oom_kill event in StepId=7.batch. Some of", "70", False),
        ("Detected 1 oom_kill event in StepId=7+1.0. Some of", "7", True),
        ("Detected 2 oom-kill event(s) in step 7.0 cgroup.", "7", True),
        ("Detected 2 oom-kill event(s) in step 8.0 cgroup.", "7", False),
        ("StepId=7.0 exceeded memory limit (2 > 1), being killed", "7", True),
        ("StepId=8.0 exceeded memory limit (2 > 1), being killed", "7", False),
    ],
)
def test_another_job_in_the_same_output_is_not_believed(
    line: str, job: str, tmp_path: Path, *, said: bool
) -> None:
    assert is_out_of_memory(tmp_path, "RUNNING\n", f"slurmstepd: error: {line}\n", job=job) == said


@pytest.mark.parametrize("after", [0, 1])
def test_the_kernel_tells_what_it_killed_in_the_batch_step(after: int, tmp_path: Path) -> None:
    files = list(cgroup_files(tmp_path))
    if not files:
        pytest.skip("this machine has no cgroups")
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("low 0\noom 5\noom_kill 2\noom_group_kill 0\n")
    more = "\n".join(f"echo oom_kill {2 + after} >{path}" for path in files)
    assert is_out_of_memory(tmp_path, "RUNNING\n", before=more) == bool(after)
    assert not is_out_of_memory(tmp_path, "RUNNING\n")


def cgroup_files(root: Path) -> Iterator[Path]:
    """Where this process is, in both versions."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, name, path = line.split(":", 2)
        if name == "":
            yield Path(f"{root}{path}/memory.events")
        elif name == "memory":
            yield Path(f"{root}/memory{path}/memory.oom_control")


@pytest.mark.parametrize(("task", "said"), [(1, True), (2, True), (3, True), (5, False)])
def test_the_shell_of_an_array_task(task: int, tmp_path: Path, *, said: bool) -> None:
    assert is_out_of_memory(tmp_path, recorded_states(f"25_{task}")) == said
