"""The deepspeed launcher: torchrun's agents, whose workers get what `deepspeed` gives its workers.

The `deepspeed` command itself is not started. It reaches other nodes by SSH, and on several nodes
its workers use the GPUs from 0 on, even if Slurm gave the job others. A worker reads the same here
(`deepspeed/launcher/launch.py`): `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`,
`LOCAL_SIZE`, and `--local_rank=N` before its other arguments.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

from slurmkit.planning.launchers.base import LaunchStep, log_redirection
from slurmkit.planning.launchers.srun import check_exclusive_cpus, check_not_a_launcher
from slurmkit.planning.launchers.torchrun import (
    Words,
    check_agents,
    sibling_python,
    split_python,
    spread_evenly,
    torchrun_lines,
)
from slurmkit.spec.findings import Finding, error
from slurmkit.spec.jobspec import JobSpec

_SOURCE = "launcher deepspeed"
_NAME = "deepspeed"
_FLAGS = ("--module", "--no_python", "--no_local_rank")  # options of `deepspeed` about the script


class _Worker(msgspec.Struct, frozen=True):
    """The command of each worker, its arguments, and whether it gets `--local_rank`."""

    python: str
    words: Words
    arguments: Words
    ranked: bool = True


class Deepspeed:
    """The launcher that starts each worker by torchrun as the `deepspeed` command would.

    The command is a script, or its own `deepspeed` without options for nodes and GPUs.
    """

    def settle(self, spec: JobSpec) -> JobSpec:
        """Return the job with the same number of workers on each node."""
        return spread_evenly(spec)

    def needs(self, step: LaunchStep) -> Iterable[Finding]:
        spec = step.spec
        yield from check_agents(step, _NAME)
        own = _is_own(spec.command)
        yield from check_exclusive_cpus(spec) if own else check_not_a_launcher(spec, _NAME)
        if spec.command and _worker(spec.command) is None:
            message = (
                "the command does not show which script it starts; give: python train.py ARGUMENTS,"
                f" or deepspeed [{'] ['.join(_FLAGS)}] train.py ARGUMENTS; nodes, GPUs and ports"
                " come from the job"
            )
            yield error("deepspeed-command", message, _SOURCE)

    def lines(self, step: LaunchStep) -> Words:
        worker = _worker(step.spec.command) or _Worker("python3", step.spec.command, ())
        rank = ' --local_rank="$LOCAL_RANK"' if worker.ranked else ""
        words = f'{shlex.join(worker.words)}{rank} "$@"{log_redirection(step)}'
        start = f'export LOCAL_SIZE="$LOCAL_WORLD_SIZE"; exec {words}'
        target = ("--no-python", "sh", "-c", start, "sh", *worker.arguments)
        return torchrun_lines(step, (worker.python, "-m", "torch.distributed.run"), target)


def _is_own(command: Words) -> bool:
    return bool(command) and PurePosixPath(command[0]).name == _NAME


def _worker(command: Words) -> _Worker | None:
    """Return the worker of a command; None if its script is not recognized."""
    if _is_own(command):
        return _of_deepspeed(command)
    python, target = split_python(command)
    if target is None:
        return None if python else _Worker("python3", command[:1], command[1:])
    length = 2 if target[0] == "-m" else 1
    python = python or "python3"
    return _Worker(python, (python, "-u", *target[:length]), target[length:])


def _of_deepspeed(command: Words) -> _Worker | None:
    python, more, flags = sibling_python(command[0]), list(command[1:]), []
    while more and more[0] in _FLAGS:
        flags.append(more.pop(0))
    if not more or more[0].startswith("-"):
        return None
    script = ("-m", more[0]) if "--module" in flags else (more[0],)
    words = script if "--no_python" in flags else (python, "-u", *script)
    return _Worker(python, words, tuple(more[1:]), "--no_local_rank" not in flags)
