"""What the service has done: tasks of its schedule, and who was told what."""

from __future__ import annotations

from sqlalchemy import Column, Table, Text, UniqueConstraint

from slurmkit_accounting.schema.base import metadata, own_id, seconds

# One row per task of the schedule. What was to be done up to `due` is done.
task_runs = Table(
    "task_runs",
    metadata,
    Column("task", Text, primary_key=True),
    seconds("due"),
    # The last run; `ended` is NULL while it runs, or where it was cut off.
    seconds("started", nullable=True),
    seconds("ended", nullable=True),
    # When it last ended well, and why the last run did not.
    seconds("well", nullable=True),
    Column("error", Text),
)

# What is told once: `about` (a month, a budget's share) to `whom` (a person's directory id, an
# address). `sending` is set just before the message is handed over and taken back when it is
# refused, so a row with `sending` and no `done` was cut off in between: it may have arrived.
mailings = Table(
    "mailings",
    metadata,
    own_id(),
    Column("kind", Text, nullable=False),
    Column("about", Text, nullable=False),
    Column("whom", Text, nullable=False),
    seconds("intended"),
    seconds("sending", nullable=True),
    seconds("done", nullable=True),
    Column("error", Text),
    UniqueConstraint("kind", "about", "whom", name="mailings_once"),
)
