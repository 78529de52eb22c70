"""Tables of what GPUs really did: for each run, node and GPU a summary and a curve.

They are never part of what runs held. Samples are stored as they come, and deleted after an hour.
Every ten minutes they are added to the summaries and curves, so a service that is restarted goes on
with them. Once the run has ended in the ledger, its summaries are final.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from slurmkit_accounting.ledger.schema.types import (
    foreign_key_column,
    id_column,
    metadata,
    number_column,
    seconds_column,
)


def _float_column(name: str, *, nullable: bool = False) -> Column[float]:
    return Column(name, Float(53), nullable=nullable)


# Numbers as `slurmkit_accounting.gpu_use.summaries.GpuUse` has them. Durations are seconds, energy
# is joules. Columns that may be NULL are unknown then.
gpu_use = Table(
    "gpu_use",
    metadata,
    id_column(),
    foreign_key_column("clusters"),
    # The run, by JobIDRaw and Start; `run_id` is NULL until the ledger has the end of the run.
    Column("job_id_raw", BigInteger, nullable=False),
    seconds_column("start"),
    foreign_key_column("runs", nullable=True),
    Column("node", Text, nullable=False),
    # The UUID of the MIG instance or of the GPU, else the PCI address or Slurm's index.
    Column("gpu", Text, nullable=False),
    Column("uuid", Text, nullable=False),
    Column("pci", Text, nullable=False),
    number_column("index", nullable=True),
    Column("mig", Text, nullable=False),
    # `exporter`, `prometheus`, `jobstats`; `prometheus_running` for what Prometheus answered while
    # the run went on.
    Column("source", Text, nullable=False),
    Column("shared", Boolean, nullable=False),
    seconds_column("interval"),
    number_column("samples"),
    _float_column("covered"),
    # Of the samples whose utilization is known: how many, the seconds they cover, their sum (each
    # in percent), how many are below 1 %; the 95th percentile, and the histogram it comes from.
    number_column("measured_samples"),
    _float_column("measured_seconds"),
    _float_column("utilization_sum"),
    number_column("idle_samples"),
    number_column("percentile_95", nullable=True),
    Column("bins", LargeBinary),
    number_column("memory_mib", nullable=True),
    number_column("memory_total_mib", nullable=True),
    _float_column("counted_joules", nullable=True),
    _float_column("counted_seconds"),
    # Before the first and after the last value of the counter: power times time, an interval each.
    _float_column("ends_joules"),
    _float_column("ends_seconds"),
    _float_column("power_joules", nullable=True),
    _float_column("power_seconds"),
    # The first and the last sample, and the last value of the energy counter.
    _float_column("first", nullable=True),
    _float_column("last", nullable=True),
    _float_column("counter_at", nullable=True),
    _float_column("counter", nullable=True),
    _float_column("last_watts", nullable=True),
    UniqueConstraint(
        "cluster_id", "job_id_raw", "start", "node", "gpu", "source", name="gpu_use_once"
    ),
)
Index("gpu_use_by_run", gpu_use.c.run_id)
# As text: a query must repeat it literally, or SQLite does not use the partial index.
NOT_LINKED = "run_id IS NULL"
Index(
    "gpu_use_not_linked",
    gpu_use.c.cluster_id,
    gpu_use.c.job_id_raw,
    sqlite_where=text(NOT_LINKED),
    postgresql_where=text(NOT_LINKED),
)

# The curves, which are deleted when their retention ends; summaries stay.
gpu_curves = Table(
    "gpu_curves",
    metadata,
    Column("use_id", BigInteger, ForeignKey("gpu_use.id"), primary_key=True, autoincrement=False),
    seconds_column("begin"),
    seconds_column("step"),
    # Time of the last sample; curves are deleted by it.
    seconds_column("last"),
    Column("points", LargeBinary, nullable=False),
)
Index("gpu_curves_by_last", gpu_curves.c.last)

# The samples of the last hour, a row for each node and round: when it was taken and when the node's
# page arrived, and the packed samples (`slurmkit_accounting.gpu_use.recent`). In the order of time,
# so that a round writes, and what is deleted frees, few pages of the database.
gpu_samples = Table(
    "gpu_samples",
    metadata,
    Column(
        "cluster_id",
        BigInteger,
        ForeignKey("clusters.id"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("taken", BigInteger, primary_key=True, autoincrement=False),
    Column("node", Text, primary_key=True),
    _float_column("at"),
    Column("samples", LargeBinary, nullable=False),
)

# How many GPUs of a type (empty: untyped) a cluster has from a time on, as ingests saw it. A row
# for each change; 0 once there are none left.
gpu_capacity = Table(
    "gpu_capacity",
    metadata,
    Column("cluster_id", BigInteger, ForeignKey("clusters.id"), primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("valid_from", BigInteger, primary_key=True, autoincrement=False),
    number_column("gpus"),
)

# The runs whose window a site's Prometheus was asked for: when, how often without success, when to
# ask again (NULL: done), and what the last answer was.
gpu_questions = Table(
    "gpu_questions",
    metadata,
    Column("run_id", BigInteger, ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    seconds_column("asked"),
    number_column("failures"),
    seconds_column("again", nullable=True),
    Column("error", Text),
)
