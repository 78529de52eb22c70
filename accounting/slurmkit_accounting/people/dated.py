"""Facts about people with dates, and the eras between their changes.

A fact that ends is closed (`valid_to`), never deleted. An era begins whenever a fact begins or
ends, so nothing about people changes within an era.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import Connection, Table, bindparam, func, insert, select, text, update

from slurmkit_accounting.ledger.schema.people import (
    coordinators,
    departments,
    eras,
    group_names,
    group_owners,
    memberships,
    nestings,
    pi_overrides,
    uids,
    usernames,
)

HolderValue = tuple[int, int | str]  # holder, value: the two columns that the dates belong to
DATED_TABLES = (
    usernames,
    uids,
    group_names,
    group_owners,
    memberships,
    nestings,
    departments,
    coordinators,
    pi_overrides,
)
KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")
DatedFact = tuple[int, int | None, ValueT]  # valid from, valid to, value


class PeopleChange(msgspec.Struct, frozen=True):
    """One change made by a sync of people.

    Attributes:
        kind: person, group, membership, override or coordinator.
        what: added, changed or closed.
        who: user name, group name, `USER in GROUP`, `GROUP in GROUP`, `USER of ACCOUNT`, ...
    """

    kind: str
    what: str
    who: str


def update_dated_facts(
    connection: Connection,
    table: Table,
    wanted: set[HolderValue],
    at: int,
    since: Callable[[HolderValue], int],
) -> tuple[set[HolderValue], set[HolderValue]]:
    """Make `wanted` the facts that are true now: close all others and insert the new ones.

    Args:
        connection: inside the transaction of the whole change.
        table: one of the dated tables of `schema`.
        wanted: the facts that are true from now on.
        at: epoch seconds at which all other facts end.
        since: returns the epoch seconds from which a new fact is true; called after that.

    Returns:
        Facts opened, and facts closed.
    """
    stored = load_current_facts(connection, table)
    closed = {fact: number for fact, number in stored.items() if fact not in wanted}
    if closed:
        one = update(table).where(table.c.id == bindparam("number")).values(valid_to=at)
        connection.execute(one, [{"number": number} for number in closed.values()])
    opened = wanted - stored.keys()
    holder, value = fact_columns(table)
    rows = [{holder: f[0], value: f[1], "valid_from": since(f)} for f in sorted(opened, key=str)]
    if rows:
        connection.execute(insert(table), rows)
    return opened, set(closed)


def load_current_facts(connection: Connection, table: Table) -> dict[HolderValue, int]:
    """Load the facts that are true now, each with its row id."""
    columns = [table.c[name] for name in fact_columns(table)]
    query = select(*columns, table.c.id).where(table.c.valid_to.is_(None))
    return {(row[0], row[1]): row[2] for row in connection.execute(query)}


def load_last_ends(connection: Connection, table: Table) -> dict[int | str, int]:
    """Return for each value the time at which it last ended for anybody, in epoch seconds."""
    value = table.c[fact_columns(table)[1]]
    query = select(value, func.max(table.c.valid_to)).where(table.c.valid_to.is_not(None))
    return {row[0]: row[1] for row in connection.execute(query.group_by(value))}


def fact_columns(table: Table) -> tuple[str, str]:
    """Return the names of the holder and value columns, which lie between the id and the dates."""
    _, holder, value, *_ = table.columns.keys()
    return holder, value


def add_eras(connection: Connection) -> int | None:
    """Store new times of changes from the dated tables as begins of eras; none is ever deleted.

    Returns:
        The first new time, or None. Usage of runs submitted since then must move to the new eras.
    """
    known = set(connection.scalars(select(eras.c.at)))
    new = sorted(_times_of_changes(connection) - known)
    if new:
        connection.execute(insert(eras), [{"at": at} for at in new])
    return new[0] if new else None


def lock_table(connection: Connection, table: Table, mode: str) -> None:
    """Lock a table until the transaction ends; SQLite has only one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {table.name} IN {mode} MODE"))


def _times_of_changes(connection: Connection) -> set[int]:
    """Return all times at which a fact began or ended; facts valid from 0 have no begin."""
    times: set[int] = set()
    for table in DATED_TABLES:
        for column in (table.c.valid_from, table.c.valid_to):
            times |= set(connection.scalars(select(column).where(column > 0).distinct()))
    return times


class DatedFacts(Generic[KeyT, ValueT]):
    """Dated facts by key, made from rows of (key, valid_from, valid_to, value)."""

    def __init__(self, rows: Iterable[tuple[KeyT, int, int | None, ValueT]]) -> None:
        self._by_key: dict[KeyT, list[DatedFact[ValueT]]] = {}
        for key, since, until, value in rows:
            self._by_key.setdefault(key, []).append((since, until, value))

    def at(self, key: KeyT, when: int) -> list[ValueT]:
        """Return the values of `key` at a time, in epoch seconds."""
        facts = self._by_key.get(key)
        if facts is None:
            return []
        return [
            value
            for since, until, value in facts
            if since <= when and (until is None or when < until)
        ]

    def ever(self, key: KeyT) -> list[DatedFact[ValueT]]:
        """Return all facts of `key`, oldest first."""
        return sorted(self._by_key.get(key, ()), key=lambda fact: fact[0])

    def changes(self) -> Iterator[int]:
        """Yield the times at which any fact began or ended."""
        for facts in self._by_key.values():
            for since, until, _ in facts:
                yield since
                if until is not None:
                    yield until


def load_facts(connection: Connection, table: Table, key: str, value: str) -> DatedFacts[Any, Any]:
    """Load a table with `valid_from` and `valid_to`, to look up `value` by `key`."""
    return DatedFacts(load_dated_rows(connection, table, key, value))


def load_dated_rows(
    connection: Connection, table: Table, key: str, *values: str
) -> Iterator[tuple[Any, ...]]:
    """Load rows of (key, valid_from, valid_to, values...)."""
    columns = (table.c[name] for name in (key, "valid_from", "valid_to", *values))
    return (tuple(row) for row in connection.execute(select(*columns)))
