"""Update the people and groups of a ledger from a directory, keeping their history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec
from sqlalchemy import Column, Connection, Table, bindparam, insert, select, update

from slurmkit_accounting.ledger.schema.people import (
    departments,
    group_names,
    group_owners,
    groups,
    memberships,
    nestings,
    people,
    uids,
    usernames,
)
from slurmkit_accounting.people.dated import (
    HolderValue,
    PeopleChange,
    load_last_ends,
    update_dated_facts,
)
from slurmkit_accounting.people.model import (
    Directory,
    GroupEntry,
    PersonEntry,
    memberships_of_groups,
    memberships_of_people,
    pick_owner,
)

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class VanishedEntries(msgspec.Struct, frozen=True):
    """People or groups that the directory no longer shows, or that lost an attribute.

    Attributes:
        what: the problem in words, such as `known people would be gone`.
        names: the people or groups, sorted.
        known: number of them before.
        keys: keys of `[ldap]` to check if this is a mistake.
        least: the share of them that is always accepted, 0 to 1.
    """

    what: str
    names: tuple[str, ...]
    known: int
    keys: str
    least: float = 0.0


# If bind_dn may no longer read an attribute, everybody has lost it although nobody is gone.
_LOST = (
    (memberships.c.person_id, "people would be in no group any more", "members, member_attribute"),
    (group_owners.c.group_id, "groups would have no owner any more", "owner_attribute"),
    (uids.c.person_id, "people would have no uid any more", "uid_attribute"),
)
_HALF = 0.5


class DirectorySync:
    """One sync of the ledger with a directory, within one transaction.

    Rows of a new person are valid from 0 (always), or from when somebody else lost the user name or
    uid. Later changes are valid from the time of the sync. People and groups that are gone from the
    directory are closed, never deleted.

    Attributes:
        gone: people and groups that were closed or lost an attribute; complete after `apply`.
    """

    def __init__(self, connection: Connection, directory: Directory, at: int) -> None:
        self._connection = connection
        self._directory = directory
        self._at = at
        self.gone: list[VanishedEntries] = []

    def apply(self) -> Iterator[PeopleChange]:
        """Apply the directory, and yield the changes."""
        before = [self._holders(column) for column, *_ in _LOST]
        person_ids, new_people = self._meet(people, self._directory.people)
        group_ids, new_groups = self._meet(groups, self._directory.groups)
        yield from self._people(person_ids, new_people)
        yield from self._groups(group_ids, person_ids, new_groups)
        yield from self._memberships(group_ids, person_ids, new_people)
        yield from self._nestings(group_ids, new_groups)
        self.gone += (
            self._lost(*lost, holders) for lost, holders in zip(_LOST, before, strict=True)
        )

    def _holders(self, column: Column[int]) -> set[int]:
        """Return the holders that have any current fact in the table of a column."""
        query = select(column).where(column.table.c.valid_to.is_(None))
        return set(self._connection.scalars(query))

    def _lost(self, column: Column[int], what: str, keys: str, before: set[int]) -> VanishedEntries:
        """Return who is still in the directory but no longer has any fact in a table."""
        table = groups if column.name == "group_id" else people
        here = select(table.c.id).where(table.c.closed_at.is_(None))
        lost = before.intersection(self._connection.scalars(here)) - self._holders(column)
        names = self._names() if table is people else self._column(table.c.id, table.c.display_name)
        called = tuple(sorted(names[number] for number in lost))
        return VanishedEntries(what, called, len(before), keys, _HALF)

    def _meet(
        self, table: Table, entries: Iterable[PersonEntry] | Iterable[GroupEntry]
    ) -> tuple[dict[str, int], set[int]]:
        """Return row ids of all entries by DN, and those of new ones, which are inserted."""
        known = self._column(table.c.directory_id, table.c.id)
        rows = [
            {"directory_id": entry.directory_id, "first_seen": self._at, **_empty(table)}
            for entry in entries
            if entry.directory_id not in known
        ]
        if rows:
            self._connection.execute(insert(table), rows)
        after = self._column(table.c.directory_id, table.c.id)
        new = set(after.values()) - set(known.values())
        return {entry.dn: after[entry.directory_id] for entry in entries}, new

    def _people(self, ids: Mapping[str, int], new: set[int]) -> Iterator[PeopleChange]:
        by_id = {ids[person.dn]: person for person in self._directory.people}
        before = self._names()
        facts = {number: (one.display_name, one.mail, one.active) for number, one in by_id.items()}
        changed = self._update(people, ("display_name", "mail", "active"), facts)
        gone = self._close(people, ids, before, new)
        changed |= self._revise(usernames, {(n, one.username) for n, one in by_id.items()}, new)
        numbers = {(n, one.uid) for n, one in by_id.items() if one.uid is not None}
        changed |= self._revise(uids, numbers, new)
        changed |= self._departments(by_id)
        names = before | {number: one.username for number, one in by_id.items()}
        yield from _changes("person", names, new, changed, gone)

    def _departments(self, by_id: Mapping[int, PersonEntry]) -> set[int]:
        """Update departments; return whose changed. A person's first department is valid from 0."""
        known = set(self._connection.scalars(select(departments.c.person_id).distinct()))
        wanted: set[HolderValue] = {
            (n, one.department) for n, one in by_id.items() if one.department
        }
        opened, closed = update_dated_facts(
            self._connection,
            departments,
            wanted,
            self._at,
            lambda fact: self._at if fact[0] in known else 0,
        )
        return {holder for holder, _ in opened | closed}

    def _groups(
        self, ids: Mapping[str, int], person_ids: Mapping[str, int], new: set[int]
    ) -> Iterator[PeopleChange]:
        by_dn = {person.dn: person for person in self._directory.people}
        owners = {ids[group.dn]: pick_owner(group, by_dn) for group in self._directory.groups}
        names = {ids[group.dn]: group.name for group in self._directory.groups}
        before = self._column(groups.c.id, groups.c.display_name)
        changed = self._update(groups, ("display_name",), {n: (names[n],) for n in names})
        gone = self._close(groups, ids, before, new)
        matched = {(number, name.lower()) for number, name in names.items()}
        changed |= self._revise(group_names, matched, new)
        owned = {(n, person_ids[one.dn]) for n, one in owners.items() if one}
        changed |= self._revise(group_owners, owned, new)
        yield from _changes("group", before | names, new, changed, gone)

    def _update(
        self, table: Table, columns: tuple[str, ...], wanted: Mapping[int, tuple[object, ...]]
    ) -> set[int]:
        """Store columns of entries and reopen closed ones; return row ids of those that changed."""
        asked = [table.c[name] for name in (*columns, "closed_at")]
        found = self._connection.execute(select(table.c.id, *asked))
        stored = {row[0]: tuple(row[1:]) for row in found}
        changed = {number for number, row in wanted.items() if stored[number] != (*row, None)}
        if changed:
            rows = [
                dict(zip(columns, wanted[number], strict=True))
                | {"number": number, "closed_at": None}
                for number in sorted(changed)
            ]
            statement = update(table).where(table.c.id == bindparam("number"))
            self._connection.execute(statement, rows)
        return changed

    def _close(
        self, table: Table, present: Mapping[str, int], names: Mapping[int, str], new: set[int]
    ) -> set[int]:
        """Close the people or groups that are not in the directory; return their row ids."""
        query = select(table.c.id).where(table.c.closed_at.is_(None))
        known = set(self._connection.scalars(query)) - new
        gone = known - set(present.values())
        if gone:
            values = {"closed_at": self._at} | ({"active": False} if table is people else {})
            statement = update(table).where(table.c.id == bindparam("number")).values(**values)
            self._connection.execute(statement, [{"number": number} for number in gone])
        called = tuple(sorted(names[number] for number in gone))
        kind, keys = table.name, f"{table.name}_base, {table.name}_filter"
        self.gone.append(VanishedEntries(f"known {kind} would be gone", called, len(known), keys))
        return gone

    def _memberships(
        self, ids: Mapping[str, int], person_ids: Mapping[str, int], new: set[int]
    ) -> Iterator[PeopleChange]:
        wanted: set[HolderValue] = {
            (ids[group], person_ids[person])
            for group, person in memberships_of_people(self._directory)
        }
        changed = update_dated_facts(
            self._connection,
            memberships,
            wanted,
            self._at,
            lambda fact: 0 if fact[1] in new else self._at,
        )
        spelled, named = self._column(groups.c.id, groups.c.display_name), self._names()
        for what, facts in zip(("added", "closed"), changed, strict=True):
            pairs = sorted(f"{named[int(p)]} in {spelled[g]}" for g, p in facts)
            yield from (PeopleChange("membership", what, pair) for pair in pairs)

    def _nestings(self, ids: Mapping[str, int], new: set[int]) -> Iterator[PeopleChange]:
        wanted: set[HolderValue] = {
            (ids[inner], ids[outer]) for inner, outer in memberships_of_groups(self._directory)
        }
        # A new group's nesting is valid from 0: its people may be new, and theirs are valid from 0.
        changed = update_dated_facts(
            self._connection,
            nestings,
            wanted,
            self._at,
            lambda fact: 0 if fact[0] in new else self._at,
        )
        spelled = self._column(groups.c.id, groups.c.display_name)
        for what, facts in zip(("added", "closed"), changed, strict=True):
            pairs = sorted(f"{spelled[inner]} in {spelled[int(outer)]}" for inner, outer in facts)
            yield from (PeopleChange("membership", what, pair) for pair in pairs)

    def _revise(self, table: Table, wanted: Collection[HolderValue], new: set[int]) -> set[int]:
        """Update the facts of a table; return the holders of changed ones."""
        since = self._since(table, new)
        opened, closed = update_dated_facts(self._connection, table, set(wanted), self._at, since)
        return {holder for holder, _ in opened | closed}

    def _since(self, table: Table, new: set[int]) -> Callable[[HolderValue], int]:
        """Return a function that gives the time from which a new fact is true.

        See `update_dated_facts`.
        """
        last_end: dict[int | str, int] | None = None

        def since(fact: HolderValue) -> int:
            nonlocal last_end
            if fact[0] not in new:
                return self._at
            if table is group_owners:  # a PI may have had other groups before
                return 0
            if last_end is None:
                last_end = load_last_ends(self._connection, table)
            return last_end.get(fact[1], 0)

        return since

    def _names(self) -> dict[int, str]:
        """Load the latest user name of everybody, closed people included."""
        query = select(usernames.c.person_id, usernames.c.username).order_by(usernames.c.id)
        return {row[0]: row[1] for row in self._connection.execute(query)}

    def _column(self, key: Column[KeyT], value: Column[ValueT]) -> dict[KeyT, ValueT]:
        return {row[0]: row[1] for row in self._connection.execute(select(key, value))}


def _empty(table: Table) -> dict[str, object]:
    return {"display_name": ""} | ({"mail": "", "active": True} if table is people else {})


def _changes(
    kind: str, names: Mapping[int, str], new: set[int], changed: set[int], gone: set[int]
) -> Iterator[PeopleChange]:
    for what, numbers in (("added", new), ("changed", changed - new - gone), ("closed", gone)):
        yield from (PeopleChange(kind, what, name) for name in sorted(names[n] for n in numbers))
