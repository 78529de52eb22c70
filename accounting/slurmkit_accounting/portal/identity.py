"""Who somebody is, by what a login says: a uid, and the person in the ledger who has it now.

The uid is what MUNGE certifies for the other queries of the service, so both show the same.
"""

from __future__ import annotations

import os
import pwd
import re
from contextlib import suppress

import msgspec
from sqlalchemy import Connection, func, select

from slurmkit.errors import ServiceError
from slurmkit_accounting.ledger.schema.people import people, uids, usernames
from slurmkit_accounting.people.model import PersonEntry
from slurmkit_accounting.service.permissions import AccountExpired, person_of_uid

USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,63}")


class LoginRefused(ServiceError):
    """A login that lets nobody in: it does not prove who somebody is, or whose runs are theirs."""


class Account(msgspec.Struct, frozen=True):
    """Somebody who is logged in; `person_id` is None if the directory of the ledger lacks them."""

    uid: int
    user: str
    person_id: int | None


def account_of_entry(connection: Connection, entry: PersonEntry) -> Account:
    """Return the account of an entry of the directory, found by its immutable id.

    Raises:
        LoginRefused: when its uid is unknown, or is somebody else's in the ledger.
    """
    query = select(people.c.id).where(
        people.c.directory_id == entry.directory_id, people.c.closed_at.is_(None)
    )
    person = connection.scalar(query)
    uid = entry.uid if person is None else _uid_of(connection, person)
    if uid is None or (entry.uid is not None and entry.uid != uid):
        raise LoginRefused(f"the uid of {entry.username} is unknown, or has just changed")
    return _checked(connection, Account(uid, entry.username, person))


def account_of_directory_id(connection: Connection, directory_id: str) -> Account:
    """Return the account of the person of the ledger with an immutable id.

    Raises:
        LoginRefused: when nobody has it now, their account has expired, or the ledger and this
            host do not agree on who they are.
    """
    query = (
        select(people.c.id, usernames.c.username)
        .join(usernames, usernames.c.person_id == people.c.id)
        .where(
            people.c.directory_id == directory_id,
            people.c.closed_at.is_(None),
            usernames.c.valid_to.is_(None),
        )
    )
    found = connection.execute(query).all()
    if len(found) != 1:
        raise LoginRefused(f"nobody in the ledger has the directory id {directory_id}")
    person, user = found[0]
    uid = _uid_of(connection, person)
    if uid is None:
        raise LoginRefused(f"the uid of {user} is unknown")
    return _checked(connection, Account(uid, user, person))


def account_of_name(connection: Connection, name: str) -> Account:
    """Return the account with a user name now.

    Raises:
        LoginRefused: when nobody has it, or the ledger and this host do not agree on who.
    """
    if not USER_NAME.fullmatch(name):
        raise LoginRefused("this is not a user name")
    query = (
        select(usernames.c.person_id, usernames.c.username)
        .join(people, people.c.id == usernames.c.person_id)
        .where(
            func.lower(usernames.c.username) == name.lower(),
            usernames.c.valid_to.is_(None),
            people.c.closed_at.is_(None),
        )
    )
    found = connection.execute(query).all()
    if len(found) > 1:
        raise LoginRefused(f"several people have the user name {name}")
    if found:
        person, user = found[0]
        uid = _uid_of(connection, person)
    else:
        person, user, uid = None, name, None
        with suppress(KeyError):
            uid = pwd.getpwnam(name).pw_uid
    if uid is None:
        raise LoginRefused(f"nobody has the user name {name}")
    return _checked(connection, Account(uid, user, person))


def is_still(connection: Connection, account: Account) -> bool:
    """Return whether the uid still belongs to the person who logged in, and they are active."""
    try:
        return person_of_uid(connection, account.uid) == account.person_id
    except AccountExpired:
        return False


def _checked(connection: Connection, account: Account) -> Account:
    """Check that the ledger and this host take the uid for the same person.

    A new person may have the uid of one who left, until the ledger has read the directory again.
    """
    if account.uid in {0, os.getuid()}:
        raise LoginRefused(f"{account.user} is no account of a person")
    try:
        person = person_of_uid(connection, account.uid)
    except AccountExpired as error:
        raise LoginRefused(f"the account of {account.user} has expired") from error
    if person != account.person_id:
        raise LoginRefused(f"the uid of {account.user} belongs to somebody else in the ledger")
    with suppress(KeyError):
        here = pwd.getpwuid(account.uid).pw_name
        if here.lower() != account.user.lower():
            raise LoginRefused(f"the uid of {account.user} is that of {here} on this host")
    # The user name may have been given to somebody else, whose uid the ledger has not read yet.
    for name in dict.fromkeys((account.user, account.user.lower())):
        with suppress(KeyError):
            if pwd.getpwnam(name).pw_uid != account.uid:
                raise LoginRefused(f"{account.user} has another uid on this host")
    return account


def _uid_of(connection: Connection, person: int) -> int | None:
    query = select(uids.c.uid).where(uids.c.person_id == person, uids.c.valid_to.is_(None))
    found = connection.scalars(query).all()
    return found[0] if len(found) == 1 else None
