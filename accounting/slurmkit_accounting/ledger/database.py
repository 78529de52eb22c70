"""Open the database of a ledger: create and migrate it for writers, check it for readers.

A page with several reports may keep what it reads until it is complete, see `reading_once`.
"""

from __future__ import annotations

import os
import re
import sqlite3
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, event, inspect, text

from slurmkit.config.extras import missing_extra
from slurmkit.errors import LedgerError, NoLedger
from slurmkit_accounting.ledger.database_errors import (
    translate_database_errors,
    translate_file_errors,
)
from slurmkit_accounting.ledger.location import (
    describe_url,
    is_default_path,
    is_sqlite,
    ledger_url,
    refuse_network_filesystem,
)
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema import REVISION, VERSION_TABLE, metadata
from slurmkit_accounting.ledger.schema.types import FIRST_REVISION

if TYPE_CHECKING:
    from sqlite3 import Connection as SqliteConnection

_MIGRATIONS = "slurmkit_accounting:migrations"
_BUSY_SECONDS = 60
_TRUSTING = "slurmkit_trusting"
# Writes to indices are spread over the whole file: keep 64 MiB of pages in memory, and checkpoint
# the WAL after as much was written, not at each commit. Keep the undo data of large statements in
# memory too. A new file gets large pages: writing a million runs takes a third less system time.
_FOR_WRITERS = (
    "page_size=16384", "journal_mode=WAL", "cache_size=-65536", "wal_autocheckpoint=8192",
    "temp_store=MEMORY",
)  # fmt: skip
_CONNECT_SECONDS = 10
_engines: dict[tuple[URL, bool], Engine] = {}
_MOST_ENGINES = 8
_reading: ContextVar[_Reading | None] = ContextVar("reading", default=None)
ValueT = TypeVar("ValueT")


class Ledger:
    """An open ledger.

    Attributes:
        source: the file's path, or the URL without its password.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.source = describe_url(engine.url)

    @contextmanager
    def transaction(self, *, rehearsal: bool = False) -> Iterator[Connection]:
        """Run one transaction. With `rehearsal=True`, always roll it back.

        Within `reading_once`, it is part of the transaction of the whole block.

        Raises:
            LedgerError: for any error of the database, in one line.
        """
        reading = _reading.get()
        if reading is not None and reading.connection.engine is self.engine:
            with translate_database_errors(self.source):
                yield reading.connection
            return
        with (
            translate_database_errors(self.source),
            self.engine.connect() as connection,
            connection.begin() as transaction,
        ):
            yield connection
            if rehearsal:
                transaction.rollback()

    def without_foreign_keys(self) -> Ledger:
        """Return the same ledger, but SQLite does not check foreign keys.

        For writers of many rows that looked up the ids themselves. `ledger verify` checks all keys.
        """
        return Ledger(self.engine.execution_options(**{_TRUSTING: True}))

    def close(self) -> None:
        """Close the database connections."""
        self.engine.dispose()


class LedgerUpgrade(NamedTuple):
    """What was done to the schema of a ledger.

    Attributes:
        before: its schema before; None if it had none.
        copy: path of the copy of a SQLite file from before the migration; None without one.
    """

    before: str | None
    copy: str | None


@contextmanager
def open_for_writing(db: str | None = None) -> Iterator[Ledger]:
    """Open a ledger to write; create it or migrate its schema first.

    A SQLite file is copied before a migration, which waits for no ingest: it fails while one is
    running. A ledger in PostgreSQL, which other hosts may use
    with an older release, is migrated by `upgrade_ledger` only.

    Raises:
        BadInput: for an invalid URL.
        LedgerError: when it cannot be created, opened or migrated.
    """
    url = ledger_url(db)
    if is_sqlite(url):
        _make_file(Path(str(url.database)))
    with _open_engine(url) as ledger:
        _migrate(ledger, asked=is_sqlite(url))
        yield ledger


def upgrade_ledger(db: str | None = None) -> LedgerUpgrade:
    """Migrate the schema of an existing ledger to the one of this release.

    Raises:
        BadInput: for an invalid URL.
        LedgerError: when there is none, it cannot be opened, copied or migrated, or an ingest is
            running.
    """
    url = ledger_url(db)
    if is_sqlite(url):
        _require_file(Path(str(url.database)))
    with _open_engine(url) as ledger:
        with ledger.transaction() as connection:
            if _version(connection) is None:
                raise _no_ledger_error(ledger.source)
        return _migrate(ledger, asked=True)


@contextmanager
def open_for_reading(db: str | None = None) -> Iterator[Ledger]:
    """Open an existing ledger read-only; it must have the schema of this release.

    Raises:
        BadInput: for an invalid URL.
        LedgerError: when there is none, or its schema is newer or older.
    """
    url = ledger_url(db)
    if is_sqlite(url):
        _require_file(Path(str(url.database)))
    with _open_engine(url, read_only=True) as ledger:
        with ledger.transaction() as connection:
            _check_version(_version(connection), ledger.source)
        yield ledger


@contextmanager
def open_database(url: URL) -> Iterator[Ledger]:
    """Open a database read-only, whether there is a ledger in it or not; a file must exist.

    Raises:
        LedgerError: when it cannot be opened.
    """
    with _open_engine(url, read_only=True) as ledger:
        yield ledger


def database_schema(connection: Connection, source: str) -> str | None:
    """Return the schema of the ledger in a database; None for an empty database.

    Raises:
        LedgerError: when there is something else in it, or a ledger with a newer schema or one
            from before the first release.
    """
    version = _version(connection)
    if version is None:
        _refuse_foreign(connection, source)
    else:
        _refuse_unknown(version, source)
    return version


@contextmanager
def _open_engine(url: URL, *, read_only: bool = False) -> Iterator[Ledger]:
    engine = copy(_engine_of(url, read_only))
    engine.pool = engine.pool.recreate()  # connections are of this opening alone
    ledger = Ledger(engine)
    try:
        yield ledger
    finally:
        ledger.close()


def _engine_of(url: URL, read_only: bool) -> Engine:  # noqa: FBT001
    """Return the engine that is copied at each opening, so that the copies share compiled queries.

    A service opens its ledger for each query and each round, and to compile what these run takes
    longer than to run it. The first connection is made here: it tells all copies how to talk to
    the server.
    """
    if (known := _engines.get((url, read_only))) is not None:
        return known
    engine = _sqlite(url, read_only) if is_sqlite(url) else _postgresql(url, read_only)
    with translate_database_errors(describe_url(url)):
        engine.connect().close()
    engine.dispose()
    if len(_engines) >= _MOST_ENGINES:
        _engines.clear()
    return _engines.setdefault((url, read_only), engine)


def _sqlite(url: URL, read_only: bool) -> Engine:  # noqa: FBT001
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})
    begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"  # a writer takes the lock at once

    @event.listens_for(engine, "connect")
    def _connect(connection: SqliteConnection, _record: Any) -> None:
        connection.isolation_level = None  # we send BEGIN ourselves
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
    given = url.normalized_query.get("options", ())  # connect_args would replace those of the URL
    options = " ".join([*given, *(["-c default_transaction_read_only=on"] if read_only else [])])
    arguments = {"connect_timeout": _CONNECT_SECONDS, "options": options}
    # All queries of a report must see the same state of the ledger.
    level = {"isolation_level": "REPEATABLE READ"} if read_only else {}
    try:
        engine = create_engine(url, connect_args=arguments, **level)
    except ModuleNotFoundError as error:
        raise missing_extra("psycopg", "postgres", "a ledger in PostgreSQL") from error
    if not read_only:
        event.listen(engine, "begin", _wait_for_the_writer)
    return engine


def _wait_for_the_writer(connection: Connection) -> None:
    """Take the lock of all writers, so that they take turns as in SQLite.

    Not on a connection of `slurmkit_accounting.ledger.locks`, which runs without transactions.
    """
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('slurmkit writer'))")


def _make_file(path: Path) -> None:
    refuse_network_filesystem(path)
    with translate_file_errors(path):
        if not path.exists():
            if is_default_path(path):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def _require_file(path: Path) -> None:
    refuse_network_filesystem(path)
    with translate_file_errors(path):
        if not path.exists():
            raise _no_ledger_error(str(path))


def _migrate(ledger: Ledger, *, asked: bool) -> LedgerUpgrade:
    """Create the schema, or migrate it if that was asked for; copy a SQLite file before."""
    with ledger.transaction() as connection:
        version = _version(connection)
        if version is None:
            _create(connection, ledger.source)
            return LedgerUpgrade(None, None)
    if version == REVISION:
        return LedgerUpgrade(version, None)
    _refuse_unknown(version, ledger.source)
    if not asked:
        raise LedgerError(
            f"the ledger {ledger.source} was made by an older slurmkit (schema {version}, this one"
            f" needs {REVISION}); older releases on other hosts cannot use it after an upgrade, and"
            " there is no way back: make a copy of it (pg_dump), then run: slurmkit ledger upgrade"
        )
    # An ingest of an older release must not go on with tables that it does not know.
    with hold_ledger_lock(ledger, "ingest"):
        with ledger.transaction() as connection:
            version = _version(connection)
            if version == REVISION:  # another command was faster
                return LedgerUpgrade(version, None)
            in_file = connection.dialect.name == "sqlite"
            copy = _copy_file(Path(ledger.source), str(version)) if in_file else None
            upgrade_schema(connection)
        if copy is not None:
            _delete_other_copies(Path(ledger.source), copy)
    return LedgerUpgrade(version, None if copy is None else str(copy))


def _create(connection: Connection, source: str) -> None:
    _refuse_foreign(connection, source)
    upgrade_schema(connection)


def _refuse_foreign(connection: Connection, source: str) -> None:
    if inspect(connection).get_table_names():
        raise LedgerError(
            f"{source} is a database, but not a ledger; name another with --db or SLURMKIT_DB"
        )


def _copy_file(path: Path, version: str) -> Path:
    """Copy a SQLite ledger to a file next to it, named by its schema."""
    copy = path.with_name(f"{path.name}.schema-{version}")
    unfinished = path.with_name(f"{copy.name}-unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(sqlite3.connect(path)) as here, closing(sqlite3.connect(unfinished)) as there:
            here.backup(there)
        unfinished.replace(copy)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise LedgerError(
            f"the ledger {path} must be upgraded, but cannot be copied to {copy} before: {error};"
            " make room there, and check who may write to the folder"
        ) from error
    return copy


def _delete_other_copies(path: Path, newest: Path) -> None:
    """Delete the copies of earlier migrations, and nothing that somebody else named like them."""
    ours = re.compile(rf"{re.escape(path.name)}\.schema-[0-9]{{4}}")
    for other in path.parent.iterdir():
        if other != newest and ours.fullmatch(other.name):
            with suppress(OSError):
                other.unlink()


def recreate_schema(connection: Connection, revision: str) -> None:
    """Drop the tables of a ledger, no others, and make those of an older schema.

    Args:
        connection: to an empty ledger.
        revision: the older schema, for example `0018`.

    Raises:
        LedgerError: when there is no such schema.
    """
    present = MetaData()
    own = {VERSION_TABLE, *metadata.tables}
    present.reflect(connection, only=lambda name, _: name in own)
    present.drop_all(connection)
    upgrade_schema(connection, revision)


def upgrade_schema(connection: Connection, revision: str = "head") -> None:
    """Run the migrations up to a schema, in the transaction of the connection.

    Raises:
        LedgerError: when there is no such schema.
    """
    from alembic import command, config, util  # noqa: PLC0415 - only writers need it

    settings = config.Config()
    settings.set_main_option("script_location", _MIGRATIONS)
    settings.attributes["connection"] = connection
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            command.upgrade(settings, revision)
        except util.CommandError as error:
            raise LedgerError(f"there is no schema {revision} of a ledger") from error


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    version: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608
    return version


def _check_version(version: str | None, source: str) -> None:
    if version is None:
        raise _no_ledger_error(source)
    _refuse_unknown(version, source)
    if version < REVISION:
        raise LedgerError(
            f"the ledger {source} was made by an older slurmkit (schema {version}, this one needs"
            f" {REVISION}); whoever keeps it updates it with: slurmkit ledger upgrade"
        )


def _no_ledger_error(source: str) -> LedgerError:
    return NoLedger(f"there is no ledger at {source} yet; create it with: slurmkit ledger ingest")


def _refuse_unknown(version: str, source: str) -> None:
    if version > REVISION:
        raise LedgerError(
            f"the ledger {source} was made by a newer slurmkit (its schema is newer than"
            f" {REVISION}); upgrade slurmkit"
        )
    if version < FIRST_REVISION:
        raise LedgerError(
            f"the ledger {source} was made before slurmkit 0.1.0 (schema {version}), and no release"
            " reads it: move it away, or name another with --db; then read it again from Slurm:"
            " slurmkit ledger ingest"
        )


class _Reading(NamedTuple):
    """The transaction in which this thread reads everything, and what it has read with `once`."""

    connection: Connection
    remembered: dict[Hashable, Any]


@contextmanager
def reading_once(ledger: Ledger) -> Iterator[None]:
    """Read all of the `with` block in one transaction, and remember what is read with `once`.

    Several reports of one page need the same from the ledger. Outside of the block everything is
    read each time: a report shows the ledger as it is. Inside, nothing may change the ledger in
    this thread.
    """
    with ledger.transaction() as connection:
        before = _reading.set(_Reading(connection, {}))
        try:
            yield
        finally:
            _reading.reset(before)


def once(connection: Connection, name: Hashable, load: Callable[[], ValueT]) -> ValueT:
    """Return what `load` returns; within `reading_once` it is called once for a name.

    Nobody may change the value.
    """
    reading = _reading.get()
    if reading is None or reading.connection is not connection:
        return load()
    if name not in reading.remembered:
        reading.remembered[name] = load()
    return cast("ValueT", reading.remembered[name])
