"""torchrun: one agent on each node, which starts a worker process for each of the node's tasks.

Options are those of torch.distributed.run ("torchrun (Elastic Launch)", docs.pytorch.org).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

from slurmkit.checks.say import error, note
from slurmkit.findings import Finding
from slurmkit.launchers import rendezvous
from slurmkit.launchers.plain import needs_command, needs_one_start, one_per_gpu
from slurmkit.launchers.step import PATIENCE, Step
from slurmkit.spec import JobSpec

_SOURCE = "launcher torchrun"

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")

# The step has one task on each node, with the CPUs of all the job's tasks there: srun would warn.
_FEWER_TASKS = "unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK"


class Torchrun:
    """Starts torchrun, or `python -m torch.distributed.run` where the command names a Python."""

    def settle(self, spec: JobSpec) -> JobSpec:
        """See `slurmkit.plugins.Launcher`: as many workers on each node."""
        spec = one_per_gpu(spec)
        nodes = spec.nodes if isinstance(spec.nodes, int) else None
        if spec.ntasks and not spec.ntasks_per_node and nodes and spec.ntasks % nodes == 0:
            spread = spec.ntasks // nodes
            return msgspec.structs.replace(spec, ntasks=None, ntasks_per_node=spread)
        return spec

    def needs(self, step: Step) -> Iterable[Finding]:
        """See `slurmkit.plugins.Launcher`."""
        yield from needs_command(step.spec, "torchrun")
        yield from needs_one_start(step.spec, "torchrun")
        yield from _uneven(step)
        if step.spec.launch.mpi not in (None, "none"):
            message = "torchrun's workers meet without MPI; leave --mpi out, or --launch mpi"
            yield error("launcher-no-mpi", message, _SOURCE)
        if step.spec.gpus is not None and step.spec.gpus.bind:
            message = (
                f"GPU binding {step.spec.gpus.bind} is not used: a node's workers are one task to"
                " Slurm, and each takes the GPU of its LOCAL_RANK"
            )
            yield note("launcher-no-binding", message, _SOURCE)

    def lines(self, step: Step) -> tuple[str, ...]:
        """See `slurmkit.plugins.Launcher`."""
        workers = step.tasks_per_node
        options = (
            f"--cpus-per-task={workers * step.layout.cpus_per_task}",
            "--ntasks-per-node=1",
            *(option for option in step.options if not option.startswith("--gpu-bind")),
            "--mpi=none",
            *PATIENCE,
        )
        program, target = _split(step.spec.command)
        program = (*step.prefix, *program)
        if step.single_node:
            agent = shlex.join([*program, "--standalone", f"--nproc-per-node={workers}", *target])
            line = f"srun --nodes=1 --ntasks=1 {shlex.join(options)} -- {agent}"
            return (_threads(step), _FEWER_TASKS, line)
        many = '--nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES"'
        meet = (
            f'--nnodes="$SLURM_NNODES" --nproc-per-node={workers} --rdzv-id={rendezvous.ID}'
            ' --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"'
        )
        agent = f"{shlex.join(program)} {meet} {shlex.join(target)}"
        line = f"srun {many} {shlex.join(options)} -- {agent}"
        return (*rendezvous.LINES, "", _threads(step), _FEWER_TASKS, line)


def _threads(step: Step) -> str:
    """Torchrun itself would make it 1, whatever a worker has, and say so in a banner."""
    return f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{step.layout.cpus_per_task}}}"


def _split(command: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words that start an agent, and what it starts: a script, `-m module`, or any program.

    Workers of a Python have no flags but the agent's own `-u`: with others the whole command is
    the program.
    """
    first, *more = command
    if not _PYTHON.fullmatch(PurePosixPath(first).name):
        return ("torchrun",), command if first.endswith(".py") else ("--no-python", *command)
    agent = (first, "-m", "torch.distributed.run")
    while more[:1] == ["-u"]:
        more.pop(0)
    is_plain = bool(more) and (not more[0].startswith("-") or more[0] == "-m")
    return agent, tuple(more) if is_plain else ("--no-python", *command)


def _uneven(step: Step) -> Iterable[Finding]:
    layout = step.layout
    if layout.gpus_in_all:
        message = "torchrun starts as many workers on each node; ask for GPUs with --gpus-per-node"
        yield error("launcher-uneven", message, _SOURCE)
    elif layout.ntasks and not step.single_node:
        message = (
            f"torchrun starts as many workers on each node, and {layout.ntasks} tasks may be"
            " spread unevenly; give --nodes and --ntasks-per-node"
        )
        yield error("launcher-uneven", message, _SOURCE)
