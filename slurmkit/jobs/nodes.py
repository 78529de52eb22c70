"""What a job holds on its nodes: one line of `scontrol show job --details`.

Any such line may be forged, since job names and paths may hold line breaks: it is read so that
nothing in it can do harm, and says nothing unless Slurm could have written it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from slurmkit.capabilities.nodes import node_names
from slurmkit.nodes.gresuse import GresUse, parse_uses

START = "     Nodes="
"""What such a line begins with."""

# `     Nodes=c[1-2] CPU_IDs=0 Mem=1024 GRES=gpu:a100:2(IDX:0-1)`; nothing that ClusterShell would
# take for a group, which it may ask a shell command for.
_LINE = re.compile(r" {5}Nodes=(?P<nodes>[\w.,\[\]-]+) CPU_IDs=.* GRES=(?P<gres>\S+)")
_BRACKET = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)-(\d+)")
_MOST = 1 << 16  # nodes that Slurm lets one range name


def held_on(line: str) -> Sequence[tuple[str, GresUse]]:
    """Nodes, and GPUs or parts of GPUs held on each; empty for any other line."""
    match = _LINE.match(line)
    if match is None:
        return ()
    try:
        uses = [use for use in parse_uses(match["gres"]) if use.name == "gpu" or use.shared]
        return [(node, use) for node in _expand(match["nodes"]) for use in uses]
    except ValueError:
        return ()


def _expand(text: str) -> tuple[str, ...]:
    """Name the nodes of `c[1-3]`, unless somebody wrote a range to fill the memory with."""
    if math.prod(map(_size, _BRACKET.findall(text))) > _MOST:
        raise ValueError("more nodes than Slurm can name")
    if "[" not in text:
        return tuple(text.split(","))
    from ClusterShell.NodeSet import NodeSetException  # noqa: PLC0415 - 9 ms, see node_names

    try:
        return node_names(text)
    except NodeSetException as error:
        raise ValueError(text) from error


def _size(ranges: str) -> int:
    return sum(max(int(last) - int(first), 1) for first, last in _RANGE.findall(ranges)) or 1
