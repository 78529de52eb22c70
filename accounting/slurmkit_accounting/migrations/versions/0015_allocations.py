"""Allocations: what was granted to whom, what followed, and which limits Slurm got."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "allocations",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("holder_kind", "holder", "unit")),
        sa.Column("begin", sa.BigInteger, nullable=False),
        sa.Column("finish", sa.BigInteger),
    )
    op.create_index("allocations_by_holder", "allocations", ["holder_kind", "holder"])
    op.create_table(
        "allocation_entries",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("allocation_id", sa.BigInteger, sa.ForeignKey("allocations.id"), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("amount_ms", sa.BigInteger, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("identity", sa.Text, nullable=False, unique=True),
        sa.Column("pair", sa.Text),
        sa.Column("finish", sa.BigInteger),
        sa.Column("cluster_id", sa.BigInteger, sa.ForeignKey("clusters.id")),
        sa.Column("job_id", sa.Text),
    )
    op.create_index("allocation_entries_by_allocation", "allocation_entries", ["allocation_id"])
    op.create_table(
        "allocation_limits",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("cluster_id", sa.BigInteger, sa.ForeignKey("clusters.id"), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("target_kind", "target", "tres")),
        *(sa.Column(name, sa.BigInteger) for name in ("before", "after", "counted")),
        sa.Column("last_entry", sa.BigInteger, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
    )
    op.create_index("allocation_limits_by_target", "allocation_limits", ["cluster_id", "target"])
    op.create_table(
        "allocation_limit_outcomes",
        sa.Column(
            "limit_id",
            sa.BigInteger,
            sa.ForeignKey("allocation_limits.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("at", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("outcome", "why")),
    )
