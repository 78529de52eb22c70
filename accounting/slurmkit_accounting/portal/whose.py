"""Whose GPU-hours Home shows: the reader's own, those of a group, or those of the whole site."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from flask import g
from sqlalchemy import or_, select

from slurmkit.errors import BadInput
from slurmkit_accounting.ledger.schema.people import group_owners, usernames
from slurmkit_accounting.people.pi import People
from slurmkit_accounting.portal.context import Reader
from slurmkit_accounting.reports.model import Report


class Role(NamedTuple):
    """What Home shows to whom, and how its rows are made."""

    name: str
    by: str


RESEARCHER = Role("researcher", "partition")
PI = Role("PI", "user")
OPERATOR = Role("operator", "pi")


class Whose(NamedTuple):
    """GPU-hours that Home can show.

    Attributes:
        role: how they are shown.
        heading: heading of Home.
        words: what a link to them says.
        name: field of the link; empty for what the reader sees first anyway.
        filters: select exactly these GPU-hours.
    """

    role: Role
    heading: str
    words: str
    name: str
    filters: dict[str, tuple[str, ...]]

    @property
    def pi(self) -> str:
        """The PI to whom all of them are charged; empty if there is not just one."""
        return self.filters["pi"][0] if "pi" in self.filters else ""

    @property
    def field(self) -> dict[str, str]:
        """What a link to Home needs to show them."""
        return {"of": self.name}


def whose_hours(who: Reader, count_by_pi_and_user: Callable[[], Report], begin: int) -> list[Whose]:
    """Return what Home can show to a reader; what they see first comes first.

    Args:
        who: the reader.
        count_by_pi_and_user: reports the GPU-hours of the month that they may see.
        begin: of the month, epoch seconds.
    """
    if who.permission.scope.is_everything:
        return [Whose(OPERATOR, "GPU-hours of the whole site", "The site", "site", {})]
    own_names = _own_names(who, begin)
    groups = list(_groups(who, count_by_pi_and_user(), own_names))
    filters = {"user": own_names} if groups else {}
    own = Whose(RESEARCHER, "Your GPU-hours", "Your own runs", "own", filters)
    first = [one for one in groups if one.name == "group"]
    return [*first, own, *(one for one in groups if one not in first)]


def chosen(choices: list[Whose], name: str) -> Whose:
    """Return the GPU-hours of a link to Home; the first ones without a name.

    Raises:
        BadInput: if the reader may not see such.
    """
    found = [one for one in choices if name in {"", one.name}]
    if not found:
        raise BadInput(f"there are no GPU-hours of {name!r} that you may see; go to Home")
    return found[0]


def _groups(who: Reader, by_pi_and_user: Report, own_names: tuple[str, ...]) -> Iterator[Whose]:
    """Yield the groups of the PIs that the reader is, or is a deputy of."""
    pis = who.permission.scope.pis or frozenset()
    owners = select(group_owners.c.person_id).where(
        group_owners.c.person_id.in_(pis), group_owners.c.valid_to.is_(None)
    )
    with g.ledger.transaction() as connection:
        owning = set(connection.scalars(owners))
        people = People.load(connection)
    # A PI by an override, or as coordinator, owns no group.
    charged = {str(row["pi"]) for row in by_pi_and_user.rows if row["user"] not in own_names}
    for number in sorted(pis):
        label = people.label(number)
        if number not in owning and label not in charged:
            continue
        filters: dict[str, tuple[str, ...]] = {"pi": (label,)}
        if number == who.account.person_id:
            yield Whose(PI, "Your group's GPU-hours", "Your group", "group", filters)
        else:
            words = f"The group of {label}"
            yield Whose(PI, f"GPU-hours of the group of {label}", words, f"pi:{label}", filters)


def _own_names(who: Reader, begin: int) -> tuple[str, ...]:
    """Return the user names that a reader has had since a time."""
    names = usernames.c
    since = (
        names.person_id == who.account.person_id,
        or_(names.valid_to.is_(None), names.valid_to > begin),
    )
    with g.ledger.transaction() as connection:
        found = connection.scalars(select(names.username).where(*since)).all()
    return tuple(dict.fromkeys((who.account.user, *found)))
