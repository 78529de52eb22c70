"""The number of nodes, and of tasks and GPUs on each: one layout for the job and for its step.

GPUs are asked for per node wherever possible. Then every task sees all GPUs of its node, so a
local rank is a device on every release (on 22.05 a step with `--gpus-per-task` gets no GPU at
all), and nodes get equal numbers (`--gpus=4 -N2` gave 3 and 1).
"""

from __future__ import annotations

import math

import msgspec

from slurmkit.formats.scontrol import expand_nodes
from slurmkit.planning.gpu_request import ResolvedGpus
from slurmkit.planning.refusals import refusal_text
from slurmkit.spec.findings import Finding, Pairs, error, note, warning
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, option


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes, tasks, CPUs and GPUs of a job.

    Attributes:
        nodes: number of nodes; the least of a range; None leaves it to Slurm.
        most: the most of a range that is left to Slurm; else None.
        ntasks: tasks of the job; None where `ntasks_per_node` gives them.
        cpus_per_task: CPUs of each task.
        least_cpus: fewest CPUs on each node where they do not follow from the tasks: those of
            `--cpus-per-gpu`, and of `--mincpus` for a script; else 0.
        gpus: GPUs, slices, shards or MPS units on each node; 0 for none.
        gpus_in_all: GPUs of the whole job where they do not divide evenly over its nodes.
    """

    nodes: int | None
    ntasks: int | None
    ntasks_per_node: int | None
    most: int | None = None
    cpus_per_task: int = 1
    least_cpus: int = 0
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


def lay_out(spec: JobSpec, kind: ResolvedGpus | None, cpus: int, min_nodes: int = 1) -> Layout:
    """Lay out the tasks and GPUs of a job over nodes.

    Args:
        spec: the job.
        kind: the GPUs meant; None for a job without GPUs.
        cpus: CPUs of the largest node that fits; 0 when none fits.
        min_nodes: MinNodes of the partition, which a job without `--nodes` gets.
    """
    each, notes = spec.ntasks_per_gpu, _implied_tasks_note(spec)
    layout = _lay_out(_with_counted_tasks(spec), kind, cpus, min_nodes)
    layout = msgspec.structs.replace(layout, findings=(*notes, *layout.findings))
    return layout if each is None else _tasks_of_gpus(spec, layout, each)


def _lay_out(spec: JobSpec, kind: ResolvedGpus | None, cpus: int, min_nodes: int) -> Layout:
    if kind is None or spec.gpus is None:
        left = spec.nodes is None and spec.ntasks is not None
        least = max(min_nodes, nodes_by_name(spec))
        nodes = None if left else _least_nodes(spec, cpus, least)
        return _with_checks(spec, _with_nodes(spec, nodes, 0), cpus)
    # sbatch reduces `--nodes` to the number of tasks: only without it does MinNodes hold.
    by_slurm = spec.nodes is None and spec.ntasks is not None and spec.ntasks < min_nodes
    min_nodes = max(min_nodes, nodes_by_name(spec))
    nodes = _least_nodes(spec, cpus, min_nodes)
    if kind.units:
        layout = _with_nodes(spec, None if by_slurm else nodes, kind.units)
        return _with_checks(spec, layout, cpus)
    match spec.gpus.per:
        case "node":
            layout = _with_nodes(spec, None if by_slurm else nodes, spec.gpus.count)
            layout = _check_gpus_per_node(spec, kind, layout)
        case "task":
            return _per_task(spec, kind, spec.gpus.count, cpus, min_nodes)
        case _:
            layout = _per_job(spec, kind, spec.gpus.count, nodes)
    return _with_checks(spec, _task_per_gpu(layout) if spec.launch.per_gpu else layout, cpus)


def nodes_by_name(spec: JobSpec) -> int:
    """Return the least number of nodes that `--nodelist` sets without `--nodes`; 0 for none.

    They are as many as it names, and at most one per task (`_opt_verify` in src/sbatch/opt.c).
    """
    if spec.nodes is not None or spec.nodelist is None:
        return 0
    named = len(set(expand_nodes(spec.nodelist)))
    return min(named, spec.ntasks or named)


def with_gpus_for_tasks(spec: JobSpec) -> JobSpec:
    """Return the job with the GPUs that `--ntasks` and `--ntasks-per-gpu` ask for (sbatch(1))."""
    if spec.gpus is not None or not (spec.ntasks and spec.ntasks_per_gpu):
        return spec
    gpus = Gpus(spec.ntasks // spec.ntasks_per_gpu, per="job")
    return msgspec.structs.replace(spec, gpus=gpus)


def implied_tasks(spec: JobSpec) -> int:
    """Return the tasks on a node that follow from `--sockets-per-node` and such; 0 for none.

    Without a number of tasks sbatch starts one for each thread asked for (`_opt_verify` in
    src/sbatch/opt.c).
    """
    has_tasks = spec.ntasks or spec.ntasks_per_node or spec.ntasks_per_gpu or spec.launch.per_gpu
    counts = (spec.sockets_per_node, spec.cores_per_socket, spec.threads_per_core)
    given = [count for count in counts if count]
    return 0 if has_tasks or not given else math.prod(given)


def _implied_tasks_note(spec: JobSpec) -> tuple[Finding, ...]:
    tasks = implied_tasks(spec)
    if tasks <= 1:
        return ()
    names = ("sockets_per_node", "cores_per_socket", "threads_per_core")
    given = " ".join(f"{option(name)}={value}" for name in names if (value := getattr(spec, name)))
    message = (
        f"{given} without a number of tasks: {tasks} tasks on each node, as with sbatch; for"
        " another number give --ntasks-per-node"
    )
    return (note("implied-tasks", message, "sbatch(1) --extra-node-info"),)


def _with_counted_tasks(spec: JobSpec) -> JobSpec:
    """Return the spec with the tasks that sockets, cores and threads, or its GPUs, imply."""
    gpus, each = spec.gpus, spec.ntasks_per_gpu
    if tasks := implied_tasks(spec):
        return msgspec.structs.replace(spec, ntasks_per_node=tasks)
    if gpus is None or each is None:
        return spec
    if gpus.per == "job":
        return msgspec.structs.replace(spec, ntasks=gpus.count * each, ntasks_per_gpu=None)
    on_node = gpus.count * each
    nodes = spec.nodes or max(-(-(spec.ntasks or on_node) // on_node), nodes_by_name(spec))
    return msgspec.structs.replace(
        spec, nodes=nodes, ntasks=None, ntasks_per_node=on_node, ntasks_per_gpu=None
    )


def _tasks_of_gpus(spec: JobSpec, layout: Layout, each: int) -> Layout:
    """Set the tasks of `--ntasks-per-gpu`: those of all GPUs, whatever `--ntasks` says."""
    in_all = layout.gpus_in_all or layout.gpus * layout.least_nodes
    findings = layout.findings
    if spec.ntasks is not None and spec.ntasks != in_all * each:
        message = (
            f"--ntasks={spec.ntasks} does not count: --ntasks-per-gpu={each} makes {in_all * each}"
            f" tasks of {in_all} GPUs"
        )
        fix = (("ntasks", str(in_all * each)),)
        findings += (warning("ntasks-of-gpus", message, "sbatch(1) --ntasks-per-gpu", fix),)
    if layout.gpus_in_all:
        return msgspec.structs.replace(layout, ntasks=in_all * each, findings=findings)
    on_node = layout.gpus * each
    return msgspec.structs.replace(layout, ntasks=None, ntasks_per_node=on_node, findings=findings)


def _task_per_gpu(layout: Layout) -> Layout:
    """Return the layout with one task for each GPU, unless the job gives its tasks."""
    if layout.ntasks or layout.ntasks_per_node:
        return layout
    if layout.gpus_in_all:
        return msgspec.structs.replace(layout, ntasks=layout.gpus_in_all)
    return msgspec.structs.replace(layout, ntasks_per_node=layout.gpus)


def _with_nodes(spec: JobSpec, nodes: int | None, gpus: int) -> Layout:
    left = isinstance(spec.nodes, str) and nodes is not None and nodes >= (spec.least_nodes or 1)
    most = min(spec.most_nodes or 1, spec.ntasks or spec.most_nodes or 1)  # as sbatch reduces it
    return Layout(
        nodes=nodes,
        ntasks=spec.ntasks,
        ntasks_per_node=spec.ntasks_per_node,
        most=most if left else None,
        gpus=gpus,
    )


def _with_checks(spec: JobSpec, layout: Layout, cpus: int) -> Layout:
    """Add the findings on the number of tasks."""
    too_many = _too_many_tasks(spec, layout, cpus)
    findings = (*layout.findings, *_more_nodes_than_tasks(spec), *too_many)
    return msgspec.structs.replace(layout, findings=findings)


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


def _too_many_tasks(spec: JobSpec, layout: Layout, cpus: int) -> tuple[Finding, ...]:
    """Report more tasks than `--ntasks-per-node` lets run on the nodes asked for."""
    tasks, each = layout.ntasks, layout.ntasks_per_node
    nodes = spec.most_nodes
    if tasks is None or each is None or nodes is None or tasks <= each * nodes:
        return ()
    on = "1 node" if nodes == 1 else f"{nodes} nodes"
    message = (
        f"{tasks} tasks on {on}, and --ntasks-per-node={each} allows {each * nodes} there;"
        " sbatch would refuse it"
    )
    on_one = max(1, cpus // (spec.cpus_per_task or 1)) if cpus else tasks
    needed = max(spec.least_nodes or 1, math.ceil(tasks / on_one))
    fix: Pairs = (("ntasks-per-node", str(math.ceil(tasks / max(nodes, needed)))),)
    fix = fix if needed <= nodes else (("nodes", str(needed)), *fix)
    return (error("tasks-too-many", message, "sbatch(1) --ntasks-per-node", fix),)


def _least_nodes(spec: JobSpec, cpus: int, min_nodes: int = 1) -> int:
    """Return the nodes asked for, at most one per task; of a range, the fewest for the tasks.

    Without `--nodes`, as many as the tasks need, at least `min_nodes`. The least of a range is
    raised to `min_nodes`, as slurmctld does (`_valid_job_part` in src/slurmctld/job_mgr.c): 26.05
    refuses fewer tasks than that.
    """
    tasks, most = spec.ntasks, spec.most_nodes
    if isinstance(spec.nodes, int):
        return min(spec.nodes, tasks or spec.nodes)
    if tasks is None:
        raised = min_nodes if most is None or most >= min_nodes else 1
        return max(spec.least_nodes or 1, raised)
    by_cpus = max(1, cpus // (spec.cpus_per_task or 1)) if cpus else tasks
    needed = math.ceil(tasks / min(by_cpus, spec.ntasks_per_node or by_cpus))
    if spec.nodes is None:
        return max(needed, min(min_nodes, tasks))
    least = min(spec.least_nodes or 1, tasks)
    return max(least, min(needed, most or needed))


def _check_gpus_per_node(spec: JobSpec, kind: ResolvedGpus, layout: Layout) -> Layout:
    """Add an error where the layout has more GPUs on a node than any node has."""
    errors = _too_many(spec, kind, layout.gpus, layout.least_nodes)
    return msgspec.structs.replace(layout, findings=(*layout.findings, *errors))


def _per_task(spec: JobSpec, kind: ResolvedGpus, gpus: int, cpus: int, min_nodes: int) -> Layout:
    if spec.ntasks is None and spec.nodes is None:  # a task on each of the nodes it gets
        spec = msgspec.structs.replace(spec, nodes=max(1, min_nodes))
    tasks = spec.ntasks or (spec.least_nodes or 1) * (spec.ntasks_per_node or 1)
    by_cpus = max(1, cpus // (spec.cpus_per_task or 1))
    by_gpus = max(1, kind.most // gpus) if kind.fitting else tasks
    on_one = min(by_cpus if cpus else tasks, spec.ntasks_per_node or tasks, by_gpus)
    nodes = _least_nodes(spec, cpus) if spec.nodes else _even_nodes(tasks, on_one, min_nodes)
    if isinstance(spec.nodes, str):
        counts = range(spec.least_nodes or 1, (spec.most_nodes or 1) + 1)
        nodes = next((n for n in counts if not tasks % n and tasks // n <= on_one), nodes)
    if tasks % nodes:
        return _uneven_tasks(spec, tasks, gpus)
    on_each = tasks // nodes
    layout = _with_checks(spec, _with_nodes(spec, nodes, on_each * gpus), cpus)
    layout = _fix_node_count(spec, layout)
    spread = msgspec.structs.replace(layout, ntasks=None, ntasks_per_node=on_each)
    return _check_gpus_per_node(spec, kind, spread)


def _fix_node_count(
    spec: JobSpec, layout: Layout, why: str = "the GPUs divide evenly over that number"
) -> Layout:
    """Fix a range of nodes to the number that the layout has."""
    if not isinstance(spec.nodes, str):
        return layout
    message = f"--nodes={spec.nodes}: slurmkit asks for {layout.nodes}, because {why}"
    chosen = note("nodes-chosen", message, "--nodes")
    return msgspec.structs.replace(layout, most=None, findings=(*layout.findings, chosen))


def _even_nodes(tasks: int, on_one: int, least: int = 1) -> int:
    """Return the least number of nodes with equal tasks on each, at most `on_one`."""
    counts = range(max(1, min(least, tasks)), tasks + 1)
    return next(n for n in counts if tasks % n == 0 and tasks // n <= on_one)


def _uneven_tasks(spec: JobSpec, tasks: int, gpus: int) -> Layout:
    nodes = spec.least_nodes or 1
    even = max(1, tasks // nodes)
    message = (
        f"{tasks} tasks with {gpus} GPUs each do not spread evenly over {nodes} nodes; Slurm would"
        " take it, but local ranks and GPUs would not match"
    )
    fix = (("ntasks", str(even * nodes)), ("ntasks-per-node", str(even)))
    uneven = error("gpu-uneven-tasks", message, "", fix)
    return Layout(nodes=nodes, ntasks=tasks, ntasks_per_node=None, gpus=gpus, findings=(uneven,))


def _per_job(spec: JobSpec, kind: ResolvedGpus, gpus: int, least: int) -> Layout:
    upto = min(spec.most_nodes or gpus, gpus)
    fit = [n for n in range(least, upto + 1) if math.ceil(gpus / n) <= kind.most]
    # Slurm also spreads them unevenly: better so than over more nodes than there are.
    there = len(kind.fitting) or upto
    even = (n for n in fit if gpus % n == 0 and (n <= there or fit[0] > there))
    nodes = least if isinstance(spec.nodes, int) else next(even, fit[0] if fit else least)
    if gpus < nodes:
        # With --ntasks-per-node sbatch itself computes the nodes, and slurmctld refuses the job.
        left = spec.ntasks is not None and spec.nodes is spec.ntasks_per_node is None
        return (_nodes_left_to_slurm if left else _fewer_than_nodes)(spec, gpus, nodes)
    why = f"the GPUs {'divide evenly over' if gpus % nodes == 0 else 'need'} that number"
    layout = _fix_node_count(spec, _with_nodes(spec, nodes, math.ceil(gpus / nodes)), why)
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


def _nodes_left_to_slurm(spec: JobSpec, gpus: int, nodes: int) -> Layout:
    """Return a layout for tasks that need more nodes than the job has GPUs.

    slurmctld takes such a job without `--nodes`, and gives at least one GPU on each of its nodes
    (`_set_job_bits1` in src/plugins/select/cons_tres/gres_select_filter.c).
    """
    message = (
        f"{spec.ntasks} tasks need at least {nodes} nodes, and Slurm gives the job a GPU on each,"
        f" although it asks for {gpus} in all"
    )
    fix = (("gpus", _gpu_value(spec, nodes)),)
    more = warning("gpu-fewer-than-nodes", message, "sbatch(1) --gpus", fix)
    layout = _with_nodes(spec, None, 1)
    return msgspec.structs.replace(layout, gpus_in_all=gpus, findings=(more,))


def _fewer_than_nodes(spec: JobSpec, gpus: int, nodes: int) -> Layout:
    message = (
        f"{gpus} GPUs for the whole job are too few for {nodes} nodes: each node of such a job has"
        " at least one"
    )
    asked = spec.least_nodes or 1
    fix = (("nodes", str(gpus)),) if asked > gpus else (("gpus", _gpu_value(spec, nodes)),)
    too_few = error("gpu-fewer-than-nodes", message, "sbatch(1) --gpus", fix)
    return msgspec.structs.replace(_with_nodes(spec, nodes, 1), findings=(too_few,))


def _gpu_value(spec: JobSpec, count: int) -> str:
    kind = spec.gpus and (spec.gpus.mig or spec.gpus.type)
    return f"{kind}:{count}" if kind else str(count)


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
    if spec.gpus is not None and spec.gpus.sockets:
        asked, sockets = f"{kind.type}:" if kind.type else "", spec.gpus.sockets
        fewer: Pairs = (
            ("gpus-per-socket", f"{asked}{most // sockets}"),
            ("sockets-per-node", str(sockets)),
        )
        return (_error_too_many(message, fewer if most >= sockets else ()),)
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
    on_one = kind.most // count
    nodes = _even_nodes(tasks, on_one)
    if nodes <= len(kind.fitting):
        return (("nodes", str(nodes)), ("ntasks-per-node", str(tasks // nodes)))
    nodes = min(spec.least_nodes or 1, len(kind.fitting))
    fix = (("nodes", str(nodes)), ("ntasks-per-node", str(on_one)))
    return (*fix, ("ntasks", str(nodes * on_one))) if spec.ntasks else fix


def _error_too_many(message: str, fix: tuple[tuple[str, str], ...]) -> Finding:
    return Finding(
        severity="error",
        code="gpus-per-node",
        message=message,
        source="GRES of the nodes",
        fix=fix,
    )
