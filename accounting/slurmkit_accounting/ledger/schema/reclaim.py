"""Tables of idle GPUs given back: what was done and why, its outcome, and who asked to "leave it".

Rows are only added. The row of an act is written before the act, that of its outcome after it. So
a service that was killed between the two knows that it may have acted.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
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


def _run_columns() -> tuple[Column[int] | Column[str], ...]:
    """Return the columns that say which run, and whose; as Slurm reported at the time."""
    return (
        foreign_key_column("clusters"),
        Column("job_id_raw", BigInteger, nullable=False),
        Column("job_id", Text, nullable=False),
        Column("user", Text, nullable=False),
        number_column("uid", nullable=True),
        Column("account", Text, nullable=False),
        Column("partition", Text, nullable=False),
        Column("qos", Text, nullable=False),
        Column("alloc_tres", Text, nullable=False),
        seconds_column("submit"),
        seconds_column("start"),
        # When its time limit ends; NULL if it has none.
        seconds_column("limit_end", nullable=True),
    )


reclaim_acts = Table(
    "reclaim_acts",
    metadata,
    id_column(),
    *_run_columns(),
    Column("policy", Text, nullable=False),
    # `report`, `mail`, `requeue` or `cancel`.
    Column("action", Text, nullable=False),
    seconds_column("at"),
    # The samples that caused it: the window's begin (its end is `at`), the GPUs that the run held
    # and those that were idle, mean utilization of these (percent), the number of samples, the
    # share of the window that they cover, and each GPU as JSON.
    seconds_column("window_begin"),
    number_column("gpus"),
    number_column("idle_gpus"),
    Column("mean", Float(53), nullable=False),
    number_column("samples"),
    Column("covered", Float(53), nullable=False),
    Column("samples_by_gpu", Text, nullable=False),
    # How often the job was requeued before, and the seconds that it has for a checkpoint.
    number_column("restarts"),
    number_column("grace"),
    # Whether the mail also goes to the PI.
    Column("to_pi", Boolean, nullable=False),
)
Index("reclaim_acts_by_job", reclaim_acts.c.cluster_id, reclaim_acts.c.job_id_raw)
Index("reclaim_acts_by_time", reclaim_acts.c.at)

# What came of an act: `reported`, `mailed`, `not mailed`, `held`, `cancelled`, `ended` (by itself)
# or `not done`, and a remark.
reclaim_outcomes = Table(
    "reclaim_outcomes",
    metadata,
    Column(
        "act_id", BigInteger, ForeignKey("reclaim_acts.id"), primary_key=True, autoincrement=False
    ),
    seconds_column("at"),
    Column("outcome", Text, nullable=False),
    Column("why", Text, nullable=False),
)

# A user's "leave it", once for a job.
reclaim_keeps = Table(
    "reclaim_keeps",
    metadata,
    id_column(),
    *_run_columns(),
    seconds_column("at"),
    Column("reason", Text, nullable=False),
    UniqueConstraint("cluster_id", "job_id_raw", "uid", name="reclaim_keeps_once"),
)
