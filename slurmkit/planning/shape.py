"""What a spec takes on this cluster: the GPUs meant, and how it spreads over nodes.

One answer for the script, for every check and for every fix that is tried.
"""

from __future__ import annotations

import re

import msgspec

from slurmkit.capabilities.model import Capabilities, Node, Partition
from slurmkit.findings import Finding
from slurmkit.planning.kinds import Kind, kind_of
from slurmkit.planning.layout import Layout, layout_of
from slurmkit.planning.pool import Names, Pool, from_several
from slurmkit.planning.requests import Shape, chosen, job_default
from slurmkit.prices import gpu_settings, partition_gpu_types
from slurmkit.spec import JobSpec

_CPUS = re.compile(r"\bcpu[:=](\d+)")  # in `--tres-per-task`


def site_names() -> Names:
    """What the configuration says of GPU types.

    Raises:
        BadConfig: for a wrong file.
    """
    settings = gpu_settings()
    aliases = {alias.casefold(): name for name, gpu in settings.items() for alias in gpu.aliases}
    return Names(aliases, partition_gpu_types())


def shape_of(
    spec: JobSpec, capabilities: Capabilities, partitions: tuple[Partition, ...], names: Names
) -> Shape:
    """Find the GPUs meant and lay the job out over nodes of these partitions."""
    nodes = capabilities.nodes_of(*(partition.name for partition in partitions))
    if spec.gpus is None or not (partitions or not capabilities.partitions):
        kind, layout = None, _layout(spec, None, nodes)
    else:
        pool = Pool(
            nodes,
            tuple(p.name for p in partitions),
            capabilities.nodes,
            names,
            from_several(capabilities.config),
        )
        kind, layout = _with_gpus(spec, pool)
    return kind, _with_cpus(spec, layout, partitions[:1], capabilities)


def _with_gpus(spec: JobSpec, pool: Pool) -> Shape:
    """Among the nodes that the spec itself leaves, or where that gives none, among all."""
    left = chosen(spec, pool.nodes)
    if 0 < len(left) < len(pool.nodes):
        found = _spread(spec, msgspec.structs.replace(pool, nodes=left))
        if not _wrong(found):
            return found
    return _spread(spec, pool)


def _spread(spec: JobSpec, pool: Pool) -> Shape:
    """Only a job of several nodes must keep to GPUs of one typing; how many shows with them."""
    gpus = spec.gpus
    assert gpus is not None  # noqa: S101 - seen by shape_of
    kind = kind_of(gpus, pool, many=False)
    layout = _layout(spec, kind, kind.fitting)
    plain = gpus.type is None and gpus.mig is None and not gpus.is_part
    if (layout.most or layout.nodes) == 1 or not plain or _wrong((kind, layout)):
        return kind, layout
    kind = kind_of(gpus, pool, many=True, least=layout.gpus)
    return kind, _layout(spec, kind, kind.fitting)


def _layout(spec: JobSpec, kind: Kind | None, nodes: tuple[Node, ...]) -> Layout:
    return layout_of(spec, kind, max((node.cpus for node in nodes), default=0))


def _wrong(made: Shape) -> bool:
    kind, layout = made
    findings: tuple[Finding, ...] = (*(kind.findings if kind else ()), *layout.findings)
    return any(finding.severity == "error" for finding in findings)


def _with_cpus(
    spec: JobSpec, layout: Layout, partitions: tuple[Partition, ...], capabilities: Capabilities
) -> Layout:
    """CPUs of a task that named none: those of its GPUs, as asked for or by the site's default.

    Slurm gives the site's (DefCpuPerGPU) only to jobs without `--cpus-per-task`, and a step needs
    that option; so they are worked out here.
    """
    said = _CPUS.search(spec.options.get("tres-per-task", ""))
    if spec.cpus_per_task is not None or said:
        cpus = spec.cpus_per_task or int(said[1] if said else 1)
        return msgspec.structs.replace(layout, cpus_per_task=cpus)
    given = spec.options.get("cpus-per-gpu", "")
    default = job_default("DefCpuPerGPU", partitions, capabilities.config)
    per_gpu = int(given) if given.isdecimal() else default or 0
    gpus = 0 if spec.gpus is None or spec.gpus.is_part else layout.gpus
    on_each = -(-layout.tasks // layout.least_nodes)
    return msgspec.structs.replace(layout, cpus_per_task=max(1, gpus * per_gpu // on_each))
