"""Write many rows at once: executemany on SQLite, COPY on PostgreSQL.

COPY fills the table itself if all rows are new, else a staging table.

Rows are positional. Values are given as the database stores them (see `schema.Unsigned64`).
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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

if TYPE_CHECKING:
    import numpy as np

    Numbers: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"

TakeValues: TypeAlias = "Callable[[int, int], Iterable[Any]]"
Rows = Sequence[Sequence[Any]]
# Rows of one statement on SQLite: starting a statement takes longer than inserting a row.
_AT_ONCE = 128
# Python's sqlite3 takes as long for one None as for all other values of a row. This is faster.
_NULL, _NULL_IF = bytearray(1), "nullif(?, x'00')"
_TOGETHER = 32  # statements of one executemany
_PLAIN = re.compile(
    r"[A-Za-z0-9_:=,./ -]{0,200}"
).fullmatch  # texts that need no escaping in a statement
_NOTHING: Mapping[str, int] = MappingProxyType({})


def insert_rows(connection: Connection, table: Table, columns: Sequence[str], rows: Rows) -> None:
    """Insert rows that are new to the table; any number of calls in one transaction."""
    if rows and connection.dialect.name == "postgresql":
        # A staging table for each call would hold its locks until the end of the transaction.
        _copy(connection, table.name, columns, rows)
        return
    _put_rows(connection, _InsertTarget(table, columns), rows)


def insert_columns(
    connection: Connection,
    table: Table,
    columns: Mapping[str, Sequence[Any]],
    same: Mapping[str, int] = _NOTHING,
) -> None:
    """Insert rows that are new to the table: at least one, and no two alike.

    Args:
        connection: to the ledger.
        table: the table to insert into.
        columns: the values of each column, by its name.
        same: columns in which all rows have the same whole number, with that number.
    """
    count = len(next(iter(columns.values())))
    given = {
        name: values
        for name, values in columns.items()
        if values[0] is not None or values.count(None) < len(values)
    }
    constant = {name: values[0] for name, values in given.items() if _constant(values)}
    lists = {name: values for name, values in given.items() if name not in constant}
    nulls = [
        name
        for name, values in lists.items()
        if table.c[name].nullable and not all(values) and None in values
    ]
    if connection.dialect.name == "sqlite":
        for name in nulls:
            lists[name] = [_NULL if value is None else value for value in lists[name]]
    into = _InsertTarget(table, list(lists), {**same, **constant}, nulls=nulls)
    _put(connection, into, _row_by_row(list(lists.values())), count)


def insert_missing(
    connection: Connection, table: Table, columns: Sequence[str], rows: Rows
) -> None:
    """Insert rows; skip those that violate a unique index."""
    _put_rows(connection, _InsertTarget(table, columns, otherwise="ON CONFLICT DO NOTHING"), rows)


def replace_rows(connection: Connection, table: Table, columns: Sequence[str], rows: Rows) -> None:
    """Insert rows, or update the rows with the same primary key."""
    otherwise = _on_key(table, columns, "{0} = excluded.{0}")
    _put_rows(connection, _InsertTarget(table, columns, otherwise=otherwise), rows)


def add_numbers(
    connection: Connection, table: Table, columns: Sequence[str], numbers: Numbers
) -> None:
    """Insert rows of whole numbers, or add the numbers to the row with the same primary key."""
    keys = {column.name for column in table.primary_key}
    # Leave out columns of zeros, which cost as much as any other: most runs have few measurements.
    used = [name in keys or bool(numbers[:, index].any()) for index, name in enumerate(columns)]
    names = list(compress(columns, used))
    zeros = {name: 0 for name in columns if name not in names}
    added = f"{{0}} = {table.name}.{{0}} + excluded.{{0}}"
    into = _InsertTarget(table, names, zeros, _on_key(table, names, added))
    chosen = numbers[:, used]
    _put(connection, into, lambda begin, end: chosen[begin:end].ravel().tolist(), len(numbers))


def update_rows(connection: Connection, table: Table, columns: Sequence[str], rows: Rows) -> None:
    """Update rows; the first column, `id`, identifies a row and the others are set."""
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


def find_rows(
    connection: Connection, table: Table, columns: Sequence[str], keys: Sequence[str], rows: Rows
) -> Iterator[tuple[Any, ...]]:
    """Yield columns of the rows of a table that have one of the given values in the key columns.

    Args:
        connection: to the ledger.
        table: the table to look in.
        columns: the columns to yield.
        keys: columns without NULL, with an index.
        rows: values of the key columns.
    """
    if not rows:
        return
    wanted = ", ".join(f"{table.name}.{_quoted(name)}" for name in columns)
    if connection.dialect.name == "sqlite":
        marks = f"({', '.join('?' * len(keys))})"
        on = [f"{table.name}.{_quoted(name)} = column{at}" for at, name in enumerate(keys, 1)]
        for begin in range(0, len(rows), _AT_ONCE):
            some = rows[begin : begin + _AT_ONCE]
            sql = f"SELECT {wanted} FROM (VALUES {', '.join([marks] * len(some))})"  # noqa: S608
            sql += f" CROSS JOIN {table.name} ON {' AND '.join(on)}"  # CROSS: in this order
            yield from map(tuple, connection.exec_driver_sql(sql, tuple(chain(*some))))
        return
    staged = _stage(connection, table, keys, rows)
    both = ", ".join(map(_quoted, keys))
    sql = f"SELECT {wanted} FROM {staged} JOIN {table.name} USING ({both})"  # noqa: S608
    yield from map(tuple, connection.exec_driver_sql(sql))


def in_values(
    connection: Connection, column: ColumnElement[Any], values: Iterable[int | str]
) -> ColumnElement[bool]:
    """Return the condition that a column has one of many values, passed as one parameter."""
    given = list(values)
    if connection.dialect.name == "sqlite":
        return column.in_(select(func.json_each(json.dumps(given)).table_valued("value").c.value))
    kind = Text() if isinstance(column.type, Text) else BigInteger()
    return type_coerce(column, kind) == any_(literal(given, ARRAY(kind)))


class _InsertTarget(NamedTuple):
    """Target of an INSERT.

    Attributes:
        names: columns with a value for each row.
        same: columns with the same value in all rows, with that value: a number or plain text.
        otherwise: the ON CONFLICT clause; empty for none.
        nulls: those of `names` that are NULL in some rows.
    """

    table: Table
    names: Sequence[str]
    same: Mapping[str, int | str] = _NOTHING
    otherwise: str = ""
    nulls: Collection[str] = ()

    @property
    def begin(self) -> str:
        """The INSERT statement up to its values."""
        names = ", ".join(map(_quoted, (*self.same, *self.names)))
        return f"INSERT INTO {self.table.name} ({names})"

    def row(self, values: Sequence[str]) -> str:
        """Return the SQL of one row."""
        return ", ".join((*map(_literal, self.same.values()), *values))


def _put_rows(connection: Connection, into: _InsertTarget, rows: Rows) -> None:
    _put(connection, into, lambda begin, end: chain.from_iterable(rows[begin:end]), len(rows))


def _put(connection: Connection, into: _InsertTarget, take: TakeValues, count: int) -> None:
    """Insert `count` rows; `take(begin, end)` returns the values of some of them, row by row."""
    if not count:
        return
    if connection.dialect.name == "sqlite":
        _put_in_sqlite(connection, into, take, count)
        return
    each = [iter(take(0, count))] * len(into.names)
    rows = zip(*each, strict=True)
    staged = _stage(connection, into.table, into.names, rows)
    chosen = into.row(list(map(_quoted, into.names)))
    connection.exec_driver_sql(f"{into.begin} SELECT {chosen} FROM {staged} {into.otherwise}")  # noqa: S608


def _put_in_sqlite(
    connection: Connection, into: _InsertTarget, take: TakeValues, count: int
) -> None:
    """Insert rows by statements of many rows; halve their size for the rest."""
    width = len(into.names)
    driver: Any = connection.connection.driver_connection
    most = driver.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width
    size = max(min(_AT_ONCE, most), 1)
    marks = f"({into.row([_NULL_IF if name in into.nulls else '?' for name in into.names])})"
    begin = 0
    while begin < count:
        end = count - (count - begin) % size
        sql = f"{into.begin} VALUES {', '.join([marks] * size)} {into.otherwise}"
        for first in range(begin, end, size * _TOGETHER):
            indices = range(first, min(first + size * _TOGETHER, end), size)
            connection.exec_driver_sql(sql, [tuple(take(at, at + size)) for at in indices])
        begin, size = end, max(size // 2, 1)


def _stage(
    connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> str:
    """Copy rows into a temporary table; return its name."""
    names = ", ".join(map(_quoted, columns))
    staged = f"staged_{table.name}"
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {staged}")
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE {staged} ON COMMIT DROP AS"  # noqa: S608
        f" SELECT {names} FROM {table.name} WITH NO DATA"
    )
    _copy(connection, staged, columns, rows)
    return staged


def _copy(
    connection: Connection, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Copy rows into a table of PostgreSQL."""
    names = ", ".join(map(_quoted, columns))
    driver: Any = connection.connection
    with driver.cursor() as cursor, cursor.copy(f"COPY {name} ({names}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def _on_key(table: Table, columns: Sequence[str], rule: str) -> str:
    keys = [column.name for column in table.primary_key]
    rules = ", ".join(rule.format(_quoted(name)) for name in columns if name not in keys)
    return f"ON CONFLICT ({', '.join(map(_quoted, keys))}) DO UPDATE SET {rules}"


def _row_by_row(columns: Sequence[Sequence[Any]]) -> TakeValues:
    """Return a function that gives the values of some rows of columns, row by row."""

    def take(begin: int, end: int) -> list[Any]:
        flat = [None] * ((end - begin) * len(columns))
        for index, values in enumerate(columns):
            flat[index :: len(columns)] = values[begin:end]
        return flat

    return take


def _constant(values: Sequence[Any]) -> bool:
    """Return whether all values are the same and can be written into a statement."""
    first, count = values[0], len(values)
    if count < _AT_ONCE or values[-1] != first or values.count(first) < count:
        return False  # for few rows, using the same statement again saves more
    return isinstance(first, int) or (isinstance(first, str) and bool(_PLAIN(first)))


def _literal(value: int | str) -> str:
    return f"'{value}'" if isinstance(value, str) else str(int(value))


def _quoted(name: str) -> str:
    return f'"{name}"'  # `end` and `user` are SQL keywords
