"""A running job of a fake Slurm, whose step looks at real processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurmkit.cluster.cluster import Cluster
from slurmkit.slurm.machine import LOCAL_MACHINE
from slurmkit.testing import FakeSlurm, sacct_text, squeue_text

NOW = 1_800_000_000.0
ME = LOCAL_MACHINE.user
JOB = str(os.getpid())  # the probe sees all processes here, also those of tests on other workers
Answers = dict[str, Callable[[Sequence[str], str | None], str]]


def job_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: Answers | None = None, **values: Any
) -> Cluster:
    log = tmp_path / "log"
    log.write_text("step\n" * 50)
    job = {
        "JobArrayID": JOB, "JobID": JOB, "UserName": ME, "State": "RUNNING", "Name": "train",
        "NodeList": "c1", "NumNodes": "1", "NumCPUs": "2",
        "StartTime": str(int(time.time()) - 3600),
        "StdOut": str(log), "STDOUT": str(log), "TimeLimit": "2:00:00",
        "tres-alloc": "cpu=2,mem=1G,node=1",
        "WorkDir": str(tmp_path), **values,
    }  # fmt: skip
    answers: Answers = {
        "squeue": lambda argv, _: squeue_text(argv, [job]),
        "scontrol": lambda argv, _: "",
        "sacct": lambda argv, _: sacct_text(argv, []),
        "sstat": lambda argv, _: "",
        "srun": run_here,
    }
    monkeypatch.setattr("slurmkit.diagnose.probe._WATCHED", 0.1)
    return Cluster(FakeSlurm(answers | (more or {})))


def run_here(argv: Sequence[str], stdin: str | None) -> str:
    """Run what srun would run, once for each node."""
    nodes = next(each for each in argv if each.startswith("--nodelist=")).partition("=")[2]
    at = argv.index("python3")
    text = ""
    for number, name in enumerate(nodes.split(",")):
        env = {**os.environ, "SLURMD_NODENAME": name, "SLURM_NODEID": str(number)}
        command = [sys.executable, *argv[at + 1 :]]
        text += subprocess.run(
            command, input=stdin, text=True, env=env, capture_output=True, check=True, timeout=60
        ).stdout
    return text
