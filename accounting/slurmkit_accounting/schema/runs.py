"""What sacct said: clusters, ingests, runs, steps; what was said before, what was no row."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Table, Text, text

from slurmkit_accounting.schema.base import Unsigned64, metadata, number, own_id, seconds, to

clusters = Table(
    "clusters",
    metadata,
    own_id(),
    Column("name", Text, nullable=False, unique=True),
    # What the cluster said at the last ingest, or true once a file shows GPUs; NULL when not known.
    Column("tracks_gpus", Boolean),
    # Whose runs alone are in the books, where slurmdbd shows no others; NULL: everybody's.
    Column("only_user", Text),
)

# Times of which finished ingests have read everything, joined where they touch: what lies between
# two of a cluster is a gap in its books.
spans = Table(
    "spans",
    metadata,
    own_id(),
    to("clusters"),
    seconds("begin"),
    seconds("finish"),
)

# One row per ingest; `ended` stays NULL for one that did not come to its end.
ingests = Table(
    "ingests",
    metadata,
    own_id(),
    to("clusters"),
    # `sacct`, or the name of a file.
    Column("source", Text, nullable=False, server_default=text("'sacct'")),
    seconds("started"),
    seconds("ended", nullable=True),
    seconds("window_from"),
    seconds("window_to"),
    # How far it has got; an ingest that was cut off goes on from there.
    seconds("done_to", nullable=True),
    # Of a file, how its lines are read, as JSON: what its rejects need to be read again.
    Column("layout", Text),
    Column("rows_read", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_new", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_changed", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_rejected", BigInteger, nullable=False, server_default=text("0")),
)

# One row per run of a job: a requeued job has several, each array task its own.
runs = Table(
    "runs",
    metadata,
    own_id(),
    to("clusters"),
    Column("db_index", Unsigned64),
    Column("job_id_raw", BigInteger, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("uid", BigInteger),
    Column("account", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("qos", Text, nullable=False),
    Column("state", Text, nullable=False),
    seconds("submit"),
    seconds("eligible", nullable=True),
    seconds("start", nullable=True),
    seconds("end", nullable=True),
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
    # Of a state like `CANCELLED by UID`; base states alone are in `state`.
    number("cancelled_by", nullable=True),
    # Seconds suspended so far, as sacct says; where they lie is in `suspensions`.
    Column("suspended", BigInteger, nullable=False, server_default=text("0")),
    # `started` of the ingest that last saw it without an end; kept for runs without an end only.
    seconds("last_seen", nullable=True),
    # Since when sacct, asked for it, shows it no more; it still counts.
    seconds("gone_since", nullable=True),
    # When somebody took it out of the books; it counts no more.
    seconds("retracted", nullable=True),
    # Requeued (or lost to a node or to preemption), and a later run of the same job completed.
    Column("redone", Boolean, nullable=False, server_default=text("false")),
    # Why its GPU count cannot be trusted.
    Column("doubt", Text),
    # What its steps used, NULL where nothing was measured: CPU-milliseconds, peak MiB on all
    # nodes together, mean GPU utilisation in 1/1000 of its GPUs, peak MiB of GPU memory, joules.
    number("cpu_used_ms", nullable=True),
    number("mem_peak_mib", nullable=True),
    number("gpu_used_permille", nullable=True),
    number("gpu_mem_peak_mib", nullable=True),
    number("energy_joules", nullable=True),
    # Of the line last read, so that an unchanged one need not be read again. Not part of the books.
    number("fingerprint", nullable=True),
    Column("first_ingest_id", BigInteger, ForeignKey("ingests.id")),
)
HAS_DB_INDEX = runs.c.db_index.is_not(None)
NO_DB_INDEX = runs.c.db_index.is_(None)
Index(
    "runs_by_db_index",
    runs.c.cluster_id,
    runs.c.db_index,
    unique=True,
    sqlite_where=HAS_DB_INDEX,
    postgresql_where=HAS_DB_INDEX,
)
Index(
    "runs_by_submit",
    runs.c.cluster_id,
    runs.c.job_id_raw,
    runs.c.submit,
    unique=True,
    sqlite_where=NO_DB_INDEX,
    postgresql_where=NO_DB_INDEX,
)
Index("runs_by_end", runs.c.end, runs.c.start)
Index("runs_by_job", runs.c.cluster_id, runs.c.job_id_raw)


def _partial(name: str, *columns: Column[int], where: str) -> None:
    some = text(where)
    Index(name, *columns, sqlite_where=some, postgresql_where=some)


# As text, which a query repeats word for word so that SQLite sees that the index will do.
OPEN = '"end" IS NULL'
LONG = '"end" - start > 86400'
# Not IN, for which SQLite makes a table each time a row is inserted.
CUT_SHORT = "(state = 'REQUEUED' OR state = 'PREEMPTED' OR state = 'NODE_FAIL')"
SUSPENDED = "suspended > 0"
_partial("runs_open", runs.c.cluster_id, where=OPEN)
_partial("runs_long", runs.c.end, runs.c.start, where=LONG)
_partial("runs_cut_short", runs.c.cluster_id, runs.c.job_id_raw, where=CUT_SHORT)
_partial("runs_suspended", runs.c.cluster_id, where=SUSPENDED)
DOUBTFUL = "doubt IS NOT NULL"
GONE = "gone_since IS NOT NULL"
RETRACTED = "retracted IS NOT NULL"
_partial("runs_doubtful", runs.c.end, runs.c.start, where=DOUBTFUL)
_partial("runs_gone", runs.c.cluster_id, where=GONE)
_partial("runs_retracted", runs.c.cluster_id, where=RETRACTED)

# Steps: measured use, never summed with allocations.
steps = Table(
    "steps",
    metadata,
    Column("run_id", BigInteger, ForeignKey("runs.id"), primary_key=True),
    Column("step", Text, primary_key=True),  # batch, extern, interactive, 0, 1, ...
    Column("state", Text, nullable=False),
    Column("name", Text, nullable=False),
    seconds("start", nullable=True),
    seconds("end", nullable=True),
    number("tasks", nullable=True),
    number("cpu_used_ms", nullable=True),
    number("mem_peak_mib", nullable=True),
    number("gpu_used_permille", nullable=True),
    number("gpu_mem_peak_mib", nullable=True),
    number("energy_joules", nullable=True),
)

# Where a run's suspended seconds lie: `seconds` of them within the `length` seconds from `begin`,
# a UTC day, or down to a quarter of an hour where a day edge of some time zone lies within.
suspensions = Table(
    "suspensions",
    metadata,
    Column("run_id", BigInteger, ForeignKey("runs.id"), primary_key=True),
    Column("begin", BigInteger, primary_key=True),
    seconds("length"),
    seconds("seconds"),
)

# What a stored row said before it changed: the old values of the changed columns, as JSON.
revisions = Table(
    "revisions",
    metadata,
    own_id(),
    to("runs"),
    to("ingests"),
    Column("old", Text, nullable=False),
)
Index("revisions_by_run", revisions.c.run_id)

# Lines that could not be read, verbatim; each is kept once, however often it is read again.
# `identity` is that of the run it speaks of, where that could be read; `read_since` the ingest
# that could read that run.
rejects = Table(
    "rejects",
    metadata,
    own_id(),
    to("ingests"),
    Column("digest", Text, nullable=False, unique=True),
    Column("reason", Text, nullable=False),
    Column("line", Text, nullable=False),
    Column("identity", Text),
    Column("read_since", BigInteger, ForeignKey("ingests.id")),
)
UNREAD = rejects.c.read_since.is_(None)
Index("rejects_by_identity", rejects.c.identity)
