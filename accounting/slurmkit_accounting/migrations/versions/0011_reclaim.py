"""Idle GPUs given back: what was done and why, what came of it, and who said "leave it"."""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _run_columns() -> Iterator[sa.Column[Any]]:
    yield sa.Column("id", _ID, primary_key=True, autoincrement=True)
    yield sa.Column("cluster_id", sa.BigInteger, sa.ForeignKey("clusters.id"), nullable=False)
    yield sa.Column("job_id_raw", sa.BigInteger, nullable=False)
    for name in ("job_id", "user"):
        yield sa.Column(name, sa.Text, nullable=False)
    yield sa.Column("uid", sa.BigInteger)
    for name in ("account", "partition", "qos", "alloc_tres"):
        yield sa.Column(name, sa.Text, nullable=False)
    for name in ("submit", "start"):
        yield sa.Column(name, sa.BigInteger, nullable=False)
    yield sa.Column("limit_end", sa.BigInteger)


def upgrade() -> None:
    """Add three tables."""
    op.create_table(
        "reclaim_acts",
        *_run_columns(),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("policy", "action")),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("at", "window_begin", "gpus", "idle_gpus")
        ),
        sa.Column("mean", sa.Float(53), nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("covered", sa.Float(53), nullable=False),
        sa.Column("samples_by_gpu", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("restarts", "grace")),
        sa.Column("to_pi", sa.Boolean, nullable=False),
    )
    op.create_index("reclaim_acts_by_job", "reclaim_acts", ["cluster_id", "job_id_raw"])
    op.create_index("reclaim_acts_by_time", "reclaim_acts", ["at"])
    op.create_table(
        "reclaim_outcomes",
        sa.Column(
            "act_id",
            sa.BigInteger,
            sa.ForeignKey("reclaim_acts.id"),
            primary_key=True,
            nullable=False,
            autoincrement=False,
        ),
        sa.Column("at", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("outcome", "why")),
    )
    op.create_table(
        "reclaim_keeps",
        *_run_columns(),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.UniqueConstraint("cluster_id", "job_id_raw", "uid", name="reclaim_keeps_once"),
    )
