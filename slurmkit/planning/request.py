"""A spec's request in one partition: the amounts that the checks compare with limits.

To count the nodes it may get, the features in `--constraint` are evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from slurmkit.errors import BadInput
from slurmkit.formats.durations import parse_time_limit
from slurmkit.formats.job_ids import parse_index_spans
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.formats.tres import Tres
from slurmkit.planning.amounts import PlacedJob, job_amounts
from slurmkit.planning.gpu_request import ResolvedGpus
from slurmkit.planning.layout import Layout, nodes_by_name
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Association, Capabilities, Node, Partition, Qos, Standing

_TOKENS = re.compile(r"\*\d+|[&|,()\[\]]|[^&|,()\[\]*\s]+")
_COUNTED = re.compile(r"(\([^()]*\)|[^&|,()\[\]*\s]+)\*(\d+)")
_CHOICES = re.compile(r"\[([^\]]*)\]")


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
        total: TRES of the whole job, with `node` and `billing`, as Slurm gives them at least: of
            an exclusive job everything on the smallest nodes that fit, with `--mem=0` their
            memory, with MaxMemPerCPU the CPUs for the memory. Limits are compared with these.
        most: the same as Slurm gives them at most, on the largest nodes that fit; empty where only
            `total` is known. Estimates are made of these.
        raised_cpus: CPUs on a node because of MaxMemPerCPU; 0 where it adds none.
        fitting: usable nodes of the partition that have GPUs of the type asked for and match
            `constraint`, `nodelist` and `exclude`.
        counted: the nodes from which the amounts come: `fitting`, or if none of them is usable now,
            those that would fit.
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
    counted: tuple[Node, ...] = ()
    account: str | None
    association: Association | None
    qos: Qos | None
    partition_qos: Qos | None
    tasks_in_array: int = 1
    cpus_per_task: int = 1
    most_nodes: int | None = None
    most: Tres = {}
    raised_cpus: int = 0


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


def least_nodes_of(constraint: str) -> int:
    """Return the fewest nodes of a constraint with counts: 2 for `[amd*1&intel*1]`."""
    groups = (choices for choices in _CHOICES.findall(constraint) if "*" in choices)
    return max((_sum_of_counts(choices) for choices in groups), default=1)


def _sum_of_counts(choices: str) -> int:
    """Return the nodes that `a*1&b*2` needs; of alternatives the fewest."""
    terms = (part.split("&") for part in choices.split("|"))
    return min(sum(int(term.rpartition("*")[2]) for term in each if "*" in term) for each in terms)


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
    counted = fitting
    if not counted:  # drained nodes come back, and what the job gets then is what it costs
        there = capabilities.nodes_of(partition.name)
        counted = fitting_nodes(spec, kind, there, only_usable=False)
    nodes = layout.nodes or _nodes_for(spec, layout, partition, counted)
    if layout.most is not None:  # slurmctld raises the least of a range to MinNodes
        nodes = max(nodes, min(partition.min_nodes, layout.most))
    amounts = job_amounts(PlacedJob(spec, kind, layout, partition, capabilities, nodes, counted))
    account = spec.account.lower() if spec.account else standing.default_account  # as slurmctld
    association = standing.association(account, partition.name) if account else None
    qos = spec.qos or (association.default_qos if association else "") or None
    return Request(
        spec=spec,
        capabilities=capabilities,
        standing=standing,
        partition=partition,
        nodes=nodes,
        most_nodes=layout.most,
        tasks=layout.tasks,
        seconds=_seconds(spec, partition),
        per_node=amounts.per_node,
        total=amounts.total,
        most=amounts.most,
        raised_cpus=amounts.raised_cpus,
        fitting=fitting,
        counted=counted,
        account=account,
        association=association,
        qos=_qos(standing, qos),
        partition_qos=_qos(standing, partition.qos),
        tasks_in_array=array_size(spec.array),
        cpus_per_task=layout.cpus_per_task,
    )


def array_size(text: str | None) -> int:
    """Return the number of tasks in an array; 1 without an array."""
    if text is None:
        return 1
    first, *more = parse_index_spans(text)
    return len(set(first).union(*more)) if more else len(first)


def highest_index(text: str) -> int:
    """Return the highest index of an array."""
    return max(span[-1] for span in parse_index_spans(text))


def _seconds(spec: JobSpec, partition: Partition) -> int | None:
    if spec.time is not None:
        return parse_time_limit(spec.time)
    minutes = partition.default_time or partition.max_time
    return minutes * 60 if minutes else None


def _qos(standing: Standing, name: str | None) -> Qos | None:
    """Return the QOS of that name; Slurm ignores case here."""
    wanted = (name or "").casefold()
    return next((qos for qos in standing.qos if qos.name.casefold() == wanted), None)


def _nodes_for(
    spec: JobSpec, layout: Layout, partition: Partition, counted: tuple[Node, ...]
) -> int:
    """Return the least nodes that hold the tasks, where Slurm chooses the number.

    With `--overcommit` a node holds any number of tasks (`slurm_opt_create_job_desc` in
    src/common/slurm_opt.c sets `min_cpus` to the number of nodes).
    """
    by_cpus = max((node.cpus for node in counted), default=0) // layout.cpus_per_task
    sockets = max((node.sockets for node in counted), default=1)
    by_cpus = 0 if spec.overcommit else by_cpus
    by_sockets = (spec.ntasks_per_socket or layout.tasks) * sockets
    most = min(by_cpus or layout.tasks, spec.ntasks_per_node or layout.tasks, by_sockets)
    return max(-(-layout.tasks // most), partition.min_nodes, nodes_by_name(spec))


def fitting_nodes(
    spec: JobSpec, kind: ResolvedGpus | None, nodes: tuple[Node, ...], *, only_usable: bool = True
) -> tuple[Node, ...]:
    """Return the nodes with the GPUs meant that the spec's own selection leaves."""
    wanted = None if kind is None else {node.name for node in kind.fitting}
    excluded = set(kind.exclude if kind else ())
    return tuple(
        node
        for node in selected_by_spec(spec, nodes)
        if (node.usable or not only_usable)
        and (wanted is None or node.name in wanted)
        and node.name not in excluded
    )


def selected_by_spec(
    spec: JobSpec, nodes: tuple[Node, ...], wanted: int | None = None
) -> tuple[Node, ...]:
    """Return the nodes that `exclude`, `constraint` and a long enough `nodelist` leave.

    Args:
        spec: the job.
        nodes: nodes of its partitions, in any state.
        wanted: the job's nodes, where they are known; to a shorter list Slurm adds others.
    """
    excluded, named = _names("exclude", spec.exclude), _names("nodelist", spec.nodelist)
    enough = len(named & {node.name for node in nodes}) >= (wanted or spec.least_nodes or 1)
    return tuple(
        node
        for node in nodes
        if node.name not in excluded
        and (not enough or node.name in named)
        and satisfies(spec.constraint, node.features)
    )


def _names(option: str, text: str | None) -> set[str]:
    try:
        return set(expand_nodes(text))
    except ValueError as error:
        raise BadInput(f"--{option}: {error}") from error
