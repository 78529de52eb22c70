"""Run the migrations on the connection that `slurmkit_accounting.ledger.database` hands over."""

import sys

from alembic import context
from slurmkit_accounting.ledger.schema.types import REVISION, VERSION_TABLE, metadata
from slurmkit_accounting.usage.tables import USAGE_TABLES, rebuild_usage

_USAGE = "0007"  # the revision that last changed what the tables of usage hold


def _show(done: int, total: int) -> None:
    """Say how far it is, since this takes a minute for some million runs."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        sys.stderr.write(f"\rupdating the ledger: {done:,} of {total:,} runs{end}")


connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, version_table=VERSION_TABLE)
with context.begin_transaction():
    before = context.get_context().get_current_revision()
    context.run_migrations()
    after = context.get_context().get_current_revision() or ""
    if (before or "") < _USAGE and after == REVISION:
        # By the newest schema, so after all migrations; with its checks, which SQLite cannot add.
        for table in USAGE_TABLES:
            table.drop(connection)
            table.create(connection)
        if before is not None:
            rebuild_usage(connection, _show)
