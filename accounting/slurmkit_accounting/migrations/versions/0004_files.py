"""How a file's lines were read, whose runs alone there are, and what is gone found at once."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add two columns, and indices of the few runs that are gone or retracted."""
    op.add_column("clusters", sa.Column("only_user", sa.Text))
    op.add_column("ingests", sa.Column("layout", sa.Text))
    for name, where in (
        ("runs_gone", "gone_since IS NOT NULL"),
        ("runs_retracted", "retracted IS NOT NULL"),
    ):
        some = sa.text(where)
        op.create_index(name, "runs", ["cluster_id"], sqlite_where=some, postgresql_where=some)
