"""Times at which anything about people changed: between two of them everybody's PI is the same."""

from __future__ import annotations

from sqlalchemy import Connection, Table, insert, select, text

from slurmkit_accounting.schema.people import (
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

DATED = (
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


def add_eras(connection: Connection) -> int | None:
    """Store the times that are new in the dated tables; none is ever taken out.

    Returns:
        The first of them: usage of runs submitted since is to be counted under other eras. None
        where there is none.
    """
    known = set(connection.scalars(select(eras.c.at)))
    new = sorted(_changes(connection) - known)
    if new:
        connection.execute(insert(eras), [{"at": at} for at in new])
    return new[0] if new else None


def hold_eras(connection: Connection) -> None:
    """Let nobody add eras until this transaction ends: those who count runs under them call it."""
    lock_table(connection, eras, "SHARE")


def lock_table(connection: Connection, table: Table, mode: str) -> None:
    """Lock a table until the transaction ends; in SQLite there is one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {table.name} IN {mode} MODE"))


def _changes(connection: Connection) -> set[int]:
    """All times since which anything is, or is no longer, true; what always was has none."""
    found: set[int] = set()
    for table in DATED:
        for column in (table.c.valid_from, table.c.valid_to):
            found |= set(connection.scalars(select(column).where(column > 0).distinct()))
    return found
