"""How many GPUs of each type a cluster has, over time, as ingests saw it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias

from sqlalchemy import Connection, insert, select

from slurmkit.errors import SlurmError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.nodes import NODES_COMMAND, parse_nodes
from slurmkit_accounting.ledger.schema.gpu_use import gpu_capacity

CapacityChanges: TypeAlias = "dict[tuple[int, str], list[tuple[int, int]]]"
"""By cluster and GPU type: since when there are how many GPUs, oldest first."""


def read_capacity(slurm: SlurmCommands) -> dict[str, int] | None:
    """Read the GPUs of all nodes, also of those that are down, by type; None if that is unknown."""
    try:
        nodes = parse_nodes(slurm.run(NODES_COMMAND))
    except SlurmError:
        return None
    if not nodes:
        return None
    counts: Counter[str] = Counter()
    for node in nodes:
        for gpus in node.gpus:
            counts[gpus.type or ""] += gpus.total
    return dict(counts)


def record_capacity(
    connection: Connection, cluster: int, counts: Mapping[str, int], now: int
) -> None:
    """Store what has changed since the last ingest."""
    changes = load_capacity(connection)
    last = {of: each[-1][1] for (number, of), each in changes.items() if number == cluster}
    rows = [
        {"cluster_id": cluster, "gpu_type": name, "valid_from": now, "gpus": counts.get(name, 0)}
        for name in sorted({*last, *counts})
        if last.get(name) != counts.get(name, 0)
    ]
    if rows:
        connection.execute(insert(gpu_capacity), rows)


def load_capacity(connection: Connection) -> CapacityChanges:
    """Load all changes of all clusters."""
    found: CapacityChanges = defaultdict(list)
    query = select(gpu_capacity).order_by(gpu_capacity.c.valid_from)
    for cluster, gpu_type, since, gpus in connection.execute(query):
        found[cluster, gpu_type].append((since, gpus))
    return found


def gpu_seconds_there(
    changes: list[tuple[int, int]], known_from: int, begin: int, end: int
) -> int | None:
    """Return how many GPU-seconds there were in [begin, end); None if part of it is unknown.

    Args:
        changes: of one cluster and type, as in `CapacityChanges`. Before the first there were none.
        known_from: epoch seconds since which the cluster's GPUs are known, of any type.
        begin: epoch seconds.
        end: epoch seconds, at most now.
    """
    if known_from > begin:
        return None
    edges = [*changes, (end, 0)]
    return sum(
        gpus * max(min(until, end) - max(since, begin), 0)
        for (since, gpus), (until, _) in pairwise(edges)
    )
