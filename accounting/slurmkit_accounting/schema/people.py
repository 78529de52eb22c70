"""People and groups, with dates: `valid_to` NULL means still valid."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Table, Text

from slurmkit_accounting.schema.base import metadata, own_id, seconds, to

people = Table(
    "people",
    metadata,
    own_id(),
    Column("directory_id", Text, nullable=False, unique=True),
    Column("display_name", Text, nullable=False),
    Column("mail", Text, nullable=False),
    Column("active", Boolean, nullable=False),
    seconds("first_seen"),
    seconds("closed_at", nullable=True),
)

groups = Table(
    "groups",
    metadata,
    own_id(),
    Column("directory_id", Text, nullable=False, unique=True),
    Column("display_name", Text, nullable=False),
    seconds("first_seen"),
    seconds("closed_at", nullable=True),
)

people_syncs = Table("people_syncs", metadata, own_id(), seconds("at"))
Index("people_syncs_by_at", people_syncs.c.at)


def _dated(name: str, holder: Column[int], value: Column[int] | Column[str]) -> Table:
    """A fact about `holder` that was true from `valid_from` until before `valid_to`."""
    dates = (seconds("valid_from"), seconds("valid_to", nullable=True))
    table = Table(name, metadata, own_id(), holder, value, *dates)
    Index(f"{name}_by_{holder.name}", table.c[holder.name])
    Index(f"{name}_by_{value.name}", table.c[value.name])
    return table


def _person() -> Column[int]:
    return to("people", name="person_id")


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


usernames = _dated("usernames", _person(), _text("username"))
uids = _dated("uids", _person(), Column("uid", BigInteger, nullable=False))
# In lower case, as sacctmgr keeps accounts; as the directory spells it: `groups.display_name`.
group_names = _dated("group_names", to("groups"), _text("name"))
group_owners = _dated("group_owners", to("groups"), _person())
# Of people who are in a group themselves (its owners are); `nestings` of groups within others.
memberships = _dated("memberships", to("groups"), _person())
nestings = _dated("nestings", to("groups"), to("groups", name="within_id"))

# Who the PI is whatever the directory says: from the site's file of overrides. `account` or `user`
# may be empty, for any.
pi_overrides = Table(
    "pi_overrides",
    metadata,
    own_id(),
    Column("account", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("pi", Text, nullable=False),
    seconds("valid_from"),
    seconds("valid_to", nullable=True),
)

# Coordinators of Slurm accounts, from sacctmgr.
coordinators = Table(
    "coordinators",
    metadata,
    own_id(),
    to("clusters"),
    Column("account", Text, nullable=False),
    Column("user", Text, nullable=False),
    seconds("valid_from"),
    seconds("valid_to", nullable=True),
)

departments = _dated("departments", _person(), _text("department"))

# Every time at which something about people, groups, overrides or coordinators changed; the
# usage of runs submitted between two of them has one era.
eras = Table("eras", metadata, Column("at", BigInteger, primary_key=True, autoincrement=False))
