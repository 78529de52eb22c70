"""Who may see what: everybody their own runs, a PI their groups', an operator everything."""

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

from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm
from slurmkit_accounting.reports.scope import EVERYTHING, Scope
from slurmkit_accounting.schema import people, uids
from slurmkit_accounting.service.config import ServiceSection
from slurmkit_accounting.service.log import Log

_KEPT_SECONDS = 60
_ADMIN_LEVELS = frozenset(("operator", "administrator"))
_ADMINS = ("sacctmgr", "-nP", "show", "user", "format=user,adminlevel")


class Sight(msgspec.Struct, frozen=True):
    """What somebody may see, and who they are taken for, in words."""

    scope: Scope
    words: str


class Sights:
    """Decides what the holder of a uid may see."""

    def __init__(self, section: ServiceSection, slurm: Slurm, log: Log) -> None:
        self._operators = Operators(section, slurm, log)

    def of(self, connection: Connection, uid: int) -> Sight:
        """What `uid` may see now; of a uid that is nobody's, runs of that number alone."""
        name = _name(uid)
        if self._operators.include(uid, name):
            return Sight(EVERYTHING, f"{name}, an operator: everything")
        person = _person(connection, uid)
        if person is None:
            runs = Scope(frozenset(), frozenset(), frozenset((uid,)))
            return Sight(runs, f"{name}, whom the directory does not know: runs of uid {uid}")
        me = frozenset((person,))
        return Sight(Scope(me, me), f"{name}: own runs, and those of own groups as their PI")


class Operators:
    """Who sees everything: those the configuration names, and Slurm's own operators."""

    def __init__(self, section: ServiceSection, slurm: Slurm, log: Log) -> None:
        self._section = section
        self._slurm = slurm
        self._log = log
        self._admins: frozenset[int] | None = None
        self._asked = float("-inf")
        self._asking = threading.Lock()

    def include(self, uid: int, name: str) -> bool:
        """Whether the holder of a uid sees everything; the service's own account does."""
        if uid == os.getuid() or uid in _uids(self._section.operators):
            return True
        return bool(self._groups_of(name)) or uid in self._slurm_admins()

    def _groups_of(self, name: str) -> set[int]:
        wanted = set()
        for group in self._section.operator_groups:
            with suppress(KeyError):
                wanted.add(grp.getgrnam(group).gr_gid)
        if not wanted:
            return set()
        try:
            return wanted & set(os.getgrouplist(name, pwd.getpwnam(name).pw_gid))
        except KeyError:
            return set()

    def _slurm_admins(self) -> frozenset[int]:
        # One thread asks Slurm; the others wait for it only while nothing is known at all.
        if self._asking.acquire(blocking=self._admins is None):
            try:
                if time.monotonic() - self._asked > _KEPT_SECONDS:
                    self._asked = time.monotonic()
                    self._admins = self._ask(self._admins or frozenset())
            finally:
                self._asking.release()
        return self._admins or frozenset()

    def _ask(self, known: frozenset[int]) -> frozenset[int]:
        """Slurm's operators; where it is silent, whoever was one a minute ago still is."""
        try:
            return _uids(admins_in(self._slurm.run(_ADMINS)))
        except SlurmError as error:
            self._log("failed", asked="Slurm for its operators", why=error)
            return known


def admins_in(text: str) -> Iterator[str]:
    """Users with an admin level, in what `sacctmgr -nP show user format=user,adminlevel` prints."""
    for line in text.splitlines():
        user, _, level = line.rpartition("|")
        if level.lower() in _ADMIN_LEVELS:
            yield user


def _uids(users: Iterator[str] | tuple[str, ...]) -> frozenset[int]:
    """Numbers of users that this host knows: a name that it does not know is nobody."""
    found = set()
    for user in users:
        with suppress(KeyError):
            found.add(pwd.getpwnam(user).pw_uid)
    return frozenset(found)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _person(connection: Connection, uid: int) -> int | None:
    """Who has the number now; nobody where it is not clear, or who has left."""
    query = (
        select(uids.c.person_id)
        .join(people, people.c.id == uids.c.person_id)
        .where(uids.c.uid == uid, uids.c.valid_to.is_(None), people.c.closed_at.is_(None))
    )
    found = connection.scalars(query).all()
    return found[0] if len(found) == 1 else None
