"""The history of a person or group: all facts in the ledger, with dates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from sqlalchemy import Column, Connection, RowMapping, Table, select

from slurmkit.errors import BadInput
from slurmkit_accounting.ledger.schema.people import (
    coordinators,
    departments,
    eras,
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
from slurmkit_accounting.people.pi import People


class HistoryLine(msgspec.Struct, frozen=True):
    """A fact true from `since` (0: always) until before `until` (None: still), in epoch seconds."""

    what: str
    value: str
    since: int
    until: int | None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The history of one person or group.

    Attributes:
        kind: person or group.
        name: the name that was asked for.
        display_name: display name of a person; name of a group as the directory spells it.
        mail: of a person; None for a group.
        directory_id: the immutable id.
        active: whether a person's account has not expired; None for a group.
        first_seen: epoch seconds of the first sync that found the person or group.
        closed_at: epoch seconds of the first sync that no longer did; None while present.
        lines: the facts.
    """

    kind: str
    name: str
    display_name: str
    mail: str | None
    directory_id: str
    active: bool | None
    first_seen: int
    closed_at: int | None
    lines: tuple[HistoryLine, ...]


def load_histories(connection: Connection, name: str) -> list[History]:
    """Load the history of every person and group that ever had a name, in any case.

    Raises:
        BadInput: when there is none.
    """
    everybody = People.load(connection)
    found = [
        _history("person", name, row, _of_person(connection, everybody, row["id"]))
        for row in _named(connection, people, usernames, name)
    ]
    found += [
        _history("group", name, row, _of_group(connection, everybody, row["id"]))
        for row in _named(connection, groups, group_names, name)
    ]
    if not found:
        raise BadInput(
            f"the ledger has no person or group named {name!r}; to read the directory again, run:"
            " slurmkit ledger people sync"
        )
    return found


def _history(kind: str, name: str, row: RowMapping, lines: Iterable[HistoryLine]) -> History:
    fields = ("display_name", "directory_id", "first_seen", "closed_at")
    facts: dict[str, Any] = {field: row[field] for field in fields}
    facts |= {field: row.get(field) for field in ("mail", "active")}
    return History(kind=kind, name=name, lines=tuple(lines), **facts)


def _named(connection: Connection, holders: Table, names: Table, name: str) -> list[RowMapping]:
    """Load the people or groups that ever had a name."""
    _, holder, value, *_ = names.columns
    # Compared here, since not every database lowers every letter.
    rows = connection.execute(select(holder, value))
    ids = {number for number, called in rows if called.lower() == name.lower()}
    query = select(holders).where(holders.c.id.in_(ids)).order_by(holders.c.id)
    return list(connection.execute(query).mappings())


def _of_person(connection: Connection, everybody: People, person: int) -> Iterator[HistoryLine]:
    called = list(_stored(connection, "user name", usernames, "person_id", person))
    yield from called
    for what, table in (("uid", uids), ("department", departments)):
        yield from _stored(connection, what, table, "person_id", person)
    starts = [0, *connection.scalars(select(eras.c.at).order_by(eras.c.at))]
    yield from _facts_over_eras(starts, "group", lambda era: everybody.groups(person, era))
    cluster_ids = [*connection.scalars(select(clusters.c.id))] or [0]
    yield from _facts_over_eras(
        starts, "PI", lambda era: _pis(everybody, person, called, cluster_ids, era)
    )
    spelled = _column(connection, groups.c.display_name)
    yield from _stored(connection, "owner of", group_owners, "person_id", person, spelled)
    for name in sorted({line.value for line in called}):
        yield from _stored(connection, "coordinator of", coordinators, "user", name)
        yield from _stored(connection, "PI by override", pi_overrides, "user", name)


def _of_group(connection: Connection, everybody: People, group: int) -> Iterator[HistoryLine]:
    called = list(_stored(connection, "name", group_names, "group_id", group))
    yield from called
    labels = {number: everybody.label(number) for number in _column(connection, people.c.mail)}
    spelled = _column(connection, groups.c.display_name)
    yield from _stored(connection, "owner", group_owners, "group_id", group, labels)
    yield from _stored(connection, "within", nestings, "group_id", group, spelled)
    yield from _stored(connection, "contains", nestings, "within_id", group, spelled)
    yield from _stored(connection, "member", memberships, "group_id", group, labels)
    for name in sorted({line.value for line in called}):
        yield from _stored(connection, "coordinator", coordinators, "account", name)
        yield from _stored(connection, "PI by override", pi_overrides, "account", name)


def _stored(
    connection: Connection,
    what: str,
    table: Table,
    key: str,
    asked: int | str,
    names: Mapping[int, str] | None = None,
) -> Iterator[HistoryLine]:
    """Load the facts of one key: the other column of the table; ids are replaced by `names`."""
    value = next(name for name in _VALUES[table] if name != key)
    query = select(table.c[value], table.c.valid_from, table.c.valid_to)
    query = query.where(table.c[key] == asked).order_by(table.c.valid_from, table.c.id)
    for found, since, until in connection.execute(query):
        yield HistoryLine(what, names[found] if names else str(found), since, until)


def _facts_over_eras(
    starts: list[int], what: str, true: Callable[[int], Collection[str]]
) -> list[HistoryLine]:
    """Return what was true in each era, merged over consecutive eras."""
    open_since: dict[str, int] = {}
    found: list[HistoryLine] = []
    for start in starts:
        now = true(start)
        ended = open_since.keys() - now
        found += [HistoryLine(what, value, open_since.pop(value), start) for value in ended]
        for value in now:
            open_since.setdefault(value, start)
    found += (HistoryLine(what, value, since, None) for value, since in open_since.items())
    return sorted(found, key=lambda line: (line.since, line.value))


def _pis(
    everybody: People, person: int, called: list[HistoryLine], cluster_ids: list[int], era: int
) -> set[str]:
    """Return `PI in ACCOUNT` for the account of each of a person's groups in an era."""
    names = [one.value for one in called if one.since <= era and (one.until or era + 1) > era]
    owners = (
        (everybody.pi(cluster, group, name, None, era), group)
        for cluster in cluster_ids
        for name in names[:1]
        for group in everybody.groups(person, era)
    )
    return {f"{owner.name} ({owner.via}) in {group}" for owner, group in owners}


def _column(connection: Connection, value: Column[str]) -> dict[int, str]:
    query = select(value.table.c.id, value)
    return {row[0]: row[1] for row in connection.execute(query)}


_VALUES = {
    usernames: ("person_id", "username"),
    uids: ("person_id", "uid"),
    departments: ("person_id", "department"),
    group_names: ("group_id", "name"),
    group_owners: ("group_id", "person_id"),
    memberships: ("group_id", "person_id"),
    nestings: ("group_id", "within_id"),
    coordinators: ("account", "user"),
    pi_overrides: ("pi",),
}
