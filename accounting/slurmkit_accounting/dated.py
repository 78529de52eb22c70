"""Facts with dates: what stopped being true is closed, never deleted."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from sqlalchemy import Connection, Table, bindparam, func, insert, select, update

Fact = tuple[int, int | str]  # holder, value: the two columns that the dates belong to


class Change(msgspec.Struct, frozen=True):
    """One thing a sync did.

    Attributes:
        kind: person, group, membership, override or coordinator.
        what: added, changed or closed.
        who: user name, group name, `USER in GROUP`, `GROUP in GROUP`, `USER of ACCOUNT`, ...
    """

    kind: str
    what: str
    who: str


def revise(
    connection: Connection,
    table: Table,
    wanted: set[Fact],
    at: int,
    since: Callable[[Fact], int],
) -> tuple[set[Fact], set[Fact]]:
    """Make the facts that are true now those in `wanted`.

    Args:
        connection: inside the transaction of the whole change.
        table: one of the dated tables of `schema`.
        wanted: what is true from now on.
        at: epoch seconds at which facts no longer wanted end.
        since: epoch seconds from which a new fact is true; called after the others have ended.

    Returns:
        Facts opened, and facts closed.
    """
    stored = current(connection, table)
    closed = {fact: number for fact, number in stored.items() if fact not in wanted}
    if closed:
        one = update(table).where(table.c.id == bindparam("number")).values(valid_to=at)
        connection.execute(one, [{"number": number} for number in closed.values()])
    opened = wanted - stored.keys()
    holder, value = names(table)
    rows = [{holder: f[0], value: f[1], "valid_from": since(f)} for f in sorted(opened, key=str)]
    if rows:
        connection.execute(insert(table), rows)
    return opened, set(closed)


def current(connection: Connection, table: Table) -> dict[Fact, int]:
    """Facts that are true now, with the number of their row."""
    columns = [table.c[name] for name in names(table)]
    query = select(*columns, table.c.id).where(table.c.valid_to.is_(None))
    return {(row[0], row[1]): row[2] for row in connection.execute(query)}


def last_held(connection: Connection, table: Table) -> dict[int | str, int]:
    """When each value was last let go of by somebody, in epoch seconds."""
    value = table.c[names(table)[1]]
    query = select(value, func.max(table.c.valid_to)).where(table.c.valid_to.is_not(None))
    return {row[0]: row[1] for row in connection.execute(query.group_by(value))}


def names(table: Table) -> tuple[str, str]:
    """Name the columns for holder and value: the two between the number and the dates."""
    _, holder, value, *_ = table.columns.keys()
    return holder, value
