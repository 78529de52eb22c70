"""PySlurm on the real cluster: sbatch's jobs, and what happens where it cannot be used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import wait_for

from slurmkit.spec.sbatch_options import option_lines

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
DRIVER = (Path(__file__).parent / "pyslurm_driver.py").read_text("utf-8")
PYTHON = "/opt/slurmkit/venv/bin/python"
PACKAGES = "/opt/slurmkit/venv/lib/python3*/site-packages"
NAME = "same-job"
Options = list[tuple[str, str]]

# What differs between any two jobs; the command line, which PySlurm does not send; OOMKillStep,
# which libslurm sets to no where sbatch leaves it to the cluster, whose is no, too; TresPerTask, in
# which sbatch repeats --cpus-per-task, for srun, which takes it from the environment.
_OWN = frozenset(
    "JobId SubmitLine StdOut StdErr SubmitTime EligibleTime AccrueTime StartTime EndTime"
    " LastSchedEval Priority ArrayJobId SLUID Deadline OOMKillStep TresPerTask".split()
)
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=")

CASES: list[Options] = [
    [],
    [("nodes", "1"), ("ntasks-per-node", "1"), ("cpus-per-task", "1")],
    [("nodes", "2"), ("ntasks-per-node", "4"), ("cpus-per-task", "2"), ("mem", "3G")],
    [("nodes", "1-2"), ("ntasks-per-node", "4")],
    [("nodes", "2"), ("ntasks", "3")],
    [("ntasks", "7"), ("cpus-per-task", "3")],
    [("ntasks", "8"), ("ntasks-per-node", "4")],
    [("ntasks-per-node", "4")],
    [("mem-per-cpu", "1500K"), ("ntasks", "2")],
    [("gpus-per-node", "a100:2"), ("nodes", "2")],
    [("gpus-per-node", "2"), ("nodes", "1")],
    [("gpus", "a100:4"), ("nodes", "1")],
    [("gpus", "3")],
    [("gres", "gpu:h100:1")],
    [("gres", "shard:3"), ("nodes", "1")],
    [("time", "1-2:03:04"), ("time-min", "30"), ("qos", "high"), ("account", "vision")],
    [("array", "1-5:2%1"), ("output", "x-%A_%a.out"), ("error", "/tmp/e"), ("chdir", "/tmp")],
    [("comment", 'a "b" c=d'), ("job-name", "same ünïcode 🙂"), ("nice", "50")],
    [("signal", "B:USR1@120"), ("requeue", ""), ("open-mode", "append")],
    [("signal", "TERM"), ("no-requeue", ""), ("open-mode", "truncate")],
    [("exclusive", ""), ("mail-type", "END,FAIL"), ("mail-user", "alice@lab.example")],
    [("exclusive", "user"), ("exclude", "c1"), ("input", "in.txt")],
    [("dependency", "singleton"), ("kill-on-invalid-dep", "yes"), ("export", "ALL")],
    [("begin", "now+2hours"), ("deadline", "now+2days")],
]


def submission(options: Options, body: str = "sleep 1") -> dict[str, object]:
    given = {"job-name": NAME, "partition": "gpu", "output": "/dev/null", "time": "5"}
    pairs = tuple((given | dict(options)).items())
    return {"script": "\n".join(["#!/bin/bash", *option_lines(pairs), body, ""]), "options": pairs}


def send(lab: Lab, *sent: dict[str, object], env: tuple[str, ...] = ()) -> list[list[str]]:
    done = lab.run("env", *env, PYTHON, "-c", DRIVER, input=json.dumps(sent))
    answers: list[list[str]] = json.loads(done.stdout)
    return answers


def facts(lab: Lab, job_id: str) -> dict[str, str]:
    said = lab.run("scontrol", "--oneliner", "show", "job", job_id).stdout.splitlines()[0]
    _, *parts = _FIELD.split(said)
    found = dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=False))
    return {name: value for name, value in found.items() if name not in _OWN}


@pytest.fixture
def pyslurm(lab: Lab) -> Iterator[Lab]:
    if lab.release != "26.05":
        pytest.skip(f"there is no PySlurm for Slurm {lab.release}")
    yield lab
    lab.run("scancel", "--me", check=False)


def test_it_sends_the_same_jobs(pyslurm: Lab) -> None:
    """Of each case slurmctld knows the same, whoever sent it."""
    held = [submission([*options, ("hold", "")]) for options in CASES]
    answers = send(pyslurm, *held)
    for options, (by_sbatch, by_pyslurm, way) in zip(CASES, answers, strict=True):
        assert way == "libslurm", options
        assert facts(pyslurm, by_pyslurm) == facts(pyslurm, by_sbatch), options
        script = [pyslurm.run("scontrol", "write", "batch_script", i, "-").stdout
                  for i in (by_sbatch, by_pyslurm)]  # fmt: skip
        assert script[0] == script[1]


def test_they_have_the_same_environment(pyslurm: Lab) -> None:
    """Limits, umask, what srun reads; nothing of a surrounding job."""
    options = [("nodes", "1"), ("ntasks-per-node", "2"), ("cpus-per-task", "3"), ("mem", "1G"),
               ("gpus-per-node", "a100:1"), ("ntasks", "2")]  # fmt: skip
    leaks = ("SLURM_PARTITION=mig", "SLURM_NNODES=9", "SLURM_JOB_ID=1", "MINE=a b\n=c", "LC_X=é")
    body = (
        "mkdir -p same-env; f=same-env/$SLURM_JOB_ID; "
        "{ env -0 | sort -z | tr '\\0\\n' '\\n '; ulimit -a; umask; pwd; } >$f.part; mv $f.part $f"
    )
    ((one, other, way),) = send(pyslurm, submission(options, body), env=leaks)
    assert way == "libslurm"
    seen = [_environment(pyslurm, job_id) for job_id in (one, other)]
    assert seen[1] == seen[0]
    assert any(line.startswith("MINE=a b =c") for line in seen[0])
    assert not any("mig" in line for line in seen[0] if line.startswith("SLURM_"))
    pyslurm.run("rm", "-r", "same-env")


def _environment(lab: Lab, job_id: str) -> list[str]:
    done = wait_for(
        lambda: lab.run("cat", f"same-env/{job_id}", check=False), lambda done: not done.returncode
    )
    own = re.compile(r"^(SLURM_JOB_?ID|SLURM_JOB_(START|END)_TIME|SLURM_TASK_PID|SLURM_JOB_SLUID)=")
    own_gpu = re.compile(
        r"^(SLURM_JOB_GPUS|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_\w+|ZE_\w+)="
    )
    lines = done.stdout.splitlines()
    return sorted(x for x in lines if not own.match(x) and not own_gpu.match(x) and x[:2] != "_=")


def test_what_it_cannot_say_is_sent_by_sbatch(pyslurm: Lab) -> None:
    ((_, other, way),) = send(pyslurm, submission([("hint", "nomultithread"), ("hold", "")]))
    assert way == "sbatch: PySlurm cannot express --hint exactly"
    assert facts(pyslurm, other)["JobState"] == "PENDING"


SUBMIT = """
from slurmkit import Cluster, JobSpec, plan
cluster = Cluster()
made = plan(JobSpec(command=("true",), time="1", partition="cpu", output="/dev/null"), cluster)
for _ in range(30):
    print(cluster.submit(made).id)
"""


def submit_many(lab: Lab, *env: str) -> tuple[int, str]:
    """How many of 30 were sent, and what a process said that sends them."""
    show = f"import logging; logging.basicConfig(level='INFO')\n{SUBMIT}"
    argv = ("env", "XDG_CACHE_HOME=/tmp/pyslurm-test-cache", *env, PYTHON, "-c", show)
    done = lab.run(*argv, check=False)
    lab.run("rm", "-rf", "/tmp/pyslurm-test-cache")
    return len(done.stdout.split()), done.stderr


def test_by_itself_where_many_are_sent(pyslurm: Lab) -> None:
    sent, said = submit_many(pyslurm)
    assert sent == 30, said
    assert "PySlurm is not used" not in said


@pytest.fixture
def broken(pyslurm: Lab) -> Iterator[Lab]:
    """A cluster whose PySlurm may be changed."""
    keep = f"cd {PACKAGES} && tar -cf /root/pyslurm.tar pyslurm pyslurm-*.dist-info"
    pyslurm.run("bash", "-c", keep, user="")
    yield pyslurm
    back = f"cd {PACKAGES} && rm -r pyslurm pyslurm-*.dist-info && tar -xf /root/pyslurm.tar"
    pyslurm.run("bash", "-c", back, user="")


def test_another_version(broken: Lab) -> None:
    broken.run(
        "bash",
        "-c",
        f"cd {PACKAGES} && sed -i 's/^Version: .*/Version: 25.11.2/' pyslurm-*/METADATA",
        user="",
    )
    sent, said = submit_many(broken)
    assert sent == 30, said
    assert "PySlurm is not used: PySlurm 25.11.2 is not for Slurm 26.05" in said
    sent, said = submit_many(broken, "SLURMKIT_BACKEND=pyslurm")
    assert sent == 0
    assert "BrokenPlugin: PySlurm cannot be used: PySlurm 25.11.2 is not for Slurm 26.05" in said
    doctor = broken.run("slurmkit", "doctor", check=False)
    assert "PySlurm is not used" in doctor.stdout + doctor.stderr


def test_a_libslurm_that_ends_the_process(broken: Lab) -> None:
    """A slurm.conf that libslurm calls fatal(): the process that submits lives, and says why."""
    stop = "import os; os.environ['SLURM_CONF'] = '/dev/null'"
    init = f'cd {PACKAGES}/pyslurm && sed -i "1i {stop}" __init__.py && sed -n 1p __init__.py'
    broken.run("bash", "-c", init, user="")
    sent, said = submit_many(broken)
    assert sent == 30, said
    assert "a process that used PySlurm ended" in said
    assert "fatal" in said
    sent, said = submit_many(broken, "SLURMKIT_BACKEND=pyslurm")
    assert (sent, "BrokenPlugin" in said) == (0, True)


def test_no_slurm_conf(pyslurm: Lab) -> None:
    """Commands find it by SLURM_CONF_SERVER or DNS; libslurm in this process is not asked to."""
    code = (
        "from slurmkit.jobs.backends import pyslurm_usable as usable\n"
        "from slurmkit.slurm.commands import LocalSlurmCommands\n"
        "usable.conf_path = lambda: ''\nprint(usable.check_pyslurm(LocalSlurmCommands()).why_not)"
    )
    said = pyslurm.run(PYTHON, "-c", code).stdout
    assert said.startswith("there is no slurm.conf on this machine")
