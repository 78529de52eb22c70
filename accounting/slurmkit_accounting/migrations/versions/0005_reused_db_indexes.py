"""A DBIndex may belong to several jobs, and rejects can be dismissed."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_KEY = ["cluster_id", "db_index", "job_id_raw", "submit"]
_HAS_DB_INDEX = sa.text("db_index IS NOT NULL")


def upgrade() -> None:
    """Let an accounting database that was set up anew use a DBIndex again; add columns."""
    op.drop_index("runs_by_db_index", "runs")
    op.create_index(
        "runs_by_db_index",
        "runs",
        _KEY,
        unique=True,
        sqlite_where=_HAS_DB_INDEX,
        postgresql_where=_HAS_DB_INDEX,
    )
    op.add_column(
        "ingests", sa.Column("rows_reused", sa.BigInteger, nullable=False, server_default="0")
    )
    op.add_column("rejects", sa.Column("dismissed", sa.BigInteger))
    op.add_column("rejects", sa.Column("dismissed_by", sa.Text))
    op.add_column("rejects", sa.Column("dismissed_because", sa.Text))
