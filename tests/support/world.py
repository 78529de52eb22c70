"""A small world of dated facts, and whose a run in it is, worked out the slow and plain way."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st
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
from slurmkit_accounting.ledger.schema.runs import clusters
from sqlalchemy import Connection, delete, insert

PEOPLE, GROUPS, CLUSTERS = (1, 2, 3), (1, 2, 3, 4), (1, 2)
NAMES, NUMBERS, ACCOUNTS = ("ann", "ben", "cat"), (7, 8, 9), ("x", "y", "z")
LAST = 6  # times are 0 to this
TABLES = {
    usernames: ("person_id", "username"),
    uids: ("person_id", "uid"),
    group_names: ("group_id", "name"),
    group_owners: ("group_id", "person_id"),
    memberships: ("group_id", "person_id"),
    nestings: ("group_id", "within_id"),
    departments: ("person_id", "department"),
    coordinators: ("cluster_id", "account", "user"),
    pi_overrides: ("account", "user", "pi"),
}


class Fact(NamedTuple):
    """What was true from `since` until before `until`."""

    what: tuple[Any, ...]
    since: int
    until: int | None

    def holds(self, era: int) -> bool:
        return self.since <= era and (self.until is None or era < self.until)


World = dict[str, list[Fact]]
FIRST_NAMES = [Fact((person, f"first{person}"), 0, 1) for person in PEOPLE]


@st.composite
def _facts(draw: st.DrawFn, *values: tuple[Any, ...]) -> list[Fact]:
    """Facts whose holder has one value at a time, and whose value one holder where it must."""
    what = st.tuples(*(st.sampled_from(value) for value in values))
    dates = st.tuples(st.integers(0, LAST), st.none() | st.integers(0, LAST))
    drawn = draw(st.lists(st.tuples(what, dates), max_size=6))
    return [Fact(what, *times) for what, times in drawn if times[1] is None or times[0] < times[1]]


def worlds() -> st.SearchStrategy[World]:
    anybody, any_account = ("", *NAMES), ("", *ACCOUNTS)
    return st.fixed_dictionaries(
        {
            "usernames": _facts(PEOPLE, NAMES).map(lambda facts: FIRST_NAMES + facts),
            "uids": _facts(PEOPLE, NUMBERS),
            "group_names": _facts(GROUPS, ACCOUNTS),
            "group_owners": _facts(GROUPS, PEOPLE),
            "memberships": _facts(GROUPS, PEOPLE),
            "nestings": _facts(GROUPS, GROUPS),
            "departments": _facts(PEOPLE, ("Physics", "Biology")),
            "coordinators": _facts(CLUSTERS, ACCOUNTS, NAMES),
            "pi_overrides": _facts(any_account, anybody, NAMES),
        }
    )


def store(connection: Connection, world: World) -> None:
    """Make a ledger hold this world and nothing else."""
    for table in (*TABLES, people, groups, clusters):
        connection.execute(delete(table))
    seen = {"display_name": "", "first_seen": 0}
    for table, numbers, more in (
        (people, PEOPLE, {"mail": "", "active": True}),
        (groups, GROUPS, {}),
    ):
        rows = [{"id": n, "directory_id": str(n), **seen, **more} for n in numbers]
        connection.execute(insert(table), rows)
    connection.execute(insert(clusters), [{"id": n, "name": f"c{n}"} for n in CLUSTERS])
    for table, columns in TABLES.items():
        for fact in world[table.name]:
            dates = {"valid_from": fact.since, "valid_to": fact.until}
            values = dict(zip(columns, fact.what, strict=True))
            connection.execute(insert(table), values | dates)


class Oracle:
    """Answers by looking at every fact each time."""

    def __init__(self, world: World) -> None:
        self.world = world

    def true(self, kind: str, era: int) -> list[tuple[Any, ...]]:
        return [fact.what for fact in self.world[kind] if fact.holds(era)]

    def ever(self, kind: str, *what: object) -> bool:
        return any(fact.what == what for fact in self.world[kind])

    def person(self, user: str, uid: int, era: int) -> int | None:
        by_uid = min((p for p, u in self.true("uids", era) if u == uid), default=None)
        by_name = min((p for p, n in self.true("usernames", era) if n == user), default=None)
        if None in (by_uid, by_name):
            return by_name if by_uid is None else by_uid
        strange = not self.ever("usernames", by_uid, user) and not self.ever("uids", by_name, uid)
        return by_name if strange else by_uid

    def groups(self, person: int | None, era: int) -> set[int]:
        found = {group for group, member in self.true("memberships", era) if member == person}
        for _ in GROUPS:
            found |= {around for group, around in self.true("nestings", era) if group in found}
        return found

    def pi(self, cluster: int, account: str, user: str, uid: int, era: int) -> tuple[Any, str]:
        """The person or the name that is charged, and what tells so."""
        person = self.person(user, uid, era)
        for claim in ((account, user), ("", user), (account, "")):
            told = [pi for *by, pi in self.true("pi_overrides", era) if tuple(by) == claim]
            if told and claim != ("", ""):
                return self.named(told, era), "override"
        named = [group for group, name in self.true("group_names", era) if name == account]
        mine = self.groups(person, era)
        if named and min(named) in mine and (owners := self.owners({min(named)}, era)):
            return min(owners), "group"
        told = [u for c, a, u in self.true("coordinators", era) if (c, a) == (cluster, account)]
        if told:
            return self.named(told, era), "coordinator"
        if not named and len(owners := self.owners(mine, era)) == 1:
            return owners.pop(), "group"
        return (account, "account") if person is not None else ("unmapped", "unmapped")

    def owners(self, groups: set[int], era: int) -> set[int]:
        return {owner for group, owner in self.true("group_owners", era) if group in groups}

    def named(self, users: list[str], era: int) -> int | str:
        """The first by name who is known then or becomes known later; else the first name."""
        for user in sorted(users):
            now = [p for p, name in self.true("usernames", era) if name == user]
            later = [
                (fact.since, number)
                for number, fact in enumerate(self.world["usernames"])
                if fact.what[1] == user and fact.since > era
            ]
            if now:
                return min(now)
            if later:
                return self.world["usernames"][min(later)[1]].what[0]
        return min(users)
