"""Many rows at once: executemany on SQLite, COPY into a staging table on PostgreSQL.

Rows are positional, and values as the database stores them (see `schema.Unsigned64`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Table,
    Text,
    any_,
    func,
    literal,
    select,
    type_coerce,
)

Rows = Sequence[Sequence[Any]]
# Rows of one statement on SQLite: to begin a statement takes it longer than to insert a row.
_AT_ONCE = 100


def insert_rows(connection: Connection, table: Table, columns: Sequence[str], rows: Rows) -> None:
    """Insert rows that are not there yet."""
    _put(connection, table, columns, rows, "")


def insert_missing(
    connection: Connection, table: Table, columns: Sequence[str], rows: Rows
) -> None:
    """Insert those rows that no unique index refuses."""
    _put(connection, table, columns, rows, "ON CONFLICT DO NOTHING")


def replace_rows(connection: Connection, table: Table, columns: Sequence[str], rows: Rows) -> None:
    """Insert rows, or give those of the same primary key their other values."""
    _put(connection, table, columns, rows, _on_key(table, columns, "{0} = excluded.{0}"))


def add_rows(connection: Connection, table: Table, columns: Sequence[str], rows: Rows) -> None:
    """Insert rows, or add their numbers to those of the row of the same primary key."""
    added = f"{{0}} = {table.name}.{{0}} + excluded.{{0}}"
    _put(connection, table, columns, rows, _on_key(table, columns, added))


def update_rows(connection: Connection, table: Table, columns: Sequence[str], rows: Rows) -> None:
    """Set all but the first column of the rows that the first one, `id`, tells."""
    if not rows:
        return
    names = [_quoted(name) for name in columns]
    if connection.dialect.name == "sqlite":
        set_ = ", ".join(f"{name} = ?" for name in names[1:])
        sql = f"UPDATE {table.name} SET {set_} WHERE {names[0]} = ?"  # noqa: S608
        connection.exec_driver_sql(sql, [(*row[1:], row[0]) for row in rows])
        return
    staged = _stage(connection, table, columns, rows)
    set_ = ", ".join(f"{name} = {staged}.{name}" for name in names[1:])
    connection.exec_driver_sql(
        f"UPDATE {table.name} SET {set_} FROM {staged}"  # noqa: S608
        f" WHERE {table.name}.{names[0]} = {staged}.{names[0]}"
    )


def among(
    connection: Connection, column: ColumnElement[Any], values: Iterable[int | str]
) -> ColumnElement[bool]:
    """Whether a column is one of many values, given as one parameter."""
    given = list(values)
    if connection.dialect.name == "sqlite":
        return column.in_(select(func.json_each(json.dumps(given)).table_valued("value").c.value))
    kind = Text() if isinstance(column.type, Text) else BigInteger()
    return type_coerce(column, kind) == any_(literal(given, ARRAY(kind)))


def _put(
    connection: Connection, table: Table, columns: Sequence[str], rows: Rows, otherwise: str
) -> None:
    if not rows:
        return
    names = ", ".join(map(_quoted, columns))
    into = f"INSERT INTO {table.name} ({names})"
    if connection.dialect.name == "sqlite":
        _put_in_sqlite(connection, into, otherwise, rows)
    else:
        staged = _stage(connection, table, columns, rows)
        connection.exec_driver_sql(f"{into} SELECT {names} FROM {staged} {otherwise}")  # noqa: S608


def _put_in_sqlite(connection: Connection, into: str, otherwise: str, rows: Rows) -> None:
    width = len(rows[0])
    driver: Any = connection.connection.driver_connection
    most = driver.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width
    size = max(min(_AT_ONCE, most), 1)
    marks = f"({', '.join('?' * width)})"
    values = chain.from_iterable(rows)
    whole, rest = divmod(len(rows), size)
    for some, times in ((size, whole), (1, rest)):
        if times:
            sql = f"{into} VALUES {', '.join([marks] * some)} {otherwise}"
            flat = [tuple(islice(values, some * width)) for _ in range(times)]
            connection.exec_driver_sql(sql, flat)


def _stage(connection: Connection, table: Table, columns: Sequence[str], rows: Rows) -> str:
    names = ", ".join(map(_quoted, columns))
    staged = f"staged_{table.name}"
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {staged}")
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE {staged} ON COMMIT DROP AS"  # noqa: S608
        f" SELECT {names} FROM {table.name} WITH NO DATA"
    )
    driver: Any = connection.connection
    with driver.cursor() as cursor, cursor.copy(f"COPY {staged} ({names}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    return staged


def _on_key(table: Table, columns: Sequence[str], rule: str) -> str:
    keys = [column.name for column in table.primary_key]
    rules = ", ".join(rule.format(_quoted(name)) for name in columns if name not in keys)
    return f"ON CONFLICT ({', '.join(map(_quoted, keys))}) DO UPDATE SET {rules}"


def _quoted(name: str) -> str:
    return f'"{name}"'  # `end` and `user` are words of SQL
