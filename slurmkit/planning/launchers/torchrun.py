"""The torchrun launcher: one agent on each node, which starts a worker for each task there.

Options are those of torch.distributed.run ("torchrun (Elastic Launch)", docs.pytorch.org). Other
launchers with an agent on each node use the same checks and lines.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

from slurmkit.planning.launchers import base
from slurmkit.planning.launchers.base import (
    END_ALL_ON_FAILURE,
    LaunchStep,
    check_output_is_file,
    rank_log_lines,
    with_own_log,
)
from slurmkit.planning.launchers.srun import (
    check_is_command,
    check_not_a_launcher,
    one_task_per_gpu,
)
from slurmkit.slurm.machine import LOCAL_MACHINE
from slurmkit.spec.findings import Finding, Pairs, error, note, warning
from slurmkit.spec.jobspec import JobSpec

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
Words = tuple[str, ...]
# The step has one task per node, with the CPUs of all the job's tasks there: srun would warn.
_FEWER_TASKS = "unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK"


class Torchrun:
    """The launcher that starts torchrun, or `python -m torch.distributed.run`.

    It uses the second form where the command names a Python.
    """

    def settle(self, spec: JobSpec) -> JobSpec:
        """See `Launcher`: the same number of workers on each node."""
        return spread_evenly(spec)

    def needs(self, step: LaunchStep) -> Iterable[Finding]:
        """See `slurmkit.planning.launchers.base.Launcher`."""
        yield from check_not_a_launcher(step.spec, "torchrun")
        yield from check_agents(step, "torchrun")

    def lines(self, step: LaunchStep) -> Words:
        """See `slurmkit.planning.launchers.base.Launcher`."""
        command = step.spec.command
        python, target = split_python(command)
        if step.spec.launch.log_per_rank:
            python, words = worker_words(command)
            target = ("--no-python", *with_own_log(step, words))
        elif target is None:
            target = ("--no-python", *command)
        program = (python, "-m", "torch.distributed.run") if python else ("torchrun",)
        return torchrun_lines(step, program, target)


def torchrun_lines(step: LaunchStep, program: Words, target: Words) -> Words:
    """Return lines that start torchrun's agents.

    Args:
        step: the job.
        program: words of the agent.
        target: command of each worker, with its arguments.
    """
    first, workers = shlex.join((*step.prefix, *program)), step.tasks_per_node
    if step.single_node:
        words = f"{first} --standalone --nproc-per-node={workers} {shlex.join(target)}"
        return agent_lines(step, words)
    meet = (
        f'--nnodes="$SLURM_NNODES" --nproc-per-node={workers} --rdzv-id={base.RENDEZVOUS_ID}'
        ' --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"'
    )
    return (*base.RENDEZVOUS_LINES, "", *agent_lines(step, f"{first} {meet} {shlex.join(target)}"))


def worker_words(command: Words) -> tuple[str, Words]:
    """Return the Python of a command's agents, if it needs one, and the words of a worker.

    Only an agent knows which Python runs a script alone; so agent and worker both use the one in
    PATH.
    """
    python, target = split_python(command)
    if target is None:
        return python, command
    python = python or "python3"
    return python, (python, "-u", *target)


def sibling_python(program: str) -> str:
    """Return the Python next to a program that pip installed; `python3` if it has no path."""
    path = PurePosixPath(program)
    return str(path.with_name("python3")) if path.name != program else "python3"


def split_python(command: Words) -> tuple[str, Words | None]:
    """Return the Python that a command names, if any, and its script or `-m module` with arguments.

    The latter is None for any other program. It is also None for a Python with flags other than
    `-u`, which workers of an agent would not get.
    """
    first, *more = command
    if not _PYTHON.fullmatch(PurePosixPath(first).name):
        return "", command if first.endswith(".py") else None
    while more[:1] == ["-u"]:
        more.pop(0)
    is_plain = bool(more) and (not more[0].startswith("-") or (more[0] == "-m" and len(more) > 1))
    return first, tuple(more) if is_plain else None


def spread_evenly(spec: JobSpec) -> JobSpec:
    """Return the job with one task for each GPU by default, and its tasks spread evenly."""
    spec = one_task_per_gpu(spec)
    nodes = spec.nodes if isinstance(spec.nodes, int) else None
    if spec.ntasks and not spec.ntasks_per_node and nodes and spec.ntasks % nodes == 0:
        spread = spec.ntasks // nodes
        return msgspec.structs.replace(spec, ntasks=None, ntasks_per_node=spread)
    return spec


def check_agents(step: LaunchStep, name: str) -> Iterable[Finding]:
    """Report what prevents the agents of launcher `name`, and options that they ignore."""
    yield from check_is_command(step.spec, name)
    yield from check_output_is_file(step)
    yield from _uneven(step, name)
    source = f"launcher {name}"
    yield from _unseen_files(step, name)
    if step.spec.launch.mpi not in (None, "none"):
        message = f"{name}'s workers do not use MPI; leave --mpi out, or give --launch mpi"
        yield error("launcher-no-mpi", message, source)
    if step.spec.gpus is not None and step.spec.gpus.bind:
        message = (
            f"GPU binding {step.spec.gpus.bind} is not used: a node's workers are one task to"
            " Slurm, and each takes the GPU of its LOCAL_RANK"
        )
        yield note("launcher-no-binding", message, source)


def _unseen_files(step: LaunchStep, name: str) -> Iterable[Finding]:
    """Warn of log files outside the container's mounts: workers write them inside it."""
    folder = step.spec.chdir or LOCAL_MACHINE.folder
    folder = posixpath.join(folder, posixpath.dirname(step.spec.output or ""))
    seen = step.view is not None and step.view.inside(folder) == posixpath.normpath(folder)
    if step.spec.launch.log_per_rank and step.spec.container and not seen:
        message = (
            f"{name}'s workers write their files in the container, and it may not see {folder};"
            f" mount the folder: --container-mounts {folder}"
        )
        yield warning("log-per-rank-container", message, f"launcher {name}")


def agent_lines(step: LaunchStep, words: str) -> tuple[str, ...]:
    """Return lines that start one agent on each node, with all CPUs that the job has there.

    Args:
        step: the job.
        words: command of the agent, quoted for the shell.
    """
    options = (
        f"--cpus-per-task={step.tasks_per_node * step.layout.cpus_per_task}",
        "--ntasks-per-node=1",
        *(option for option in step.options if not option.startswith("--gpu-bind")),
        "--mpi=none",
        *END_ALL_ON_FAILURE,
    )
    nodes = "1" if step.single_node else '"$SLURM_NNODES"'
    line = f"srun --nodes={nodes} --ntasks={nodes} {shlex.join(options)} -- {words}"
    # Without it torchrun would set 1, whatever CPUs a worker has, and print a banner.
    threads = f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{step.layout.cpus_per_task}}}"
    return (*rank_log_lines(step), threads, _FEWER_TASKS, line)


def _uneven(step: LaunchStep, name: str) -> Iterable[Finding]:
    layout, rule = step.layout, f"{name} starts the same number of workers on each node"
    if layout.gpus_in_all:
        message = f"{rule}; ask for GPUs with --gpus-per-node"
        yield error("launcher-uneven", message, f"launcher {name}")
    elif layout.ntasks and not step.single_node:
        message = (
            f"{rule}, and {layout.ntasks} tasks may be spread unevenly; give --nodes and"
            " --ntasks-per-node"
        )
        yield error("launcher-uneven", message, f"launcher {name}", _evenly(step, layout.ntasks))


def _evenly(step: LaunchStep, tasks: int) -> Pairs:
    """Return a fix that spreads the tasks evenly.

    It has one task for each GPU if the numbers match, else as few nodes as possible. If nothing
    divides, there are some tasks more.
    """
    layout, least = step.layout, step.layout.least_nodes
    counts = range(least, (layout.most or least) + 1)
    by_gpus = [count for count in counts if layout.gpus and tasks == count * layout.gpus]
    even = [count for count in counts if tasks % count == 0]
    nodes = (*by_gpus, *even, least)[0]
    return (("nodes", str(nodes)), ("ntasks", ""), ("ntasks-per-node", str(-(-tasks // nodes))))
