"""Tables of people and groups over time, of deputies, and of who looked at whose runs.

`valid_to` NULL means still valid.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Table,
    Text,
    UniqueConstraint,
)

from slurmkit_accounting.ledger.schema.types import (
    foreign_key_column,
    id_column,
    metadata,
    number_column,
    seconds_column,
)

people = Table(
    "people",
    metadata,
    id_column(),
    Column("directory_id", Text, nullable=False, unique=True),
    Column("display_name", Text, nullable=False),
    Column("mail", Text, nullable=False),
    Column("active", Boolean, nullable=False),
    seconds_column("first_seen"),
    seconds_column("closed_at", nullable=True),
)

groups = Table(
    "groups",
    metadata,
    id_column(),
    Column("directory_id", Text, nullable=False, unique=True),
    Column("display_name", Text, nullable=False),
    seconds_column("first_seen"),
    seconds_column("closed_at", nullable=True),
)

people_syncs = Table("people_syncs", metadata, id_column(), seconds_column("at"))
Index("people_syncs_by_at", people_syncs.c.at)


def _dated_table(name: str, holder: Column[int], value: Column[int] | Column[str]) -> Table:
    """Return a table of values that a holder had from `valid_from` until before `valid_to`."""
    dates = (seconds_column("valid_from"), seconds_column("valid_to", nullable=True))
    table = Table(name, metadata, id_column(), holder, value, *dates)
    Index(f"{name}_by_{holder.name}", table.c[holder.name])
    Index(f"{name}_by_{value.name}", table.c[value.name])
    return table


def _person_column() -> Column[int]:
    return foreign_key_column("people", name="person_id")


def _text_column(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


usernames = _dated_table("usernames", _person_column(), _text_column("username"))
uids = _dated_table("uids", _person_column(), Column("uid", BigInteger, nullable=False))
# In lower case, as sacctmgr keeps accounts; `groups.display_name` has the directory's spelling.
group_names = _dated_table("group_names", foreign_key_column("groups"), _text_column("name"))
group_owners = _dated_table("group_owners", foreign_key_column("groups"), _person_column())
# People who are direct members of a group (its owners too); `nestings`: groups within groups.
memberships = _dated_table("memberships", foreign_key_column("groups"), _person_column())
nestings = _dated_table(
    "nestings", foreign_key_column("groups"), foreign_key_column("groups", name="within_id")
)

# PIs from the site's file of overrides, which take precedence over the directory. An empty
# `account` or `user` means any.
pi_overrides = Table(
    "pi_overrides",
    metadata,
    id_column(),
    Column("account", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("pi", Text, nullable=False),
    seconds_column("valid_from"),
    seconds_column("valid_to", nullable=True),
)

# Coordinators of Slurm accounts, from sacctmgr.
coordinators = Table(
    "coordinators",
    metadata,
    id_column(),
    foreign_key_column("clusters"),
    Column("account", Text, nullable=False),
    Column("user", Text, nullable=False),
    seconds_column("valid_from"),
    seconds_column("valid_to", nullable=True),
)

departments = _dated_table("departments", _person_column(), _text_column("department"))

# Every time at which people, groups, overrides or coordinators changed. An era lasts from one of
# these times to the next; the usage key of a run has the era of its submission.
eras = Table("eras", metadata, Column("at", BigInteger, primary_key=True, autoincrement=False))

# A deputy sees what the PI sees as PI: the runs charged to the PI. Each row has an end. A deputy
# who is ended early gets that moment as `valid_to`, and `ended_by`.
portal_deputies = Table(
    "portal_deputies",
    metadata,
    id_column(),
    Column("pi_id", BigInteger, ForeignKey("people.id"), nullable=False),
    Column("deputy_id", BigInteger, ForeignKey("people.id"), nullable=False),
    seconds_column("valid_from"),
    seconds_column("valid_to"),
    # User names; `ended_by` is empty while nobody has ended it early.
    Column("named_by", Text, nullable=False),
    Column("ended_by", Text, nullable=False),
)
Index("portal_deputies_by_deputy", portal_deputies.c.deputy_id)
Index("portal_deputies_by_pi", portal_deputies.c.pi_id)

# One row for a viewer, a page and the owner of the runs it showed, for each day (UTC).
portal_views = Table(
    "portal_views",
    metadata,
    id_column(),
    Column("day", Text, nullable=False),
    number_column("viewer_uid"),
    Column("viewer", Text, nullable=False),
    # The user whom an operator saw as; empty for a view of one's own.
    Column("seen_as", Text, nullable=False),
    # `runs`, `job`, `evidence` or `see as`.
    Column("page", Text, nullable=False),
    # The owner's user name as the page showed it; whose they are: a person, or a uid that the
    # directory did not know.
    Column("subject", Text, nullable=False),
    Column("person_id", BigInteger, ForeignKey("people.id")),
    number_column("uid", nullable=True),
    seconds_column("first"),
    seconds_column("last"),
    number_column("views"),
    UniqueConstraint(
        "day", "viewer_uid", "seen_as", "page", "subject", name="portal_views_once_a_day"
    ),
)
Index("portal_views_by_person", portal_views.c.person_id)
Index("portal_views_by_uid", portal_views.c.uid)
