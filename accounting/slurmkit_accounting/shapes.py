"""Whether runs of these days have more GPUs than their nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from slurmkit.capabilities.nodes import node_names
from slurmkit.capabilities.read import parse_nodes
from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm
from slurmkit.tres import gpu_count, gpu_types
from slurmkit_accounting.rows import Columns

_ASKED = ("scontrol", "--all", "--oneliner", "show", "node")


class Shapes:
    """The GPUs of the nodes as they are now, asked for when a run is first held against them.

    Args:
        slurm: the border to Slurm.
        since: epoch seconds; of runs that ended before, nodes may have had other GPUs.
    """

    def __init__(self, slurm: Slurm, since: int) -> None:
        self._slurm = slurm
        self._since = since
        self._known: dict[tuple[str, str], str | None] = {}

    def look(self, columns: Columns) -> None:
        """Put into `doubt` of runs what their nodes say."""
        names = ("doubt", "gpus", "end", "alloc_tres", "node_list")
        rows = zip(*(columns[name] for name in names), strict=True)
        columns["doubt"] = [
            self._why(tres, nodes)
            if gpus and told is None and (end is None or end >= self._since)
            else told
            for told, gpus, end, tres, nodes in rows
        ]

    def _why(self, tres: str, nodes: str) -> str | None:
        both = tres, nodes
        if both not in self._known:
            self._known[both] = self._compared(tres, nodes)
        return self._known[both]

    def _compared(self, tres: str, nodes: str) -> str | None:
        try:
            names = node_names(nodes)
        except ValueError:
            return None
        if not names or any(name not in self._gpus for name in names):
            return None
        return more_than(tres, (self._gpus[name] for name in names))

    @cached_property
    def _gpus(self) -> dict[str, Counter[str]]:
        """By node and type in small letters; nothing where nodes cannot be asked."""
        try:
            nodes = parse_nodes(self._slurm.run(_ASKED))
        except (SlurmError, KeyError, ValueError):
            return {}
        found: dict[str, Counter[str]] = {}
        for node in nodes:
            gpus = found[node.name] = Counter()
            for gres in node.gres:
                if gres.name == "gpu":
                    gpus[(gres.type or "").lower()] += gres.count
        return found


def more_than(tres: str, nodes: Iterable[Counter[str]]) -> str | None:
    """Why an AllocTRES text cannot be right, given the GPUs of its nodes by type."""
    there = sum(nodes, Counter[str]())
    held = gpu_count(tres)
    if held > there.total():
        return f"AllocTRES has {held} GPUs, its nodes {there.total()}"
    for kind, count in gpu_types(tres).items():
        if kind and count > there[kind.lower()]:
            return f"AllocTRES has {count} {kind}, its nodes {there[kind.lower()]}"
    return None
