"""Permissions: users see their own runs, PIs those of their groups, operators everything."""

from __future__ import annotations

import grp
import os
import pwd
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec
from sqlalchemy import Connection, select

from slurmkit.errors import ServiceError, SlurmError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ledger.schema.people import people, uids
from slurmkit_accounting.people.deputies import pis_of_deputy
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from slurmkit_accounting.service.log import Log

_CACHED_SECONDS = 60
_ADMIN_LEVELS = frozenset(("operator", "administrator"))
_ADMINS_COMMAND = ("sacctmgr", "-nP", "show", "user", "format=user,adminlevel")


class AccountExpired(ServiceError):
    """Somebody whose account in the directory has expired: nothing is shown to them."""


class Permission(msgspec.Struct, frozen=True):
    """What a user may see; `words` says so, and who the service takes the user for."""

    scope: Scope
    words: str


class Permissions:
    """Permissions of users by uid."""

    def __init__(self, section: ServiceSection, slurm: SlurmCommands, log: Log) -> None:
        self._operators = Operators(section, slurm, log)
        self._with_totals = section.totals_for_everybody

    def of(self, connection: Connection, uid: int, now: int | None = None) -> Permission:
        """Return what a uid may see; if the directory does not know it, only its own runs.

        Args:
            connection: of the ledger.
            uid: of the user.
            now: epoch seconds at which deputies count; None for the present time.

        Raises:
            AccountExpired: when the account of the person with this uid has expired.
        """
        name = _user_name(uid)
        if uid == os.getuid():  # the service itself, whatever the directory says
            return Permission(EVERYTHING, f"{name} (operator): everything")
        person = person_of_uid(connection, uid)  # operators expire, too
        if self._operators.include(uid, name):
            return Permission(EVERYTHING, f"{name} (operator): everything")
        if person is None:
            own = frozenset((uid,))
            runs = Scope(frozenset(), frozenset(), own, with_totals=self._with_totals)
            return Permission(runs, f"{name} (not in the directory): runs of uid {uid}")
        me = frozenset((person,))
        words = f"{name}: your own runs, and the runs of groups whose PI you are"
        pis = pis_of_deputy(connection, person, now)
        if pis:
            words += f", and those of {' and '.join(sorted(pis.values()))}, whose deputy you are"
        return Permission(Scope(me, me.union(pis), with_totals=self._with_totals), words)


class Operators:
    """Users who see everything: configured operators, and Slurm's operators and administrators."""

    def __init__(self, section: ServiceSection, slurm: SlurmCommands, log: Log) -> None:
        self._section = section
        self._slurm = slurm
        self._log = log
        self._admins: frozenset[int] | None = None
        self._asked = float("-inf")
        self._asking = threading.Lock()

    def include(self, uid: int, name: str) -> bool:
        """Return whether a user sees everything; the service's own account does."""
        if uid == os.getuid() or uid in _uids(self._section.operators):
            return True
        return bool(self._groups_of(name)) or uid in self._slurm_admins()

    def _groups_of(self, name: str) -> set[int]:
        """Return the gids of the operator groups that a user is a member of."""
        gids = set()
        for group in self._section.operator_groups:
            with suppress(KeyError):
                gids.add(grp.getgrnam(group).gr_gid)
        if not gids:
            return set()
        try:
            return gids & set(os.getgrouplist(name, pwd.getpwnam(name).pw_gid))
        except KeyError:
            return set()

    def _slurm_admins(self) -> frozenset[int]:
        """Return the uids of Slurm's operators and administrators, at most a minute old."""
        # One thread asks Slurm. Other threads wait for it only before the first answer.
        if self._asking.acquire(blocking=self._admins is None):
            try:
                if time.monotonic() - self._asked > _CACHED_SECONDS:
                    self._asked = time.monotonic()
                    self._admins = self._ask(self._admins or frozenset())
            finally:
                self._asking.release()
        return self._admins or frozenset()

    def _ask(self, known: frozenset[int]) -> frozenset[int]:
        """Read Slurm's operators; if Slurm does not answer, keep those known so far."""
        try:
            return _uids(parse_admins(self._slurm.run(_ADMINS_COMMAND)))
        except SlurmError as error:
            self._log("failed", asked="Slurm for its operators", why=error)
            return known


def parse_admins(text: str) -> Iterator[str]:
    """Parse the output of `sacctmgr -nP show user format=user,adminlevel`: users who are admins."""
    for line in text.splitlines():
        user, _, level = line.rpartition("|")
        if level.lower() in _ADMIN_LEVELS:
            yield user


def _uids(users: Iterator[str] | tuple[str, ...]) -> frozenset[int]:
    """Return the uids of the users that this host knows."""
    numbers = set()
    for user in users:
        with suppress(KeyError):
            numbers.add(pwd.getpwnam(user).pw_uid)
    return frozenset(numbers)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def person_of_uid(connection: Connection, uid: int) -> int | None:
    """Return the person who has a uid now; None if nobody or several have it, or they have left.

    Raises:
        AccountExpired: when the account of this person has expired.
    """
    query = (
        select(uids.c.person_id, people.c.active)
        .join(people, people.c.id == uids.c.person_id)
        .where(uids.c.uid == uid, uids.c.valid_to.is_(None), people.c.closed_at.is_(None))
    )
    found = connection.execute(query).all()
    if len(found) != 1:
        return None
    person, active = found[0]
    if not active:
        raise AccountExpired(
            f"the account of {_user_name(uid)} has expired in the directory; if it was renewed,"
            " wait until the ledger has read the directory again (slurmkit ledger people sync)"
        )
    return int(person)
