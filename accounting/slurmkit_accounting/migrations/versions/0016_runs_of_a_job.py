"""Indices of runs by job and by user, for the pages of the portal."""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add two indices."""
    op.create_index(
        "runs_by_job_id", "runs", ["job_id"], postgresql_ops={"job_id": "text_pattern_ops"}
    )
    op.create_index("runs_by_user", "runs", ["user", "end", "start"])
