"""The shape of a job on this cluster: the GPUs that the spec means, and its layout over nodes.

The script, every check and every fix that is tried use the same shape.
"""

from __future__ import annotations

import re

import msgspec

from slurmkit.config.prices import gpu_settings, partition_gpu_types
from slurmkit.planning.amounts import job_default
from slurmkit.planning.gpu_request import (
    GpuPool,
    GpuTypeNames,
    ResolvedGpus,
    resolve_gpus,
    shares_across_gpus,
)
from slurmkit.planning.layout import Layout, lay_out
from slurmkit.planning.request import JobShape, selected_by_spec
from slurmkit.spec.findings import Finding
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Capabilities, Node, Partition

_CPUS = re.compile(r"\bcpu[:=](\d+)")  # in `--tres-per-task`


def load_gpu_type_names() -> GpuTypeNames:
    """Load the names of GPU types from the site's configuration.

    Raises:
        BadConfig: for a wrong file.
    """
    settings = gpu_settings()
    aliases = {alias.casefold(): name for name, gpu in settings.items() for alias in gpu.aliases}
    return GpuTypeNames(aliases, partition_gpu_types())


def job_shape(
    spec: JobSpec,
    capabilities: Capabilities,
    partitions: tuple[Partition, ...],
    names: GpuTypeNames,
) -> JobShape:
    """Resolve the GPUs that a spec means and lay the job out over nodes of these partitions."""
    nodes = capabilities.nodes_of(*(partition.name for partition in partitions))
    # slurmctld gives a job without `--nodes` the least MinNodes of its partitions.
    min_nodes = min((partition.min_nodes for partition in partitions), default=1)
    if spec.gpus is None or not (partitions or not capabilities.partitions):
        kind, layout = None, _layout(spec, None, selected_by_spec(spec, nodes) or nodes, min_nodes)
    else:
        pool = GpuPool(
            nodes,
            tuple(p.name for p in partitions),
            capabilities.nodes,
            names,
            shares_across_gpus(capabilities.config),
        )
        kind, layout = _with_gpus(spec, pool, min_nodes)
    return JobShape(kind, _with_cpus(spec, layout, partitions[:1], capabilities))


def _with_gpus(spec: JobSpec, pool: GpuPool, min_nodes: int) -> JobShape:
    """Use the nodes that the spec selects; if none fits, all nodes of the partitions."""
    left = selected_by_spec(spec, pool.nodes)
    if 0 < len(left) < len(pool.nodes):
        shape = _resolve_and_lay_out(spec, msgspec.structs.replace(pool, nodes=left), min_nodes)
        if not _has_errors(shape):
            return shape
    return _resolve_and_lay_out(spec, pool, min_nodes)


def _resolve_and_lay_out(spec: JobSpec, pool: GpuPool, min_nodes: int) -> JobShape:
    """Resolve the GPUs, and lay the job out.

    Only a job of several nodes must keep to nodes that all name their GPU type, or all do not. The
    number of nodes is known only after a first layout.
    """
    gpus = spec.gpus
    assert gpus is not None  # noqa: S101 - seen by shape_of
    kind = resolve_gpus(gpus, pool, many=False)
    layout = _layout(spec, kind, kind.fitting, min_nodes)
    plain = gpus.type is None and gpus.mig is None and not gpus.is_part
    if (layout.most or layout.nodes) == 1 or not plain or _has_errors(JobShape(kind, layout)):
        return JobShape(kind, layout)
    kind = resolve_gpus(gpus, pool, many=True, least=layout.gpus)
    return JobShape(kind, _layout(spec, kind, kind.fitting, min_nodes))


def _layout(
    spec: JobSpec, kind: ResolvedGpus | None, nodes: tuple[Node, ...], min_nodes: int
) -> Layout:
    return lay_out(spec, kind, max((node.cpus for node in nodes), default=0), min_nodes)


def _has_errors(shape: JobShape) -> bool:
    of_gpus: tuple[Finding, ...] = shape.gpus.findings if shape.gpus else ()
    findings = (*of_gpus, *shape.layout.findings)
    return any(finding.severity == "error" for finding in findings)


def _with_cpus(
    spec: JobSpec, layout: Layout, partitions: tuple[Partition, ...], capabilities: Capabilities
) -> Layout:
    """Set the CPUs of a task that names none: those of its GPUs, or the site's default.

    Slurm applies DefCpuPerGPU only to jobs without `--cpus-per-task`. A step needs that option, so
    the CPUs are computed here. Where they do not divide evenly over the tasks, the job has more
    CPUs than its tasks, as with sbatch.
    """
    per_task = _CPUS.search(spec.options.get("tres-per-task", ""))
    if spec.cpus_per_task is not None or per_task:
        cpus = spec.cpus_per_task or int(per_task[1] if per_task else 1)
        return msgspec.structs.replace(layout, cpus_per_task=cpus)
    default = job_default("DefCpuPerGPU", partitions, capabilities.config)
    per_gpu = spec.cpus_per_gpu or default or 0
    gpus = 0 if spec.gpus is None or spec.gpus.is_part else layout.gpus
    if spec.overcommit:  # all tasks of a node share the CPUs of one
        return msgspec.structs.replace(layout, cpus_per_task=1, least_cpus=gpus * per_gpu)
    on_each = -(-layout.tasks // layout.least_nodes)
    cpus = max(1, gpus * per_gpu // on_each)
    least = gpus * (spec.cpus_per_gpu or 0)
    if gpus * per_gpu > cpus * on_each and not layout.gpus_in_all:
        least = gpus * per_gpu
    # With a number of tasks, --mincpus only selects nodes: Slurm gives the CPUs of the tasks.
    fewest = 0 if spec.ntasks else spec.mincpus or 0
    if spec.script is None:  # a command's own tasks would undo --mincpus
        cpus = max(cpus, -(-fewest // on_each))
    else:
        least = max(least, fewest)
    return msgspec.structs.replace(layout, cpus_per_task=cpus, least_cpus=least)
