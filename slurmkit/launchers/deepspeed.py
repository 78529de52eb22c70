"""DeepSpeed: torchrun's agents, whose workers are told what the `deepspeed` command tells them.

That command itself is not started: it goes from node to node by SSH, and where there are several
it has workers use the GPUs from 0 on, also where Slurm gave a job others. What a worker reads is
the same (`deepspeed/launcher/launch.py`): `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR`,
`MASTER_PORT`, `LOCAL_SIZE`, and `--local_rank=N` before its other arguments.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

from slurmkit.checks.say import error
from slurmkit.findings import Finding
from slurmkit.launchers.agents import as_many_on_each_node, needs_agents
from slurmkit.launchers.plain import needs_cpus, needs_one_start
from slurmkit.launchers.ranklogs import redirection
from slurmkit.launchers.step import Step
from slurmkit.launchers.torchrun import Words, python_beside, split, torch_agents
from slurmkit.spec import JobSpec

_SOURCE = "launcher deepspeed"
_NAME = "deepspeed"
_FLAGS = ("--module", "--no_python", "--no_local_rank")  # of the command, about what is started


class _Worker(msgspec.Struct, frozen=True):
    """What each worker is: its words, its arguments, and whether it is told its local rank."""

    python: str
    words: Words
    arguments: Words
    ranked: bool = True


class Deepspeed:
    """Starts each worker of torchrun as the `deepspeed` command would.

    The command is a script, or a `deepspeed` of its own without options for places.
    """

    def settle(self, spec: JobSpec) -> JobSpec:
        """See `slurmkit.plugins.Launcher`: as many workers on each node."""
        return as_many_on_each_node(spec)

    def needs(self, step: Step) -> Iterable[Finding]:
        """See `slurmkit.plugins.Launcher`."""
        spec = step.spec
        yield from needs_agents(step, _NAME)
        own = _is_own(spec.command)
        yield from needs_cpus(spec) if own else needs_one_start(spec, _NAME)
        if spec.command and _worker(spec.command) is None:
            message = (
                "which script is started does not show; give: python train.py ARGUMENTS, or"
                f" deepspeed [{'] ['.join(_FLAGS)}] train.py ARGUMENTS; nodes, GPUs and ports come"
                " from the job"
            )
            yield error("deepspeed-command", message, _SOURCE)

    def lines(self, step: Step) -> Words:
        """See `slurmkit.plugins.Launcher`."""
        worker = _worker(step.spec.command) or _Worker("python3", step.spec.command, ())
        rank = ' --local_rank="$LOCAL_RANK"' if worker.ranked else ""
        words = f'{shlex.join(worker.words)}{rank} "$@"{redirection(step)}'
        start = f'export LOCAL_SIZE="$LOCAL_WORLD_SIZE"; exec {words}'
        target = ("--no-python", "sh", "-c", start, "sh", *worker.arguments)
        return torch_agents(step, (worker.python, "-m", "torch.distributed.run"), target)


def _is_own(command: Words) -> bool:
    return bool(command) and PurePosixPath(command[0]).name == _NAME


def _worker(command: Words) -> _Worker | None:
    """None where the script does not show."""
    if _is_own(command):
        return _of_deepspeed(command)
    python, target = split(command)
    if target is None:
        return None if python else _Worker("python3", command[:1], command[1:])
    length = 2 if target[0] == "-m" else 1
    python = python or "python3"
    return _Worker(python, (python, "-u", *target[:length]), target[length:])


def _of_deepspeed(command: Words) -> _Worker | None:
    python, more, flags = python_beside(command[0]), list(command[1:]), []
    while more and more[0] in _FLAGS:
        flags.append(more.pop(0))
    if not more or more[0].startswith("-"):
        return None
    script = ("-m", more[0]) if "--module" in flags else (more[0],)
    words = script if "--no_python" in flags else (python, "-u", *script)
    return _Worker(python, words, tuple(more[1:]), "--no_local_rank" not in flags)
