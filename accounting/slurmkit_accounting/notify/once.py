"""Tell each thing once, however often it is tried and wherever it is cut off.

A notice is on record before it is sent. What was refused, or never handed over, is tried again;
what was cut off while it was handed over may have arrived, so it is not sent again by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, insert, select, update

from slurmkit.errors import MaybeSent, SlurmkitError
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.plugins import Notice
from slurmkit_accounting.schema import mailings


class Outcome(Enum):
    """What became of a notice."""

    SENT = "sent"
    BEFORE = "sent before"
    DOUBTFUL = "may have been sent before"
    FAILED = "not sent"


class Once(msgspec.Struct, frozen=True):
    """A notice as it is told once: of a kind, about something, to somebody."""

    kind: str
    about: str
    whom: str

    @property
    def identity(self) -> str:
        """The same for the same notice."""
        return "/".join((self.kind, self.about, self.whom))

    @property
    def row(self) -> ColumnElement[bool]:
        """Which row of the table it is."""
        values = (self.kind, self.about, self.whom)
        columns = (mailings.c.kind, mailings.c.about, mailings.c.whom)
        return and_(*(column == value for column, value in zip(columns, values, strict=True)))


def send_once(
    ledger: Ledger,
    once: Once,
    make: Callable[[], Notice],
    send: Callable[[Notice], None],
    *,
    again: bool = False,
) -> tuple[Outcome, str]:
    """Make and send what was not sent yet.

    The caller holds the ledger's lock `mail` (slurmkit_accounting.locks).

    Args:
        ledger: open for writing.
        once: what it is; sent before means not sent now.
        make: makes the notice; only where it is to be sent.
        send: hands it over.
        again: send also what may have been sent before.

    Returns:
        What became of it, and why not.
    """
    with ledger.transaction() as connection:
        met = _met(connection, once)
    if met is Outcome.BEFORE or (met is Outcome.DOUBTFUL and not again):
        return met, ""
    handed = False
    try:
        notice = make()
        _record(ledger, once, sending=int(time.time()))
        handed = True
        send(notice)
    except MaybeSent as error:
        _record(ledger, once, error=str(error))
        return Outcome.DOUBTFUL, str(error)
    except SlurmkitError as error:
        _record(ledger, once, error=str(error), sending=None)
        return Outcome.FAILED, str(error)
    except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything; others wait
        words = f"{type(error).__name__}: {error}"
        _record(ledger, once, error=words)
        return (Outcome.DOUBTFUL if handed else Outcome.FAILED), words
    _record(ledger, once, done=int(time.time()), error=None)
    return Outcome.SENT, ""


def _met(connection: Connection, once: Once) -> Outcome | None:
    """What is on record; a notice that is new is put there."""
    row = connection.execute(select(mailings).where(once.row)).one_or_none()
    if row is None:
        values = {"kind": once.kind, "about": once.about, "whom": once.whom}
        connection.execute(insert(mailings).values(**values, intended=int(time.time())))
        return None
    if row.done is not None:
        return Outcome.BEFORE
    return None if row.sending is None else Outcome.DOUBTFUL


def _record(ledger: Ledger, once: Once, **values: object) -> None:
    with ledger.transaction() as connection:
        connection.execute(update(mailings).where(once.row).values(**values))
