"""Tables of usage: what ended runs held, summed per UTC hour and per UTC day.

Both tables hold the same sums, so a report reads whole days, and hours only at its edges. Parts of
an hour, and runs without an end, are counted from `runs`. The tables change in the transaction that
changes a run. They are always the sum of `within` (slurmkit_accounting.usage.bins) over all runs
that have ended and were not retracted.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Table, Text, UniqueConstraint

from slurmkit_accounting.ledger.schema.types import (
    foreign_key_column,
    id_column,
    metadata,
    number_column,
    seconds_column,
)

# Usage keys: all attributes of runs that a report can group or filter by.
usage_keys = Table(
    "usage_keys",
    metadata,
    id_column(),
    foreign_key_column("clusters"),
    Column("user", Text, nullable=False),
    Column("uid", BigInteger, nullable=False),  # -1: unknown
    Column("account", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("qos", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("redone", Boolean, nullable=False),
    # As in AllocTRES: `a100`, `a100_1g.5gb`, `shard`, `mps`; empty for untyped GPUs, `-` for none.
    Column("gpu_type", Text, nullable=False),
    # The last time before Submit at which people changed (table `eras`). Within an era, everybody's
    # group and PI stay the same.
    number_column("era"),
    UniqueConstraint(
        "cluster_id", "user", "uid", "account", "partition", "qos", "state", "redone",
        "gpu_type", "era", name="usage_keys_once",
    ),
)  # fmt: skip

# The sums. All are integers, so that they are exact and the same on every database.
SUMS = (
    # Held within the bin. GPUs as AllocTRES counts them; weights of slices and shards are applied
    # in reports.
    "gpu_seconds",
    "cpu_seconds",
    "node_seconds",
    "wall_seconds",
    "mem_mib_seconds",
    "energy_joules",
    # Runs that overlap the bin; runs that started in it, and how long these had waited.
    "runs",
    "started",
    "waited_seconds",
    # Runs that ended in the bin and were measured, each over its whole run time: used, and held.
    "cpu_used_ms",
    "cpu_measured_ms",
    "mem_used_mib_seconds",
    "mem_measured_mib_seconds",
    "gpu_used_ms",
    "gpu_measured_ms",
)
HOUR, DAY = 3600, 86400


def _usage_table(name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("bin", BigInteger, primary_key=True, autoincrement=False),  # epoch of its begin
        Column("key_id", BigInteger, ForeignKey("usage_keys.id"), primary_key=True),
        *(number_column(column) for column in SUMS),
        sqlite_with_rowid=False,
    )


usage_hours = _usage_table("usage_hours")
usage_days = _usage_table("usage_days")

closings = Table(
    "closings",
    metadata,
    id_column(),
    foreign_key_column("clusters"),
    Column("month", Text, nullable=False),  # YYYY-MM
    Column("timezone", Text, nullable=False),
    seconds_column("at"),
    # The last ingest that is included; changes by later ingests are corrections.
    foreign_key_column("ingests"),
    Column("checksum", Text, nullable=False),
    UniqueConstraint("cluster_id", "month", name="closings_once"),
)

closed_usage = Table(
    "closed_usage",
    metadata,
    Column("closing_id", BigInteger, ForeignKey("closings.id"), primary_key=True),
    Column("key_id", BigInteger, ForeignKey("usage_keys.id"), primary_key=True),
    *(number_column(column) for column in SUMS),
)
