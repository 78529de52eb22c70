"""A spec's amounts in each partition: what checks and estimates compare with limits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from slurmkit.capabilities.model import Capabilities, Gres, Node, Partition, Qos, Standing, Tres
from slurmkit.capabilities.nodes import node_names
from slurmkit.capabilities.text import count
from slurmkit.durations import parse_time_limit
from slurmkit.errors import BadInput
from slurmkit.jobs.ids import spans
from slurmkit.planning.constraint import satisfies
from slurmkit.planning.kinds import Kind
from slurmkit.planning.layout import Layout
from slurmkit.request import Request
from slurmkit.spec import JobSpec

_UNIT = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
_SHARED = ("gres/shard", "gres/mps")


def request_for(
    spec: JobSpec,
    made: Shape,
    partition: Partition,
    site: Site,
    fitting: tuple[Node, ...] | None = None,
) -> Request:
    """Judge one spec in one partition.

    Args:
        spec: what was asked for.
        made: the GPUs meant and the layout.
        partition: the one judged.
        site: the cluster and where the user stands in it.
        fitting: what `fitting_nodes` gives, where that is known.
    """
    kind, layout = made
    capabilities, standing = site
    if fitting is None:
        fitting = fitting_nodes(spec, kind, capabilities.nodes_of(partition.name))
    nodes = layout.nodes or _nodes_for(spec, layout, fitting)
    memory = _Memory(spec, partition, capabilities.config)
    per_node = memory.added(_per_node(spec, made), 1)
    account = spec.account.lower() if spec.account else standing.default_account  # as slurmctld
    association = standing.association(account, partition.name) if account else None
    qos = spec.qos or (association.default_qos if association else "") or None
    total = _total(per_node, layout, nodes)
    if takes_whole_nodes(spec, partition):
        total = _whole(total, per_node, nodes, fitting)
    total = memory.added(total, nodes)
    return Request(
        spec=spec,
        capabilities=capabilities,
        standing=standing,
        partition=partition,
        nodes=nodes,
        most_nodes=layout.most,
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
        cpus_per_task=layout.cpus_per_task,
    )


Site = tuple[Capabilities, Standing]
Shape = tuple[Kind | None, Layout]


def takes_whole_nodes(spec: JobSpec, partition: Partition) -> bool:
    """Whether the job is charged for all CPUs of its nodes, and memory per CPU counts each."""
    return spec.exclusive is True or partition.settings.get("OverSubscribe") == "EXCLUSIVE"


def mebibytes(text: str) -> int:
    """MiB in a size as sbatch's `--mem` has it (`64G`; MiB without a suffix), rounded up."""
    number, unit = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper()).groups()  # type: ignore[union-attr]
    return math.ceil(int(number) * _UNIT[unit])


def array_size(text: str | None) -> int:
    """Number of tasks in an array, 1 without one."""
    if text is None:
        return 1
    first, *more = spans(text)
    return len(set(first).union(*more)) if more else len(first)


def highest_index(text: str) -> int:
    """The highest index of an array."""
    return max(span[-1] for span in spans(text))


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
    """Slurm takes the names of QOS without case."""
    wanted = (name or "").casefold()
    return next((qos for qos in standing.qos if qos.name.casefold() == wanted), None)


def _nodes_for(spec: JobSpec, layout: Layout, fitting: tuple[Node, ...]) -> int:
    """The least that can hold the tasks, where Slurm chooses how many."""
    by_cpus = max((node.cpus for node in fitting), default=0) // layout.cpus_per_task
    most = min(by_cpus or layout.tasks, spec.ntasks_per_node or layout.tasks)
    return -(-layout.tasks // most)


def _per_node(spec: JobSpec, made: Shape) -> Tres:
    """TRES of one node but its memory; where Slurm chooses the nodes, of one with one task."""
    kind, layout = made
    tasks = layout.ntasks_per_node or -(-layout.tasks // layout.least_nodes)
    if layout.nodes is None:
        tasks = 1
    tres: Tres = {"cpu": tasks * layout.cpus_per_task}
    if kind is not None:
        tres |= _gpu_tres(kind, layout.gpus)
    return tres | _other_gres(spec.gres)


def _gpu_tres(kind: Kind, amount: int) -> Tres:
    name = f"gres/{kind.gres}"
    return {name: amount} | ({f"{name}:{kind.type}": amount} if kind.type else {})


def _other_gres(text: str | None) -> Tres:
    """Generic resources other than GPUs: `nvme:1`, `nic:mlx5:2`."""
    found: Tres = {}
    for item in (text or "").split(","):
        name, *rest = item.split(":")
        size = count(name, rest.pop().upper()) if rest and rest[-1][0].isdigit() else 1
        for tres in (f"gres/{name}", *(f"gres/{name}:{kind}" for kind in rest)) if name else ():
            found[tres] = found.get(tres, 0) + (size or 0)
    return found


def _total(per_node: Tres, layout: Layout, nodes: int) -> Tres:
    """TRES of the whole job but its memory."""
    total = {name: amount * nodes for name, amount in per_node.items() if name != "mem"}
    if layout.nodes is None:
        total["cpu"] = per_node["cpu"] * layout.tasks
    if layout.gpus_in_all:
        total |= {name: layout.gpus_in_all for name in per_node if name.startswith("gres/gpu")}
    return total | {"node": nodes}


def _whole(total: Tres, per_node: Tres, nodes: int, fitting: tuple[Node, ...]) -> Tres:
    """An exclusive job holds all CPUs and GRES of its nodes, here of the smallest that do.

    Of GPUs and parts of GPUs only what it asks for (gres_stepmgr_job_select_whole_node).
    """
    wide = [node for node in fitting if node.cpus >= per_node["cpu"]]
    having = [n for n in wide if all(_has(n, t) >= c for t, c in per_node.items() if "/" in t)]
    if not having:
        return total
    parts = [tres for tres in per_node if tres in _SHARED]
    there = {tres for node in having for gres in node.gres for tres in _tres_of(gres)}
    names = {tres for tres in there if not (parts and tres.startswith("gres/gpu"))}
    names = {tres for tres in names | per_node.keys() if tres not in _SHARED or tres in parts}
    least = {name: min(_has(node, name) for node in having) for name in names if "/" in name}
    least["cpu"] = min(node.cpus for node in having)
    return total | {name: amount * nodes for name, amount in least.items() if amount}


def _tres_of(gres: Gres) -> tuple[str, ...]:
    name = f"gres/{gres.name}"
    return (name, f"{name}:{gres.type}") if gres.type else (name,)


def _has(node: Node, tres: str) -> int:
    name, _, kind = tres.removeprefix("gres/").partition(":")
    return node.count(name, kind or None)


class _Memory(NamedTuple):
    """How much memory a job gets: what it asks for, or else what the site gives."""

    spec: JobSpec
    partition: Partition
    config: Mapping[str, str]

    def added(self, tres: Tres, nodes: int) -> Tres:
        """`tres` of so many nodes with its memory; without where it is all of them, or unknown."""
        gpus = tres.get("gres/gpu", 0) if self.spec.gpus is not None else 0
        amounts = {"node": nodes, "cpu": tres["cpu"], "gpu": gpus}
        size = next((mib * amounts[of] for of, mib in self._sizes() if amounts[of]), 0)
        return tres | ({"mem": size} if size else {})

    def _sizes(self) -> Iterator[tuple[str, int]]:
        """MiB and what it is for; the first that applies counts."""
        spec, partition = self.spec, self.partition
        asked = (("node", spec.mem), ("cpu", spec.mem_per_cpu), ("gpu", spec.mem_per_gpu))
        given = [(of, mebibytes(text)) for of, text in asked if text is not None]
        if given:
            return iter(given)
        per_gpu = job_default("DefMemPerGPU", (partition,), self.config)
        site = [("node", self._number("DefMemPerNode")), ("cpu", self._number("DefMemPerCPU"))]
        own = [("node", partition.def_mem_per_node), ("cpu", partition.def_mem_per_cpu)]
        return ((of, mib) for of, mib in (("gpu", per_gpu), *own, *site) if mib)

    def _number(self, key: str) -> int:
        value = self.config.get(key, "")
        return int(value) if value.isdecimal() else 0


def job_default(
    name: str, partitions: Iterable[Partition], config: Mapping[str, str]
) -> int | None:
    """DefCpuPerGPU or DefMemPerGPU (MiB) of slurm.conf(5) JobDefaults, the partition's first."""
    texts = [partition.settings.get("JobDefaults", "") for partition in partitions]
    for text in (*texts, config.get("JobDefaults", "")):
        if found := re.search(rf"\b{name}=(\d+)", text, re.IGNORECASE):
            return int(found[1])
    return None


def fitting_nodes(spec: JobSpec, kind: Kind | None, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Usable nodes of the right kind that the spec's own choices of nodes leave."""
    wanted = None if kind is None else {node.name for node in kind.fitting}
    excluded = set(kind.exclude if kind else ())
    return tuple(
        node
        for node in chosen(spec, nodes)
        if node.usable and (wanted is None or node.name in wanted) and node.name not in excluded
    )


def chosen(spec: JobSpec, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes that `exclude`, `constraint` and a `nodelist` that is long enough leave."""
    excluded, named = _names("exclude", spec.exclude), _names("nodelist", spec.nodelist)
    if len(named) < (spec.least_nodes or 1):
        named = set()
    return tuple(
        node
        for node in nodes
        if node.name not in excluded
        and (not named or node.name in named)
        and satisfies(spec.constraint, node.features)
    )


def _names(option: str, text: str | None) -> set[str]:
    try:
        return set(node_names(text))
    except ValueError as error:
        raise BadInput(f"--{option}: {error}") from error
