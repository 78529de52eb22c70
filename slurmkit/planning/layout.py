"""How many nodes, tasks and GPUs on each: one layout for the job and for its step.

GPUs are asked for per node wherever they can be: then every task sees all of its node's GPUs, so
a local rank is a device, on every release (on 22.05 a step of `--gpus-per-task` gets none at all),
and nodes get equal numbers (`--gpus=4 -N2` gave 3 and 1).
"""

from __future__ import annotations

import math

import msgspec

from slurmkit.findings import Finding
from slurmkit.planning.kinds import Kind
from slurmkit.refusals import words
from slurmkit.spec import JobSpec


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What a job spreads over its nodes.

    Attributes:
        nodes: None leaves the number to Slurm; of a range the least.
        most: of a range that is left to Slurm, the most; else None.
        ntasks: None where `ntasks_per_node` says it.
        cpus_per_task: CPUs of each task.
        gpus: GPUs, slices, shards or MPS units on each node; 0 for none.
        gpus_in_all: GPUs of the whole job where they do not divide evenly over its nodes.
    """

    nodes: int | None
    ntasks: int | None
    ntasks_per_node: int | None
    most: int | None = None
    cpus_per_task: int = 1
    gpus: int = 0
    gpus_in_all: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def least_nodes(self) -> int:
        """Nodes the job has at least."""
        return self.nodes or 1

    @property
    def tasks(self) -> int:
        """Tasks of the whole job."""
        return self.ntasks or self.least_nodes * (self.ntasks_per_node or 1)


def layout_of(spec: JobSpec, kind: Kind | None, cpus: int) -> Layout:
    """Spread the tasks and GPUs of a job.

    Args:
        spec: the job.
        kind: the GPUs meant, None for a job without.
        cpus: CPUs of the largest node that fits, 0 when none does.
    """
    if kind is None or spec.gpus is None:
        return _without_gpus(spec)
    if kind.units:
        return _with_nodes(spec, _least_nodes(spec, cpus), kind.units)
    match spec.gpus.per:
        case "node":
            made = _per_node(spec, kind, spec.gpus.count, cpus)
        case "task":
            return _per_task(spec, kind, spec.gpus.count, cpus)
        case _:
            made = _per_job(spec, kind, spec.gpus.count, cpus)
    return _task_per_gpu(made) if spec.launch.per_gpu else made


def _task_per_gpu(made: Layout) -> Layout:
    """Where the job itself gives no tasks."""
    if made.ntasks or made.ntasks_per_node:
        return made
    if made.gpus_in_all:
        return msgspec.structs.replace(made, ntasks=made.gpus_in_all)
    return msgspec.structs.replace(made, ntasks_per_node=made.gpus)


def _without_gpus(spec: JobSpec) -> Layout:
    nodes = spec.nodes and _least_nodes(spec, 0)
    return _with_nodes(spec, nodes or (None if spec.ntasks else 1), 0)


def _with_nodes(spec: JobSpec, nodes: int | None, gpus: int) -> Layout:
    return Layout(
        nodes=nodes,
        ntasks=spec.ntasks,
        ntasks_per_node=spec.ntasks_per_node,
        most=spec.most_nodes if isinstance(spec.nodes, str) and nodes == spec.least_nodes else None,
        gpus=gpus,
        findings=_more_nodes_than_tasks(spec),
    )


def _more_nodes_than_tasks(spec: JobSpec) -> tuple[Finding, ...]:
    tasks, nodes = spec.ntasks, spec.least_nodes or 1
    if tasks is None or tasks >= nodes:
        return ()
    message = f"{tasks} tasks cannot use {nodes} nodes: Slurm makes it {tasks} nodes"
    return (
        Finding(
            severity="warning",
            code="fewer-tasks-than-nodes",
            message=message,
            source="sbatch(1) --nodes",
            fix=(("nodes", str(tasks)),),
        ),
    )


def _least_nodes(spec: JobSpec, cpus: int) -> int:
    """Nodes asked for, of which each has a task; else as many as the tasks need."""
    if spec.least_nodes is not None:
        return min(spec.least_nodes, spec.ntasks or spec.least_nodes)
    if spec.ntasks is None:
        return 1
    by_cpus = max(1, cpus // (spec.cpus_per_task or 1)) if cpus else spec.ntasks
    return math.ceil(spec.ntasks / min(by_cpus, spec.ntasks_per_node or by_cpus))


def _per_node(spec: JobSpec, kind: Kind, gpus: int, cpus: int) -> Layout:
    nodes = _least_nodes(spec, cpus)
    return _checked(spec, kind, _with_nodes(spec, nodes, gpus))


def _checked(spec: JobSpec, kind: Kind, made: Layout) -> Layout:
    """With an error where a node is asked for more GPUs than one has."""
    found = _too_many(spec, kind, made.gpus, made.least_nodes)
    return msgspec.structs.replace(made, findings=(*made.findings, *found))


def _per_task(spec: JobSpec, kind: Kind, gpus: int, cpus: int) -> Layout:
    tasks = spec.ntasks or (spec.least_nodes or 1) * (spec.ntasks_per_node or 1)
    by_cpus = max(1, cpus // (spec.cpus_per_task or 1))
    by_gpus = max(1, kind.most // gpus) if kind.fitting else tasks
    on_one = min(by_cpus if cpus else tasks, spec.ntasks_per_node or tasks, by_gpus)
    nodes = _least_nodes(spec, cpus) if spec.nodes else _even_nodes(tasks, on_one)
    if isinstance(spec.nodes, str):
        nodes = next((n for n in _range(spec) if not tasks % n and tasks // n <= on_one), nodes)
    if tasks % nodes:
        return _uneven_tasks(spec, tasks, gpus)
    on_each = tasks // nodes
    made = _one_number(spec, _with_nodes(spec, nodes, on_each * gpus))
    spread = msgspec.structs.replace(made, ntasks=None, ntasks_per_node=on_each)
    return _checked(spec, kind, spread)


def _range(spec: JobSpec) -> range:
    return range(spec.least_nodes or 1, (spec.most_nodes or 1) + 1)


def _one_number(spec: JobSpec, made: Layout) -> Layout:
    """Of a range the number of nodes over which GPUs divide as they were asked for."""
    if not isinstance(spec.nodes, str):
        return made
    message = f"--nodes={spec.nodes}: asked for with {made.nodes}, over which the GPUs divide"
    note = Finding(severity="note", code="nodes-chosen", message=message, source="--nodes")
    return msgspec.structs.replace(made, most=None, findings=(*made.findings, note))


def _even_nodes(tasks: int, on_one: int) -> int:
    """The least number of nodes over which the tasks spread evenly, at most `on_one` on each."""
    return next(n for n in range(1, tasks + 1) if tasks % n == 0 and tasks // n <= on_one)


def _uneven_tasks(spec: JobSpec, tasks: int, gpus: int) -> Layout:
    nodes = spec.least_nodes or 1
    even = max(1, tasks // nodes)
    message = (
        f"{tasks} tasks with {gpus} GPUs each do not spread evenly over {nodes} nodes, and then"
        " local ranks and GPUs do not match"
    )
    fix = (("ntasks", str(even * nodes)), ("ntasks-per-node", str(even)))
    error = Finding(severity="error", code="gpu-uneven-tasks", message=message, fix=fix)
    return Layout(nodes=nodes, ntasks=tasks, ntasks_per_node=None, gpus=gpus, findings=(error,))


def _per_job(spec: JobSpec, kind: Kind, gpus: int, cpus: int) -> Layout:
    least = _least_nodes(spec, cpus)
    upto = min(spec.most_nodes or gpus, gpus)
    even = (n for n in range(least, upto + 1) if gpus % n == 0 and gpus // n <= kind.most)
    nodes = least if isinstance(spec.nodes, int) else next(even, least)
    if gpus < nodes:
        return _fewer_than_nodes(spec, gpus, nodes)
    made = _one_number(spec, _with_nodes(spec, nodes, math.ceil(gpus / nodes)))
    made = _checked(spec, kind, made)
    if gpus % nodes == 0:
        return made
    uneven = Finding(
        severity="warning",
        code="gpu-uneven",
        message=f"{gpus} GPUs do not divide evenly over {nodes} nodes: Slurm decides who gets more",
        fix=(("gpus", str(gpus - gpus % nodes)),),
    )
    return msgspec.structs.replace(made, gpus_in_all=gpus, findings=(*made.findings, uneven))


def _fewer_than_nodes(spec: JobSpec, gpus: int, nodes: int) -> Layout:
    message = f"{gpus} GPUs for the whole job on {nodes} nodes: each node of a job has at least one"
    error = Finding(
        severity="error",
        code="gpu-fewer-than-nodes",
        message=message,
        source="sbatch(1) --gpus",
        fix=(("nodes", str(gpus)),),
    )
    return msgspec.structs.replace(_with_nodes(spec, nodes, 1), findings=(error,))


def _too_many(spec: JobSpec, kind: Kind, gpus: int, nodes: int) -> tuple[Finding, ...]:
    most = kind.most
    if not kind.fitting or gpus <= most:
        return ()
    name = f"gpu:{kind.type}" if kind.type else "gpu"
    partitions = ",".join(dict.fromkeys(p for n in kind.fitting for p in n.partitions))
    message = words(
        "gpus-per-node",
        asked=f"{name}:{gpus}",
        most=f"{name}:{most}",
        partition=spec.partition or partitions,
    )
    if spec.gpus is not None and spec.gpus.per == "task":
        return (_error_too_many(message, _fewer_per_task(spec, kind, gpus)),)
    total = gpus * nodes
    more = next((n for n in range(nodes, total + 1) if total % n == 0 and total // n <= most), 1)
    asked = f"{kind.type}:" if kind.type else ""
    fix = (("nodes", str(more)), ("gpus-per-node", f"{asked}{total // more}"))
    if more > len(kind.fitting):
        fix = (("nodes", str(min(nodes, len(kind.fitting)))), ("gpus-per-node", f"{asked}{most}"))
    return (_error_too_many(message, fix),)


def _fewer_per_task(spec: JobSpec, kind: Kind, gpus: int) -> tuple[tuple[str, str], ...]:
    """As many for each task as there are, or the tasks on more nodes."""
    count = spec.gpus.count if spec.gpus else 1
    asked = f"{kind.type}:" if kind.type else ""
    if count > kind.most:
        return (("gpus-per-task", f"{asked}{kind.most}"),)
    tasks = spec.ntasks or gpus // count * (spec.least_nodes or 1)
    nodes = _even_nodes(tasks, kind.most // count)
    return (("nodes", str(nodes)), ("ntasks-per-node", str(tasks // nodes)))


def _error_too_many(message: str, fix: tuple[tuple[str, str], ...]) -> Finding:
    return Finding(
        severity="error",
        code="gpus-per-node",
        message=message,
        source="GRES of the nodes",
        fix=fix,
    )
