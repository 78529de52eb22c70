"""Find the person, the groups and the PI of a run, as they were when it was submitted.

All facts are loaded once and looked up in memory, since a report asks for every usage key. An era
is given by its begin, in epoch seconds: nothing about people changed in it (`eras`). The first
era is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Literal

import msgspec
from sqlalchemy import Connection, select

from slurmkit_accounting.ledger.database import once
from slurmkit_accounting.ledger.schema.people import (
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
from slurmkit_accounting.people.dated import DatedFacts, load_dated_rows, load_facts
from slurmkit_accounting.people.model import GroupNesting

Via = Literal["override", "group", "coordinator", "account", "unmapped"]
MappingGap = Literal["stranger", "no group", "not a member", "no owner"]


class Owner(msgspec.Struct, frozen=True):
    """Who a run is charged to.

    Attributes:
        name: the PI's latest user name; the account if no PI is known.
        person_id: row id of the PI; None for an account, and for a PI who is not in the directory.
        via: the rule that decided.
    """

    name: str
    person_id: int | None
    via: Via

    @property
    def key(self) -> int | tuple[str, str]:
        """The key that reports sum by; the same for one PI, whatever rule decided."""
        return (self.via, self.name) if self.person_id is None else self.person_id


NOBODY = Owner("unmapped", None, "unmapped")


class People:
    """All facts about people in a ledger, made by `People.load`."""

    def __init__(self, connection: Connection) -> None:
        names = load_dated_rows(connection, usernames, "username", "person_id")
        self._by_username: DatedFacts[str, int] = DatedFacts(
            (name.lower(), *fact) for name, *fact in names
        )
        self._by_uid = load_facts(connection, uids, "uid", "person_id")
        self._memberships = load_facts(connection, memberships, "person_id", "group_id")
        self._nesting = GroupNesting(load_facts(connection, nestings, "group_id", "within_id"))
        self._departments: DatedFacts[int, str] = load_facts(
            connection, departments, "person_id", "department"
        )
        self._claims = _AccountClaims(connection)
        self._labels = _labels(connection)
        mails = select(people.c.id, people.c.mail)
        self._mails: dict[int, str] = {row[0]: row[1] for row in connection.execute(mails)}
        self._persons: dict[tuple[str, int | None, int], int | None] = {}
        self._owners: dict[tuple[int, str, str, int | None, int], Owner] = {}

    @classmethod
    def load(cls, connection: Connection) -> People:
        """Load all facts about people."""
        return once(connection, "people", lambda: cls(connection))

    def person(self, user: str, uid: int | None, era: int) -> int | None:
        """Return the row id of the person with a user name and uid in an era; None if unknown."""
        key = (user, uid, era)
        if key not in self._persons:
            self._persons[key] = self._find_person(user, uid, era)
        return self._persons[key]

    def _find_person(self, user: str, uid: int | None, era: int) -> int | None:
        by_uid = pick_lowest(self._by_uid.at(uid, era))
        by_name = self._named(user, era)
        if by_uid is None or by_name is None or by_uid == by_name:
            return by_name if by_uid is None else by_uid
        # sacct prints today's name of the uid: the user may have been renamed, or somebody else may
        # have the uid now. So trust the uid of the job. But if name and uid never belonged to the
        # same person, the uids of the cluster are not those of the directory: trust the name.
        named, numbered = self._by_username.ever(user.lower()), self._by_uid.ever(uid)
        related = _has(named, by_uid) or _has(numbered, by_name)
        return by_uid if related else by_name

    def pi(self, cluster_id: int, account: str, user: str, uid: int | None, era: int) -> Owner:
        """Return who a run is charged to; docs/ledger-people.md has the order of the rules."""
        key = (cluster_id, account, user, uid, era)
        if key not in self._owners:
            self._owners[key] = self._find(cluster_id, account.lower(), user, uid, era)
        return self._owners[key]

    def gap(self, account: str, user: str, uid: int | None, era: int) -> MappingGap:
        """Return why no group gives the PI of a run."""
        person = self.person(user, uid, era)
        if person is None:
            return "stranger"
        group = self._claims.group_of_account(account.lower(), era)
        if group is None:
            return "no group"
        return "no owner" if group in self._circle(person, era) else "not a member"

    def owner_of_account(self, account: str, era: int) -> int | None:
        """Return the PI of an account, by an override or its group; None if unknown."""
        named = self._user(self._claims.overrides(account.lower(), "", era), era, "override")
        return named.person_id if named else self._claims.owner_of_group(account.lower(), era)

    def groups(self, person_id: int, era: int) -> frozenset[str]:
        """Return the names of the groups that a person was in, directly or through other groups."""
        names = (self._claims.group_name(group, era) for group in self._circle(person_id, era))
        return frozenset(filter(None, names))

    def department(self, person_id: int, era: int) -> str:
        """Return the department of a person; empty if unknown."""
        return min(self._departments.at(person_id, era), default="")

    def label(self, person_id: int) -> str:
        """Return a person's latest user name, with the display name if two persons share it."""
        return self._labels[person_id]

    def persons(self) -> tuple[int, ...]:
        """Return the row ids of all persons, also of former ones."""
        return tuple(self._labels)

    def labels(self) -> frozenset[str]:
        """Return the labels of all persons, also of former ones."""
        return frozenset(self._labels.values())

    def is_known(self, user: str) -> bool:
        """Return whether anybody has or had a user name."""
        return bool(tuple(self._by_username.ever(user.lower())))

    def pis_of_account(self, account: str, clusters: Iterable[int], era: int) -> frozenset[int]:
        """Return the PIs of an account: by an override or its group, else its coordinators'."""
        owner = self.owner_of_account(account, era)
        if owner is not None:
            return frozenset((owner,))
        named = (
            self._user(self._claims.coordinators.at((cluster, account.lower()), era), era,
                       "coordinator")
            for cluster in clusters
        )  # fmt: skip
        return frozenset(one.person_id for one in named if one and one.person_id is not None)

    def mail(self, person_id: int) -> str:
        """Return a person's mail address; empty if unknown."""
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

    def _user(self, users: Collection[str], era: int, via: Via) -> Owner | None:
        """Return the first known user by name as owner; without one, the first unknown user."""
        if not users:
            return None
        found = [(self._named(user, era) or self._later(user, era), user) for user in sorted(users)]
        person, user = next((one for one in found if one[0]), (found or [(None, "")])[0])
        if person is not None:
            return Owner(self._labels[person], person, via)
        return Owner(user, None, via) if user else None

    def _named(self, user: str, era: int) -> int | None:
        return pick_lowest(self._by_username.at(user.lower(), era))

    def _later(self, user: str, era: int) -> int | None:
        """Return who first had a user name after an era: a PI may be named before joining."""
        facts = self._by_username.ever(user.lower())
        return next((person for since, _, person in facts if since > era), None)

    def _circle(self, person: int, era: int) -> frozenset[int]:
        """Return the groups that a person was in, directly or through other groups."""
        return self._nesting.around(self._memberships.at(person, era), era)


class _AccountClaims:
    """Facts that give the PI of an account: overrides, coordinators, owners of groups."""

    def __init__(self, connection: Connection) -> None:
        named = load_dated_rows(connection, coordinators, "cluster_id", "account", "user")
        self.coordinators: DatedFacts[tuple[int, str], str] = DatedFacts(
            ((cluster, account.lower()), since, until, user)
            for cluster, since, until, account, user in named
        )
        claims = load_dated_rows(connection, pi_overrides, "account", "user", "pi")
        self._overrides: DatedFacts[tuple[str, str], str] = DatedFacts(
            ((account.lower(), user.lower()), since, until, pi)
            for account, since, until, user, pi in claims
        )
        self._owners = load_facts(connection, group_owners, "group_id", "person_id")
        self._groups = load_facts(connection, group_names, "name", "group_id")
        self._names = load_facts(connection, group_names, "group_id", "name")
        known = connection.execute(select(groups.c.id, groups.c.display_name, groups.c.first_seen))
        self._spelled, self._seen = {}, {}
        for group, name, seen in known:
            self._spelled[group], self._seen[group] = name, seen
        self._first_sync = min(self._seen.values(), default=0)

    def overrides(self, account: str, user: str, era: int) -> list[str]:
        """Return the PIs of the first override: for account and user, for user, for account."""
        user = user.lower()
        claims = ((account, user), ("", user), (account, ""))
        found = (self._overrides.at(claim, era) for claim in claims if any(claim))
        return next(filter(None, found), [])

    def owner_of_account(self, account: str, circle: frozenset[int], era: int) -> int | None:
        """Return the owner of the group named like the account, if `circle` has that group."""
        group = self.group_of_account(account, era)
        return pick_lowest(self._owners.at(group, era)) if group in circle else None

    def owner_of_group(self, name: str, era: int) -> int | None:
        """Return the owner of the group with a name; None without one."""
        return pick_lowest(self._owners.at(self.group_of_account(name, era), era))

    def only_owner(self, account: str, circle: frozenset[int], era: int) -> int | None:
        """Return the one owner of all groups in `circle`, for an account that is not a group."""
        # The account of an existing group must not be charged to another group. But a group that
        # was created later takes no usage away from a PI.
        group = self.group_of_account(account, era)
        if group is not None and self._seen[group] <= max(era, self._first_sync):
            return None
        owners = {owner for group in circle for owner in self._owners.at(group, era)}
        return owners.pop() if len(owners) == 1 else None

    def group_of_account(self, account: str, era: int) -> int | None:
        """Return the group that had the name of an account; None if there was none."""
        return pick_lowest(self._groups.at(account, era))

    def group_name(self, group: int, era: int) -> str:
        """Return a group's name in an era, as the directory spells it if the name is current."""
        name, spelled = min(self._names.at(group, era), default=""), self._spelled[group]
        return spelled if spelled.lower() == name else name


def pick_lowest(people: Iterable[int]) -> int | None:
    """Pick one of several holders of the same thing, always the same one; None of none."""
    return min(people, default=None)


def _has(facts: Iterable[tuple[int, int | None, int]], person: int) -> bool:
    return any(holder == person for _, _, holder in facts)


def _labels(connection: Connection) -> dict[int, str]:
    """Return the label of each person; see `People.label`."""
    display_names = {
        row[0]: row[1] for row in connection.execute(select(people.c.id, people.c.display_name))
    }
    names = select(usernames.c.person_id, usernames.c.username).order_by(usernames.c.id)
    latest = {row[0]: row[1] for row in connection.execute(names)}
    holders = Counter(latest.values())
    return {
        person: username if holders[username] == 1 else f"{username} ({display_names[person]})"
        for person, username in latest.items()
    }
