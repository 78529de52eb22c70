"""Locks for one task on a ledger at a time; a lock is released when its process ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from slurmkit.config.paths import lock_file, open_lock_file
from slurmkit.errors import LedgerError
from slurmkit_accounting.ledger.database_errors import translate_database_errors


class LockableLedger(Protocol):
    """A `Ledger`, as far as locks need it; they are below it, since a migration takes one."""

    engine: Engine
    source: str


@contextmanager
def hold_ledger_lock(ledger: LockableLedger, task: str) -> Iterator[None]:
    """Hold the ledger's lock for `task`.

    Raises:
        LedgerError: when another process holds it.
    """
    lock = _file_lock if ledger.engine.dialect.name == "sqlite" else _advisory_lock
    with lock(ledger, task):
        yield


@contextmanager
def _file_lock(ledger: LockableLedger, task: str) -> Iterator[None]:
    path = Path(f"{ledger.source}.{task}-lock")
    try:
        lock = open_lock_file(path)
    except OSError as error:
        raise _lock_error(path, error) from error
    with lock:
        try:
            free = lock_file(lock)
        except OSError as error:
            raise _lock_error(path, error) from error
        if not free:
            raise _busy_error(ledger, task)
        yield


@contextmanager
def _advisory_lock(ledger: LockableLedger, task: str) -> Iterator[None]:
    # A separate connection without transactions: the lock lasts as long as its session.
    with translate_database_errors(ledger.source):
        connection = ledger.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        with translate_database_errors(ledger.source):
            query = text("SELECT pg_try_advisory_lock(hashtext(:task))")
            held = connection.scalar(query, {"task": f"slurmkit {task}"})
        if not held:
            raise _busy_error(ledger, task)
        yield
    finally:
        # Unlock now: the server notices the end of the session a little later.
        with suppress(SQLAlchemyError):
            connection.execute(text("SELECT pg_advisory_unlock_all()"))
        connection.invalidate()
        connection.close()


def _lock_error(path: Path, error: OSError) -> LedgerError:
    return LedgerError(f"cannot lock the ledger with {path}: {error.strerror}")


def _busy_error(ledger: LockableLedger, task: str) -> LedgerError:
    return LedgerError(
        f"another {task} is writing to the ledger {ledger.source}; wait for it to end"
    )
