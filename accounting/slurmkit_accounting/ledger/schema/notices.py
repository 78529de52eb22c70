"""Tables of notices and mails about jobs, and of the service's scheduled tasks."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Table, Text, UniqueConstraint, text

from slurmkit_accounting.ledger.schema.types import (
    id_column,
    metadata,
    number_column,
    seconds_column,
)

# One row per scheduled task. Everything due up to `due` is done. The reading of each cluster's node
# events has one, too: see `node_events_task`.
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


def node_events_task(cluster: str) -> str:
    """Return the name in `task_runs` of the reading of a cluster's node events."""
    return f"node events of {cluster}"


# One row per event that slurmctld gave to its MailProg, see
# `slurmkit_accounting.notify.spool.JobEvent`. `done` is NULL while the event waits for its mail.
# Rows stay some days after that, so that an event that comes again is recognized.
job_events = Table(
    "job_events",
    metadata,
    id_column(),
    Column("digest", Text, nullable=False, unique=True),
    Column("cluster", Text, nullable=False),
    Column("job_id_raw", BigInteger, nullable=False),
    # Of an array: its id, and whether the event is about all of it.
    number_column("array_id", nullable=True),
    Column("whole_array", Boolean, nullable=False),
    Column("kind", Text, nullable=False),
    Column("user", Text, nullable=False),
    number_column("uid", nullable=True),
    # As slurmctld gave it: a mail address or a user name.
    Column("address", Text, nullable=False),
    seconds_column("at"),
    # What else slurmctld reported, as JSON.
    Column("facts", Text, nullable=False),
    # The mail that was tried to send of it, see `slurmkit_accounting.notify.mailings`.
    Column("mailing", Text),
    seconds_column("done", nullable=True),
)
# As text: a query must repeat it literally, or SQLite does not use the partial index.
WAITING = "done IS NULL"
Index(
    "job_events_waiting",
    job_events.c.id,
    sqlite_where=text(WAITING),
    postgresql_where=text(WAITING),
)

# What a user wants mails of, and when. Without a row: of everything, at once. A uid counts only
# together with the user's name, since both may be given to somebody else later.
mail_settings = Table(
    "mail_settings",
    metadata,
    Column("uid", BigInteger, primary_key=True, autoincrement=False),
    Column("user", Text, nullable=False),
    Column("mails", Text, nullable=False),
    Column("about", Text, nullable=False),
    seconds_column("changed"),
)
