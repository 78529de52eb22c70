"""A variable that looks like a secret reaches a job, and nobody else; what carried it goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster_lab import Lab
from waiting import wait_for

pytestmark = pytest.mark.cluster

TOKEN = "hf_" + "a1b2c3d4e5" * 3
SHOW = 'printf "%s" "$HF_TOKEN" | tail -c 4'


class Folder:
    """Where alice's job runs, and her secrets of this cluster."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.path = lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip()

    def submit(self, *words: str) -> str:
        options = ("--parsable", "--time=20", f"--chdir={self.path}", "--env=HF_TOKEN")
        argv = ("env", f"HF_TOKEN={TOKEN}", "slurmkit", "submit", *options, *words)
        return self.lab.run(*argv).stdout.strip()

    def files(self, job: str) -> str:
        found = f"stat -c '%a %U' /home/alice/.local/state/slurmkit/secrets/*/{job} 2>/dev/null"
        return self.lab.run("sh", "-c", f"{found}; true").stdout.strip()

    def until(self, job: str, states: str) -> None:
        argv = ("squeue", "-h", "-t", states, "-j", job)
        wait_for(lambda: self.lab.run(*argv, check=False).stdout)


@pytest.fixture
def folder(lab: Lab) -> Iterator[Folder]:
    made = Folder(lab)
    yield made
    lab.run("rm", "-r", made.path)


def test_a_job_has_it_and_slurm_has_not(folder: Folder) -> None:
    lab, job = folder.lab, folder.submit("--hold", "--", "sh", "-c", SHOW)
    assert folder.files(job) == "600 alice"
    for argv in (("show", "job", "-d", job), ("write", "batch_script", job, "-")):
        shown = lab.run("scontrol", *argv).stdout
        assert shown
        assert TOKEN not in shown
    lab.run("scontrol", "release", job)
    folder.until(job, "CD")
    assert lab.run("cat", f"{folder.path}/slurm-{job}.out").stdout == TOKEN[-4:]
    assert folder.files(job) == ""


def test_a_run_that_is_requeued_finds_it_and_cancel_removes_it(folder: Folder) -> None:
    job = folder.submit("--requeue", "--", "sleep", "1000")
    folder.until(job, "R")
    folder.lab.run("scontrol", "requeue", job)
    show = ("scontrol", "-o", "show", "job", job)  # soon it may run again
    wait_for(lambda: "Restarts=1 " in folder.lab.run(*show).stdout)
    assert folder.files(job) == "600 alice"
    folder.lab.run("slurmkit", "cancel", job)
    assert folder.files(job) == ""


def test_each_task_of_an_array_has_it_and_the_next_submit_removes_it(folder: Folder) -> None:
    job = folder.submit("--array=1-2", "--", "sh", "-c", SHOW)
    for task in (f"{job}_1", f"{job}_2"):
        folder.until(task, "CD")
        output = f"{folder.path}/slurm-{task}.out"
        assert folder.lab.run("cat", output).stdout == TOKEN[-4:]
    assert folder.files(job) == "600 alice"
    files = "/home/alice/.local/state/slurmkit/secrets/*"
    later = f"rm -f {files}/.looked; touch -d '11 minutes ago' {files}/{job}"
    folder.lab.run("sh", "-c", later)
    folder.submit("--", "true")
    assert folder.files(job) == ""
