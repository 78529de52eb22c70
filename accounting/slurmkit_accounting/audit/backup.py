"""Copy a whole ledger: into another database, into a file while it is in use, and from there."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from itertools import compress
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Connection,
    LargeBinary,
    MetaData,
    Table,
    func,
    select,
    text,
    type_coerce,
)

from slurmkit.errors import LedgerError
from slurmkit.version import __version__
from slurmkit_accounting.audit.backup_file import (
    FORMAT,
    FORMAT_VERSION,
    BackupHeader,
    BackupRows,
    new_backup_file,
    read_header,
    read_rows,
    require_replaceable,
)
from slurmkit_accounting.audit.verify import checksum
from slurmkit_accounting.ledger.bulk_write import insert_rows
from slurmkit_accounting.ledger.database import Ledger, recreate_schema, upgrade_schema
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.types import REVISION, VERSION_TABLE, Unsigned64, metadata
from slurmkit_accounting.usage.tables import RunProgress, no_progress

_MANY = 20_000


def copy_ledger(source: Ledger, target: Ledger) -> str:
    """Copy all tables into an empty ledger; return the checksum of both.

    Raises:
        LedgerError: when the target is not empty, its checksum would differ, or an ingest runs.
    """
    with (
        hold_ledger_lock(target, "ingest"),
        source.transaction() as here,
        target.transaction() as there,
    ):
        _require_empty(there, target.source)
        for table in metadata.sorted_tables:
            _copy_table(table, here, there)
        expected, got = checksum(here), checksum(there)
        if expected != got:
            raise LedgerError(
                f"the copy in {target.source} has another checksum; nothing was copied"
            )
        return got


def _copy_table(table: Table, here: Connection, there: Connection) -> None:
    for rows in stored_rows(here, table):
        insert_rows(there, table, table.columns.keys(), rows)
    _advance_sequence(there, table)


class RestoredLedger(msgspec.Struct, frozen=True):
    """What was restored.

    Attributes:
        header: of the backup.
        checksum: of the ledger now. With a backup of an older schema it may differ from the one
            in the header, because the checksum covers the columns of its release.
    """

    header: BackupHeader
    checksum: str


def back_up(ledger: Ledger, path: Path, progress: RunProgress = no_progress) -> BackupHeader:
    """Write all tables, as they are at one moment, into a file; return its header.

    One transaction reads everything, so an ingest or any other writer can go on.

    Args:
        ledger: opened for reading.
        path: the file; an older backup there is replaced, anything else is refused.
        progress: called with the number of rows written, and of all.

    Raises:
        BadInput: when there is another file at `path`.
        LedgerError: when the ledger cannot be read or the file cannot be written.
    """
    require_replaceable(path)  # before minutes of work
    with ledger.transaction() as connection:
        return write_backup(connection, path, metadata.sorted_tables, ledger.source, progress)


def write_backup(
    connection: Connection,
    path: Path,
    tables: Collection[Table],
    source: str,
    progress: RunProgress = no_progress,
) -> BackupHeader:
    """Write the tables of a ledger into a file; see `back_up`."""
    taken = int(time.time())
    counts = {
        str(table.name): connection.scalar(select(func.count()).select_from(table)) or 0
        for table in tables
    }
    header = BackupHeader(
        FORMAT, FORMAT_VERSION, __version__, REVISION, taken, source,
        checksum(connection), counts,
    )  # fmt: skip
    done, total = 0, sum(counts.values())
    with new_backup_file(path, header) as writer:
        for table in tables:
            writer.begin_table(table.name, table.columns.keys())
            for rows in stored_rows(connection, table):
                writer.write_rows(rows)
                done += len(rows)
                progress(done, total)
    return header


def check_backup(path: Path, progress: RunProgress = no_progress) -> BackupHeader:
    """Read all of a backup; return its header.

    Raises:
        LedgerError: when it is no backup, or is cut off, damaged or altered.
    """
    header = read_header(path)
    done, total = 0, sum(header.rows.values())
    for some in read_rows(path):
        done += len(some.rows)
        progress(done, total)
    return header


def restore(path: Path, ledger: Ledger, progress: RunProgress = no_progress) -> RestoredLedger:
    """Fill an empty ledger from a backup, in one transaction.

    A backup of an older schema is restored into that schema, which the migrations then upgrade.

    Args:
        path: the file of the backup.
        ledger: opened for writing.
        progress: called with the number of rows restored, and of all.

    Raises:
        LedgerError: when the ledger has rows or an ingest runs, when the file is damaged, or when
            the checksum would differ. Nothing is restored then.
    """
    with hold_ledger_lock(ledger, "ingest"), ledger.transaction() as connection:
        _require_empty(connection, ledger.source)
        header = read_header(path)
        is_older = header.schema < REVISION
        if is_older:
            recreate_schema(connection, header.schema)
        _insert_all(connection, path, header, progress)
        if is_older:
            upgrade_schema(connection)
        got = checksum(connection)
        if got != header.checksum and not is_older:
            raise LedgerError(
                f"the ledger restored from {path} would have another checksum; nothing was restored"
            )
        return RestoredLedger(header, got)


def _insert_all(
    connection: Connection, path: Path, header: BackupHeader, progress: RunProgress
) -> None:
    known = MetaData()
    known.reflect(connection)
    known.remove(known.tables[VERSION_TABLE])
    if strange := sorted(header.rows.keys() - known.tables.keys()):
        raise LedgerError(f"the backup {path} has tables that no ledger has: {', '.join(strange)}")
    done, total = 0, sum(header.rows.values())
    for some in read_rows(path):
        _insert(connection, known.tables[some.table.table], some, path)
        done += len(some.rows)
        progress(done, total)
    for name in header.rows:
        _advance_sequence(connection, known.tables[name])


def _insert(connection: Connection, table: Table, some: BackupRows, path: Path) -> None:
    names = some.table.columns
    if strange := sorted(set(names) - set(table.columns.keys())):
        raise LedgerError(
            f"the backup {path} has columns that {table.name} does not have: {', '.join(strange)}"
        )
    binary = [isinstance(table.columns[name].type, LargeBinary) for name in names]
    for at in compress(range(len(names)), binary):
        for row in some.rows:
            row[at] = _decode_binary(row[at], table.name, path)
    insert_rows(connection, table, names, some.rows)


def _decode_binary(value: Any, table: str, path: Path) -> bytes | None:
    try:
        return msgspec.convert(value, bytes | None)
    except msgspec.ValidationError as error:
        raise LedgerError(f"the backup {path} has a value in {table} that is no base64") from error


def _require_empty(connection: Connection, source: str) -> None:
    """Raise LedgerError if a ledger has any row.

    Args:
        connection: to the ledger.
        source: its path or URL, for the error.
    """
    for table in metadata.sorted_tables:
        if connection.scalar(select(func.count()).select_from(table)):
            raise LedgerError(f"{source} already has rows in {table.name}; name an empty database")


def stored_rows(connection: Connection, table: Table) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a table, 20,000 at a time, with values as the database stores them."""
    columns = [
        type_coerce(column, BigInteger) if isinstance(column.type, Unsigned64) else column
        for column in table.columns
    ]
    with connection.execute(select(*columns), execution_options={"yield_per": _MANY}) as found:
        for some in found.partitions():
            yield [tuple(row) for row in some]


def _advance_sequence(connection: Connection, table: Table) -> None:
    """Let PostgreSQL number new rows after those that were inserted with their ids."""
    if connection.dialect.name == "postgresql" and "id" in table.columns:
        connection.execute(
            text(
                f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'),"  # noqa: S608
                f" (SELECT coalesce(max(id), 0) + 1 FROM {table.name}), false)"
            )
        )
