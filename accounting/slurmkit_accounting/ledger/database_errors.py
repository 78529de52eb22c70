"""Errors of the database as LedgerErrors of one line, with what the user can do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DataError, SQLAlchemyError

from slurmkit.errors import LedgerError

USAGE_TOO_LARGE = "the usage of all runs together would not fit into 64 bits"
# What says that a sum does not fit into 64 bits: ours, the check of the usage tables, SQLite's
# sum(), PostgreSQL.
_SUMS_OVERFLOW = ("_sums_fit", "bigint out of range")
_OVERFLOWS = (*_SUMS_OVERFLOW, "fit into 64 bits", "integer overflow", "out of range")
# Part of a database error, and what the user can do about it.
_ADVICE = (
    ("file is not a database", "this file is not a ledger; name another with --db"),
    ("unable to open", "check the path and its permissions, or name another with --db"),
    ("readonly", "you may not write to it; name another with --db"),
    ("locked", "another command is writing to it; try again"),
    ("disk is full", "free some space and run the command again"),
    ("password", "put the password in ~/.pgpass or PGPASSWORD"),
    ("connection failed", "check the host name, and that PostgreSQL runs there"),
    *((sign, "a number of some run is too large to be true") for sign in _OVERFLOWS),
)


@contextmanager
def translate_database_errors(source: str) -> Iterator[None]:
    """Translate errors of the database to a LedgerError of one line."""
    try:
        yield
    except _database_errors() as error:
        advice = next((advice for sign, advice in _ADVICE if sign in _message(error)), None)
        hint = f"; {advice}" if advice else ""
        raise LedgerError(f"cannot use the ledger {source}: {first_line(error)}{hint}") from error


@contextmanager
def translate_file_errors(path: Path) -> Iterator[None]:
    """Translate errors of the ledger's file to a LedgerError."""
    try:
        yield
    except OSError as error:
        make = "make its folder, or " if isinstance(error, FileNotFoundError) else ""
        raise LedgerError(
            f"cannot create or open the ledger {path}: {error.strerror}; {make}name another place"
            " with --db URL or SLURMKIT_DB"
        ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without the SQL that SQLAlchemy adds."""
    if any(sign in _message(error) for sign in _SUMS_OVERFLOW):
        return USAGE_TOO_LARGE
    return (_message(error).splitlines() or [type(error).__name__])[0]


def is_value_error(error: BaseException | None) -> bool:
    """Return whether an error is about a value that cannot be counted, added up or stored."""
    psycopg = sys.modules.get("psycopg")
    of_database = (DataError,) if psycopg is None else (DataError, psycopg.DataError)
    return is_overflow(error) or isinstance(error, (ArithmeticError, ValueError, *of_database))


def is_overflow(error: BaseException | None) -> bool:
    """Return whether an error is about sums of usage that do not fit into 64 bits."""
    if isinstance(error, OverflowError):
        return True
    return error is not None and any(sign in _message(error) for sign in _SUMS_OVERFLOW)


def _message(error: BaseException) -> str:
    return str(getattr(error, "orig", None) or error).strip()


def _database_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of the database; COPY bypasses SQLAlchemy, so psycopg's own too."""
    psycopg = sys.modules.get("psycopg")
    ours = (SQLAlchemyError, OverflowError)  # sqlite3 raises this for a number beyond 64 bits
    return ours if psycopg is None else (*ours, psycopg.Error)
