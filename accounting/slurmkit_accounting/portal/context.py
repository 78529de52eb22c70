"""What the pages share: the parts of the service, and who reads a page with which rights."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec
from flask import current_app, g

from slurmkit.errors import BadInput
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.people.ldap import LoginCheck
from slurmkit_accounting.portal.identity import Account
from slurmkit_accounting.portal.login_limits import LoginLimits, LoginTurns
from slurmkit_accounting.portal.sessions import Session, SessionStore
from slurmkit_accounting.portal.settings import PortalSection
from slurmkit_accounting.portal.view_log import ViewLog
from slurmkit_accounting.remote.served import find_remote_function
from slurmkit_accounting.render.format import footer_lines
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.model import Meta, Report
from slurmkit_accounting.service.log import Log
from slurmkit_accounting.service.permissions import Permission, Permissions
from slurmkit_accounting.service.queries import shown_to

if TYPE_CHECKING:  # it imports Authlib, for sites with an OpenID provider
    from slurmkit_accounting.portal.openid_provider import OpenIdProvider

_PAGES_PER_UID = 3  # pages of one user that are made at a time
_MOST_PAGES = 8  # pages of all users together; the other threads are for logins and the style sheet
_MOST_WAITING = 1  # that waits, of all users: it holds a thread, too
_TURN_SECONDS = 5.0  # for which it waits
RETRY_SECONDS = 5  # after which to ask again


class Portal(msgspec.Struct, frozen=True):
    """The parts of the service that the pages use.

    Attributes:
        section: `[ledger.portal]`.
        open_ledger: opens the ledger for reading.
        open_to_change: opens the ledger for writing.
        permissions: decides what a uid may see, as for queries of `slurmkit report`.
        sessions: who is logged in.
        limits: failed logins.
        views: takes who looked at whose runs.
        check_password: asks the directory.
        proxy_secret: what the proxy must send; empty for nothing.
        zone: time zone of the pages.
        log: the service's log.
        clock: returns epoch seconds.
        login_turns: limits the logins that are checked at a time.
        oidc_turns: the same for logins at the OpenID provider, which wrong passwords do not delay.
        oidc: the site's OpenID provider; None where it is no way to log in.
    """

    section: PortalSection
    open_ledger: Callable[[], AbstractContextManager[Ledger]]
    open_to_change: Callable[[], AbstractContextManager[Ledger]]
    permissions: Permissions
    sessions: SessionStore
    limits: LoginLimits
    views: ViewLog
    check_password: Callable[[str, str], LoginCheck]
    proxy_secret: str
    zone: Zone
    log: Log
    clock: Callable[[], float] = time.time
    login_turns: LoginTurns = msgspec.field(default_factory=LoginTurns)
    oidc_turns: LoginTurns = msgspec.field(default_factory=LoginTurns)
    oidc: OpenIdProvider | None = None

    @property
    def now(self) -> int:
        """The time, in epoch seconds."""
        return int(self.clock())


class Reader(msgspec.Struct, frozen=True):
    """Who reads a page.

    Attributes:
        session: of the person who is logged in.
        account: whose rights count: their own, or those of whom an operator sees as.
        permission: what this account may see now.
        is_operator: whether the person who is logged in sees everything.
    """

    session: Session
    account: Account
    permission: Permission
    is_operator: bool

    @property
    def seen_as(self) -> str:
        """The user whom an operator sees as; empty otherwise."""
        return self.session.as_user

    def ask(self, ledger: Ledger, name: str, **arguments: Any) -> Any:
        """Call a function of the read API, as the service does for `slurmkit report`.

        Raises:
            BadInput: for an argument that is not valid.
        """
        given = {key: value for key, value in arguments.items() if value is not None}
        function = find_remote_function(name)
        if function.changes:
            raise BadInput("pages do not change this")
        value = function.answer(ledger, given, self.permission.scope, self.account.uid)
        return shown_to(value, self.permission.words) if isinstance(value, Report) else value


def portal() -> Portal:
    """Return the parts of the service, within a request."""
    return cast("Portal", current_app.extensions["portal"])


def reader() -> Reader:
    """Return who reads this page; only pages behind the login call it."""
    return cast("Reader", g.reader)


def lines_about(*lines: str) -> list[str]:
    """Return the lines below a page that is no report, with the source and age of its data."""
    with g.ledger.transaction() as connection:
        fields = provenance.ledger_fields(
            g.ledger, connection, portal().now, reader().permission.scope
        )
    zone = portal().zone.name
    return [
        *lines,
        f"days and months: {zone}",
        *footer_lines(Meta(report="page", timezone=zone, **fields)),
    ]


class PageTurns:
    """A limit of the pages that are made at a time, so that some threads are always free.

    A page without a turn is refused: if it waited, it would hold a thread that others need.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: Counter[int] = Counter()
        self._waiting = 0

    @contextmanager
    def __call__(self, uid: int) -> Iterator[bool]:
        """Hold one of the user's turns; yields whether there was one in time."""
        with self._changed:
            free = self._wait(uid)
            if free:
                self._busy[uid] += 1
        try:
            yield free
        finally:
            if free:
                with self._changed:
                    self._busy[uid] -= 1
                    self._busy += Counter()  # drops those that are 0
                    self._changed.notify_all()

    def _is_free(self, uid: int) -> bool:
        return self._busy[uid] < _PAGES_PER_UID and self._busy.total() < _MOST_PAGES

    def _wait(self, uid: int) -> bool:
        """Return whether a turn is free, now or in time."""
        if self._is_free(uid):
            return True
        if self._waiting >= _MOST_WAITING:
            return False
        self._waiting += 1
        try:
            return self._changed.wait_for(lambda: self._is_free(uid), timeout=_TURN_SECONDS)
        finally:
            self._waiting -= 1
