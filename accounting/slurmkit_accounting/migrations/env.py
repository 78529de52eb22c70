"""Run the migrations on the connection that `slurmkit_accounting.ledger.database` hands over."""

from alembic import context
from slurmkit_accounting.ledger.schema.types import VERSION_TABLE, metadata
from slurmkit_accounting.usage.tables import rebuild_usage

_USAGE = "0002"  # the revision that added the tables of usage

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, version_table=VERSION_TABLE)
with context.begin_transaction():
    before = context.get_context().get_current_revision()
    context.run_migrations()
    if before is not None and before < _USAGE:
        rebuild_usage(connection)  # by the newest schema, so after all migrations
