"""Move a whole ledger from one database to another."""

from __future__ import annotations

from sqlalchemy import BigInteger, Connection, Table, func, select, text, type_coerce

from slurmkit.errors import LedgerError
from slurmkit_accounting.bulk import insert_rows
from slurmkit_accounting.checksum import checksum
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.locks import alone
from slurmkit_accounting.schema import Unsigned64, metadata

_MANY = 20_000


def move(source: Ledger, target: Ledger) -> str:
    """Copy everything into a ledger that has nothing yet; return the checksum of both.

    Raises:
        LedgerError: where the target has something, or would have another checksum, and while
            something is read into it.
    """
    with (
        alone(target, "ingest"),
        source.transaction() as here,
        target.transaction() as there,
    ):
        for table in metadata.sorted_tables:
            if there.scalar(select(func.count()).select_from(table)):
                raise LedgerError(
                    f"{target.source} has rows in {table.name} already; name a new database"
                )
        for table in metadata.sorted_tables:
            _copy(table, here, there)
        expected, got = checksum(here), checksum(there)
        if expected != got:
            raise LedgerError(f"the copy in {target.source} is not equal; nothing was kept")
        return got


def _copy(table: Table, here: Connection, there: Connection) -> None:
    columns = [
        type_coerce(column, BigInteger) if isinstance(column.type, Unsigned64) else column
        for column in table.columns
    ]
    names = table.columns.keys()
    found = here.execute(select(*columns), execution_options={"yield_per": _MANY})
    for some in found.partitions():
        insert_rows(there, table, names, [tuple(row) for row in some])
    if there.dialect.name == "postgresql" and "id" in names:
        # Rows that came with their numbers did not count them up.
        there.execute(
            text(
                f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'),"  # noqa: S608
                f" (SELECT coalesce(max(id), 0) + 1 FROM {table.name}), false)"
            )
        )
