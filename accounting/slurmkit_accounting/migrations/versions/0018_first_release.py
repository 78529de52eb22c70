"""The tables of slurmkit 0.1.0.

The first change of the schema after it freezes what this one makes: then it may no longer follow
the tables of the code.
"""

from alembic import op
from slurmkit_accounting.ledger.schema import metadata

revision = "0018"
down_revision = None


def upgrade() -> None:
    """Make all tables."""
    metadata.create_all(op.get_bind())
