"""Events of jobs in the ledger: read from the spool once, stored until their mail is sent."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from sqlalchemy import Connection, delete, not_, or_, select, text, update

from slurmkit.errors import LedgerError
from slurmkit_accounting.ledger.bulk_write import in_values, insert_missing
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.notices import WAITING, job_events, mailings
from slurmkit_accounting.notify.spool import JobEvent, read_spool

KIND = "job"
"""The kind of notice that a mail about jobs is."""
_BATCH = 2000  # events of the spool in one transaction
_KEEP_SECONDS = 7 * 86400  # an event that comes again in this time is known
_KEEP_MAILS_SECONDS = 90 * 86400  # a later start of an array's task would be reported as its first
_COLUMNS = (
    "digest", "cluster", "job_id_raw", "array_id", "whole_array", "kind", "user", "uid", "address",
    "at", "facts",
)  # fmt: skip


class WaitingEvent(msgspec.Struct, frozen=True):
    """An event that waits for its mail.

    Attributes:
        row: its row.
        mailing: the mail that was tried to send of it; None if none was yet.
    """

    row: int
    event: JobEvent
    mailing: str | None = None


class EventsTakenError(Exception):
    """Events are in another mail, as when their user has just chosen other mails."""


class TakenOver(msgspec.Struct):
    """What was taken over from the spool: events, and files that were none and are removed.

    `trouble` says why the first event that is still there could not be read.
    """

    events: int = 0
    damaged: int = 0
    trouble: str = ""


def take_over(ledger: Ledger, folder: Path) -> TakenOver:
    """Move all events of the spool into the ledger; an event that is there already is not added.

    A file is removed only once its event is stored, so nothing is lost when this is cut off.

    Raises:
        BadConfig: when the spool cannot be read.
        LedgerError: when a file cannot be removed, or the ledger cannot be written.
    """
    taken = TakenOver()
    while files := list(read_spool(folder, _BATCH)):
        read = [each for each in files if not each.trouble]
        events = [each.event for each in read if each.event is not None]
        with ledger.transaction() as connection:
            store_events(connection, events)
        for each in read:
            _remove(each.path)
        taken.events += len(events)
        taken.damaged += len(read) - len(events)
        taken.trouble = taken.trouble or next((each.trouble for each in files if each.trouble), "")
        if len(read) < _BATCH:
            break
    return taken


def _remove(path: Path) -> None:
    try:
        with suppress(FileNotFoundError):
            path.unlink()
    except OSError as error:
        raise LedgerError(
            f"[job_mail] spool: cannot remove {path}: {error.strerror}; the service's account must"
            " be able to write the folder"
        ) from error


def store_events(connection: Connection, events: Iterable[JobEvent]) -> None:
    """Store events; skip those that are there already."""
    rows = [
        tuple(
            msgspec.json.encode(each.facts).decode() if name == "facts" else getattr(each, name)
            for name in _COLUMNS
        )
        for each in {each.digest: each for each in events}.values()
    ]
    if rows:
        insert_missing(connection, job_events, _COLUMNS, rows)


def load_waiting_users(connection: Connection) -> list[tuple[int | None, str]]:
    """Load uid and name of the users who have events that wait for their mail."""
    query = select(job_events.c.uid, job_events.c.user).where(text(WAITING)).distinct()
    return [(uid, user) for uid, user in connection.execute(query)]


def load_waiting_events(
    connection: Connection, *, but_new_of: Collection[str] = (), but_begun: str | None = None
) -> list[WaitingEvent]:
    """Load the events that wait for their mail, in the order in which they came.

    Args:
        connection: to the ledger.
        but_new_of: without the events of these users that are in no mail yet.
        but_begun: without the events in mails whose name begins so.
    """
    columns = (job_events.c.id, job_events.c.mailing, *(job_events.c[name] for name in _COLUMNS))
    query = select(*columns).where(text(WAITING)).order_by(job_events.c.id)
    mailing = job_events.c.mailing
    if but_new_of:
        of_them = in_values(connection, job_events.c.user, but_new_of)
        query = query.where(or_(mailing.is_not(None), not_(of_them)))
    if but_begun is not None:
        query = query.where(or_(mailing.is_(None), not_(mailing.startswith(but_begun))))
    return [
        WaitingEvent(
            row.id,
            JobEvent(
                **{name: getattr(row, name) for name in _COLUMNS[:-1]},
                facts=msgspec.json.decode(row.facts, type=dict[str, str]),
            ),
            row.mailing,
        )
        for row in connection.execute(query)
    ]


def begin_mailing(connection: Connection, rows: Collection[int], mailing: str) -> None:
    """Record with which mail events are sent, before it is tried for the first time.

    Raises:
        EventsTakenError: when one of them is in another mail by now; roll the transaction back.
    """
    of_these = in_values(connection, job_events.c.id, rows)
    free = (of_these, job_events.c.mailing.is_(None), text(WAITING))
    changed = connection.execute(update(job_events).where(*free).values(mailing=mailing))
    if changed.rowcount != len(set(rows)):
        raise EventsTakenError


def finish_events(connection: Connection, rows: Collection[int]) -> None:
    """Record that events wait no longer."""
    of_these = in_values(connection, job_events.c.id, rows)
    connection.execute(update(job_events).where(of_these).values(done=int(time.time())))


def forget_finished(connection: Connection, now: int) -> None:
    """Forget events that were finished long ago, and their mails; both tables are read in full."""
    connection.execute(delete(job_events).where(job_events.c.done < now - _KEEP_SECONDS))
    old = mailings.c.intended < now - _KEEP_MAILS_SECONDS
    connection.execute(delete(mailings).where(mailings.c.kind == KIND, old))
