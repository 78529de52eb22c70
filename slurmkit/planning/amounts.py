"""The TRES of a job in one partition: what it asks for, and the most that Slurm may give it.

Slurm charges what it gives. That is more than what is asked for with `--mem=0`, on whole nodes,
where MaxMemPerCPU raises the CPUs, and where a core has several CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurmkit.errors import BadInput
from slurmkit.formats.memory import parse_mib
from slurmkit.formats.scontrol import parse_tres_amount
from slurmkit.formats.tres import Gres, Tres
from slurmkit.planning.gpu_request import ResolvedGpus
from slurmkit.planning.layout import Layout
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Capabilities, Node, Partition

_SHARED = ("gres/shard", "gres/mps")
# From here on slurmctld spreads the CPUs that MaxMemPerCPU adds evenly over the tasks.
_RAISED_PER_TASK_SINCE = (24, 11)
# From the first to before the second a job gets the CPUs of its `--ntasks`; before and after, each
# node gets those of `--ntasks-per-node` tasks, also where `--ntasks` are fewer (`_get_task_count`
# in src/plugins/select/cons_tres/dist_tasks.c). A single task has its own alone (seen on 22.05.8).
_TASKS_COUNT = (24, 11), (25, 11)


class JobAmounts(NamedTuple):
    """The TRES of a job in one partition.

    Attributes:
        per_node: as asked for on one node; see `Request.per_node`.
        total: at least given to the job, with `node` and `billing`; see `Request.total`.
        most: at most given to the job; see `Request.most`.
        raised_cpus: CPUs on a node because of MaxMemPerCPU; 0 where it adds none.
    """

    per_node: Tres
    total: Tres
    most: Tres
    raised_cpus: int


class PlacedJob(NamedTuple):
    """A job in one partition, before its amounts are computed.

    Attributes:
        kind: the GPUs meant; None for a job without GPUs.
        nodes: number of nodes; the fewest where Slurm chooses.
        fitting: nodes that the job may get; see `Request.counted`.
    """

    spec: JobSpec
    kind: ResolvedGpus | None
    layout: Layout
    partition: Partition
    capabilities: Capabilities
    nodes: int
    fitting: tuple[Node, ...]

    @property
    def config(self) -> Mapping[str, str]:
        """The settings of slurm.conf."""
        return self.capabilities.config

    @property
    def most_nodes(self) -> int:
        """The most nodes over which Slurm may spread the job; of a range, the most that fit."""
        if self.layout.most is not None:
            counts = (self.layout.most, len(self.fitting), self.partition.max_nodes)
            return max(self.nodes, min(count for count in counts if count))
        if self.layout.nodes is not None or self.spec.overcommit:
            return self.nodes
        if takes_whole_nodes(self.spec, self.partition) and not self.spec.spread_job:
            cpus = min((node.cpus for node in self.fitting), default=0)
            on_each = max(1, cpus // self.layout.cpus_per_task)
            on_each = min(on_each, self.spec.ntasks_per_node or on_each)
            return max(self.nodes, -(-self.layout.tasks // on_each))
        counts = (self.layout.tasks, len(self.fitting), self.partition.max_nodes)
        return max(self.nodes, min(count for count in counts if count))


def job_amounts(job: PlacedJob) -> JobAmounts:
    """Compute the TRES of a job in one partition."""
    memory = JobMemory(job.spec, job.partition, job.config)
    asked = _per_node(job)
    per_node = memory.added_to(asked, 1)
    total = _total(job, asked, job.nodes)
    most = _total(job, asked, job.most_nodes)
    raised = cpus_for_memory(job, job.nodes)
    total["cpu"] = raised.total
    most["cpu"] = max(_whole_cores(job, most["cpu"]), cpus_for_memory(job, job.most_nodes).total)
    large: Sequence[Node] = job.fitting
    if takes_whole_nodes(job.spec, job.partition):
        large = _having(job, asked) or job.fitting
        total = _least_of_whole_nodes(total, asked, large, job.nodes)
        most = _most_of_whole_nodes(most, asked, large, job.most_nodes)
    total = memory.added_to(total, job.nodes, raised.factor)
    most = memory.added_to(most, job.most_nodes, raised.factor)
    if memory.takes_all and large:
        total["mem"] = min(node.memory for node in large) * job.nodes
        most["mem"] = _sum_of_largest([node.memory for node in large], job.most_nodes)
    return JobAmounts(
        per_node,
        total | {"billing": billing(total, job.partition, job.config)},
        most | {"billing": _most_billed(job, most, large)},
        raised.on_a_node if raised.on_a_node > asked["cpu"] else 0,
    )


def takes_whole_nodes(spec: JobSpec, partition: Partition) -> bool:
    """Return whether the job is charged for all CPUs of its nodes.

    Memory per CPU then counts for each of those CPUs.
    """
    settings = partition.settings
    return (
        spec.exclusive is True
        or settings.get("OverSubscribe") == "EXCLUSIVE"
        # What 26.05 and later print of the same setting: src/api/partition_info.c.
        or settings.get("Exclusive") in {"NODE", "TOPO"}
    )


def parse_memory_mib(text: str) -> int:
    """Parse a size of sbatch's `--mem` (`64G`; MiB without a suffix) to MiB, rounded up.

    Raises:
        BadInput: for text that is no size.
    """
    mebibytes = parse_mib(text, rounding="up")
    if mebibytes is None:
        raise BadInput(f"{text!r} is not a size, e.g. 64G")
    return mebibytes


def billing(total: Tres, partition: Partition, config: Mapping[str, str]) -> int:
    """Compute a job's TRES billing by TRESBillingWeights and PriorityFlags (slurm.conf(5))."""
    return int(_billing(total, partition, config))


def _billing(total: Tres, partition: Partition, config: Mapping[str, str]) -> float:
    weights = partition.billing_weights
    if not weights:
        return total.get("cpu", 0)
    flags = config.get("PriorityFlags", "").upper()
    parts = {name: weight * total.get(name, 0) for name, weight in weights.items()}
    if "MAX_TRES" not in flags:
        return sum(parts.values())
    gres = sum(value for name, value in parts.items() if name.startswith("gres/"))
    rest = [value for name, value in parts.items() if not name.startswith("gres/")]
    if "MAX_TRES_GRES" in flags:
        return max(rest, default=0) + gres
    return max(parts.values(), default=0)


def _per_node(job: PlacedJob) -> Tres:
    """Return the TRES of one node without memory; of one task where Slurm chooses the nodes."""
    kind, layout = job.kind, job.layout
    tasks = layout.ntasks_per_node or 1
    if layout.ntasks is not None:  # then `--ntasks-per-node` is only the most of a node
        tasks = -(-layout.tasks // layout.least_nodes)
    if layout.nodes is None or job.spec.overcommit:
        tasks = 1
    tres: Tres = {"cpu": max(tasks * layout.cpus_per_task, layout.least_cpus)}
    if kind is not None:
        name = f"gres/{kind.gres}"
        tres[name] = layout.gpus
        tres |= {f"{name}:{kind.type}": layout.gpus} if kind.type else {}
    return tres | _other_gres(job.spec.gres)


def _other_gres(text: str | None) -> Tres:
    """Parse generic resources other than GPUs: `nvme:1`, `nic:mlx5:2`."""
    tres: Tres = {}
    for item in (text or "").split(","):
        name, *rest = item.split(":")
        size = parse_tres_amount(name, rest.pop().upper()) if rest and rest[-1][0].isdigit() else 1
        for key in (f"gres/{name}", *(f"gres/{name}:{kind}" for kind in rest)) if name else ():
            tres[key] = tres.get(key, 0) + (size or 0)
    return tres


def _total(job: PlacedJob, per_node: Tres, nodes: int) -> Tres:
    """Return the TRES of the whole job on that many nodes, without memory."""
    layout = job.layout
    total = {name: amount * nodes for name, amount in per_node.items()}
    total["cpu"] = _asked_cpus(job, nodes)
    if layout.gpus_in_all:
        gpus = max(layout.gpus_in_all, nodes)  # each node of such a job gets one
        total |= {name: gpus for name in per_node if name.startswith("gres/gpu")}
    return total | {"node": nodes}


def _asked_cpus(job: PlacedJob, nodes: int) -> int:
    """Return the CPUs that the whole job asks for on that many nodes."""
    layout = job.layout
    tasks = layout.tasks
    since, until = _TASKS_COUNT
    counts_alone = layout.ntasks == 1 or since <= job.capabilities.release < until
    if layout.ntasks is not None and not counts_alone:
        tasks = max(tasks, (job.spec.ntasks_per_node or 0) * nodes)
    if job.kind is None and layout.ntasks is not None and not job.spec.overcommit:
        # MinNodes may give it more nodes than tasks, each with a CPU
        return max(tasks * layout.cpus_per_task, layout.least_cpus * nodes, nodes)
    tasks = nodes if job.spec.overcommit else max(tasks, nodes)
    return max(tasks * layout.cpus_per_task, layout.least_cpus * nodes)


def _has_own_cores(spec: JobSpec) -> bool:
    """Return whether each CPU or task has a core of its own, which counts with all its CPUs."""
    hints = {*(spec.hint or "").lower().split(",")} - {"", "multithread"}
    return bool(hints) or 1 in (spec.threads_per_core, spec.ntasks_per_core)


# --- CPUs that are added ------------------------------------------------------------------------


class MemoryCpus(NamedTuple):
    """The CPUs that a job gets because of MaxMemPerCPU.

    Attributes:
        on_a_node: CPUs on a node, at least those asked for.
        total: CPUs of the whole job.
        factor: by which `--mem-per-cpu` is divided, and the CPUs of a task are multiplied.
    """

    on_a_node: int
    total: int
    factor: int = 1


def cpus_for_memory(job: PlacedJob, nodes: int) -> MemoryCpus:
    """Return the CPUs that slurmctld gives the job's memory on that many nodes.

    Source: `_valid_pn_min_mem` in src/slurmctld/job_mgr.c.
    """
    layout = job.layout
    asked = _per_node(job)["cpu"]
    as_asked = MemoryCpus(asked, _asked_cpus(job, nodes))
    limit = memory_limit(job.partition, job.config, "MaxMemPerCPU")[0]
    per, mib = JobMemory(job.spec, job.partition, job.config).size
    if limit is None or per not in ("node", "cpu"):
        return as_asked
    if per == "cpu" and mib:
        factor = max(1, -(-mib // limit))
        return MemoryCpus(asked * factor, as_asked.total * factor, factor)
    here = job.capabilities.nodes_of(job.partition.name)
    mib = mib or (here[0].memory if here else 0)  # slurmctld, too, takes the first node for all
    least = -(-mib // limit)
    if least <= layout.cpus_per_task:
        return as_asked
    on_a_node = _raised_cpus(job, least)
    total = on_a_node * nodes
    if layout.ntasks is not None and job.capabilities.release >= _RAISED_PER_TASK_SINCE:
        total = max(total, -(-on_a_node * layout.least_nodes // layout.tasks) * layout.tasks)
    return MemoryCpus(max(asked, on_a_node), max(as_asked.total, total))


def _raised_cpus(job: PlacedJob, least: int) -> int:
    """Return the CPUs on a node that needs at least that many for its memory."""
    layout, release = job.layout, job.capabilities.release
    per_node = layout.ntasks_per_node or (None if layout.ntasks is not None else 1)
    if per_node is not None:
        return max(-(-least // per_node) * per_node, least)
    if release < _RAISED_PER_TASK_SINCE:
        return least
    nodes = layout.nodes or max(1, job.partition.min_nodes)
    return max(least, -(-least * nodes // layout.tasks) * layout.tasks // nodes)


def _whole_cores(job: PlacedJob, cpus: int) -> int:
    """Return the most CPUs that the job holds where Slurm gives out cores, sockets or nodes."""
    if "linear" in job.config.get("SelectType", ""):
        return max(cpus, _sum_of_largest([node.cpus for node in job.fitting], job.most_nodes))
    select = job.config.get("SelectTypeParameters", "").upper()
    unit = max((_cpus_of_unit(node, select) for node in job.fitting), default=1)
    if unit == 1:
        return cpus
    per_task, nodes = job.layout.cpus_per_task, job.most_nodes
    own = "ONE_TASK_PER_CORE" in select or _has_own_cores(job.spec)
    if own and "SOCKET" not in select:
        most = cpus * unit
    elif per_task > 1 and "SOCKET" not in select:
        most = cpus // per_task * (-(-per_task // unit) * unit)
    else:
        most = (cpus + nodes * (unit - 1)) // unit * unit
    return max(cpus, min(most, _sum_of_largest([node.cpus for node in job.fitting], nodes)))


def _cpus_of_unit(node: Node, select: str) -> int:
    """Return the CPUs of the smallest part of a node that Slurm gives out."""
    if "SOCKET" in select:
        return max(1, node.cpus // max(node.sockets, 1))
    if "CR_CPU" in select:
        return 1
    return max(1, node.cpus // max(node.sockets * node.cores_per_socket, 1))


# --- whole nodes --------------------------------------------------------------------------------


def _having(job: PlacedJob, asked: Tres) -> list[Node]:
    """Return the fitting nodes that have what is asked for on a node."""
    return [
        node
        for node in job.fitting
        if node.cpus >= asked["cpu"]
        and all(gres_count(node, tres) >= n for tres, n in asked.items() if "/" in tres)
    ]


def _whole_gres(asked: Tres, nodes: Iterable[Node]) -> list[str]:
    """Return the GRES that an exclusive job holds all of.

    Of GPUs and parts of GPUs it holds only what it asks for (gres_stepmgr_job_select_whole_node).
    """
    parts = [tres for tres in asked if tres.startswith(_SHARED)]
    there = dict.fromkeys(tres for node in nodes for gres in node.gres for tres in _tres_of(gres))
    names = [tres for tres in there if not (parts and tres.startswith("gres/gpu"))]
    names += [tres for tres in asked if tres.startswith("gres/") and tres not in there]
    return [tres for tres in names if not tres.startswith(_SHARED) or tres in parts]


def _least_of_whole_nodes(total: Tres, asked: Tres, having: Sequence[Node], nodes: int) -> Tres:
    """Return the TRES of an exclusive job on the smallest nodes that fit."""
    if not having:
        return total
    least = {
        name: min(gres_count(node, name) for node in having) for name in _whole_gres(asked, having)
    }
    least["cpu"] = min(node.cpus for node in having)
    return total | {name: amount * nodes for name, amount in least.items() if amount}


def least_of_whole_nodes(
    tres: str, asked: Tres, there: Sequence[Node], named: Collection[str], count: int
) -> int:
    """Return the least of a TRES, CPUs or GRES, that an exclusive job holds on any of these nodes.

    Args:
        tres: its name.
        asked: amounts asked for on each node.
        there: the nodes from which Slurm takes `count`.
        named: nodes that the job must get.
        count: number of nodes.
    """
    if tres != "cpu" and tres not in _whole_gres(asked, there):
        return 0
    amounts = {node.name: gres_count(node, tres) if "/" in tres else node.cpus for node in there}
    certain = named if len(named) <= count else ()  # of more nodes Slurm takes some
    required = [amounts.pop(name) for name in certain if name in amounts]
    return sum(required) + sum(sorted(amounts.values())[: count - len(required)])


def _most_of_whole_nodes(most: Tres, asked: Tres, having: Sequence[Node], nodes: int) -> Tres:
    """Return the TRES of an exclusive job on the largest nodes that fit, of each TRES apart.

    GPUs of several types are counted together: which of them Slurm gives is not known.
    """
    if not having:
        return most
    names = _whole_gres(asked, having)
    types = [name for name in names if name.startswith("gres/gpu:")]
    if len(types) > 1 or any(gres_count(n, "gres/gpu") != _typed(n, types) for n in having):
        names = [name for name in names if name not in types]
        most = {name: amount for name, amount in most.items() if name not in types}
    largest = {
        name: _sum_of_largest([gres_count(node, name) for node in having], nodes) for name in names
    }
    largest["cpu"] = _sum_of_largest([node.cpus for node in having], nodes)
    return most | {name: amount for name, amount in largest.items() if amount}


def _typed(node: Node, types: Iterable[str]) -> int:
    return sum(gres_count(node, name) for name in types)


def _sum_of_largest(amounts: list[int], count: int) -> int:
    """Return the sum of the largest; nodes that are down now count as the largest of them."""
    missing = max(count - len(amounts), 0)
    return sum(sorted(amounts, reverse=True)[:count]) + missing * max(amounts, default=0)


def _tres_of(gres: Gres) -> tuple[str, ...]:
    name = f"gres/{gres.name}"
    return (name, f"{name}:{gres.type}") if gres.type else (name,)


def gres_count(node: Node, tres: str) -> int:
    """Return how many of a GRES a node has: `gres/gpu`, or those of one type, `gres/gpu:a100`."""
    name, _, kind = tres.removeprefix("gres/").partition(":")
    return node.count(name, kind or None)


def _most_billed(job: PlacedJob, most: Tres, having: Sequence[Node]) -> int:
    """Return the most that the job can be billed: its nodes are those that are billed the most.

    With MAX_TRES the largest part counts, so that the nodes with the most of each TRES are tried.
    """
    if not takes_whole_nodes(job.spec, job.partition) or not having:
        return billing(most, job.partition, job.config)
    names = [name for name in most if name.startswith("gres/")]
    names += [name for name in job.partition.billing_weights if name.startswith("gres/gpu:")]
    each = [_of_whole_node(node, names, most, job.most_nodes) for node in having]
    nodes = job.most_nodes
    orders = [sorted(each, key=lambda tres: -_billing(tres, job.partition, job.config))]
    orders += [_from_the_most(each, name) for name in job.partition.billing_weights]
    orders = [[*order, *[order[0]] * max(nodes - len(order), 0)][:nodes] for order in orders]
    sums = [
        {name: sum(tres.get(name, 0) for tres in order) for name in order[0]} for order in orders
    ]
    return max(billing(tres, job.partition, job.config) for tres in sums)


def _of_whole_node(node: Node, names: Iterable[str], most: Tres, nodes: int) -> Tres:
    """Return what a job on this whole node holds of it, with an equal part of its memory."""
    tres: Tres = {name: gres_count(node, name) for name in names}
    return tres | {"cpu": node.cpus, "mem": -(-most.get("mem", 0) // nodes), "node": 1}


def _from_the_most(each: Iterable[Tres], name: str) -> list[Tres]:
    return sorted(each, key=lambda tres: -tres.get(name, 0))


# --- memory -------------------------------------------------------------------------------------


class JobMemory(NamedTuple):
    """The memory a job gets: what it asks for, or else the site's default."""

    spec: JobSpec
    partition: Partition
    config: Mapping[str, str]

    def added_to(self, tres: Tres, nodes: int, factor: int = 1) -> Tres:
        """Add the job's memory to `tres` of `nodes` nodes.

        Nothing is added if the memory is unknown, or all memory of the nodes.

        Args:
            tres: amounts without memory.
            nodes: number of nodes.
            factor: by which memory per CPU is divided; see `MemoryCpus`.
        """
        gpus = tres.get("gres/gpu", 0) if self.spec.gpus is not None else 0
        amounts = {"node": nodes, "cpu": tres["cpu"], "gpu": gpus}
        size = next(
            (
                -(-mib // (factor if of == "cpu" else 1)) * amounts[of]
                for of, mib in self._sizes()
                if amounts[of]
            ),
            0,
        )
        return tres | ({"mem": size} if size else {})

    @property
    def size(self) -> tuple[str, int]:
        """The unit of the size (`node`, `cpu` or `gpu`), and MiB; 0 for all memory of a node."""
        return next(self._sizes(), ("node", 0))

    @property
    def takes_all(self) -> bool:
        """Whether the job takes all memory of its nodes."""
        per, mib = self.size
        select = self.config.get("SelectTypeParameters", "")
        given = self.spec.mem is not None or self.spec.mem_per_cpu is not None
        return not mib and per != "gpu" and (given or "MEMORY" in select.upper())

    def _sizes(self) -> Iterator[tuple[str, int]]:
        """Return pairs of what the size is for and MiB; the first that applies counts."""
        spec, partition = self.spec, self.partition
        asked = (("node", spec.mem), ("cpu", spec.mem_per_cpu), ("gpu", spec.mem_per_gpu))
        sizes = [(of, parse_memory_mib(text)) for of, text in asked if text is not None]
        if sizes:
            return iter(sizes)
        per_gpu = job_default("DefMemPerGPU", (partition,), self.config)
        whole = self.spec.gpus is not None and not self.spec.gpus.is_part
        gpu = ("gpu", per_gpu if whole else None)
        site = [("node", self._number("DefMemPerNode")), ("cpu", self._number("DefMemPerCPU"))]
        own = [("node", partition.def_mem_per_node), ("cpu", partition.def_mem_per_cpu)]
        return ((of, mib) for of, mib in (gpu, *own, *site) if mib)

    def _number(self, key: str) -> int:
        value = self.config.get(key, "")
        return int(value) if value.isdecimal() else 0


def memory_limit(
    partition: Partition, config: Mapping[str, str], key: str
) -> tuple[int | None, str]:
    """Return MaxMemPerNode or MaxMemPerCPU (MiB), and the source of the limit.

    The partition's limit comes before the cluster's, whichever of the two it is.
    """
    own = {"MaxMemPerNode": partition.max_mem_per_node, "MaxMemPerCPU": partition.max_mem_per_cpu}
    if (limit := own[key]) is not None:
        return limit, f"partition {partition.name}: {key}={limit}M"
    value = config.get(key, "")
    if value.isdigit() and int(value) and not any(own.values()):
        return int(value), f"slurm.conf: {key}={value}M"
    return None, ""


def job_default(
    name: str, partitions: Iterable[Partition], config: Mapping[str, str]
) -> int | None:
    """Parse DefCpuPerGPU or DefMemPerGPU (MiB) of JobDefaults; a partition's comes first.

    Source: slurm.conf(5).
    """
    texts = [partition.settings.get("JobDefaults", "") for partition in partitions]
    for text in (*texts, config.get("JobDefaults", "")):
        if match := re.search(rf"\b{name}=(\d+)", text, re.IGNORECASE):
            return int(match[1])
    return None
