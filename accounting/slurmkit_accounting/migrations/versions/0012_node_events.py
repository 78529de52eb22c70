"""When nodes were down or drained, and why."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "node_events",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("cluster_id", sa.BigInteger, sa.ForeignKey("clusters.id"), nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("end", sa.BigInteger),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("state", "reason", "user")),
        sa.Column("gpus", sa.BigInteger),
        sa.UniqueConstraint("cluster_id", "node", "start", name="node_events_once"),
    )
