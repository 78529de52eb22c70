"""An agent on each node, which starts a worker for each of the node's tasks, as torchrun has it."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable

import msgspec

from slurmkit.checks.say import Pairs, error, note, warning
from slurmkit.findings import Finding
from slurmkit.launchers.plain import needs_command, one_per_gpu
from slurmkit.launchers.ranklogs import needs_file, rank_logs
from slurmkit.launchers.step import PATIENCE, Step
from slurmkit.machine import HERE
from slurmkit.spec import JobSpec

# The step has one task on each node, with the CPUs of all the job's tasks there: srun would warn.
_FEWER_TASKS = "unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK"


def as_many_on_each_node(spec: JobSpec) -> JobSpec:
    """A job that gives no tasks has one for each GPU; those it gives are spread evenly."""
    spec = one_per_gpu(spec)
    nodes = spec.nodes if isinstance(spec.nodes, int) else None
    if spec.ntasks and not spec.ntasks_per_node and nodes and spec.ntasks % nodes == 0:
        spread = spec.ntasks // nodes
        return msgspec.structs.replace(spec, ntasks=None, ntasks_per_node=spread)
    return spec


def needs_agents(step: Step, name: str) -> Iterable[Finding]:
    """What keeps an agent of the launcher `name` from starting its workers, or is worth knowing."""
    yield from needs_command(step.spec, name)
    yield from needs_file(step)
    yield from _uneven(step, name)
    source = f"launcher {name}"
    yield from _unseen_files(step, name)
    if step.spec.launch.mpi not in (None, "none"):
        message = f"{name}'s workers meet without MPI; leave --mpi out, or --launch mpi"
        yield error("launcher-no-mpi", message, source)
    if step.spec.gpus is not None and step.spec.gpus.bind:
        message = (
            f"GPU binding {step.spec.gpus.bind} is not used: a node's workers are one task to"
            " Slurm, and each takes the GPU of its LOCAL_RANK"
        )
        yield note("launcher-no-binding", message, source)


def _unseen_files(step: Step, name: str) -> Iterable[Finding]:
    """Workers write the files of their output themselves, in the container."""
    folder = step.spec.chdir or HERE.folder
    folder = posixpath.join(folder, posixpath.dirname(step.spec.output or ""))
    seen = step.view is not None and step.view.inside(folder) == posixpath.normpath(folder)
    if step.spec.launch.log_per_rank and step.spec.container and not seen:
        message = (
            f"{name}'s workers write their files in the container, and it may not see {folder}:"
            f" --container-mounts {folder}"
        )
        yield warning("log-per-rank-container", message, f"launcher {name}")


def agents(step: Step, words: str) -> tuple[str, ...]:
    """Lines that start one agent on each node, with all that the job has there.

    Args:
        step: the job.
        words: what starts the agent, quoted.
    """
    options = (
        f"--cpus-per-task={step.tasks_per_node * step.layout.cpus_per_task}",
        "--ntasks-per-node=1",
        *(option for option in step.options if not option.startswith("--gpu-bind")),
        "--mpi=none",
        *PATIENCE,
    )
    nodes = "1" if step.single_node else '"$SLURM_NNODES"'
    line = f"srun --nodes={nodes} --ntasks={nodes} {shlex.join(options)} -- {words}"
    return (*rank_logs(step), _threads(step), _FEWER_TASKS, line)


def _threads(step: Step) -> str:
    """Torchrun itself would make it 1, whatever a worker has, and say so in a banner."""
    return f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{step.layout.cpus_per_task}}}"


def _uneven(step: Step, name: str) -> Iterable[Finding]:
    layout, said = step.layout, f"{name} starts as many workers on each node"
    if layout.gpus_in_all:
        message = f"{said}; ask for GPUs with --gpus-per-node"
        yield error("launcher-uneven", message, f"launcher {name}")
    elif layout.ntasks and not step.single_node:
        message = (
            f"{said}, and {layout.ntasks} tasks may be spread unevenly; give --nodes and"
            " --ntasks-per-node"
        )
        yield error("launcher-uneven", message, f"launcher {name}", _evenly(step, layout.ntasks))


def _evenly(step: Step, tasks: int) -> Pairs:
    """A task for each GPU where that is meant, else as few nodes as may be; some tasks more."""
    layout, least = step.layout, step.layout.least_nodes
    counts = range(least, (layout.most or least) + 1)
    by_gpus = [count for count in counts if layout.gpus and tasks == count * layout.gpus]
    even = [count for count in counts if tasks % count == 0]
    nodes = (*by_gpus, *even, least)[0]
    return (("nodes", str(nodes)), ("ntasks", ""), ("ntasks-per-node", str(-(-tasks // nodes))))
