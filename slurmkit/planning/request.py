"""A spec's request in one partition: the amounts that the checks compare with limits.

To count the nodes it may get, the features in `--constraint` are evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from slurmkit.errors import BadInput
from slurmkit.formats.durations import parse_time_limit
from slurmkit.formats.job_ids import parse_index_spans
from slurmkit.formats.memory import parse_mib
from slurmkit.formats.scontrol import expand_nodes, parse_tres_amount
from slurmkit.formats.tres import Gres, Tres
from slurmkit.planning.gpu_request import ResolvedGpus
from slurmkit.planning.layout import Layout
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Association, Capabilities, Node, Partition, Qos, Standing

_TOKENS = re.compile(r"\*\d+|[&|,()\[\]]|[^&|,()\[\]*\s]+")
_COUNTED = re.compile(r"(\([^()]*\)|[^&|,()\[\]*\s]+)\*(\d+)")
_CHOICES = re.compile(r"\[([^\]]*)\]")

_SHARED = ("gres/shard", "gres/mps")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts one spec asks for in one partition, before any limit is checked.

    Attributes:
        partition: a spec that names several partitions has a request for each.
        nodes: number of nodes; the fewest that hold `ntasks` where Slurm decides; the fewest of
            a range. All amounts are for this number.
        most_nodes: the most of a range; None without a range.
        tasks: processes of the whole job.
        cpus_per_task: CPUs of each.
        seconds: time limit the job gets; None when it has none.
        per_node: TRES on each node, the largest where nodes differ: `cpu`, `mem` (MiB; absent
            when the job takes all memory), `gres/gpu`, `gres/gpu:TYPE`, `gres/shard`, …
        total: TRES of the whole job, with `node` and `billing`; of an exclusive job everything
            on its nodes, which it is charged for, counted on the smallest nodes that fit.
        fitting: usable nodes of the partition that have GPUs of the type asked for and match
            `constraint`, `nodelist` and `exclude`.
        account: the account charged; None when unknown.
        association: of the user with that account; None when there is none or it is unknown.
        qos: the QOS the job runs under; None when unknown.
        partition_qos: the partition's own QOS.
        tasks_in_array: number of array tasks, 1 without an array.
    """

    spec: JobSpec
    capabilities: Capabilities
    standing: Standing
    partition: Partition
    nodes: int
    tasks: int
    seconds: int | None
    per_node: Tres
    total: Tres
    fitting: tuple[Node, ...]
    account: str | None
    association: Association | None
    qos: Qos | None
    partition_qos: Qos | None
    tasks_in_array: int = 1
    cpus_per_task: int = 1
    most_nodes: int | None = None


def feature_names(constraint: str) -> list[str]:
    """Return the features that a constraint names, in its order."""
    return [word for word in _TOKENS.findall(constraint) if word[0] not in "*&|,()[]"]


@lru_cache(maxsize=1024)  # many nodes have the same features
def satisfies(constraint: str | None, features: tuple[str, ...]) -> bool:
    """Return whether the constraint allows a node with these features."""
    words = _TOKENS.findall(constraint or "")
    return _evaluate(words, set(features), "")


def find_shortage(
    constraint: str, nodes: Sequence[Node], wanted: int
) -> tuple[str, int, int] | None:
    """Find features that too few nodes have: return them, the nodes there are, and those needed.

    Args:
        constraint: of the job.
        nodes: nodes that the job may get.
        wanted: number of nodes of the job.
    """
    for match in _COUNTED.finditer(constraint):
        features, count = match[1].strip("()"), int(match[2])
        if (have := _count_nodes(features, nodes)) < count:
            return features, have, count
    for choices in _CHOICES.findall(constraint):
        if "|" in choices and "*" not in choices:
            most = max(_count_nodes(choice, nodes) for choice in choices.split("|"))
            if most < wanted:
                return f"one of {choices.replace('|', ', ')}", most, wanted
    return None


def _count_nodes(features: str, nodes: Sequence[Node]) -> int:
    return sum(satisfies(features, node.features) for node in nodes)


def _evaluate(words: list[str], have: set[str], end: str) -> bool:
    """Evaluate the words up to `end`, and remove them; an empty constraint is satisfied."""
    met: bool | None = None
    sign = "&"
    while words:
        word = words.pop(0)
        if word == end:
            break
        if word in ("&", "|", ","):
            sign = word
        elif word not in (")", "]"):
            now = _evaluate_term(word, words, have, counts_choose=end == "]")
            either = sign == "|" or end == "]"
            met = now if met is None else (met or now) if either else (met and now)
    return met is not False


def _evaluate_term(word: str, words: list[str], have: set[str], *, counts_choose: bool) -> bool:
    ends = {"(": ")", "[": "]"}
    if word[0] == "*":
        return True  # a count without a feature
    met = _evaluate(words, have, ends[word]) if word in ends else word in have
    if words and words[0][0] == "*":
        words.pop(0)
        return met or not counts_choose  # the other nodes need not have it
    return met


class SiteState(NamedTuple):
    """A cluster's capabilities and one user's standing, both read at one time."""

    capabilities: Capabilities
    standing: Standing


class JobShape(NamedTuple):
    """The GPUs that a job means, None without GPUs, and its layout over nodes."""

    gpus: ResolvedGpus | None
    layout: Layout


def request_for(
    spec: JobSpec,
    shape: JobShape,
    partition: Partition,
    site: SiteState,
    fitting: tuple[Node, ...] | None = None,
) -> Request:
    """Return the request that a spec makes in one partition.

    Args:
        spec: the job.
        shape: the GPUs meant and the layout.
        partition: the partition judged.
        site: the cluster and the user's standing in it.
        fitting: the result of `fitting_nodes`, if it is known.
    """
    kind, layout = shape
    capabilities, standing = site
    if fitting is None:
        fitting = fitting_nodes(spec, kind, capabilities.nodes_of(partition.name))
    nodes = layout.nodes or _nodes_for(spec, layout, fitting)
    memory = _Memory(spec, partition, capabilities.config)
    per_node = memory.added_to(_per_node(spec, shape), 1)
    account = spec.account.lower() if spec.account else standing.default_account  # as slurmctld
    association = standing.association(account, partition.name) if account else None
    qos = spec.qos or (association.default_qos if association else "") or None
    total = _total(per_node, layout, nodes)
    if takes_whole_nodes(spec, partition):
        total = _whole_nodes(total, per_node, nodes, fitting)
    total = memory.added_to(total, nodes)
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


def takes_whole_nodes(spec: JobSpec, partition: Partition) -> bool:
    """Return whether the job is charged for all CPUs of its nodes.

    Memory per CPU then counts for each of those CPUs.
    """
    return spec.exclusive is True or partition.settings.get("OverSubscribe") == "EXCLUSIVE"


def parse_memory_mib(text: str) -> int:
    """Parse a size of sbatch's `--mem` (`64G`; MiB without a suffix) to MiB, rounded up.

    Raises:
        BadInput: for text that is no size.
    """
    mebibytes = parse_mib(text, rounding="up")
    if mebibytes is None:
        raise BadInput(f"{text!r} is not a size, e.g. 64G")
    return mebibytes


def array_size(text: str | None) -> int:
    """Return the number of tasks in an array; 1 without an array."""
    if text is None:
        return 1
    first, *more = parse_index_spans(text)
    return len(set(first).union(*more)) if more else len(first)


def highest_index(text: str) -> int:
    """Return the highest index of an array."""
    return max(span[-1] for span in parse_index_spans(text))


def billing(total: Tres, partition: Partition, config: Mapping[str, str]) -> int:
    """Compute a job's TRES billing by TRESBillingWeights and PriorityFlags (slurm.conf(5))."""
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
    """Return the QOS of that name; Slurm ignores case here."""
    wanted = (name or "").casefold()
    return next((qos for qos in standing.qos if qos.name.casefold() == wanted), None)


def _nodes_for(spec: JobSpec, layout: Layout, fitting: tuple[Node, ...]) -> int:
    """Return the least nodes that hold the tasks, where Slurm chooses the number."""
    by_cpus = max((node.cpus for node in fitting), default=0) // layout.cpus_per_task
    most = min(by_cpus or layout.tasks, spec.ntasks_per_node or layout.tasks)
    return -(-layout.tasks // most)


def _per_node(spec: JobSpec, shape: JobShape) -> Tres:
    """Return the TRES of one node without memory; of one task where Slurm chooses the nodes."""
    kind, layout = shape
    tasks = layout.ntasks_per_node or -(-layout.tasks // layout.least_nodes)
    if layout.nodes is None:
        tasks = 1
    tres: Tres = {"cpu": tasks * layout.cpus_per_task}
    if kind is not None:
        name = f"gres/{kind.gres}"
        tres[name] = layout.gpus
        tres |= {f"{name}:{kind.type}": layout.gpus} if kind.type else {}
    return tres | _other_gres(spec.gres)


def _other_gres(text: str | None) -> Tres:
    """Parse generic resources other than GPUs: `nvme:1`, `nic:mlx5:2`."""
    tres: Tres = {}
    for item in (text or "").split(","):
        name, *rest = item.split(":")
        size = parse_tres_amount(name, rest.pop().upper()) if rest and rest[-1][0].isdigit() else 1
        for key in (f"gres/{name}", *(f"gres/{name}:{kind}" for kind in rest)) if name else ():
            tres[key] = tres.get(key, 0) + (size or 0)
    return tres


def _total(per_node: Tres, layout: Layout, nodes: int) -> Tres:
    """Return the TRES of the whole job without memory."""
    total = {name: amount * nodes for name, amount in per_node.items() if name != "mem"}
    if layout.nodes is None:
        total["cpu"] = per_node["cpu"] * layout.tasks
    if layout.gpus_in_all:
        total |= {name: layout.gpus_in_all for name in per_node if name.startswith("gres/gpu")}
    return total | {"node": nodes}


def _whole_nodes(total: Tres, per_node: Tres, nodes: int, fitting: tuple[Node, ...]) -> Tres:
    """Return the TRES of an exclusive job: all CPUs and GRES of the smallest fitting nodes.

    Of GPUs and parts of GPUs it holds only what it asks for (gres_stepmgr_job_select_whole_node).
    """
    wide = [node for node in fitting if node.cpus >= per_node["cpu"]]
    having = [
        n for n in wide if all(_gres_count(n, t) >= c for t, c in per_node.items() if "/" in t)
    ]
    if not having:
        return total
    parts = [tres for tres in per_node if tres in _SHARED]
    there = {tres for node in having for gres in node.gres for tres in _tres_of(gres)}
    names = {tres for tres in there if not (parts and tres.startswith("gres/gpu"))}
    names = {tres for tres in names | per_node.keys() if tres not in _SHARED or tres in parts}
    least = {name: min(_gres_count(node, name) for node in having) for name in names if "/" in name}
    least["cpu"] = min(node.cpus for node in having)
    return total | {name: amount * nodes for name, amount in least.items() if amount}


def _tres_of(gres: Gres) -> tuple[str, ...]:
    name = f"gres/{gres.name}"
    return (name, f"{name}:{gres.type}") if gres.type else (name,)


def _gres_count(node: Node, tres: str) -> int:
    name, _, kind = tres.removeprefix("gres/").partition(":")
    return node.count(name, kind or None)


class _Memory(NamedTuple):
    """The memory a job gets: what it asks for, or else the site's default."""

    spec: JobSpec
    partition: Partition
    config: Mapping[str, str]

    def added_to(self, tres: Tres, nodes: int) -> Tres:
        """Add the job's memory to `tres` of `nodes` nodes.

        Nothing is added if the memory is unknown, or all memory of the nodes.
        """
        gpus = tres.get("gres/gpu", 0) if self.spec.gpus is not None else 0
        amounts = {"node": nodes, "cpu": tres["cpu"], "gpu": gpus}
        size = next((mib * amounts[of] for of, mib in self._sizes() if amounts[of]), 0)
        return tres | ({"mem": size} if size else {})

    def _sizes(self) -> Iterator[tuple[str, int]]:
        """Return pairs of what the size is for and MiB; the first that applies counts."""
        spec, partition = self.spec, self.partition
        asked = (("node", spec.mem), ("cpu", spec.mem_per_cpu), ("gpu", spec.mem_per_gpu))
        sizes = [(of, parse_memory_mib(text)) for of, text in asked if text is not None]
        if sizes:
            return iter(sizes)
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
    """Parse DefCpuPerGPU or DefMemPerGPU (MiB) of JobDefaults; a partition's comes first.

    Source: slurm.conf(5).
    """
    texts = [partition.settings.get("JobDefaults", "") for partition in partitions]
    for text in (*texts, config.get("JobDefaults", "")):
        if match := re.search(rf"\b{name}=(\d+)", text, re.IGNORECASE):
            return int(match[1])
    return None


def fitting_nodes(
    spec: JobSpec, kind: ResolvedGpus | None, nodes: tuple[Node, ...]
) -> tuple[Node, ...]:
    """Return the usable nodes with the GPUs meant that the spec's own selection leaves."""
    wanted = None if kind is None else {node.name for node in kind.fitting}
    excluded = set(kind.exclude if kind else ())
    return tuple(
        node
        for node in selected_by_spec(spec, nodes)
        if node.usable and (wanted is None or node.name in wanted) and node.name not in excluded
    )


def selected_by_spec(spec: JobSpec, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the nodes that `exclude`, `constraint` and a long enough `nodelist` leave."""
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
        return set(expand_nodes(text))
    except ValueError as error:
        raise BadInput(f"--{option}: {error}") from error
