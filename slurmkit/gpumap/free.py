"""What of the GPUs is free, and can really be used."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from slurmkit.nodes.read import NodeRow


class FreeGpus(msgspec.Struct, frozen=True):
    """GPUs of one type over the cluster.

    Attributes:
        type: None for GPUs of untyped nodes.
        total: all of them, those of drained and down nodes included.
        free: held by nobody, on nodes where a job can start now.
        largest: the most of these on one node.
        node: where that is; None when none is free.
        stranded: held by nobody, but on nodes with no CPU or memory left, or reserved ones.
    """

    type: str | None
    total: int
    free: int
    largest: int
    node: str | None
    stranded: int


def free_gpus(nodes: Iterable[NodeRow]) -> tuple[FreeGpus, ...]:
    """Count by type; a GPU of which parts are in use is not free."""
    total: Counter[str | None] = Counter()
    free: dict[str | None, list[tuple[int, str]]] = defaultdict(list)
    stranded: Counter[str | None] = Counter()
    for node in nodes:
        for of in node.gpus:
            total[of.type] += of.total
            left = max(of.total - of.used - _shared(node, of.type), 0)
            if left and node.why_closed is None:
                free[of.type].append((left, node.name))
            elif left and node.usable:
                stranded[of.type] += left
    return tuple(_summed(type_, total[type_], free[type_], stranded[type_]) for type_ in total)


def _shared(node: NodeRow, type_: str | None) -> int:
    uses = (use for use in node.uses if use.shared and use.type == type_)
    return len({at for use in uses for at in use.indices or ()})


def _summed(
    type_: str | None, total: int, free: Sequence[tuple[int, str]], stranded: int
) -> FreeGpus:
    largest, node = max(free, key=lambda at: at[0], default=(0, None))
    return FreeGpus(type_, total, sum(left for left, _ in free), largest, node, stranded)


def in_words(free: Iterable[FreeGpus]) -> str:
    """Say what is free of all types together, and the largest block."""
    types = tuple(free)
    best = max(types, key=lambda of: of.largest, default=None)
    total = sum(of.free for of in types)
    if best is None or not best.largest:
        return f"{total} free" if types else "none"
    kind = f"{best.type} " if best.type else ""
    return f"{total} free, largest block on one node: {best.largest} ({kind}on {best.node})"
