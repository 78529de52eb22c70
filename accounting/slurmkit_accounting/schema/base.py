"""What all tables of the ledger share. Times are epoch seconds."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Dialect, ForeignKey, Integer, MetaData, TypeDecorator

REVISION = "0004"
VERSION_TABLE = "ledger_version"
_HALF = 2**63

metadata = MetaData()


class Unsigned64(TypeDecorator[int]):
    """A 64-bit number without a sign, such as DBIndex since 24.11, in a column with one."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        """The upper half is stored as negative numbers."""
        del dialect
        return value if value is None or value < _HALF else value - 2 * _HALF

    def process_result_value(self, value: int | None, dialect: Dialect) -> int | None:
        """And comes back as it was."""
        del dialect
        return value if value is None or value >= 0 else value + 2 * _HALF


def own_id() -> Column[int]:
    """The number of a row."""
    # SQLite counts rows up by itself only in a column of exactly the type INTEGER.
    kind = BigInteger().with_variant(Integer(), "sqlite")
    return Column("id", kind, primary_key=True, autoincrement=True)


def to(target: str, *, name: str | None = None, nullable: bool = False) -> Column[int]:
    """The number of a row of another table."""
    column = name or f"{target.removesuffix('s')}_id"
    return Column(column, BigInteger, ForeignKey(f"{target}.id"), nullable=nullable)


def seconds(name: str, *, nullable: bool = False) -> Column[int]:
    """A time, or a number of seconds."""
    return Column(name, BigInteger, nullable=nullable)


def number(name: str, *, nullable: bool = False) -> Column[int]:
    """A whole number."""
    return Column(name, BigInteger, nullable=nullable)
