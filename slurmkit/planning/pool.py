"""The nodes a job may get, and what of GPUs is on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from slurmkit.capabilities.model import Node
from slurmkit.gpus import Gpus


class Names(msgspec.Struct, frozen=True):
    """What the site's configuration says of GPU types.

    Attributes:
        aliases: other names of a type in lower case, to the type.
        by_partition: partition to the type of its untyped GPUs.
    """

    aliases: Mapping[str, str] = msgspec.field(default_factory=dict)
    by_partition: Mapping[str, str] = msgspec.field(default_factory=dict)


class Pool(msgspec.Struct, frozen=True):
    """The nodes a job may get, and the rest of the cluster for advice.

    Attributes:
        nodes: of the partitions asked for, whatever their state.
        partitions: names of those.
        everywhere: all nodes of the cluster.
        several: whether a job's shards on a node may come from several GPUs.
    """

    nodes: tuple[Node, ...]
    partitions: tuple[str, ...]
    everywhere: tuple[Node, ...]
    names: Names = Names()
    several: bool = False


def from_several(config: Mapping[str, str]) -> bool:
    """Whether a job's shards or MPS units on a node may come from several GPUs (slurm.conf(5))."""
    return "MULTIPLE_SHARING_GRES_PJ" in config.get("SelectTypeParameters", "").upper()


def most_for_a_job(node: Node, name: str, *, several: bool) -> int:
    """Shards or MPS units that one job can get on a node."""
    return node.count(name) if several else per_gpu(node, name)


def per_gpu(node: Node, name: str) -> int:
    """Shards or MPS units that one GPU of a node is cut into."""
    gpus = node.count("gpu")
    return node.count(name) // gpus if gpus else 0


def whole_gpus(node: Node, *, typed: bool) -> bool:
    """Whether a node has whole GPUs with a type, or without one."""
    return any(g.name == "gpu" and not g.is_mig and bool(g.type) is typed for g in node.gres)


def gpu_types(nodes: Iterable[Node]) -> list[str]:
    """GPU types of some nodes, in order."""
    named = (g.type for n in nodes for g in n.gres if g.name == "gpu" and g.type)
    return list(dict.fromkeys(named))


def is_type(node: Node, gpus: Gpus, names: Names) -> bool:
    """Whether the GPUs of a node are of the type asked for, if one is."""
    wanted = canonical(gpus.type, names) if gpus.type else None
    return wanted is None or wanted in {canonical(t, names) for t in gpu_types([node])}


def canonical(name: str, names: Names) -> str:
    """The type that a name stands for, in lower case."""
    return names.aliases.get(name.casefold(), name).casefold()
