"""Open a ledger: make and migrate it for writers, check it for readers."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from slurmkit.errors import LedgerError, MissingExtra
from slurmkit_accounting.filesystems import refuse_network_filesystem
from slurmkit_accounting.location import describe, is_sqlite, ledger_url
from slurmkit_accounting.schema import REVISION, VERSION_TABLE

if TYPE_CHECKING:
    from sqlite3 import Connection as SqliteConnection

_BUSY_SECONDS = 60
_TRUSTING = "slurmkit_trusting"
# A writer's indices are all over the file: they stay in 64 MiB of memory, and go from the log to
# their place when as much was written, not at each commit. What a statement of many rows would
# undo where it failed stays in memory too.
# Pages of a new file are large: to write a million runs takes the system a third of the time less.
_FOR_WRITERS = (
    "page_size=16384", "journal_mode=WAL", "cache_size=-65536", "wal_autocheckpoint=8192",
    "temp_store=MEMORY",
)  # fmt: skip
_CONNECT_SECONDS = 10
# First words of what a database says, and what can be done about it.
_ADVICE = (
    ("file is not a database", "it is some other file; name another with --db"),
    ("unable to open", "check the path and its permissions, or name another with --db"),
    ("readonly", "you may not write there; name another with --db"),
    ("locked", "another command is writing to it; try again"),
    ("disk is full", "make room and run the command again"),
    ("password", "put the password in ~/.pgpass or PGPASSWORD"),
    ("connection failed", "check the host and that PostgreSQL runs"),
)


class Ledger:
    """An open ledger.

    Attributes:
        source: the file's path, or the URL without its password.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.source = describe(engine.url)

    @contextmanager
    def transaction(self, *, rehearsal: bool = False) -> Iterator[Connection]:
        """Do all of it or nothing; in a rehearsal do it, and then nothing.

        Raises:
            LedgerError: for whatever the database says, in one line.
        """
        with (
            translated(self.source),
            self.engine.connect() as connection,
            connection.begin() as transaction,
        ):
            yield connection
            if rehearsal:
                transaction.rollback()

    def trusting(self) -> Ledger:
        """The same, where SQLite does not look up each row that a new one speaks of.

        For writers of many rows that looked those up themselves; `ledger verify` looks at them all.
        """
        return Ledger(self.engine.execution_options(**{_TRUSTING: True}))

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()


@contextmanager
def open_for_writing(db: str | None = None) -> Iterator[Ledger]:
    """Open a ledger, making it or migrating it forward first.

    Raises:
        BadInput: for a URL that cannot be meant.
        LedgerError: when it cannot be made, opened or migrated.
    """
    url = ledger_url(db)
    if is_sqlite(url):
        _make_file(Path(str(url.database)))
    with _opened(url) as ledger:
        with ledger.transaction() as connection:
            _migrate(connection, ledger.source)
        yield ledger


@contextmanager
def open_for_reading(db: str | None = None) -> Iterator[Ledger]:
    """Open a ledger that is there and of this release's schema; nothing can be written to it.

    Raises:
        BadInput: for a URL that cannot be meant.
        LedgerError: when there is none, or a newer or older one.
    """
    url = ledger_url(db)
    if is_sqlite(url):
        path = Path(str(url.database))
        refuse_network_filesystem(path)
        with _files(path):
            if not path.exists():
                raise _none_yet(str(path))
    with _opened(url, read_only=True) as ledger:
        with ledger.transaction() as connection:
            _check(_version(connection), ledger.source)
        yield ledger


@contextmanager
def translated(source: str) -> Iterator[None]:
    """Turn the database's errors into one LedgerError."""
    try:
        yield
    except _errors() as error:
        said = str(getattr(error, "orig", None) or error).strip()
        words = said.splitlines()[0] if said else type(error).__name__
        advice = next((advice for sign, advice in _ADVICE if sign in said), None)
        hint = f"; {advice}" if advice else ""
        raise LedgerError(f"cannot use the ledger {source}: {words}{hint}") from error


def _errors() -> tuple[type[Exception], ...]:
    """What a database raises; COPY goes past SQLAlchemy, so psycopg's own errors too."""
    psycopg = sys.modules.get("psycopg")
    return (SQLAlchemyError,) if psycopg is None else (SQLAlchemyError, psycopg.Error)


@contextmanager
def _opened(url: URL, *, read_only: bool = False) -> Iterator[Ledger]:
    ledger = Ledger(_sqlite(url, read_only) if is_sqlite(url) else _postgresql(url, read_only))
    try:
        yield ledger
    finally:
        ledger.close()


def _sqlite(url: URL, read_only: bool) -> Engine:  # noqa: FBT001
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})
    begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"  # a writer waits for its turn up front

    @event.listens_for(engine, "connect")
    def _connect(connection: SqliteConnection, _record: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours to say
        wal = () if read_only else _FOR_WRITERS
        for pragma in (*wal, f"query_only={'ON' if read_only else 'OFF'}"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        trusting = connection.get_execution_options().get(_TRUSTING, False)
        connection.exec_driver_sql(f"PRAGMA foreign_keys={'OFF' if trusting else 'ON'}")
        connection.exec_driver_sql(begin)

    return engine


def _postgresql(url: URL, read_only: bool) -> Engine:  # noqa: FBT001
    given = url.normalized_query.get("options", ())  # those of the URL would not be used else
    options = " ".join([*given, *(["-c default_transaction_read_only=on"] if read_only else [])])
    arguments = {"connect_timeout": _CONNECT_SECONDS, "options": options}
    # A report must see one state of the books through all its queries.
    level = {"isolation_level": "REPEATABLE READ"} if read_only else {}
    try:
        engine = create_engine(url, connect_args=arguments, **level)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "a ledger in PostgreSQL needs psycopg; run: pip install 'slurmkit-hpc[postgres]'"
        ) from error
    if not read_only:
        event.listen(engine, "begin", _wait_for_the_writer)
    return engine


def _wait_for_the_writer(connection: Connection) -> None:
    """Writers of every kind take turns, as in SQLite: what one adds up no other changes meanwhile.

    Not on a connection of `slurmkit_accounting.locks`, which has no transactions.
    """
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('slurmkit writer'))")


def _make_file(path: Path) -> None:
    refuse_network_filesystem(path)
    with _files(path):
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


@contextmanager
def _files(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"cannot make or reach the ledger {path}: {error.strerror}; name another place with"
            " --db URL or SLURMKIT_DB"
        ) from error


def _migrate(connection: Connection, source: str) -> None:
    version = _version(connection)
    if version == REVISION:
        return
    if version is None and inspect(connection).get_table_names():
        raise LedgerError(
            f"{source} is a database, but not a ledger; name another with --db or SLURMKIT_DB"
        )
    if version is not None and version > REVISION:
        raise _too_new(source)
    _upgrade(connection)
    if version is not None and version < "0002":
        from slurmkit_accounting.upkeep import rebuild  # noqa: PLC0415  see `_upgrade`

        rebuild(connection)


def _upgrade(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415  readers never pay for it
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", "slurmkit_accounting:migrations")
    config.attributes["connection"] = connection
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        command.upgrade(config, "head")


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608
    return found


def _check(version: str | None, source: str) -> None:
    if version is None:
        raise _none_yet(source)
    if version > REVISION:
        raise _too_new(source)
    if version < REVISION:
        raise LedgerError(
            f"the ledger {source} was made by an older slurmkit (schema {version}, this one needs"
            f" {REVISION}); bring it forward with: slurmkit ledger ingest"
        )


def _none_yet(source: str) -> LedgerError:
    return LedgerError(f"there is no ledger at {source} yet; make one with: slurmkit ledger ingest")


def _too_new(source: str) -> LedgerError:
    return LedgerError(
        f"the ledger {source} was made by a newer slurmkit (its schema is newer than {REVISION});"
        " upgrade slurmkit"
    )
