"""What of the nodes that could serve a job is free, and what is short."""

from __future__ import annotations

from collections import Counter

import msgspec

from slurmkit.capabilities.model import Tres
from slurmkit.nodes.read import NodeRow, Parts
from slurmkit.planning.constraint import satisfies
from slurmkit.why import words
from slurmkit.why.scene import Scene, nodes_of


class Room(msgspec.Struct, frozen=True):
    """A node that could serve, and what of it is free now.

    Attributes:
        free: `cpu`, `mem` (MiB), `gres/gpu`, `gres/gpu:TYPE`, `gres/shard`, `gres/mps`.
        closed: why nothing can start there now, or None.
    """

    node: NodeRow
    free: Tres
    closed: str | None

    def lacks(self, per_node: Tres) -> list[str]:
        """Names of what is not free there in the amount asked for."""
        return [
            name for name, amount in counted(per_node).items() if self.free.get(name, 0) < amount
        ]


def counted(per_node: Tres) -> Tres:
    """The part of a node's share that nodes have: CPUs, memory, GPUs and parts of them."""
    kept = {n: v for n, v in per_node.items() if n in ("cpu", "mem") or n.startswith("gres/")}
    typed = any(name.startswith("gres/gpu:") for name in kept)
    return {name: value for name, value in kept.items() if not (typed and name == "gres/gpu")}


def capacity(node: NodeRow) -> Tres:
    """What a node has in all."""
    found = {"cpu": node.cpus, "mem": node.memory, "gres/gpu": sum(g.total for g in node.gpus)}
    found |= {f"gres/gpu:{g.type}": g.total for g in node.gpus if g.type}
    parts = {"gres/shard": node.shards, "gres/mps": node.mps}
    return found | {name: part.total for name, part in parts.items() if part}


def free_of(node: NodeRow) -> Tres:
    """What of a node no job holds; of shared GPUs what Slurm says, nothing where it does not."""
    used = {"cpu": node.cpus_allocated, "mem": node.memory_allocated}
    shared = _in_parts(node)
    used |= {"gres/gpu": sum(g.used for g in node.gpus) + sum(shared.values())}
    used |= {f"gres/gpu:{g.type}": g.used + shared[g.type] for g in node.gpus if g.type}
    free = {name: max(0, total - used.get(name, 0)) for name, total in capacity(node).items()}
    whole = {"gres/shard": node.shards, "gres/mps": node.mps}
    return free | {name: _on_one_gpu(node, name, parts) for name, parts in whole.items() if parts}


def _in_parts(node: NodeRow) -> Counter[str | None]:
    """GPUs by type that are given out in parts, so that no job can have them whole."""
    found: Counter[str | None] = Counter()
    for use in node.uses:
        if use.shared:
            found[use.type] += len(use.indices or ())
    return found


def _on_one_gpu(node: NodeRow, name: str, parts: Parts) -> int:
    """The most shards or MPS units free on one GPU: a job's come from one."""
    gpus = max(1, sum(g.total for g in node.gpus))
    uses = [use.parts for use in node.uses if f"gres/{use.name}" == name and use.parts]
    whole = {at for use in node.uses if use.name == "gpu" for at in use.indices or ()}
    if uses:
        left = (t - u for use in uses for at, (u, t) in enumerate(use) if at not in whole)
        return max(left, default=0)
    if parts.used is None:
        return 0
    each = parts.total // gpus
    return max(0, min(each, parts.total - parts.used - each * sum(g.used for g in node.gpus)))


def rooms(scene: Scene) -> list[Room]:
    """The nodes that could serve the job and are large enough, whatever runs on them."""
    wanted, excluded = set(scene.partitions), set(nodes_of(scene.asked.exclude))
    named = set(nodes_of(scene.job.requested_nodes))
    only = named if len(named) >= scene.job.nodes else set()
    return [
        Room(node, free_of(node), node.why_closed)
        for node in scene.nodes
        if not wanted.isdisjoint(node.partitions)
        and node.name not in excluded
        and (not only or node.name in only)
        and satisfies(scene.job.features or None, node.features)
        and _is_large_enough(node, scene.per_node)
    ]


def _is_large_enough(node: NodeRow, per_node: Tres) -> bool:
    has = capacity(node)
    return all(has.get(name, 0) >= amount for name, amount in counted(per_node).items())


def what_is_short(scene: Scene) -> list[str]:
    """Say what of the job's resources is free where, in its partitions."""
    per_node = scene.per_node
    there = rooms(scene)
    where = f"partition {', '.join(scene.partitions)}"
    asked = f"{words.holding(per_node)} on each of {scene.job.nodes} nodes"
    if scene.job.nodes == 1:
        asked = f"{words.holding(per_node)} on one node"
    if not there:
        return [f"it asks for {asked}, and no node of {where} that it may use has that"]
    fit = "1 node" if len(there) == 1 else f"{len(there)} nodes"
    said = [f"it asks for {asked}; {fit} of {where} could serve"]
    said += _key_resource(there, per_node)
    return said + _closed(there)


def _key_resource(there: list[Room], per_node: Tres) -> list[str]:
    """Where the GPUs (or CPUs) are free, the largest block of them, and what else is missing."""
    names = counted(per_node)
    key = next((name for name in names if name.startswith("gres/")), "cpu")
    free = [(room.free.get(key, 0), room) for room in there if room.closed is None]
    some = sorted(((n, room) for n, room in free if n), key=lambda pair: -pair[0])
    noun = words.resource(key)
    if not some:
        return [f"no {noun} is free there now"]
    most = some[0][0]
    total = sum(n for n, _ in some)
    listed = words.several([f"{room.node.name} {n}" for n, room in some])
    said = [f"free now: {words.amount(key, total)} ({listed}); the most on one node is {most}"]
    enough = [room for n, room in some if n >= names[key]]
    others = sorted({name for room in enough for name in room.lacks(per_node)} - {key})
    if enough and others:
        missing = " and ".join(words.resource(n) if n != "mem" else "memory" for n in others)
        said.append(f"{words.several([r.node.name for r in enough])}: not enough {missing} is left")
    return said


def _closed(there: list[Room]) -> list[str]:
    closed = [room for room in there if room.closed in ("down", "drained", "reserved")]
    return [
        f"{room.node.name} is {room.closed}" + (f": {room.node.reason}" if room.node.reason else "")
        for room in closed[:4]
    ]
