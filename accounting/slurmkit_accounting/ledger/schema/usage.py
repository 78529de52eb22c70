"""Tables of usage: what ended runs held, by UTC month, day and hour.

The usage of a run grows evenly from its start to its end. So a run is stored as what changes at its
start and at its end, and not in each hour between: two rows of `usage_hours` and two of
`usage_days`, however long it is. A report adds up the changes up to an instant, which gives what
was held then, and the seconds up to then. To begin with, `usage_months` has what was held when a
month began, and the whole usage of the month.

The tables change in the transaction that changes a run. They are always the sum over all runs that
have ended and were not retracted.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Table,
    Text,
    UniqueConstraint,
)

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

# What runs hold for a time, each with its rate: the amount of a second. All are integers, so that
# they are exact and the same on every database. GPUs are as AllocTRES counts them; weights of
# slices and shards are applied in reports. The run time of runs whose number of nodes is not known
# is `nodeless`; the node-seconds of runs whose energy is known are `metered`.
HELD = (
    "gpu_seconds",
    "cpu_seconds",
    "node_seconds",
    "wall_seconds",
    "mem_mib_seconds",
    "nodeless_seconds",
    "metered_node_seconds",
    "energy_millijoules",
)
RATES = ("gpus", "cpus", "nodes", "runs", "mem_mib", "nodeless", "metered_nodes", "milliwatts")
# What counts at the start of a run: the run, and how long it had waited. At its end, if it was
# measured, over its whole run time: used, and held.
COUNTED = (
    "started",
    "waited_seconds",
    "cpu_used_ms",
    "cpu_measured_ms",
    "mem_used_mib_seconds",
    "mem_measured_mib_seconds",
    "gpu_used_ms",
    "gpu_measured_ms",
    # Energy of the GPUs by their own measurement, of runs whose energy Slurm did not measure.
    "gpu_joules",
)
# The sums of a span of time that a report asks for; `runs` are those that overlap the span.
SUMS = (*HELD, "runs", *COUNTED)
# The columns of a usage table after its key.
USAGE_COLUMNS = (*HELD, *COUNTED, *RATES)
HOUR, DAY = 3600, 86400


def _whole_numbers(table: str) -> CheckConstraint:
    """Return what makes SQLite refuse a sum beyond 64 bits, which it would store as a float.

    STRICT tables would do so too, but SQLite has them only since 3.37, and RHEL 9 has 3.34.
    """
    whole = " AND ".join(f"typeof({column}) = 'integer'" for column in USAGE_COLUMNS)
    return CheckConstraint(whole, name=f"{table}_sums_fit").ddl_if(dialect="sqlite")


def _usage_table(name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("bin", BigInteger, primary_key=True, autoincrement=False),  # epoch of its begin
        Column("key_id", BigInteger, ForeignKey("usage_keys.id"), primary_key=True),
        *(number_column(column) for column in USAGE_COLUMNS),
        _whole_numbers(name),
        sqlite_with_rowid=False,
    )


# Rates: by how much they change in the bin. Seconds and energy: what these changes add up to until
# the end of the month of the bin.
usage_hours = _usage_table("usage_hours")
usage_days = _usage_table("usage_days")
# Rates: as the month begins. Seconds and energy: all of the month.
usage_months = _usage_table("usage_months")

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
