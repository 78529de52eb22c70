"""Run the migrations on the connection that `slurmkit_accounting.ledger.database` hands over."""

from alembic import context
from slurmkit_accounting.ledger.schema.types import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
