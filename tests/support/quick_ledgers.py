"""New ledgers for tests in a fraction of the time: what the migrations ran is run again.

The first new ledger of a process is made by the real migrations, on SQLite and on PostgreSQL. On
SQLite the further ones are copies of its file. On PostgreSQL its tables are kept without rows, in
another schema, until the next ledger is made; if a test changed a table, its ledger is dropped and
the statements of the first make the next one. Migrations of a ledger that is there are always the
real ones.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from slurmkit_accounting.ledger import database
from slurmkit_accounting.ledger.schema import VERSION_TABLE
from sqlalchemy import Connection, event, inspect, text

_READS = ("select", "pragma", "explain", "show")
_KEPT = "kept_between_tests"
# A deleted row is looked for in each table that refers to it, which takes long for many.
_MOST_ROWS = 1000
_create, _make_file = database._create, database._make_file
_statements: list[tuple[str, Any]] = []
_catalog_as_made: list[str] = []

# Any change of a table, a column, an index, a constraint or a right writes a catalog row anew.
_CATALOG = text("""
    SELECT md5(string_agg(entry, ',' ORDER BY entry)) FROM (
        SELECT concat('schema', nspacl) AS entry FROM pg_namespace WHERE nspname = 'public'
        UNION ALL SELECT concat(tableoid, ' ', oid, ' ', xmin)
            FROM pg_class WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat(tableoid, ' ', oid, ' ', xmin)
            FROM pg_constraint WHERE connamespace = to_regnamespace('public')
        UNION ALL SELECT concat(tableoid, ' ', oid, ' ', xmin)
            FROM pg_proc WHERE pronamespace = to_regnamespace('public')
        UNION ALL SELECT concat(a.tableoid, ' ', c.oid, ' ', a.attnum, ' ', a.xmin)
            FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            WHERE c.relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat(d.tableoid, ' ', d.oid, ' ', d.xmin)
            FROM pg_attrdef d JOIN pg_class c ON c.oid = d.adrelid
            WHERE c.relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat(t.tableoid, ' ', t.oid, ' ', t.xmin)
            FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
            WHERE c.relnamespace = to_regnamespace('public')
    ) entries
""")
_RESTART_IDS = text("""
    SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)
    FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL
""")


def make_quickly(patch: pytest.MonkeyPatch) -> None:
    """Make new ledgers in a fraction of the time, and wait for no disk."""
    patch.setattr(database, "_create", _create_quickly)
    patch.setattr(database, "_make_file", _copy_first)
    patch.setattr(database, "_FOR_WRITERS", (*database._FOR_WRITERS, "synchronous=OFF"))


def _copy_first(path: Path) -> None:
    is_new = not path.exists()
    _make_file(path)
    if is_new:
        path.write_bytes(_first_file())


@cache
def _first_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger.db")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database, "_create", _create)
            patch.setattr(database, "_make_file", _make_file)
            with database.open_for_writing(f"sqlite:///{path}"):
                pass
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        return path.read_bytes()


def _create_quickly(connection: Connection, source: str) -> None:
    """Make the tables of a new ledger; see `slurmkit_accounting.ledger.database._create`."""
    if connection.dialect.name == "sqlite" or inspect(connection).get_table_names():
        _create(connection, source)  # where tables are, it refuses
    elif _catalog_as_made and _is_kept(connection):
        connection.execute(text("DROP SCHEMA public"))
        connection.execute(text(f"ALTER SCHEMA {_KEPT} RENAME TO public"))
    else:
        if _statements:
            for statement, parameters in _statements:
                connection.exec_driver_sql(statement, parameters)
        else:
            _statements[:] = _record(connection, source)
        _catalog_as_made[:] = [connection.execute(_CATALOG).scalar_one()]


def empty_postgres(connection: Connection) -> None:
    """Leave nothing in the schema `public`; keep its tables aside if no test changed them."""
    if _catalog_as_made != [connection.execute(_CATALOG).scalar_one()] or not _clear(connection):
        connection.execute(text("DROP SCHEMA IF EXISTS public CASCADE"))
        if not _catalog_as_made:  # what an earlier process kept
            connection.execute(text(f"DROP SCHEMA IF EXISTS {_KEPT} CASCADE"))
    elif _is_kept(connection):
        connection.execute(text("DROP SCHEMA public CASCADE"))
    else:
        connection.execute(text(f"ALTER SCHEMA public RENAME TO {_KEPT}"))
    connection.execute(text("CREATE SCHEMA public"))


def _is_kept(connection: Connection) -> bool:
    return inspect(connection).has_schema(_KEPT)


def _clear(connection: Connection) -> bool:
    """Delete the rows of a ledger, all but its version; return False where they are too many."""
    tables = [name for name in inspect(connection).get_table_names() if name != VERSION_TABLE]
    counts = connection.execute(
        text(
            " UNION ALL ".join(
                f"SELECT '{name}', count(*) FROM (SELECT FROM \"{name}\" LIMIT {_MOST_ROWS + 1}) s"  # noqa: S608 - our own tables
                for name in tables
            )
        )
    ).all()
    if any(count > _MOST_ROWS for _, count in counts):
        return False
    # In one statement, because PostgreSQL looks for rows that refer to a deleted one at its end.
    filled = [f'gone_{name} AS (DELETE FROM "{name}")' for name, count in counts if count]  # noqa: S608 - our own tables
    if filled:
        connection.execute(text(f"WITH {', '.join(filled)} SELECT 1"))
    connection.execute(_RESTART_IDS)
    return True


def _record(connection: Connection, source: str) -> list[tuple[str, Any]]:
    """Run the migrations; return what they ran that changes something."""
    found: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if not statement.lstrip().lower().startswith(_READS):
            found.append((statement, parameters or None))

    event.listen(connection, "before_cursor_execute", note)
    try:
        _create(connection, source)
    finally:
        event.remove(connection, "before_cursor_execute", note)
    return found
