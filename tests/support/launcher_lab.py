"""A step of a job as a launcher is given it, and what bash makes of the launcher's lines."""

from __future__ import annotations

import os
import subprocess

import msgspec

from slurmkit.planning.gpu_request import ResolvedGpus
from slurmkit.planning.launchers.base import LaunchStep, make_launcher
from slurmkit.planning.layout import lay_out
from slurmkit.spec.findings import Finding
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Capabilities

CLUSTER = Capabilities(
    taken=0, release=(24, 11, 5), cluster_name="lab", config={}, nodes=(), partitions=()
)
SHOW = 'show() { for word; do printf "%s\\0" "$word"; done; }; srun() { show "$@"; }\n'
JOB = {"SLURM_JOB_ID": "4711", "SLURM_NNODES": "2"}


def step(spec: JobSpec, options: tuple[str, ...] = (), cpus: int = 1) -> LaunchStep:
    """The step of a job as a launcher is given it."""
    settled = make_launcher(spec.launch.launcher or "srun").settle(spec)
    layout = lay_out(settled, ResolvedGpus() if spec.gpus else None, 64)
    layout = msgspec.structs.replace(layout, cpus_per_task=cpus)
    return LaunchStep(spec=settled, layout=layout, options=options, capabilities=CLUSTER)


def lines(given: LaunchStep) -> str:
    """The lines of its launcher."""
    chosen = make_launcher(given.spec.launch.launcher or "srun")
    return "\n".join(chosen.lines(given))


def needs(spec: JobSpec) -> list[Finding]:
    """What its launcher says of a job."""
    return list(make_launcher(spec.launch.launcher or "srun").needs(step(spec)))


def bash(script: str, **environment: str) -> str:
    """What a script prints."""
    env = {"PATH": os.environ["PATH"]} | JOB | environment
    words = ["bash", "-eu", "-c", script]
    done = subprocess.run(words, capture_output=True, check=True, env=env)
    return done.stdout.decode()


def argv(script: str) -> list[str]:
    """The words that srun gets."""
    return bash(SHOW + script).split("\0")[:-1]
