"""Copy a whole ledger to another database."""

from __future__ import annotations

from sqlalchemy import BigInteger, Connection, Table, func, select, text, type_coerce

from slurmkit.errors import LedgerError
from slurmkit_accounting.audit.verify import checksum
from slurmkit_accounting.ledger.bulk_write import insert_rows
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.types import Unsigned64, metadata

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
        for table in metadata.sorted_tables:
            if there.scalar(select(func.count()).select_from(table)):
                raise LedgerError(
                    f"{target.source} already has rows in {table.name}; name an empty database"
                )
        for table in metadata.sorted_tables:
            _copy(table, here, there)
        expected, got = checksum(here), checksum(there)
        if expected != got:
            raise LedgerError(
                f"the copy in {target.source} has another checksum; nothing was copied"
            )
        return got


def _copy(table: Table, here: Connection, there: Connection) -> None:
    columns = [
        type_coerce(column, BigInteger) if isinstance(column.type, Unsigned64) else column
        for column in table.columns
    ]
    names = table.columns.keys()
    with here.execute(select(*columns), execution_options={"yield_per": _MANY}) as found:
        for some in found.partitions():
            insert_rows(there, table, names, [tuple(row) for row in some])
    if there.dialect.name == "postgresql" and "id" in names:
        # Rows inserted with their ids did not advance the sequence.
        there.execute(
            text(
                f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'),"  # noqa: S608
                f" (SELECT coalesce(max(id), 0) + 1 FROM {table.name}), false)"
            )
        )
