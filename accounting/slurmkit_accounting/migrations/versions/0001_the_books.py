"""The books: runs from sacct, people from the directory."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_HAS_DB_INDEX = sa.text("db_index IS NOT NULL")
_NO_DB_INDEX = sa.text("db_index IS NULL")


def upgrade() -> None:
    """Make the first tables."""
    _clusters_and_ingests()
    _runs()
    _revisions_and_rejects()
    _people_and_groups()
    for name, holder, target, value in (
        ("usernames", "person_id", "people", sa.Column("username", sa.Text, nullable=False)),
        ("uids", "person_id", "people", sa.Column("uid", sa.BigInteger, nullable=False)),
        ("group_names", "group_id", "groups", sa.Column("name", sa.Text, nullable=False)),
        ("group_owners", "group_id", "groups", _to("people", "person_id")),
        ("memberships", "group_id", "groups", _to("people", "person_id")),
    ):
        _dated(name, holder, target, value)


def _id() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", kind, primary_key=True, autoincrement=True)


def _to(table: str, name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, sa.ForeignKey(f"{table}.id"), nullable=False)


def _number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _clusters_and_ingests() -> None:
    op.create_table(
        "clusters",
        _id(),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("tracks_gpus", sa.Boolean),
        *(_number(name, nullable=True) for name in ("covered_from", "covered_to")),
    )
    counts = ("rows_read", "rows_new", "rows_changed", "rows_rejected")
    op.create_table(
        "ingests",
        _id(),
        _to("clusters", "cluster_id"),
        _number("started"),
        _number("ended", nullable=True),
        _number("window_from"),
        _number("window_to"),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in counts),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        _id(),
        _to("clusters", "cluster_id"),
        _number("db_index", nullable=True),
        _number("job_id_raw"),
        *_text("job_id", "user"),
        _number("uid", nullable=True),
        *_text("account", "partition", "qos", "state"),
        _number("submit"),
        *(_number(name, nullable=True) for name in ("eligible", "start", "end")),
        *(_number(name) for name in ("nodes", "cpus", "gpus")),
        *_text("alloc_tres", "req_tres", "time_limit", "exit_code", "node_list", "name"),
        _number("last_seen", nullable=True),
    )
    _unique_where("runs_by_db_index", ["cluster_id", "db_index"], _HAS_DB_INDEX)
    _unique_where("runs_by_submit", ["cluster_id", "job_id_raw", "submit"], _NO_DB_INDEX)
    op.create_index("runs_by_end", "runs", ["end", "start"])


def _unique_where(name: str, columns: list[str], where: sa.TextClause) -> None:
    op.create_index(name, "runs", columns, unique=True, sqlite_where=where, postgresql_where=where)


def _revisions_and_rejects() -> None:
    op.create_table(
        "revisions", _id(), _to("runs", "run_id"), _to("ingests", "ingest_id"), *_text("old")
    )
    op.create_index("revisions_by_run", "revisions", ["run_id"])
    op.create_table(
        "rejects",
        _id(),
        _to("ingests", "ingest_id"),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        *_text("reason", "line"),
        sa.Column("identity", sa.Text),
        sa.Column("read_since", sa.BigInteger, sa.ForeignKey("ingests.id")),
    )
    op.create_index("rejects_by_identity", "rejects", ["identity"])


def _people_and_groups() -> None:
    op.create_table(
        "people",
        _id(),
        sa.Column("directory_id", sa.Text, nullable=False, unique=True),
        *_text("display_name", "mail"),
        sa.Column("active", sa.Boolean, nullable=False),
        _number("first_seen"),
        _number("closed_at", nullable=True),
    )
    op.create_table(
        "groups",
        _id(),
        sa.Column("directory_id", sa.Text, nullable=False, unique=True),
        *_text("display_name"),
        _number("first_seen"),
        _number("closed_at", nullable=True),
    )
    op.create_table("people_syncs", _id(), _number("at"))
    op.create_index("people_syncs_by_at", "people_syncs", ["at"])


def _dated(name: str, holder: str, target: str, value: sa.Column[int] | sa.Column[str]) -> None:
    dates = (_number("valid_from"), _number("valid_to", nullable=True))
    op.create_table(name, _id(), _to(target, holder), value, *dates)
    for column in (holder, value.name):
        op.create_index(f"{name}_by_{column}", name, [column])
