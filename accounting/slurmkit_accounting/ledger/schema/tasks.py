"""Tables of the service: last runs of scheduled tasks, and notices sent."""

from __future__ import annotations

from sqlalchemy import Column, Table, Text, UniqueConstraint

from slurmkit_accounting.ledger.schema.types import id_column, metadata, seconds_column

# One row per scheduled task. Everything due up to `due` is done.
task_runs = Table(
    "task_runs",
    metadata,
    Column("task", Text, primary_key=True),
    seconds_column("due"),
    # The last run; `ended` is NULL while it runs, or if it was cut off.
    seconds_column("started", nullable=True),
    seconds_column("ended", nullable=True),
    # When the task last succeeded, and why the last run failed.
    seconds_column("well", nullable=True),
    Column("error", Text),
)

# Notices that are sent once: `about` (a month, a share of a budget) to `whom` (a directory id, or
# notifier and PI). `sending` is set just before the handover, and set back to NULL when the notice
# is refused. A row with `sending` but without `done` was cut off and may have arrived.
mailings = Table(
    "mailings",
    metadata,
    id_column(),
    Column("kind", Text, nullable=False),
    Column("about", Text, nullable=False),
    Column("whom", Text, nullable=False),
    seconds_column("intended"),
    seconds_column("sending", nullable=True),
    seconds_column("done", nullable=True),
    Column("error", Text),
    UniqueConstraint("kind", "about", "whom", name="mailings_once"),
)
