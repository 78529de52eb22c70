"""The ledger's tables. Times are epoch seconds, `valid_to` NULL means still valid.

A change here comes with a new revision in `migrations/versions/` and a new `REVISION`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    text,
)

REVISION = "0001"
VERSION_TABLE = "ledger_version"
_HALF = 2**63

metadata = MetaData()


class Unsigned64(TypeDecorator[int]):
    """A 64-bit number without a sign, such as DBIndex since 24.11, in a column with one."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        """The upper half is stored as negative numbers."""
        del dialect
        return value if value is None or value < _HALF else value - 2 * _HALF

    def process_result_value(self, value: int | None, dialect: Dialect) -> int | None:
        """And comes back as it was."""
        del dialect
        return value if value is None or value >= 0 else value + 2 * _HALF


def _id() -> Column[int]:
    # SQLite counts rows up by itself only in a column of exactly the type INTEGER.
    kind = BigInteger().with_variant(Integer(), "sqlite")
    return Column("id", kind, primary_key=True, autoincrement=True)


def _to(target: str, *, name: str | None = None) -> Column[int]:
    column = name or f"{target.removesuffix('s')}_id"
    return Column(column, BigInteger, ForeignKey(f"{target}.id"), nullable=False)


def _seconds(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


clusters = Table(
    "clusters",
    metadata,
    _id(),
    Column("name", Text, nullable=False, unique=True),
    # What the cluster said at the last ingest; NULL until it has said something.
    Column("tracks_gpus", Boolean),
    # Where finished ingests have read everything without a hole; NULL before the first of them.
    _seconds("covered_from", nullable=True),
    _seconds("covered_to", nullable=True),
)

# One row per ingest; `ended` stays NULL for one that did not come to its end.
ingests = Table(
    "ingests",
    metadata,
    _id(),
    _to("clusters"),
    _seconds("started"),
    _seconds("ended", nullable=True),
    _seconds("window_from"),
    _seconds("window_to"),
    Column("rows_read", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_new", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_changed", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_rejected", BigInteger, nullable=False, server_default=text("0")),
)

# One row per run of a job: a requeued job has several, each array task its own.
runs = Table(
    "runs",
    metadata,
    _id(),
    _to("clusters"),
    Column("db_index", Unsigned64),
    Column("job_id_raw", BigInteger, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("uid", BigInteger),
    Column("account", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("qos", Text, nullable=False),
    Column("state", Text, nullable=False),
    _seconds("submit"),
    _seconds("eligible", nullable=True),
    _seconds("start", nullable=True),
    _seconds("end", nullable=True),
    Column("nodes", BigInteger, nullable=False),
    Column("cpus", BigInteger, nullable=False),
    Column("gpus", BigInteger, nullable=False),
    Column("alloc_tres", Text, nullable=False),
    Column("req_tres", Text, nullable=False),
    Column("time_limit", Text, nullable=False),
    Column("exit_code", Text, nullable=False),
    Column("node_list", Text, nullable=False),
    Column("name", Text, nullable=False),
    # `started` of the ingest that last saw it without an end; kept for runs without an end only.
    _seconds("last_seen", nullable=True),
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

# What a stored row said before it changed: the old values of the changed columns, as JSON.
revisions = Table(
    "revisions",
    metadata,
    _id(),
    _to("runs"),
    _to("ingests"),
    Column("old", Text, nullable=False),
)
Index("revisions_by_run", revisions.c.run_id)

# Lines that could not be read, verbatim; each is kept once, however often it is read again.
# `identity` is that of the run it speaks of, where that could be read; `read_since` the ingest
# that could read that run.
rejects = Table(
    "rejects",
    metadata,
    _id(),
    _to("ingests"),
    Column("digest", Text, nullable=False, unique=True),
    Column("reason", Text, nullable=False),
    Column("line", Text, nullable=False),
    Column("identity", Text),
    Column("read_since", BigInteger, ForeignKey("ingests.id")),
)
UNREAD = rejects.c.read_since.is_(None)
Index("rejects_by_identity", rejects.c.identity)

people = Table(
    "people",
    metadata,
    _id(),
    Column("directory_id", Text, nullable=False, unique=True),
    Column("display_name", Text, nullable=False),
    Column("mail", Text, nullable=False),
    Column("active", Boolean, nullable=False),
    _seconds("first_seen"),
    _seconds("closed_at", nullable=True),
)

groups = Table(
    "groups",
    metadata,
    _id(),
    Column("directory_id", Text, nullable=False, unique=True),
    Column("display_name", Text, nullable=False),
    _seconds("first_seen"),
    _seconds("closed_at", nullable=True),
)

people_syncs = Table("people_syncs", metadata, _id(), _seconds("at"))
Index("people_syncs_by_at", people_syncs.c.at)


def _dated(name: str, holder: Column[int], value: Column[int] | Column[str]) -> Table:
    """A fact about `holder` that was true from `valid_from` until before `valid_to`."""
    dates = (_seconds("valid_from"), _seconds("valid_to", nullable=True))
    table = Table(name, metadata, _id(), holder, value, *dates)
    Index(f"{name}_by_{holder.name}", table.c[holder.name])
    Index(f"{name}_by_{value.name}", table.c[value.name])
    return table


def _person() -> Column[int]:
    return _to("people", name="person_id")


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


usernames = _dated("usernames", _person(), _text("username"))
uids = _dated("uids", _person(), Column("uid", BigInteger, nullable=False))
# In lower case, as sacctmgr keeps accounts; as the directory spells it: `groups.display_name`.
group_names = _dated("group_names", _to("groups"), _text("name"))
group_owners = _dated("group_owners", _to("groups"), _person())
memberships = _dated("memberships", _to("groups"), _person())
