"""The samples of the last hour, as they came; columns of what GPUs did are named as the code is."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_NAMES = {
    "busy_samples": "measured_samples",
    "busy_covered": "measured_seconds",
    "busy": "utilisation_sum",
    "edge_joules": "ends_joules",
    "edge_seconds": "ends_seconds",
}


def upgrade() -> None:
    """Add a table of samples, and rename columns; summaries and curves stay as they are."""
    for before, after in _NAMES.items():
        op.alter_column("gpu_use", before, new_column_name=after)
    op.create_table(
        "gpu_samples",
        sa.Column(
            "cluster_id",
            sa.BigInteger,
            sa.ForeignKey("clusters.id"),
            primary_key=True,
            nullable=False,
            autoincrement=False,
        ),
        sa.Column("taken", sa.BigInteger, primary_key=True, nullable=False, autoincrement=False),
        sa.Column("node", sa.Text, primary_key=True, nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("samples", sa.LargeBinary, nullable=False),
    )
