"""Times at which anything about people changed: between two of them everybody's PI is the same."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

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


def _changes(connection: Connection) -> set[int]:
    """All times since which anything is, or is no longer, true; what always was has none."""
    found: set[int] = set()
    for table in DATED:
        for column in (table.c.valid_from, table.c.valid_to):
            found |= set(connection.scalars(select(column).where(column > 0).distinct()))
    return found
