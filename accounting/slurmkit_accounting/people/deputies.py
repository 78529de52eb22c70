"""Deputies: people who see what a PI sees as PI, until a day that the PI chose."""

from __future__ import annotations

import time

import msgspec
from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from slurmkit.errors import BadInput
from slurmkit_accounting.ledger.schema.people import people, portal_deputies, usernames
from slurmkit_accounting.people.pi import People

LONGEST_SECONDS = 366 * 86400
_MOST = 20  # deputies of a PI at a time
_LARGEST_ID = 2**63 - 1  # that a database takes
_NOBODY = "the directory has nobody with this user name"
_NO_SUCH = "you have no such deputy; it may have ended already"


class Deputy(msgspec.Struct, frozen=True):
    """A deputy of a PI; times in epoch seconds."""

    number: int
    user: str
    since: int
    until: int
    named_by: str


def pis_of_deputy(connection: Connection, person: int, now: int | None = None) -> dict[int, str]:
    """Return the PIs whose deputy a person is now: user names by row id.

    A PI who has left, or whose account has expired, has no deputies any more.
    """
    table = portal_deputies
    query = (
        select(table.c.pi_id, usernames.c.username)
        .join(people, people.c.id == table.c.pi_id)
        .join(usernames, usernames.c.person_id == table.c.pi_id)
        .where(
            table.c.deputy_id == person,
            *_in_force(now),
            people.c.closed_at.is_(None),
            people.c.active,
            usernames.c.valid_to.is_(None),
        )
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def deputies_of(connection: Connection, pi: int, now: int | None = None) -> tuple[Deputy, ...]:
    """Return the deputies whom a PI has now, the first to end first."""
    table = portal_deputies
    query = (
        select(
            table.c.id, usernames.c.username, table.c.valid_from, table.c.valid_to, table.c.named_by
        )
        .join(usernames, usernames.c.person_id == table.c.deputy_id)
        .where(table.c.pi_id == pi, *_in_force(now), usernames.c.valid_to.is_(None))
        .order_by(table.c.valid_to, table.c.id)
    )
    return tuple(Deputy(*row) for row in connection.execute(query))


def name_deputy(
    connection: Connection, pi: int, user: str, until: int, *, named_by: str, now: int | None = None
) -> None:
    """Let somebody see the runs that are charged to a PI, until a time.

    Raises:
        BadInput: for an unknown user, the PI themself, a time that is over or too far away, or
            too many deputies.
    """
    moment = _moment(now)
    if not moment < until <= moment + LONGEST_SECONDS:
        raise BadInput("the last day must be from tomorrow to a year from now")
    if not user.isprintable():  # PostgreSQL takes no NUL
        raise BadInput(_NOBODY)
    query = (
        select(usernames.c.person_id)
        .join(people, people.c.id == usernames.c.person_id)
        .where(
            func.lower(usernames.c.username) == user.lower(),
            usernames.c.valid_to.is_(None),
            people.c.closed_at.is_(None),
        )
    )
    found = connection.scalars(query).all()
    if len(found) != 1:
        raise BadInput(_NOBODY)
    if found[0] == pi:
        raise BadInput("you see all of this yourself; name somebody else")
    there = deputies_of(connection, pi, moment)
    if len(there) >= _MOST:
        raise BadInput(f"you have {_MOST} deputies, the most allowed; end one of them first")
    connection.execute(
        update(portal_deputies)
        .where(
            portal_deputies.c.pi_id == pi,
            portal_deputies.c.deputy_id == found[0],
            *_in_force(moment),
        )
        .values(valid_to=moment, ended_by=named_by)
    )
    connection.execute(
        insert(portal_deputies).values(
            pi_id=pi, deputy_id=found[0], valid_from=moment, valid_to=until,
            named_by=named_by, ended_by="",
        )
    )  # fmt: skip


def end_deputy(
    connection: Connection, pi: int, number: int, *, ended_by: str, now: int | None = None
) -> str:
    """End a deputy of a PI now, and return the deputy's user name.

    Raises:
        BadInput: when the PI has no such deputy.
    """
    moment = _moment(now)
    table = portal_deputies
    if number > _LARGEST_ID:
        raise BadInput(_NO_SUCH)
    ours = (table.c.id == number, table.c.pi_id == pi, *_in_force(moment))
    deputy = connection.scalar(select(table.c.deputy_id).where(*ours))
    if deputy is None:
        raise BadInput(_NO_SUCH)
    ended = update(table).where(*ours).values(valid_to=moment, ended_by=ended_by)
    connection.execute(ended)
    return People.load(connection).label(deputy)


def _in_force(now: int | None) -> tuple[ColumnElement[bool], ...]:
    moment = _moment(now)
    return (portal_deputies.c.valid_from <= moment, portal_deputies.c.valid_to > moment)


def _moment(now: int | None) -> int:
    return int(time.time()) if now is None else now
