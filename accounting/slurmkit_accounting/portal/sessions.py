"""Sessions of people who are logged in, stored by the service; a cookie holds only a random token.

They are in a file of their own, so that a page never waits for an ingest. The file holds digests of
tokens: who can read it cannot log in with it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from slurmkit.config.paths import read_private_file, write_private_file
from slurmkit.errors import ServiceError
from slurmkit_accounting.portal.identity import Account

_KEY_BYTES, _TOKEN_BYTES = 32, 32
_MOST_PER_USER = 20  # sessions; the oldest end first
_TOUCH_SECONDS = 30  # how exactly the last use of a session is noted
_TABLE = """
CREATE TABLE IF NOT EXISTS sessions (
    token BLOB PRIMARY KEY, uid INTEGER NOT NULL, user TEXT NOT NULL, person_id INTEGER,
    via TEXT NOT NULL, opened INTEGER NOT NULL, seen INTEGER NOT NULL,
    as_uid INTEGER, as_user TEXT NOT NULL
)
"""
_USED_TABLE = """
CREATE TABLE IF NOT EXISTS used_once (name BLOB PRIMARY KEY, until INTEGER NOT NULL)
"""
_USED_INDEX = "CREATE INDEX IF NOT EXISTS used_once_until ON used_once (until)"
_COLUMNS = "uid, user, person_id, via, opened, seen, as_uid, as_user"


class Session(msgspec.Struct, frozen=True):
    """A session that has not ended.

    Attributes:
        token: what the cookie holds.
        account: who logged in.
        via: `ldap`, `header` or `oidc`.
        opened: epoch seconds, like `seen`.
        seen: the last use, to half a minute.
        as_uid: the uid that an operator sees as; None for their own.
        as_user: the name of that user.
    """

    token: str
    account: Account
    via: str
    opened: int
    seen: int
    as_uid: int | None
    as_user: str


class SessionStore:
    """The sessions of a service, and its key for tokens of forms.

    Args:
        folder: of the service's state; made if it is missing.
        idle_seconds: a session ends so long after its last use.
        session_seconds: a session ends so long after the login.
        clock: returns epoch seconds.

    Raises:
        ServiceError: when the files cannot be made, or others can read the key.
    """

    def __init__(
        self,
        folder: Path,
        *,
        idle_seconds: int,
        session_seconds: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._idle, self._longest, self._clock = idle_seconds, session_seconds, clock
        self._lock = threading.Lock()
        self._path = folder / "sessions.db"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._key = _read_or_make_key(folder / "key")
            if not self._path.exists():
                write_private_file(self._path, b"")
            if self._path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                self._path.chmod(0o600)
            with self._writing() as file:
                file.execute(_TABLE)
                file.execute(_USED_TABLE)
                file.execute(_USED_INDEX)
        except (OSError, sqlite3.Error) as error:
            raise ServiceError(
                f"the portal cannot keep its sessions in {folder}: {error}; let the service's"
                " account write there"
            ) from error

    def offer(self, account: Account, via: str) -> Session:
        """Return a session that is not stored; `accept` stores it if the client has its cookie."""
        now = int(self._clock())
        start = f"{secrets.token_urlsafe(_TOKEN_BYTES)}.{now}"
        token = f"{start}.{self.sign('offer', f'{account.uid}.{start}')}"
        return Session(token, account, via, now, now, None, "")

    def accept(self, token: str, account: Account, via: str) -> Session | None:
        """Store a session that was just offered to an account; None for any other token."""
        start, _, signature = token.rpartition(".")
        at = start.rpartition(".")[2]
        if not self.is_signed("offer", f"{account.uid}.{start}", signature):
            return None
        if not 0 <= int(self._clock()) - int(at) <= self._idle:
            return None
        return self.open(account, via, token)

    def open(self, account: Account, via: str, token: str = "") -> Session:
        """Start a session; its token is new unless it was offered."""
        now = int(self._clock())
        token = token or secrets.token_urlsafe(_TOKEN_BYTES)
        values = (account.uid, account.user, account.person_id, via, now, now, None, "")
        with self._writing() as file:
            file.execute(
                "DELETE FROM sessions WHERE opened <= ? OR seen <= ?",
                (now - self._longest, now - self._idle),
            )
            file.execute(
                f"INSERT OR REPLACE INTO sessions (token, {_COLUMNS})"  # noqa: S608
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (_digest(token), *values),
            )
            file.execute(
                "DELETE FROM sessions WHERE uid = ? AND token NOT IN (SELECT token FROM sessions"
                " WHERE uid = ? ORDER BY opened DESC, rowid DESC LIMIT ?)",
                (account.uid, account.uid, _MOST_PER_USER),
            )
        return Session(token, account, via, now, now, None, "")

    def find(self, token: str) -> Session | None:
        """Return the session of a token, and note its use; None if there is none or it ended."""
        now, digest = int(self._clock()), _digest(token)
        with self._reading() as file:
            row = file.execute(
                f"SELECT {_COLUMNS} FROM sessions WHERE token = ?",  # noqa: S608
                (digest,),
            ).fetchone()
        if row is None:
            return None
        uid, user, person_id, via, opened, seen, as_uid, as_user = row
        if now >= opened + self._longest or now >= seen + self._idle:
            self.close(token)
            return None
        if now >= seen + _TOUCH_SECONDS:
            with self._writing() as file:
                file.execute("UPDATE sessions SET seen = ? WHERE token = ?", (now, digest))
        return Session(token, Account(uid, user, person_id), via, opened, seen, as_uid, as_user)

    def close(self, token: str) -> None:
        """End a session."""
        with self._writing() as file:
            file.execute("DELETE FROM sessions WHERE token = ?", (_digest(token),))

    def close_all(self, uid: int) -> int:
        """End all sessions of a user; return how many there were."""
        with self._writing() as file:
            return file.execute("DELETE FROM sessions WHERE uid = ?", (uid,)).rowcount

    def see_as(self, token: str, uid: int | None, user: str) -> None:
        """Let an operator see as another user, or (None) as themselves again."""
        with self._writing() as file:
            file.execute(
                "UPDATE sessions SET as_uid = ?, as_user = ? WHERE token = ?",
                (uid, user, _digest(token)),
            )

    def use_once(self, name: str, until: int) -> bool:
        """Note that something was used; False if it was before.

        Args:
            name: of what can be used once.
            until: epoch seconds after which it is no good anyway, and forgotten here.
        """
        with self._writing() as file:
            file.execute("DELETE FROM used_once WHERE until <= ?", (int(self._clock()),))
            found = file.execute(
                "INSERT OR IGNORE INTO used_once VALUES (?, ?)", (_digest(name), until)
            )
            return found.rowcount == 1

    def sign(self, purpose: str, text: str) -> str:
        """Return a token that only this service can make."""
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()

    def is_signed(self, purpose: str, text: str, token: str) -> bool:
        """Return whether a token was made by `sign` for the same purpose and text."""
        given = token.encode("utf-8", "replace")
        return hmac.compare_digest(self.sign(purpose, text).encode(), given)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=5)) as file:
            yield file

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, closing(sqlite3.connect(self._path, timeout=5)) as file, file:
            yield file


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _read_or_make_key(path: Path) -> bytes:
    if not path.exists():
        write_private_file(path, secrets.token_bytes(_KEY_BYTES))
    if path.lstat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(f"others can read {path}; delete it, then a new one is made")
    key = read_private_file(path)
    if len(key) != _KEY_BYTES:
        raise OSError(
            f"{path} is not a key of {_KEY_BYTES} bytes; delete it, then a new one is made"
        )
    return key
