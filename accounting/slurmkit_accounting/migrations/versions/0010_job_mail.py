"""Mails about jobs: slurmctld's events, and what each user wants of them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_WAITING = sa.text("done IS NULL")
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the two tables."""
    op.create_table(
        "job_events",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("job_id_raw", sa.BigInteger, nullable=False),
        sa.Column("array_id", sa.BigInteger),
        sa.Column("whole_array", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("kind", "user")),
        sa.Column("uid", sa.BigInteger),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("mailing", sa.Text),
        sa.Column("done", sa.BigInteger),
    )
    op.create_index(
        "job_events_waiting",
        "job_events",
        ["id"],
        sqlite_where=_WAITING,
        postgresql_where=_WAITING,
    )
    op.create_table(
        "mail_settings",
        sa.Column("uid", sa.BigInteger, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("user", "mails", "about")),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
