"""Usage: what ended runs held, summed per UTC hour and per UTC day.

Both tables hold the same sums at two widths, so a report reads days where it can and hours at its
edges; an edge within an hour, and runs without an end, are counted from `runs`. They change in the
transaction that changes a run: always the sum of what `contributions` (slurmkit_accounting.bins)
says of every run that has ended and was not retracted.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Table, Text, UniqueConstraint

from slurmkit_accounting.schema.base import metadata, number, own_id, to

# Everything that runs can be told apart by in a report, once for all usage.
usage_keys = Table(
    "usage_keys",
    metadata,
    own_id(),
    to("clusters"),
    Column("user", Text, nullable=False),
    Column("uid", BigInteger, nullable=False),  # -1: unknown
    Column("account", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("qos", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("redone", Boolean, nullable=False),
    # As in AllocTRES: `a100`, `a100_1g.5gb`, `shard`, `mps`; empty for untyped GPUs, `-` for none.
    Column("gpu_type", Text, nullable=False),
    # The last time before Submit at which anything about people changed: within an era everybody's
    # group and PI stay the same.
    number("era"),
    UniqueConstraint(
        "cluster_id", "user", "uid", "account", "partition", "qos", "state", "redone",
        "gpu_type", "era", name="usage_keys_once",
    ),
)  # fmt: skip

# What is summed. All whole numbers, so that sums are exact and the same on every database.
SUMS = (
    # Held within the bin. GPUs as AllocTRES counts them: weights of slices and shards come later.
    "gpu_seconds",
    "cpu_seconds",
    "node_seconds",
    "wall_seconds",
    "mem_mib_seconds",
    "energy_joules",
    # Runs that overlap the bin; those of them that began in it, and how long these had waited.
    "runs",
    "started",
    "waited_seconds",
    # Of runs that ended in the bin and were measured, the whole run: used, and held.
    "cpu_used_ms",
    "cpu_measured_ms",
    "mem_used_mib_seconds",
    "mem_measured_mib_seconds",
    "gpu_used_ms",
    "gpu_measured_ms",
)
HOUR, DAY = 3600, 86400


def _bins(name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("bin", BigInteger, primary_key=True, autoincrement=False),  # epoch of its begin
        Column("key_id", BigInteger, ForeignKey("usage_keys.id"), primary_key=True),
        *(number(column) for column in SUMS),
        sqlite_with_rowid=False,
    )


usage_hours = _bins("usage_hours")
usage_days = _bins("usage_days")
