"""Metadata, column types and conditions of all tables. Times are epoch seconds."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Dialect,
    ForeignKey,
    Integer,
    MetaData,
    TypeDecorator,
    literal,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

REVISION = "0018"
FIRST_REVISION = "0018"  # of slurmkit 0.1.0
VERSION_TABLE = "ledger_version"
_SIGN_BIT = 2**63

metadata = MetaData()


class Unsigned64(TypeDecorator[int]):
    """An unsigned 64-bit number (such as DBIndex since 24.11) in a signed column."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        """Store the upper half of the range as negative numbers."""
        del dialect
        return value if value is None or value < _SIGN_BIT else value - 2 * _SIGN_BIT

    def process_result_value(self, value: int | None, dialect: Dialect) -> int | None:
        """Read negative numbers as the upper half of the range."""
        del dialect
        return value if value is None or value >= 0 else value + 2 * _SIGN_BIT


def id_column() -> Column[int]:
    """Return the primary key column `id`."""
    # SQLite numbers rows automatically only in a column of exactly the type INTEGER.
    kind = BigInteger().with_variant(Integer(), "sqlite")
    return Column("id", kind, primary_key=True, autoincrement=True)


def foreign_key_column(
    target: str, *, name: str | None = None, nullable: bool = False
) -> Column[int]:
    """Return a foreign key column: the id of a row of another table."""
    column = name or f"{target.removesuffix('s')}_id"
    return Column(column, BigInteger, ForeignKey(f"{target}.id"), nullable=nullable)


def seconds_column(name: str, *, nullable: bool = False) -> Column[int]:
    """Return a column of times (epoch seconds) or durations (seconds)."""
    return Column(name, BigInteger, nullable=nullable)


def number_column(name: str, *, nullable: bool = False) -> Column[int]:
    """Return a column of integers."""
    return Column(name, BigInteger, nullable=nullable)


class _BeginsWith(FunctionElement[bool]):
    type = Boolean()
    inherit_cache = True
    name = "begins_with"

    def self_group(self, against: Any = None) -> ColumnElement[bool]:  # type: ignore[override]
        """Return this itself: compared with true, as other functions are, no index serves it."""
        del against
        return self


def begins_with(column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    """Return the condition that a text begins with another, which is not empty.

    SQLite compares texts byte by byte, so it takes a range: LIKE ignores case there, and uses no
    index. PostgreSQL compares them by its locale, so it takes LIKE, for which an index with
    `text_pattern_ops` serves.
    """
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    escaped = "".join(f"/{each}" if each in "/%_" else each for each in prefix)
    return _BeginsWith(column, literal(prefix), literal(after), literal(f"{escaped}%"))


@compiles(_BeginsWith)
def _like(element: _BeginsWith, compiler: SQLCompiler, **given: Any) -> str:
    column, _, _, pattern = (compiler.process(each, **given) for each in element.clauses)
    return f"({column} LIKE {pattern} ESCAPE '/')"


@compiles(_BeginsWith, "sqlite")
def _range(element: _BeginsWith, compiler: SQLCompiler, **given: Any) -> str:
    column, first, after, _ = (compiler.process(each, **given) for each in element.clauses)
    return f"({column} >= {first} AND {column} < {after})"
