"""Bring the ledger's people up to date with a directory, keeping what was true before."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec
from sqlalchemy import Connection, Table, bindparam, func, insert, select, update

from slurmkit_accounting.dated import Fact, last_held, revise
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.people import (
    Directory,
    GroupEntry,
    PersonEntry,
    owner_of,
    people_of_groups,
)
from slurmkit_accounting.schema import (
    group_names,
    group_owners,
    groups,
    memberships,
    people,
    people_syncs,
    uids,
    usernames,
)

KINDS = ("person", "group", "membership")


class Change(msgspec.Struct, frozen=True):
    """One thing a sync did.

    Attributes:
        kind: person, group or membership.
        what: added, changed or closed.
        who: user name, group name, or `USER in GROUP`.
    """

    kind: str
    what: str
    who: str


def sync_people(
    ledger: Ledger, directory: Directory, *, now: int | None = None, dry_run: bool = False
) -> list[Change]:
    """Apply a directory in one transaction.

    A person seen for the first time has always been who they are: their rows are valid from 0,
    or from when somebody else let go of their user name or uid. Whatever changes later is valid
    from the time of the sync. Who is gone from the directory is closed, never deleted.

    Args:
        ledger: open for writing.
        directory: read in full.
        now: epoch seconds of the sync; the clock's when left out.
        dry_run: say what would change, and change nothing.

    Returns:
        What changed, people first.

    Raises:
        LedgerError: when the database fails; nothing is changed then.
    """
    with ledger.transaction(rehearsal=dry_run) as connection:
        at = _not_before_the_last(connection, now or int(time.time()))
        connection.execute(insert(people_syncs), {"at": at})
        return list(_Sync(connection, directory, at).apply())


def _not_before_the_last(connection: Connection, now: int) -> int:
    """A clock that was put back must not end a fact before it began."""
    last: int | None = connection.scalar(select(func.max(people_syncs.c.at)))
    return max(now, last or 0)


class _Sync:
    """One application of a directory, within one transaction."""

    def __init__(self, connection: Connection, directory: Directory, at: int) -> None:
        self.connection = connection
        self.directory = directory
        self.at = at

    def apply(self) -> Iterator[Change]:
        person_ids, new_people = self._meet(people, self.directory.people)
        group_ids, new_groups = self._meet(groups, self.directory.groups)
        yield from self._people(person_ids, new_people)
        yield from self._groups(group_ids, person_ids, new_groups)
        yield from self._memberships(group_ids, person_ids, new_people)

    def _meet(
        self, table: Table, entries: Iterable[PersonEntry] | Iterable[GroupEntry]
    ) -> tuple[dict[str, int], set[int]]:
        """Numbers of all entries by DN, and which of them were not known before."""
        known = self._numbers(table)
        rows = [
            {"directory_id": entry.directory_id, "first_seen": self.at, **_empty(table)}
            for entry in entries
            if entry.directory_id not in known
        ]
        if rows:
            self.connection.execute(insert(table), rows)
        after = self._numbers(table)
        new = set(after.values()) - set(known.values())
        return {entry.dn: after[entry.directory_id] for entry in entries}, new

    def _numbers(self, table: Table) -> dict[str, int]:
        query = select(table.c.directory_id, table.c.id)
        return {row[0]: row[1] for row in self.connection.execute(query)}

    def _people(self, ids: Mapping[str, int], new: set[int]) -> Iterator[Change]:
        by_id = {ids[person.dn]: person for person in self.directory.people}
        names_before = self._names(usernames)
        changed = self._update_people(by_id)
        gone = self._close(people, ids)
        numbered = {n: one.uid for n, one in by_id.items() if one.uid is not None}
        changed |= self._revise(usernames, {(n, one.username) for n, one in by_id.items()}, new)
        changed |= self._revise(uids, set(numbered.items()), new)
        names = names_before | {number: one.username for number, one in by_id.items()}
        for what, numbers in (("added", new), ("changed", changed - new - gone), ("closed", gone)):
            yield from _changes("person", what, (names[number] for number in numbers))

    def _update_people(self, by_id: Mapping[int, PersonEntry]) -> set[int]:
        facts = ("display_name", "mail", "active")
        columns = [people.c[name] for name in (*facts, "closed_at")]
        stored = {
            row[0]: tuple(row[1:]) for row in self.connection.execute(select(people.c.id, *columns))
        }
        wanted = {
            number: {name: getattr(person, name) for name in facts} | {"closed_at": None}
            for number, person in by_id.items()
        }
        changed = {number for number, row in wanted.items() if stored[number] != (*row.values(),)}
        if changed:
            statement = update(people).where(people.c.id == bindparam("number"))
            rows = [wanted[number] | {"number": number} for number in changed]
            self.connection.execute(statement, rows)
        return changed

    def _close(self, table: Table, present: Mapping[str, int]) -> set[int]:
        query = select(table.c.id).where(table.c.closed_at.is_(None))
        gone = set(self.connection.scalars(query)) - set(present.values())
        values = {"closed_at": self.at} | ({"active": False} if table is people else {})
        for number in gone:
            self.connection.execute(update(table).where(table.c.id == number).values(**values))
        return gone

    def _groups(
        self, ids: Mapping[str, int], person_ids: Mapping[str, int], new: set[int]
    ) -> Iterator[Change]:
        names_before = self._group_names()
        by_dn = {person.dn: person for person in self.directory.people}
        owners = {ids[group.dn]: owner_of(group, by_dn) for group in self.directory.groups}
        names = {ids[group.dn]: group.name for group in self.directory.groups}
        gone = self._close(groups, ids)
        changed = self._update_groups(names)
        matched = {(number, name.lower()) for number, name in names.items()}
        changed |= self._revise(group_names, matched, new)
        owned = {(n, person_ids[one.dn]) for n, one in owners.items() if one}
        changed |= self._revise(group_owners, owned, new)
        for what, numbers in (("added", new), ("changed", changed - new - gone), ("closed", gone)):
            found = names_before | names
            yield from _changes("group", what, (found[number] for number in numbers))

    def _update_groups(self, names: Mapping[int, str]) -> set[int]:
        columns = (groups.c.id, groups.c.display_name, groups.c.closed_at)
        stored = {row[0]: tuple(row[1:]) for row in self.connection.execute(select(*columns))}
        changed = {number for number, name in names.items() if stored[number] != (name, None)}
        if changed:
            statement = update(groups).where(groups.c.id == bindparam("number"))
            rows = [{"number": n, "display_name": names[n], "closed_at": None} for n in changed]
            self.connection.execute(statement, rows)
        return changed

    def _memberships(
        self, ids: Mapping[str, int], person_ids: Mapping[str, int], new_people: set[int]
    ) -> Iterator[Change]:
        wanted: set[Fact] = {
            (ids[group], person_ids[person])
            for group, members in people_of_groups(self.directory).items()
            for person in members
        }
        opened, closed = revise(
            self.connection,
            memberships,
            wanted,
            self.at,
            lambda fact: 0 if fact[1] in new_people else self.at,
        )
        groups_by_id, people_by_id = self._group_names(), self._names(usernames)
        for what, facts in (("added", opened), ("closed", closed)):
            pairs = (f"{people_by_id[int(p)]} in {groups_by_id[g]}" for g, p in facts)
            yield from _changes("membership", what, pairs)

    def _revise(self, table: Table, wanted: Collection[Fact], new: set[int]) -> set[int]:
        """Holders of what changed."""
        since = self._since(table, new)
        opened, closed = revise(self.connection, table, set(wanted), self.at, since)
        return {holder for holder, _ in opened | closed}

    def _since(self, table: Table, new: set[int]) -> Callable[[Fact], int]:
        """From when a new name, number or owner is true."""
        let_go: dict[int | str, int] | None = None

        def since(fact: Fact) -> int:
            nonlocal let_go
            if fact[0] not in new:
                return self.at
            if table is group_owners:  # a PI may have had other groups before
                return 0
            if let_go is None:
                let_go = last_held(self.connection, table)
            return let_go.get(fact[1], 0)

        return since

    def _names(self, table: Table) -> dict[int, str]:
        """The latest name of every person, gone ones included."""
        _, holder, name, *_ = table.columns
        query = select(holder, name).order_by(table.c.id)
        return {row[0]: row[1] for row in self.connection.execute(query)}

    def _group_names(self) -> dict[int, str]:
        """The latest name of every group as the directory spelled it, gone ones included."""
        query = select(groups.c.id, groups.c.display_name)
        return {row[0]: row[1] for row in self.connection.execute(query)}


def _empty(table: Table) -> dict[str, object]:
    return {"display_name": ""} | ({"mail": "", "active": True} if table is people else {})


def _changes(kind: str, what: str, who: Iterable[str]) -> Iterator[Change]:
    return (Change(kind, what, name) for name in sorted(who))
