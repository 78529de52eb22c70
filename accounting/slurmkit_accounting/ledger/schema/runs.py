"""Tables of slurmdbd's data: clusters, ingests, runs, steps, revisions, rejects, node events."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from slurmkit_accounting.ledger.schema.types import (
    Unsigned64,
    foreign_key_column,
    id_column,
    metadata,
    number_column,
    seconds_column,
)

clusters = Table(
    "clusters",
    metadata,
    id_column(),
    Column("name", Text, nullable=False, unique=True),
    # Whether AccountingStorageTRES has gres/gpu, as of the last ingest; true once a file shows
    # GPUs; NULL if unknown.
    Column("tracks_gpus", Boolean),
    # The only user whose runs the ledger holds, because slurmdbd shows no others; NULL: all users.
    Column("only_user", Text),
)

# Spans of time that finished ingests have read completely; touching spans are joined. The time
# between two spans of a cluster is a gap.
spans = Table(
    "spans",
    metadata,
    id_column(),
    foreign_key_column("clusters"),
    seconds_column("begin"),
    seconds_column("finish"),
)

# Times in which a node was down or drained, as slurmdbd has them; `end` is NULL while it lasts.
node_events = Table(
    "node_events",
    metadata,
    id_column(),
    foreign_key_column("clusters"),
    Column("node", Text, nullable=False),
    seconds_column("start"),
    seconds_column("end", nullable=True),
    *(Column(name, Text, nullable=False) for name in ("state", "reason", "user")),
    # GPUs of the node; NULL if unknown.
    number_column("gpus", nullable=True),
    UniqueConstraint("cluster_id", "node", "start", name="node_events_once"),
)

# One row per ingest; `ended` stays NULL if the ingest was cut off.
ingests = Table(
    "ingests",
    metadata,
    id_column(),
    foreign_key_column("clusters"),
    # `sacct`, or the name of a file.
    Column("source", Text, nullable=False, server_default=text("'sacct'")),
    seconds_column("started"),
    seconds_column("ended", nullable=True),
    seconds_column("window_from"),
    seconds_column("window_to"),
    # Progress; an ingest that was cut off continues from there.
    seconds_column("done_to", nullable=True),
    # For a file: the format of its lines, as JSON; needed to read its rejects again.
    Column("layout", Text),
    Column("rows_read", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_new", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_changed", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_rejected", BigInteger, nullable=False, server_default=text("0")),
    # New runs whose DBIndex another job has: slurmdbd's database was re-created.
    Column("rows_reused", BigInteger, nullable=False, server_default=text("0")),
)

# One row per run of a job: a requeued job has several, each array task its own. JobIDRaw and Submit
# identify a run within its cluster, as in slurmdbd, whose job table has them as a unique key: a
# requeued job gets a later Submit. A DBIndex does not: a re-created database counts from 1 again.
runs = Table(
    "runs",
    metadata,
    id_column(),
    foreign_key_column("clusters"),
    Column("db_index", Unsigned64),
    Column("job_id_raw", BigInteger, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("uid", BigInteger),
    Column("account", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("qos", Text, nullable=False),
    Column("state", Text, nullable=False),
    seconds_column("submit"),
    seconds_column("eligible", nullable=True),
    seconds_column("start", nullable=True),
    seconds_column("end", nullable=True),
    Column("nodes", BigInteger, nullable=False),
    Column("cpus", BigInteger, nullable=False),
    Column("gpus", BigInteger, nullable=False),
    Column("alloc_tres", Text, nullable=False),
    Column("req_tres", Text, nullable=False),
    Column("time_limit", Text, nullable=False),
    Column("exit_code", Text, nullable=False),
    Column("node_list", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("reservation", Text, nullable=False, server_default=text("''")),
    # UID from a state like `CANCELLED by UID`; column `state` has only the base state.
    number_column("cancelled_by", nullable=True),
    # Seconds suspended so far, as sacct says; table `suspensions` says when.
    Column("suspended", BigInteger, nullable=False, server_default=text("0")),
    # `started` of the ingest that last saw the run without an end; only for runs without an end.
    seconds_column("last_seen", nullable=True),
    # Since when sacct no longer shows the run; it still counts.
    seconds_column("gone_since", nullable=True),
    # When an administrator took the run out of the ledger; it no longer counts.
    seconds_column("retracted", nullable=True),
    # Requeued, preempted or lost with a node, and a later run of the same job completed.
    Column("redone", Boolean, nullable=False, server_default=text("false")),
    # Why the GPU count cannot be trusted.
    Column("doubt", Text),
    # Measured use of the steps, NULL if not measured: CPU-milliseconds, peak MiB summed over all
    # nodes, mean GPU utilization in 1/1000 of the run's GPUs, peak MiB of GPU memory, joules.
    number_column("cpu_used_ms", nullable=True),
    number_column("mem_peak_mib", nullable=True),
    number_column("gpu_used_permille", nullable=True),
    number_column("gpu_mem_peak_mib", nullable=True),
    number_column("energy_joules", nullable=True),
    # Joules of the run's GPUs, from table `gpu_use`; `energy_joules` is what Slurm measured.
    number_column("gpu_energy_joules", nullable=True),
    # Seconds, summed over its GPUs, in which their utilization was below 1 %.
    number_column("gpu_idle_seconds", nullable=True),
    # Hash of the line last read, so that an unchanged line is skipped. Not part of the checksum.
    number_column("fingerprint", nullable=True),
    Column("first_ingest_id", BigInteger, ForeignKey("ingests.id")),
)
Index("runs_once", runs.c.cluster_id, runs.c.job_id_raw, runs.c.submit, unique=True)
HAS_DB_INDEX = runs.c.db_index.is_not(None)
Index(
    "runs_by_db_index",
    runs.c.cluster_id,
    runs.c.db_index,
    sqlite_where=HAS_DB_INDEX,
    postgresql_where=HAS_DB_INDEX,
)
Index("runs_by_end", runs.c.end, runs.c.start)
# PostgreSQL finds the begin of a text only by an index that compares it byte by byte.
Index("runs_by_job_id", runs.c.job_id, postgresql_ops={"job_id": "text_pattern_ops"})
Index("runs_by_user", runs.c.user, runs.c.end, runs.c.start)


def _partial_index(name: str, *columns: Column[int], where: str) -> None:
    some = text(where)
    Index(name, *columns, sqlite_where=some, postgresql_where=some)


# As text: a query must repeat it literally, or SQLite does not use the partial index.
OPEN = '"end" IS NULL'
LONG = '"end" - start > 86400'
# Without IN, for which SQLite builds a temporary table at each insert.
CUT_SHORT = "(state = 'REQUEUED' OR state = 'PREEMPTED' OR state = 'NODE_FAIL')"
SUSPENDED = "suspended > 0"
_partial_index("runs_open", runs.c.cluster_id, where=OPEN)
_partial_index("runs_long", runs.c.end, runs.c.start, where=LONG)
_partial_index("runs_cut_short", runs.c.cluster_id, runs.c.job_id_raw, where=CUT_SHORT)
_partial_index("runs_suspended", runs.c.cluster_id, where=SUSPENDED)
DOUBTFUL = "doubt IS NOT NULL"
GONE = "gone_since IS NOT NULL"
RETRACTED = "retracted IS NOT NULL"
_partial_index("runs_doubtful", runs.c.end, runs.c.start, where=DOUBTFUL)
_partial_index("runs_gone", runs.c.cluster_id, where=GONE)
_partial_index("runs_retracted", runs.c.cluster_id, where=RETRACTED)

# Steps: measured use; never added to allocations.
steps = Table(
    "steps",
    metadata,
    Column("run_id", BigInteger, ForeignKey("runs.id"), primary_key=True),
    Column("step", Text, primary_key=True),  # batch, extern, interactive, 0, 1, ...
    Column("state", Text, nullable=False),
    Column("name", Text, nullable=False),
    seconds_column("start", nullable=True),
    seconds_column("end", nullable=True),
    number_column("tasks", nullable=True),
    number_column("cpu_used_ms", nullable=True),
    number_column("mem_peak_mib", nullable=True),
    number_column("gpu_used_permille", nullable=True),
    number_column("gpu_mem_peak_mib", nullable=True),
    number_column("energy_joules", nullable=True),
)

# When a run was suspended: for `seconds` seconds within the `length` seconds from `begin`. Such an
# interval is what the run has of a UTC day, or of less (down to 15 minutes) if it was suspended for
# a part of that.
suspensions = Table(
    "suspensions",
    metadata,
    Column("run_id", BigInteger, ForeignKey("runs.id"), primary_key=True),
    Column("begin", BigInteger, primary_key=True),
    seconds_column("length"),
    seconds_column("seconds"),
)

# Earlier versions of rows of `runs`: the old values of the changed columns, as JSON.
revisions = Table(
    "revisions",
    metadata,
    id_column(),
    foreign_key_column("runs"),
    foreign_key_column("ingests"),
    Column("old", Text, nullable=False),
)
Index("revisions_by_run", revisions.c.run_id)

# sacct lines that could not be read, verbatim; each is stored once, however often it is seen.
# `identity` is `JobIDRaw@Submit` of the run of the line, or its DBIndex if only that could be read.
# `read_since` is the later ingest that could read the run. `dismissed` is when an administrator
# (`dismissed_by`) declared that the line is not wanted.
rejects = Table(
    "rejects",
    metadata,
    id_column(),
    foreign_key_column("ingests"),
    Column("digest", Text, nullable=False, unique=True),
    Column("reason", Text, nullable=False),
    Column("line", Text, nullable=False),
    Column("identity", Text),
    Column("read_since", BigInteger, ForeignKey("ingests.id")),
    seconds_column("dismissed", nullable=True),
    Column("dismissed_by", Text),
    Column("dismissed_because", Text),
)
UNREAD = rejects.c.read_since.is_(None) & rejects.c.dismissed.is_(None)
Index("rejects_by_identity", rejects.c.identity)
