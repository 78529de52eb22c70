"""Lists of nodes as Slurm writes them."""

from __future__ import annotations

from slurmkit.capabilities.text import optional


def node_names(text: str | None) -> tuple[str, ...]:
    """Expand `c[1-3],d5`."""
    if optional(text) is None:
        return ()
    from ClusterShell.NodeSet import NodeSet  # noqa: PLC0415 - 9 ms that a warm cache saves

    return tuple(NodeSet(text))
