"""What the service has done and who was told what."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the service's two tables."""
    op.create_table(
        "task_runs",
        sa.Column("task", sa.Text, primary_key=True),
        sa.Column("due", sa.BigInteger, nullable=False),
        *_times("started", "ended", "well"),
        sa.Column("error", sa.Text),
    )
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "mailings",
        sa.Column("id", kind, primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("kind", "about", "whom")),
        sa.Column("intended", sa.BigInteger, nullable=False),
        *_times("sending", "done"),
        sa.Column("error", sa.Text),
        sa.UniqueConstraint("kind", "about", "whom", name="mailings_once"),
    )


def _times(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger) for name in names]
