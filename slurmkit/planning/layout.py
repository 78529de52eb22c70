"""The number of nodes, and of tasks and GPUs on each: one layout for the job and for its step.

GPUs are asked for per node wherever possible. Then every task sees all GPUs of its node, so a
local rank is a device on every release (on 22.05 a step with `--gpus-per-task` gets no GPU at
all), and nodes get equal numbers (`--gpus=4 -N2` gave 3 and 1).
"""

from __future__ import annotations

import math

import msgspec

from slurmkit.planning.gpu_request import ResolvedGpus
from slurmkit.planning.refusals import refusal_text
from slurmkit.spec.findings import Finding
from slurmkit.spec.jobspec import JobSpec


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes, tasks, CPUs and GPUs of a job.

    Attributes:
        nodes: number of nodes; the least of a range; None leaves it to Slurm.
        most: the most of a range that is left to Slurm; else None.
        ntasks: tasks of the job; None where `ntasks_per_node` gives them.
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
        """The least number of nodes of the job."""
        return self.nodes or 1

    @property
    def tasks(self) -> int:
        """Tasks of the whole job."""
        return self.ntasks or self.least_nodes * (self.ntasks_per_node or 1)


def lay_out(spec: JobSpec, kind: ResolvedGpus | None, cpus: int) -> Layout:
    """Lay out the tasks and GPUs of a job over nodes.

    Args:
        spec: the job.
        kind: the GPUs meant; None for a job without GPUs.
        cpus: CPUs of the largest node that fits; 0 when none fits.
    """
    if kind is None or spec.gpus is None:
        nodes = spec.nodes and _least_nodes(spec, 0)
        return _with_nodes(spec, nodes or (None if spec.ntasks else 1), 0)
    if kind.units:
        return _with_nodes(spec, _least_nodes(spec, cpus), kind.units)
    match spec.gpus.per:
        case "node":
            nodes = _least_nodes(spec, cpus)
            layout = _check_gpus_per_node(spec, kind, _with_nodes(spec, nodes, spec.gpus.count))
        case "task":
            return _per_task(spec, kind, spec.gpus.count, cpus)
        case _:
            layout = _per_job(spec, kind, spec.gpus.count, cpus)
    return _task_per_gpu(layout) if spec.launch.per_gpu else layout


def _task_per_gpu(layout: Layout) -> Layout:
    """Return the layout with one task for each GPU, unless the job gives its tasks."""
    if layout.ntasks or layout.ntasks_per_node:
        return layout
    if layout.gpus_in_all:
        return msgspec.structs.replace(layout, ntasks=layout.gpus_in_all)
    return msgspec.structs.replace(layout, ntasks_per_node=layout.gpus)


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
    message = f"{tasks} tasks cannot use {nodes} nodes: Slurm gives the job only {tasks}"
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
    """Return the nodes asked for, at most one per task; else as many as the tasks need."""
    if spec.least_nodes is not None:
        return min(spec.least_nodes, spec.ntasks or spec.least_nodes)
    if spec.ntasks is None:
        return 1
    by_cpus = max(1, cpus // (spec.cpus_per_task or 1)) if cpus else spec.ntasks
    return math.ceil(spec.ntasks / min(by_cpus, spec.ntasks_per_node or by_cpus))


def _check_gpus_per_node(spec: JobSpec, kind: ResolvedGpus, layout: Layout) -> Layout:
    """Add an error where the layout has more GPUs on a node than any node has."""
    errors = _too_many(spec, kind, layout.gpus, layout.least_nodes)
    return msgspec.structs.replace(layout, findings=(*layout.findings, *errors))


def _per_task(spec: JobSpec, kind: ResolvedGpus, gpus: int, cpus: int) -> Layout:
    tasks = spec.ntasks or (spec.least_nodes or 1) * (spec.ntasks_per_node or 1)
    by_cpus = max(1, cpus // (spec.cpus_per_task or 1))
    by_gpus = max(1, kind.most // gpus) if kind.fitting else tasks
    on_one = min(by_cpus if cpus else tasks, spec.ntasks_per_node or tasks, by_gpus)
    nodes = _least_nodes(spec, cpus) if spec.nodes else _even_nodes(tasks, on_one)
    if isinstance(spec.nodes, str):
        counts = range(spec.least_nodes or 1, (spec.most_nodes or 1) + 1)
        nodes = next((n for n in counts if not tasks % n and tasks // n <= on_one), nodes)
    if tasks % nodes:
        return _uneven_tasks(spec, tasks, gpus)
    on_each = tasks // nodes
    layout = _fix_node_count(spec, _with_nodes(spec, nodes, on_each * gpus))
    spread = msgspec.structs.replace(layout, ntasks=None, ntasks_per_node=on_each)
    return _check_gpus_per_node(spec, kind, spread)


def _fix_node_count(spec: JobSpec, layout: Layout) -> Layout:
    """Fix a range of nodes to the number over which the GPUs divide evenly."""
    if not isinstance(spec.nodes, str):
        return layout
    message = (
        f"--nodes={spec.nodes}: slurmkit asks for {layout.nodes}, because the GPUs divide evenly"
        " over that number"
    )
    note = Finding(severity="note", code="nodes-chosen", message=message, source="--nodes")
    return msgspec.structs.replace(layout, most=None, findings=(*layout.findings, note))


def _even_nodes(tasks: int, on_one: int) -> int:
    """Return the least number of nodes with equal tasks on each, at most `on_one`."""
    return next(n for n in range(1, tasks + 1) if tasks % n == 0 and tasks // n <= on_one)


def _uneven_tasks(spec: JobSpec, tasks: int, gpus: int) -> Layout:
    nodes = spec.least_nodes or 1
    even = max(1, tasks // nodes)
    message = (
        f"{tasks} tasks with {gpus} GPUs each do not spread evenly over {nodes} nodes, so local"
        " ranks and GPUs would not match"
    )
    fix = (("ntasks", str(even * nodes)), ("ntasks-per-node", str(even)))
    error = Finding(severity="error", code="gpu-uneven-tasks", message=message, fix=fix)
    return Layout(nodes=nodes, ntasks=tasks, ntasks_per_node=None, gpus=gpus, findings=(error,))


def _per_job(spec: JobSpec, kind: ResolvedGpus, gpus: int, cpus: int) -> Layout:
    least = _least_nodes(spec, cpus)
    upto = min(spec.most_nodes or gpus, gpus)
    even = (n for n in range(least, upto + 1) if gpus % n == 0 and gpus // n <= kind.most)
    nodes = least if isinstance(spec.nodes, int) else next(even, least)
    if gpus < nodes:
        return _fewer_than_nodes(spec, gpus, nodes)
    layout = _fix_node_count(spec, _with_nodes(spec, nodes, math.ceil(gpus / nodes)))
    layout = _check_gpus_per_node(spec, kind, layout)
    if gpus % nodes == 0:
        return layout
    uneven = Finding(
        severity="warning",
        code="gpu-uneven",
        message=f"{gpus} GPUs do not divide evenly over {nodes} nodes: Slurm decides who gets more",
        fix=(("gpus", str(gpus - gpus % nodes)),),
    )
    return msgspec.structs.replace(layout, gpus_in_all=gpus, findings=(*layout.findings, uneven))


def _fewer_than_nodes(spec: JobSpec, gpus: int, nodes: int) -> Layout:
    message = (
        f"{gpus} GPUs for the whole job are too few for {nodes} nodes: each node of such a job has"
        " at least one"
    )
    error = Finding(
        severity="error",
        code="gpu-fewer-than-nodes",
        message=message,
        source="sbatch(1) --gpus",
        fix=(("nodes", str(gpus)),),
    )
    return msgspec.structs.replace(_with_nodes(spec, nodes, 1), findings=(error,))


def _too_many(spec: JobSpec, kind: ResolvedGpus, gpus: int, nodes: int) -> tuple[Finding, ...]:
    most = kind.most
    if not kind.fitting or gpus <= most:
        return ()
    name = f"gpu:{kind.type}" if kind.type else "gpu"
    partitions = ",".join(dict.fromkeys(p for n in kind.fitting for p in n.partitions))
    message = refusal_text(
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


def _fewer_per_task(spec: JobSpec, kind: ResolvedGpus, gpus: int) -> tuple[tuple[str, str], ...]:
    """Return a fix: fewer GPUs for each task, or the tasks on more nodes."""
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
