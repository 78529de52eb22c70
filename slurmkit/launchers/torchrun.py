"""torchrun: one agent on each node, which starts a worker process for each of the node's tasks.

Options are those of torch.distributed.run ("torchrun (Elastic Launch)", docs.pytorch.org).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

from slurmkit.findings import Finding
from slurmkit.launchers import rendezvous
from slurmkit.launchers.agents import agents, as_many_on_each_node, needs_agents
from slurmkit.launchers.plain import needs_one_start
from slurmkit.launchers.ranklogs import own_file
from slurmkit.launchers.step import Step
from slurmkit.spec import JobSpec

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
Words = tuple[str, ...]


class Torchrun:
    """Starts torchrun, or `python -m torch.distributed.run` where the command names a Python."""

    def settle(self, spec: JobSpec) -> JobSpec:
        """See `slurmkit.plugins.Launcher`: as many workers on each node."""
        return as_many_on_each_node(spec)

    def needs(self, step: Step) -> Iterable[Finding]:
        """See `slurmkit.plugins.Launcher`."""
        yield from needs_one_start(step.spec, "torchrun")
        yield from needs_agents(step, "torchrun")

    def lines(self, step: Step) -> Words:
        """See `slurmkit.plugins.Launcher`."""
        command = step.spec.command
        python, target = split(command)
        if step.spec.launch.log_per_rank:
            python, words = worker(command)
            target = ("--no-python", *own_file(step, words))
        elif target is None:
            target = ("--no-python", *command)
        program = (python, "-m", "torch.distributed.run") if python else ("torchrun",)
        return torch_agents(step, program, target)


def torch_agents(step: Step, program: Words, target: Words) -> Words:
    """Lines that start torch's agents.

    Args:
        step: the job.
        program: words of the agent.
        target: what each worker is, and its arguments.
    """
    first, workers = shlex.join((*step.prefix, *program)), step.tasks_per_node
    if step.single_node:
        words = f"{first} --standalone --nproc-per-node={workers} {shlex.join(target)}"
        return agents(step, words)
    meet = (
        f'--nnodes="$SLURM_NNODES" --nproc-per-node={workers} --rdzv-id={rendezvous.ID}'
        ' --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"'
    )
    return (*rendezvous.LINES, "", *agents(step, f"{first} {meet} {shlex.join(target)}"))


def worker(command: Words) -> tuple[str, Words]:
    """The Python of a command's agents, if it needs one, and the words of a worker without one.

    Whose Python a script alone has is only known to an agent; so both have that in PATH.
    """
    python, target = split(command)
    if target is None:
        return python, command
    python = python or "python3"
    return python, (python, "-u", *target)


def python_beside(program: str) -> str:
    """The Python of a program that pip installed: beside it where it is named by its path."""
    path = PurePosixPath(program)
    return str(path.with_name("python3")) if path.name != program else "python3"


def split(command: Words) -> tuple[str, Words | None]:
    """The Python that a command names, if any, and the script or `-m module` with its arguments.

    The latter is None for any other program, and for a Python with flags other than `-u`, which
    workers that an agent starts would not have.
    """
    first, *more = command
    if not _PYTHON.fullmatch(PurePosixPath(first).name):
        return "", command if first.endswith(".py") else None
    while more[:1] == ["-u"]:
        more.pop(0)
    is_plain = bool(more) and (not more[0].startswith("-") or (more[0] == "-m" and len(more) > 1))
    return first, tuple(more) if is_plain else None
