"""Results of `slurmkit benchmark`."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TEXTS = (
    "gpu_type",
    "gpu",
    "gpu_serial",
    "gpu_name",
    "benchmark",
    "unit",
    "method",
    "trouble",
    "job_id",
    "driver",
    "torch",
    "versions",
    "user",
)


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "benchmark_results",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("cluster_id", sa.BigInteger, sa.ForeignKey("clusters.id"), nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("nodes", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in _TEXTS),
        sa.Column("value", sa.Float(53)),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("stored", sa.BigInteger, nullable=False),
        sa.UniqueConstraint(
            *("cluster_id", "run", "job_id", "nodes", "gpu", "benchmark"),
            name="benchmark_results_once",
        ),
    )
    op.create_index("benchmark_results_by_time", "benchmark_results", ["at"])
