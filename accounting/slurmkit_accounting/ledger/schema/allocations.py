"""Tables of allocations: what was granted to whom, what followed, and which limits were set.

Rows are only added. What was granted is corrected by another row, never by an edit. Amounts are
thousandths of a unit-second: 3,600,000 are one GPU-hour or one billing-hour.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Table, Text

from slurmkit_accounting.ledger.schema.types import (
    foreign_key_column,
    id_column,
    metadata,
    number_column,
    seconds_column,
)

# For whom, in which unit, from when until when. Use counts from `begin` until before `finish`;
# `finish` NULL is open. An entry of the kind `expiry` may end it earlier.
allocations = Table(
    "allocations",
    metadata,
    id_column(),
    # `account`, `pi` or `project`, and its name; the name of an account in lower case.
    Column("holder_kind", Text, nullable=False),
    Column("holder", Text, nullable=False),
    # `gpu` (GPU-hours by type weights) or `billing` (Slurm's billing).
    Column("unit", Text, nullable=False),
    seconds_column("begin"),
    seconds_column("finish", nullable=True),
)
Index("allocations_by_holder", allocations.c.holder_kind, allocations.c.holder)

# `grant`, `top-up`, `transfer`, `refund`, `carry-over` and `expiry`. Both sides of a transfer or
# carry-over have the same `pair`, and their amounts add up to 0.
allocation_entries = Table(
    "allocation_entries",
    metadata,
    id_column(),
    foreign_key_column("allocations"),
    Column("kind", Text, nullable=False),
    number_column("amount_ms"),
    seconds_column("at"),
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False),
    # What makes it the same when it is sent again; each side of a pair has its own.
    Column("identity", Text, nullable=False, unique=True),
    Column("pair", Text),
    # Of an expiry: when the allocation ends.
    seconds_column("finish", nullable=True),
    # Of a refund: the job, as its user knows it.
    foreign_key_column("clusters", nullable=True),
    Column("job_id", Text),
)
Index("allocation_entries_by_allocation", allocation_entries.c.allocation_id)

# Limits that `allocation apply` set in Slurm. The row is written before sacctmgr runs, that of its
# outcome after it, so that a command that was cut off is known.
allocation_limits = Table(
    "allocation_limits",
    metadata,
    id_column(),
    foreign_key_column("clusters"),
    # `account` or `qos`, and its name.
    Column("target_kind", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("tres", Text, nullable=False),
    # GrpTRESMins of this TRES, in minutes; NULL is no limit.
    number_column("before", nullable=True),
    number_column("after", nullable=True),
    # What Slurm had counted then, in minutes; NULL if unknown.
    number_column("counted", nullable=True),
    # The newest entry of an allocation that the limit has in it.
    number_column("last_entry"),
    seconds_column("at"),
    Column("who", Text, nullable=False),
)
Index("allocation_limits_by_target", allocation_limits.c.cluster_id, allocation_limits.c.target)

# `set` (and read back), or `failed`, and why.
allocation_limit_outcomes = Table(
    "allocation_limit_outcomes",
    metadata,
    Column(
        "limit_id",
        BigInteger,
        ForeignKey("allocation_limits.id"),
        primary_key=True,
        autoincrement=False,
    ),
    seconds_column("at"),
    Column("outcome", Text, nullable=False),
    Column("why", Text, nullable=False),
)
