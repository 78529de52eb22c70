"""The samples of the last hour, stored as they came: a row for each node and round.

They are what GPUs do now. The summaries and curves, which take ten times the room, are written only
now and then; what came since is added to them from here, so that a service that is restarted
loses nothing, and a reader sees every sample.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Result, delete, select

from slurmkit_accounting.gpu_use.samples import GpuReading
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.ledger.bulk_write import in_values, replace_rows
from slurmkit_accounting.ledger.schema.gpu_use import gpu_samples

RETENTION_SECONDS = 3600
_COLUMNS = ("cluster_id", "taken", "node", "at", "samples")
# Row id of the summary, utilization (percent), watts, joules (NaN: unknown), memory in use and in
# all (MiB; -1: unknown), whether other jobs held the GPU too.
SAMPLE_FIELDS = (
    ("use_id", "q"), ("utilization", "d"), ("watts", "d"), ("joules", "d"), ("memory", "i"),
    ("memory_total", "i"), ("shared", "?"),
)  # fmt: skip
"""What a packed sample consists of, little-endian: names, and formats as `struct` has them."""
_SAMPLE = struct.Struct("<" + "".join(kind for _, kind in SAMPLE_FIELDS))
_LATE = 120  # seconds; a page arrives so long after the begin of its round, at most


class RecentSample(NamedTuple):
    """One sample of one GPU of one run.

    Attributes:
        use_id: row id of the summary of that GPU and run.
        shared: whether other jobs held the GPU too.
    """

    use_id: int
    shared: bool
    reading: GpuReading


def store_samples(
    connection: Connection,
    cluster: int,
    taken: int,
    samples: Mapping[str, Sequence[RecentSample]],
) -> None:
    """Store the samples of one round.

    Args:
        connection: to the ledger.
        cluster: row id of the cluster.
        taken: epoch seconds at which the round began.
        samples: by node; those of one node have the same time.
    """
    rows = [
        (cluster, taken, node, some[0].reading.at, b"".join(map(_pack, some)))
        for node, some in samples.items()
        if some
    ]
    replace_rows(connection, gpu_samples, _COLUMNS, rows)


def load_samples(
    connection: Connection,
    begin: float,
    *,
    cluster: int | None = None,
    nodes: Collection[str] | None = None,
) -> Iterator[RecentSample]:
    """Load the samples from a time on, the oldest first.

    Args:
        connection: to the ledger.
        begin: epoch seconds.
        cluster: only of this cluster, by its row id.
        nodes: only of these nodes.
    """
    for row in load_packed(connection, begin, cluster, nodes):
        for fields in _SAMPLE.iter_unpack(row.samples):
            yield unpack_sample(row.at, fields)


def load_packed(
    connection: Connection,
    begin: float,
    cluster: int | None = None,
    nodes: Collection[str] | None = None,
) -> Result[Any]:
    """Load the samples of nodes and rounds from a time on, packed, with their times, oldest first.

    With a cluster, the database reads only these rows, and in their order.

    Args:
        connection: to the ledger.
        begin: epoch seconds.
        cluster: only of this cluster, by its row id.
        nodes: only of these nodes.
    """
    query = select(gpu_samples.c.at, gpu_samples.c.samples).where(
        gpu_samples.c.taken >= int(begin) - _LATE, gpu_samples.c.at >= begin
    )
    if cluster is not None:
        query = query.where(gpu_samples.c.cluster_id == cluster)
    if nodes is not None:
        query = query.where(in_values(connection, gpu_samples.c.node, nodes))
    return connection.execute(query.order_by(gpu_samples.c.taken))


def sampled_nodes(connection: Connection, cluster: int, begin: float) -> list[str]:
    """Return the nodes with samples from a time on."""
    query = select(gpu_samples.c.node).where(
        gpu_samples.c.cluster_id == cluster, gpu_samples.c.taken >= int(begin) - _LATE
    )
    return sorted(connection.scalars(query.distinct()))


def add_samples(connection: Connection, uses: Sequence[GpuUse]) -> list[GpuUse]:
    """Add the samples that came since summaries were stored; return the summaries that changed."""
    by_id = {use.id: use for use in uses}
    begin = min((use.last or use.first or 0.0 for use in uses), default=0.0)
    nodes = {use.node for use in uses}
    changed: dict[int, GpuUse] = {}
    for number, shared, reading in load_samples(connection, begin, nodes=nodes) if uses else ():
        use = by_id.get(number)
        if use is not None and use.add(reading, shared=shared):
            changed[number] = use
    return list(changed.values())


def delete_old_samples(connection: Connection, cluster: int, before: int) -> None:
    """Delete the samples of a cluster before a time; others may have their own service."""
    ours = gpu_samples.c.cluster_id == cluster
    connection.execute(delete(gpu_samples).where(ours, gpu_samples.c.taken < before))


def _pack(sample: RecentSample) -> bytes:
    reading = sample.reading
    return _SAMPLE.pack(
        sample.use_id,
        *(math.nan if each is None else each
          for each in (reading.utilization, reading.watts, reading.joules)),
        *(-1 if each is None else each for each in (reading.memory_mib, reading.memory_total_mib)),
        sample.shared,
    )  # fmt: skip


def unpack_sample(at: float, fields: tuple[Any, ...]) -> RecentSample:
    """Return a sample, given the values of `SAMPLE_FIELDS`."""
    number, percent, watts, joules, memory, total, shared = fields
    reading = GpuReading(
        at=at,
        utilization=_known(percent),
        memory_mib=None if memory < 0 else memory,
        memory_total_mib=None if total < 0 else total,
        watts=_known(watts),
        joules=_known(joules),
    )
    return RecentSample(number, shared, reading)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
