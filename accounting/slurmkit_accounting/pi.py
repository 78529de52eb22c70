"""Whose a run was: the person who ran it, their groups, their PI, as all of that was then.

Everything is read once and answered from memory, since a report asks for every usage key. An era
is a time since which nothing about people has changed (`eras`); 0 is before the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec
from sqlalchemy import Connection, select

from slurmkit_accounting.facts import Facts, dated_rows, read_facts
from slurmkit_accounting.nesting import Nesting
from slurmkit_accounting.schema.people import (
    coordinators,
    departments,
    group_names,
    group_owners,
    groups,
    memberships,
    nestings,
    people,
    pi_overrides,
    uids,
    usernames,
)

Via = Literal["override", "group", "coordinator", "account", "unmapped"]
Gap = Literal["stranger", "no group", "not a member", "no owner"]


class Owner(msgspec.Struct, frozen=True):
    """Who a run is charged to.

    Attributes:
        name: the PI's latest user name; an account where nobody is known to own it.
        person_id: the PI; None for an account, and for an override that names a stranger.
        via: what told so.
    """

    name: str
    person_id: int | None
    via: Via

    @property
    def key(self) -> int | tuple[str, str]:
        """What rows of a report are summed by: one for a PI, whatever told so."""
        return (self.via, self.name) if self.person_id is None else self.person_id


NOBODY = Owner("unmapped", None, "unmapped")


class People:
    """Everybody in a ledger, made by `People.load`."""

    def __init__(self, connection: Connection) -> None:
        names = dated_rows(connection, usernames, "username", "person_id")
        self._by_username: Facts[str, int] = Facts((name.lower(), *fact) for name, *fact in names)
        self._by_uid = read_facts(connection, uids, "uid", "person_id")
        self._memberships = read_facts(connection, memberships, "person_id", "group_id")
        self._nesting = Nesting(read_facts(connection, nestings, "group_id", "within_id"))
        self._departments: Facts[int, str] = read_facts(
            connection, departments, "person_id", "department"
        )
        self._claims = _Claims(connection)
        self._labels = _labels(connection)
        mails = select(people.c.id, people.c.mail)
        self._mails: dict[int, str] = {row[0]: row[1] for row in connection.execute(mails)}
        self._owners: dict[tuple[int, str, str, int | None, int], Owner] = {}

    @classmethod
    def load(cls, connection: Connection) -> People:
        """Read everything about people, once."""
        return cls(connection)

    def person(self, user: str, uid: int | None, era: int) -> int | None:
        """Number of the person behind a user name and numeric id in an era; None if unknown."""
        by_uid = first(self._by_uid.at(uid, era))
        by_name = self._named(user, era)
        if by_uid is None or by_name is None or by_uid == by_name:
            return by_name if by_uid is None else by_uid
        # sacct shows today's name: that of a user who was renamed, or of who has the number now.
        # The number is that of the job; but where name and number never had to do with each
        # other, the numbers of the cluster are not those of the directory.
        named, numbered = self._by_username.ever(user.lower()), self._by_uid.ever(uid)
        related = _has(named, by_uid) or _has(numbered, by_name)
        return by_uid if related else by_name

    def pi(self, cluster_id: int, account: str, user: str, uid: int | None, era: int) -> Owner:
        """Whom a run is charged to; docs/ledger-people.md has the order of what tells so."""
        asked = (cluster_id, account, user, uid, era)
        if asked not in self._owners:
            self._owners[asked] = self._find(cluster_id, account.lower(), user, uid, era)
        return self._owners[asked]

    def gap(self, account: str, user: str, uid: int | None, era: int) -> Gap:
        """Why no group tells the PI of a run, where none does."""
        person = self.person(user, uid, era)
        if person is None:
            return "stranger"
        group = self._claims.group_of_account(account.lower(), era)
        if group is None:
            return "no group"
        return "no owner" if group in self._circle(person, era) else "not a member"

    def groups(self, person_id: int, era: int) -> frozenset[str]:
        """Names of the groups a person was in, directly or through other groups."""
        names = (self._claims.group_name(group, era) for group in self._circle(person_id, era))
        return frozenset(filter(None, names))

    def department(self, person_id: int, era: int) -> str:
        """The department a person was in; empty where none is known."""
        return min(self._departments.at(person_id, era), default="")

    def label(self, person_id: int) -> str:
        """A person's latest user name; with their display name where two had the same one."""
        return self._labels[person_id]

    def mail(self, person_id: int) -> str:
        """A person's mail address; empty where none is known."""
        return self._mails[person_id]

    def _find(self, cluster_id: int, account: str, user: str, uid: int | None, era: int) -> Owner:
        person = self.person(user, uid, era)
        circle = frozenset[int]() if person is None else self._circle(person, era)
        claims = self._claims
        return (
            self._user(claims.overrides(account, user, era), era, "override")
            or self._person(claims.owner_of_account(account, circle, era))
            or self._user(claims.coordinators.at((cluster_id, account), era), era, "coordinator")
            or self._person(claims.only_owner(account, circle, era))
            or (Owner(account, None, "account") if account and person is not None else NOBODY)
        )

    def _person(self, person: int | None) -> Owner | None:
        return None if person is None else Owner(self._labels[person], person, "group")

    def _user(self, users: Iterable[str], era: int, via: Via) -> Owner | None:
        """Of several, the first by name who is known; a stranger where none is."""
        found = [(self._named(user, era) or self._later(user, era), user) for user in sorted(users)]
        person, user = next((one for one in found if one[0]), (found or [(None, "")])[0])
        if person is not None:
            return Owner(self._labels[person], person, via)
        return Owner(user, None, via) if user else None

    def _named(self, user: str, era: int) -> int | None:
        return first(self._by_username.at(user.lower(), era))

    def _later(self, user: str, era: int) -> int | None:
        """A PI may be named before anybody had that name: by the one who had it first."""
        facts = self._by_username.ever(user.lower())
        return next((person for since, _, person in facts if since > era), None)

    def _circle(self, person: int, era: int) -> frozenset[int]:
        return self._nesting.around(self._memberships.at(person, era), era)


class _Claims:
    """What says whose an account is."""

    def __init__(self, connection: Connection) -> None:
        told = dated_rows(connection, coordinators, "cluster_id", "account", "user")
        self.coordinators: Facts[tuple[int, str], str] = Facts(
            ((cluster, account.lower()), since, until, user)
            for cluster, since, until, account, user in told
        )
        claims = dated_rows(connection, pi_overrides, "account", "user", "pi")
        self._overrides: Facts[tuple[str, str], str] = Facts(
            ((account.lower(), user.lower()), since, until, pi)
            for account, since, until, user, pi in claims
        )
        self._owners = read_facts(connection, group_owners, "group_id", "person_id")
        self._groups = read_facts(connection, group_names, "name", "group_id")
        self._names = read_facts(connection, group_names, "group_id", "name")
        known = connection.execute(select(groups.c.id, groups.c.display_name, groups.c.first_seen))
        self._spelled, self._seen = {}, {}
        for group, name, seen in known:
            self._spelled[group], self._seen[group] = name, seen
        self._first_sync = min(self._seen.values(), default=0)

    def overrides(self, account: str, user: str, era: int) -> list[str]:
        """PIs that the site's file names; the most particular of its entries goes first."""
        user = user.lower()
        claims = ((account, user), ("", user), (account, ""))
        found = (self._overrides.at(claim, era) for claim in claims if any(claim))
        return next(filter(None, found), [])

    def owner_of_account(self, account: str, circle: frozenset[int], era: int) -> int | None:
        """Owner of the group named like the account, for a run of one of its members."""
        group = self.group_of_account(account, era)
        return first(self._owners.at(group, era)) if group in circle else None

    def only_owner(self, account: str, circle: frozenset[int], era: int) -> int | None:
        """The one owner of all of a person's groups, under an account that names no group."""
        # A group's account is no reason to charge somebody else's group; but a group that came up
        # later takes nothing away from a PI.
        group = self.group_of_account(account, era)
        if group is not None and self._seen[group] <= max(era, self._first_sync):
            return None
        owners = {owner for group in circle for owner in self._owners.at(group, era)}
        return owners.pop() if len(owners) == 1 else None

    def group_of_account(self, account: str, era: int) -> int | None:
        """The group that had the account's name."""
        return first(self._groups.at(account, era))

    def group_name(self, group: int, era: int) -> str:
        """A group's name, spelled as the directory does where that is still its name."""
        name, spelled = min(self._names.at(group, era), default=""), self._spelled[group]
        return spelled if spelled.lower() == name else name


def first(people: Iterable[int]) -> int | None:
    """Of several holders of the same thing at the same time, always the same one."""
    return min(people, default=None)


def _has(facts: Iterable[tuple[int, int | None, int]], person: int) -> bool:
    return any(holder == person for _, _, holder in facts)


def _labels(connection: Connection) -> dict[int, str]:
    called = {
        row[0]: row[1] for row in connection.execute(select(people.c.id, people.c.display_name))
    }
    names = select(usernames.c.person_id, usernames.c.username).order_by(usernames.c.id)
    latest = {row[0]: row[1] for row in connection.execute(names)}
    holders = Counter(latest.values())
    return {
        person: username if holders[username] == 1 else f"{username} ({called[person]})"
        for person, username in latest.items()
    }
