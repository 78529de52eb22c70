"""Kernels of Jupyter as jobs: jupyter_client of PyPI starts them on the login node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster_lab import Lab
from python_with_slurmkit import make_python
from waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SHARED = "/home/.jupyter-kernel-test"
DRIVER = "kernel_driver.py"
HERE = Path(__file__).parent
SPECS = "/home/alice/.local/share/jupyter/kernels"
WHERE = "import os; print(os.environ['SLURM_JOB_ID'], os.environ['SLURMD_NODENAME'], os.getcwd())"
SLEEP = "import time; print('begun', flush=True); time.sleep(100)"
JOB = ("--mem=200M", "--time=30", "--partition=cpu")
Step = tuple[str, ...]


class Jupyter:
    """Somebody's Jupyter on the login node."""

    def __init__(self, lab: Lab, python: str) -> None:
        self.lab, self.python = lab, python

    def do(self, *steps: Step, before: tuple[str, ...] = ()) -> list[Any]:
        """Do these steps; return what each gave."""
        lines = "".join(json.dumps(step) + "\n" for step in steps)
        done = self.lab.run(
            *before, self.python, f"{SHARED}/{DRIVER}", user="alice", input=lines, timeout=90
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    def kernel(self, name: str, *job: str) -> None:
        self.lab.run("slurmkit", "jupyter", "kernel", name, *job, user="alice")

    def jobs(self) -> list[str]:
        listed = self.lab.run("squeue", "--me", "-h", "-o", "%i", "-t", "R,PD", user="alice")
        return listed.stdout.split()

    def edit(self, name: str, file: str, old: str, new: str) -> None:
        path = f"{SPECS}/slurmkit-{name}/{file}"
        text = self.lab.run("cat", path, user="alice").stdout
        assert old in text
        self.lab.run("tee", path, user="alice", input=text.replace(old, new))


@pytest.fixture(scope="module")
def jupyter(lab: Lab) -> Iterator[Jupyter]:
    python = make_python(lab, SHARED, "jupyter_client", "ipykernel")
    text = (HERE / DRIVER).read_text("utf-8")
    lab.run("tee", f"{SHARED}/{DRIVER}", user="", input=text)
    made = Jupyter(lab, python)
    made.kernel("cpu", *JOB)
    yield made
    wait_for(made.jobs, good=lambda jobs: not jobs)
    lab.as_root("login", "rm", "-rf", SHARED, SPECS)


def test_a_kernel_is_a_job_which_restarts_keep(jupyter: Jupyter) -> None:
    job_id, *rest = jupyter.do(
        ("start", "a", "slurmkit-cpu"),
        ("run", "a", f"kept = 1; {WHERE}"),
        ("interrupt", "a", SLEEP),
        ("run", "a", "print(kept)"),
        ("restart", "a"),
        ("run", "a", "print(kept)"),
        ("run", "a", WHERE),
        ("restart", "a", "now"),
        ("run", "a", WHERE),
        ("stop", "a"),
    )
    first = rest[0]
    assert (job_id, first.split()[2]) == ("", "/home/alice")
    assert rest[1:] == ["KeyboardInterrupt", "1\n", None, "NameError", first, None, first, None]
    wait_for(jupyter.jobs, good=lambda jobs: not jobs)


def test_two_notebooks_have_two_jobs(jupyter: Jupyter) -> None:
    _, _, first, second, *_ = jupyter.do(
        ("start", "a", "slurmkit-cpu"),
        ("start", "b", "slurmkit-cpu"),
        ("run", "a", WHERE),
        ("run", "b", WHERE),
        ("stop", "a"),
        ("stop", "b"),
    )
    assert first.split()[0] != second.split()[0]


def test_nothing_is_lost_when_the_connection_breaks(jupyter: Jupyter) -> None:
    cuts = [("cut", "a"), ("run", "a", "count += 1"), ("cut", "a")] * 3
    _, _, *_, count, left, _ = jupyter.do(
        ("start", "a", "slurmkit-cpu"),
        ("run", "a", "count = 0"),
        *cuts,
        ("run", "a", "print(count)"),
        ("shell", "squeue --me -h -o %i"),
        ("stop", "a"),
    )
    assert (count, len(left.split())) == ("3\n", 1)


def test_only_a_user_gets_another_job(jupyter: Jupyter) -> None:
    _, first, _, lost, listed, _, second, _ = jupyter.do(
        ("start", "a", "slurmkit-cpu"),
        ("run", "a", WHERE),
        ("shell", 'scancel --me; while [ "$(squeue --me -h)" ]; do sleep 0.2; done'),
        ("lose", "a"),
        ("shell", "squeue --me -h -o %i"),
        ("restart", "a"),
        ("run", "a", WHERE),
        ("stop", "a"),
    )
    assert (lost, listed) == ("dead", "")
    assert first.split()[0] != second.split()[0]


def test_a_killed_jupyter_closes_the_connection(jupyter: Jupyter) -> None:
    steps = [("start", "a", "slurmkit-cpu"), ("shell", "kill -9 $PPID")]
    lines = "".join(json.dumps(step) + "\n" for step in steps)
    jupyter.lab.run(jupyter.python, f"{SHARED}/{DRIVER}", input=lines, check=False)
    (job_id,) = jupyter.jobs()
    running = ("squeue", "-s", "-h", "-j", job_id, "-o", "%j")
    asked = partial(jupyter.lab.run, *running, user="alice")
    wait_for(asked, good=lambda answer: "ssh" not in answer.stdout.split())
    jupyter.lab.run("scancel", job_id, user="alice")


def test_a_job_that_cannot_be_is_refused(jupyter: Jupyter) -> None:
    jupyter.kernel("long", *JOB)
    jupyter.edit("long", "job.toml", '"30"', '"400-00:00:00"')
    (said,) = jupyter.do(("start", "a", "slurmkit-long"))
    assert "400-00:00:00" in said
    assert not jupyter.jobs()


def test_a_job_that_waits_for_too_long_is_cancelled(jupyter: Jupyter) -> None:
    jupyter.kernel("later", *JOB, "--begin=now+1hour")
    jupyter.edit("later", "kernel.json", '"start_timeout": 600', '"start_timeout": 3')
    (said,) = jupyter.do(("start", "a", "slurmkit-later"))
    assert "has not started within 3 s, and was cancelled" in said
    assert not jupyter.jobs()


def test_files_that_somebody_has_edited_wrongly(jupyter: Jupyter) -> None:
    jupyter.kernel("wrong", *JOB)
    jupyter.edit("wrong", "kernel.json", "{connection_file}", "{file}")
    jupyter.kernel("command", *JOB)
    jupyter.edit("command", "job.toml", 'time = "30"', 'time = "30"\ncommand = ["hostname"]')
    no_file, command = jupyter.do(
        ("start", "a", "slurmkit-wrong"), ("start", "b", "slurmkit-command")
    )
    assert "argv in kernel.json lacks {connection_file}" in no_file
    assert "command is in argv of kernel.json" in command
    assert not jupyter.jobs()


def test_a_python_without_ipykernel_says_so(jupyter: Jupyter) -> None:
    bare = f"{SHARED}/bare"
    jupyter.lab.as_root("login", "python3", "-m", "venv", "--without-pip", bare)
    jupyter.kernel("bare", *JOB, "--", f"{bare}/bin/python3")
    (said,) = jupyter.do(("start", "a", "slurmkit-bare"))
    assert "No module named ipykernel" in said
    assert not jupyter.jobs()


def test_kernels_that_take_signals_are_interrupted(jupyter: Jupyter) -> None:
    jupyter.kernel("signals", *JOB)
    jupyter.edit("signals", "kernel.json", '"message"', '"signal"')
    _, said, _ = jupyter.do(
        ("start", "a", "slurmkit-signals"),
        ("interrupt", "a", SLEEP),
        ("stop", "a"),
    )
    assert said == "KeyboardInterrupt"


def test_jupyter_may_itself_be_a_job(jupyter: Jupyter) -> None:
    before = ("salloc", "--quiet", "--partition=cpu", "--mem-per-cpu=200M", "--time=10")
    _, where, own, _ = jupyter.do(
        ("start", "a", "slurmkit-cpu"),
        ("run", "a", WHERE),
        ("shell", "echo $SLURM_JOB_ID"),
        ("stop", "a"),
        before=before,
    )
    assert where.split()[0] != own.strip()


def test_nobody_else_reaches_a_kernel(jupyter: Jupyter) -> None:
    listeners = "ss -Hltnp; ss -Hlxp; ls -ld /tmp/slurmkit-kernel-*"
    _, pid, modes, on_node, _ = jupyter.do(
        ("start", "a", "slurmkit-cpu"),
        ("run", "a", "import os, subprocess; print(os.getpid())"),
        ("shell", "stat -c %A /tmp/slurmkit-sockets-* ~/.local/state/slurmkit/kernels/*/*"),
        ("run", "a", f"print(subprocess.getoutput({listeners!r}))"),
        ("stop", "a"),
    )
    assert set(modes.split()) == {"drwx------"}
    assert "\ndrwx------" in on_node
    own = [line for line in on_node.splitlines() if f"pid={pid.strip()}," in line]
    sockets = [line for line in own if " /tmp/slurmkit-kernel-" in line]
    assert len(sockets) == 5
    # ipykernel itself takes output of forked processes there, of those who know a secret.
    assert all(" 127.0.0.1:" in line for line in own if line not in sockets)
