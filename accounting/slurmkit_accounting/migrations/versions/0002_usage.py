"""Usage by hour and day, steps, suspended time, closed months, PIs; gaps instead of one cover.

Usage itself is worked out by `slurmkit_accounting.ledger.database` once all migrations are through.
"""

import sqlite3
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_SUMS = (
    "gpu_seconds cpu_seconds node_seconds wall_seconds mem_mib_seconds energy_joules runs started"
    " waited_seconds cpu_used_ms cpu_measured_ms mem_used_mib_seconds mem_measured_mib_seconds"
    " gpu_used_ms gpu_measured_ms"
).split()
_DROPS_COLUMNS = (3, 35)  # RHEL 9 has SQLite 3.34
_DATED = ("usernames", "uids", "group_names", "group_owners", "memberships")


def upgrade() -> None:
    """Add what is new, carry over what the books cover and when people changed."""
    _spans()
    _ingests()
    _runs()
    _steps_and_suspensions()
    _usage()
    _closings()
    _people()


def _id() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", kind, primary_key=True, autoincrement=True)


def _to(table: str, name: str, *, key: bool = False) -> sa.Column[int]:
    target = sa.ForeignKey(f"{table}.id")
    return sa.Column(name, sa.BigInteger, target, primary_key=key, nullable=False)


def _numbers(*names: str, nullable: bool = False) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=nullable) for name in names]


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _spans() -> None:
    op.create_table("spans", _id(), _to("clusters", "cluster_id"), *_numbers("begin", "finish"))
    op.execute(
        "INSERT INTO spans (cluster_id, begin, finish) SELECT id, covered_from, covered_to"
        " FROM clusters WHERE covered_to IS NOT NULL"
    )
    if op.get_bind().dialect.name == "sqlite" and sqlite3.sqlite_version_info < _DROPS_COLUMNS:
        return  # nobody reads them any more
    for name in ("covered_from", "covered_to"):
        op.execute(f"ALTER TABLE clusters DROP COLUMN {name}")


def _ingests() -> None:
    source = sa.Column("source", sa.Text, nullable=False, server_default=sa.text("'sacct'"))
    op.add_column("ingests", source)
    op.add_column("ingests", *_numbers("done_to", nullable=True))
    op.execute("UPDATE ingests SET done_to = window_to WHERE ended IS NOT NULL")


def _runs() -> None:
    columns: tuple[sa.Column[Any], ...] = (
        sa.Column("reservation", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("suspended", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("redone", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("doubt", sa.Text),
        *_numbers(
            "cancelled_by", "gone_since", "retracted", "cpu_used_ms", "mem_peak_mib",
            "gpu_used_permille", "gpu_mem_peak_mib", "energy_joules", "fingerprint", nullable=True,
        ),
    )  # fmt: skip
    for column in columns:
        op.add_column("runs", column)
    # With its reference at once: SQLite cannot add one later.
    op.execute("ALTER TABLE runs ADD COLUMN first_ingest_id BIGINT REFERENCES ingests (id)")
    _index("runs_by_job", "cluster_id", "job_id_raw")
    _index("runs_open", "cluster_id", where='"end" IS NULL')
    _index("runs_long", "end", "start", where='"end" - start > 86400')
    _index("runs_suspended", "cluster_id", where="suspended > 0")
    _index("runs_doubtful", "end", "start", where="doubt IS NOT NULL")
    again = "(state = 'REQUEUED' OR state = 'PREEMPTED' OR state = 'NODE_FAIL')"
    _index("runs_cut_short", "cluster_id", "job_id_raw", where=again)


def _index(name: str, *columns: str, where: str | None = None) -> None:
    some = None if where is None else sa.text(where)
    op.create_index(name, "runs", list(columns), sqlite_where=some, postgresql_where=some)


def _steps_and_suspensions() -> None:
    times = ("start", "end")
    measured = "tasks cpu_used_ms mem_peak_mib gpu_used_permille gpu_mem_peak_mib energy_joules"
    op.create_table(
        "steps",
        _to("runs", "run_id", key=True),
        sa.Column("step", sa.Text, primary_key=True),
        *_texts("state", "name"),
        *_numbers(*times, *measured.split(), nullable=True),
    )
    op.create_table(
        "suspensions",
        _to("runs", "run_id", key=True),
        sa.Column("begin", sa.BigInteger, primary_key=True),
        *_numbers("length", "seconds"),
    )


def _usage() -> None:
    identity = (
        "cluster_id", "user", "uid", "account", "partition", "qos", "state", "redone", "gpu_type",
        "era",
    )  # fmt: skip
    op.create_table(
        "usage_keys",
        _id(),
        _to("clusters", "cluster_id"),
        *_texts("user", "account", "partition", "qos", "state", "gpu_type"),
        *_numbers("uid", "era"),
        sa.Column("redone", sa.Boolean, nullable=False),
        sa.UniqueConstraint(*identity, name="usage_keys_once"),
    )
    for name in ("usage_hours", "usage_days"):
        op.create_table(
            name,
            sa.Column("bin", sa.BigInteger, primary_key=True, autoincrement=False),
            _to("usage_keys", "key_id", key=True),
            *_numbers(*_SUMS),
            sqlite_with_rowid=False,
        )


def _closings() -> None:
    op.create_table(
        "closings",
        _id(),
        _to("clusters", "cluster_id"),
        *_texts("month", "timezone", "checksum"),
        *_numbers("at"),
        _to("ingests", "ingest_id"),
        sa.UniqueConstraint("cluster_id", "month", name="closings_once"),
    )
    op.create_table(
        "closed_usage",
        _to("closings", "closing_id", key=True),
        _to("usage_keys", "key_id", key=True),
        *_numbers(*_SUMS),
    )


def _people() -> None:
    dates = [*_numbers("valid_from"), *_numbers("valid_to", nullable=True)]
    op.create_table("pi_overrides", _id(), *_texts("account", "user", "pi"), *dates)
    dates = [*_numbers("valid_from"), *_numbers("valid_to", nullable=True)]
    texts = _texts("account", "user")
    op.create_table("coordinators", _id(), _to("clusters", "cluster_id"), *texts, *dates)
    dates = [*_numbers("valid_from"), *_numbers("valid_to", nullable=True)]
    department = _texts("department")
    op.create_table("departments", _id(), _to("people", "person_id"), *department, *dates)
    for column in ("person_id", "department"):
        op.create_index(f"departments_by_{column}", "departments", [column])
    dates = [*_numbers("valid_from"), *_numbers("valid_to", nullable=True)]
    groups = (_to("groups", "group_id"), _to("groups", "within_id"))
    op.create_table("nestings", _id(), *groups, *dates)
    for column in ("group_id", "within_id"):
        op.create_index(f"nestings_by_{column}", "nestings", [column])
    op.create_table("eras", sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False))
    times = " UNION ".join(
        f"SELECT {column} AS at FROM {table}"  # noqa: S608
        for table in _DATED
        for column in _VALID
    )
    op.execute(f"INSERT INTO eras (at) SELECT at FROM ({times}) AS times WHERE at > 0")  # noqa: S608


_VALID = ("valid_from", "valid_to")
