"""The portal: deputies whom PIs name, and who looked at whose runs."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add two tables."""
    op.create_table(
        "portal_deputies",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("pi_id", sa.BigInteger, sa.ForeignKey("people.id"), nullable=False),
        sa.Column("deputy_id", sa.BigInteger, sa.ForeignKey("people.id"), nullable=False),
        sa.Column("valid_from", sa.BigInteger, nullable=False),
        sa.Column("valid_to", sa.BigInteger, nullable=False),
        sa.Column("named_by", sa.Text, nullable=False),
        sa.Column("ended_by", sa.Text, nullable=False),
    )
    op.create_index("portal_deputies_by_deputy", "portal_deputies", ["deputy_id"])
    op.create_index("portal_deputies_by_pi", "portal_deputies", ["pi_id"])
    op.create_table(
        "portal_views",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("day", sa.Text, nullable=False),
        sa.Column("viewer_uid", sa.BigInteger, nullable=False),
        sa.Column("viewer", sa.Text, nullable=False),
        sa.Column("seen_as", sa.Text, nullable=False),
        sa.Column("page", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("person_id", sa.BigInteger, sa.ForeignKey("people.id")),
        sa.Column("uid", sa.BigInteger),
        sa.Column("first", sa.BigInteger, nullable=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("views", sa.BigInteger, nullable=False),
        sa.UniqueConstraint(
            *("day", "viewer_uid", "seen_as", "page", "subject"),
            name="portal_views_once_a_day",
        ),
    )
    op.create_index("portal_views_by_person", "portal_views", ["person_id"])
    op.create_index("portal_views_by_uid", "portal_views", ["uid"])
