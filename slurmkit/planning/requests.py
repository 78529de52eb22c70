"""A spec's amounts in each partition: what checks and estimates compare with limits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from slurmkit.capabilities.model import Capabilities, Node, Partition, Qos, Standing, Tres
from slurmkit.capabilities.nodes import node_names
from slurmkit.durations import parse_time_limit
from slurmkit.errors import BadInput
from slurmkit.planning.kinds import Kind
from slurmkit.planning.layout import Layout
from slurmkit.request import Request
from slurmkit.spec import JobSpec

_UNIT = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)


def request_for(
    spec: JobSpec, made: tuple[Kind | None, Layout], partition: Partition, site: Site
) -> Request:
    """Judge one spec in one partition.

    Args:
        spec: what was asked for.
        made: the GPUs meant and the layout.
        partition: the one judged.
        site: the cluster and where the user stands in it.
    """
    kind, layout = made
    capabilities, standing = site
    fitting = _fitting(spec, kind, capabilities.nodes_of(partition.name))
    per_node = _per_node(spec, made, partition, capabilities.config)
    account = spec.account or standing.default_account
    association = standing.association(account, partition.name) if account else None
    qos = spec.qos or (association.default_qos if association else "") or None
    nodes = layout.nodes or _nodes_for(layout.tasks, spec.cpus_per_task, fitting)
    total = _total(per_node, layout, nodes)
    return Request(
        spec=spec,
        capabilities=capabilities,
        standing=standing,
        partition=partition,
        nodes=nodes,
        tasks=layout.tasks,
        seconds=_seconds(spec, partition),
        per_node=per_node,
        total=total | {"billing": billing(total, partition, capabilities.config)},
        fitting=fitting,
        account=account,
        association=association,
        qos=_qos(standing, qos),
        partition_qos=_qos(standing, partition.qos),
        tasks_in_array=array_size(spec.array),
    )


Site = tuple[Capabilities, Standing]


def mebibytes(text: str) -> int:
    """MiB in a size as sbatch's `--mem` has it (`64G`; MiB without a suffix), rounded up."""
    number, unit = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper()).groups()  # type: ignore[union-attr]
    return math.ceil(int(number) * _UNIT[unit])


def array_size(text: str | None) -> int:
    """Number of tasks in an array, 1 without one."""
    if text is None:
        return 1
    return len(set().union(*(_indexes(part) for part in text.partition("%")[0].split(","))))


def highest_index(text: str) -> int:
    """The highest index of an array."""
    return max(max(_indexes(part)) for part in text.partition("%")[0].split(","))


def _indexes(part: str) -> range:
    """Indexes of one range; of a mistaken one (`5-1`) its start."""
    first, last, step = _RANGE.fullmatch(part).groups()  # type: ignore[union-attr]
    stop = max(int(last or first), int(first))
    return range(int(first), stop + 1, max(1, int(step or 1)))


def billing(total: Tres, partition: Partition, config: Mapping[str, str]) -> int:
    """TRES billing of a job, by slurm.conf(5) TRESBillingWeights and PriorityFlags."""
    weights = partition.billing_weights
    if not weights:
        return total.get("cpu", 0)
    flags = config.get("PriorityFlags", "").upper()
    parts = {name: weight * total.get(name, 0) for name, weight in weights.items()}
    if "MAX_TRES" not in flags:
        return int(sum(parts.values()))
    gres = sum(value for name, value in parts.items() if name.startswith("gres/"))
    rest = [value for name, value in parts.items() if not name.startswith("gres/")]
    if "MAX_TRES_GRES" in flags:
        return int(max(rest, default=0) + gres)
    return int(max(parts.values(), default=0))


def _seconds(spec: JobSpec, partition: Partition) -> int | None:
    if spec.time is not None:
        return parse_time_limit(spec.time)
    minutes = partition.default_time or partition.max_time
    return minutes * 60 if minutes else None


def _qos(standing: Standing, name: str | None) -> Qos | None:
    return standing.qos_named(name) if name else None


def _nodes_for(tasks: int, cpus: int, fitting: tuple[Node, ...]) -> int:
    most = max((node.cpus for node in fitting), default=0) // cpus
    return -(-tasks // most) if most else 1


def _per_node(
    spec: JobSpec, made: tuple[Kind | None, Layout], partition: Partition, config: Mapping[str, str]
) -> Tres:
    kind, layout = made
    tasks = layout.ntasks_per_node or -(-layout.tasks // layout.least_nodes)
    if layout.nodes is None:
        tasks = 1
    tres: Tres = {"cpu": tasks * spec.cpus_per_task}
    if kind is not None:
        tres |= _gpu_tres(kind, layout.gpus)
    memory = _memory(spec, tres, partition, config)
    return tres | ({"mem": memory} if memory else {})


def _gpu_tres(kind: Kind, amount: int) -> Tres:
    name = f"gres/{kind.gres}"
    return {name: amount} | ({f"{name}:{kind.type}": amount} if kind.type else {})


def _memory(
    spec: JobSpec, tres: Tres, partition: Partition, config: Mapping[str, str]
) -> int | None:
    """MiB on each node; None when it is all of the node's, or not known."""
    cpus, gpus = tres["cpu"], tres.get("gres/gpu", 0)
    for text, times in ((spec.mem, 1), (spec.mem_per_cpu, cpus), (spec.mem_per_gpu, gpus)):
        if text is not None:
            return mebibytes(text) * times or None
    if partition.def_mem_per_node or partition.def_mem_per_cpu:
        return partition.def_mem_per_node or (partition.def_mem_per_cpu or 0) * cpus
    for key, times in (("DefMemPerNode", 1), ("DefMemPerCPU", cpus)):
        value = config.get(key, "")
        if value.isdigit() and int(value):
            return int(value) * times
    return None


def _total(per_node: Tres, layout: Layout, nodes: int) -> Tres:
    total = {name: amount * nodes for name, amount in per_node.items()} | {"node": nodes}
    cpus = per_node["cpu"] * nodes if layout.nodes else per_node["cpu"] * layout.tasks
    total["cpu"] = cpus
    if layout.nodes is None and "mem" in per_node:
        total["mem"] = per_node["mem"] * layout.tasks
    if layout.gpus_in_all:
        uneven = {name: layout.gpus_in_all for name in per_node if name.startswith("gres/gpu")}
        total |= uneven
    return total


def _fitting(spec: JobSpec, kind: Kind | None, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Usable nodes of the right kind that the spec's own choices of nodes leave."""
    wanted = None if kind is None else {node.name for node in kind.fitting}
    excluded = _names(spec.exclude) | set(kind.exclude if kind else ())
    return tuple(
        node
        for node in nodes
        if node.usable
        and (wanted is None or node.name in wanted)
        and node.name not in excluded
        and _has_features(node, spec.constraint)
    )


def _names(text: str | None) -> set[str]:
    try:
        return set(node_names(text))
    except ValueError as error:
        raise BadInput(f"--exclude: {error}") from error


def _has_features(node: Node, constraint: str | None) -> bool:
    """Whether a node may serve; only lists joined with one kind of sign are judged."""
    if constraint is None or re.search(r"[\[\]()*!:]", constraint):
        return True
    have = set(node.features)
    if "|" in constraint:
        return "&" in constraint or any(name in have for name in constraint.split("|"))
    return all(name in have for name in re.split(r"[&,]", constraint))
