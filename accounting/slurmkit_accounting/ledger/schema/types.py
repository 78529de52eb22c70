"""Metadata, column types and column helpers of all tables. Times are epoch seconds."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Dialect, ForeignKey, Integer, MetaData, TypeDecorator

REVISION = "0012"
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
