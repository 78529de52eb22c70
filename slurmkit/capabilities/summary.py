"""What generic resources a cluster has, by name and type, and what reservations hold."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from slurmkit.capabilities.model import Capabilities, Gres, Node, Reservation


class GresKind(msgspec.Struct, frozen=True, kw_only=True):
    """Generic resources of one name and type on a cluster.

    Attributes:
        name: `gpu`, `shard`, `mps` or any other of GresTypes.
        type: as nodes declare it, None for untyped ones.
        is_mig: whether the type is that of MIG slices.
        count: on the whole cluster.
        per_node: each count that a node has, smallest first.
        nodes: names.
        partitions: that have such nodes.
    """

    name: str
    type: str | None
    is_mig: bool
    count: int
    per_node: tuple[int, ...]
    nodes: tuple[str, ...]
    partitions: tuple[str, ...]


def gres_kinds(nodes: Iterable[Node]) -> tuple[GresKind, ...]:
    """Sum up nodes: GPUs first, then parts of GPUs, then the rest."""
    held: dict[tuple[str, str | None], list[tuple[Gres, Node]]] = {}
    for node in nodes:
        for gres in node.gres:
            held.setdefault((gres.name, gres.type), []).append((gres, node))
    order = {"gpu": 0, "shard": 1, "mps": 2}
    kinds = sorted(held, key=lambda kind: (order.get(kind[0], 3), kind[0], kind[1] or ""))
    return tuple(_kind(held[kind]) for kind in kinds)


def _kind(held: list[tuple[Gres, Node]]) -> GresKind:
    first = held[0][0]
    partitions = (name for _, node in held for name in node.partitions)
    return GresKind(
        name=first.name,
        type=first.type,
        is_mig=first.is_mig,
        count=sum(gres.count for gres, _ in held),
        per_node=tuple(sorted({gres.count for gres, _ in held})),
        nodes=tuple(node.name for _, node in held),
        partitions=tuple(dict.fromkeys(partitions)),
    )


def reserved_gpus(reservation: Reservation, capabilities: Capabilities) -> int | None:
    """GPUs that a reservation holds; None when Slurm does not tell.

    Slurm counts GPUs only where they were asked for; whole nodes have all of theirs.
    """
    if "gres/gpu" in reservation.tres:
        return reservation.tres["gres/gpu"]
    nodes = [node for node in capabilities.nodes if node.name in set(reservation.nodes)]
    if len(nodes) != len(reservation.nodes):
        return None
    gpus = sum(node.count("gpu") for node in nodes)
    whole = reservation.tres.get("cpu", 0) >= sum(node.cpus for node in nodes)
    return gpus if whole or not gpus else None
