"""Send each notice once, however often sending is tried and wherever it is cut off.

A notice is recorded before it is sent. A notice that was refused, or never handed over, is tried
again. One that was cut off during the handover may have arrived, so it is not sent again
automatically.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, insert, select, update

from slurmkit.errors import MaybeSent, SlurmkitError
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.notices import mailings
from slurmkit_accounting.plugins import Notice, Notifier


class DeliveryOutcome(Enum):
    """The outcome of sending a notice."""

    SENT = "sent"
    BEFORE = "sent before"
    DOUBTFUL = "may have been sent before"
    FAILED = "not sent"


class NoticeKey(msgspec.Struct, frozen=True):
    """The key of a notice that is sent once: kind, subject and recipient.

    Attributes:
        kind: `month`, `budget`, `allocation`, `reclaim` or `job`.
        about: the month, the budget or allocation and the share used, the cluster and the act, or
            the events of a job.
        whom: the recipient: a directory id, or notifier and user, holder or address.
    """

    kind: str
    about: str
    whom: str

    @property
    def identity(self) -> str:
        """All fields in one text; the same for the same notice."""
        return "/".join((self.kind, self.about, self.whom))

    @property
    def row(self) -> ColumnElement[bool]:
        """Condition that selects the notice's row of table `mailings`."""
        values = (self.kind, self.about, self.whom)
        columns = (mailings.c.kind, mailings.c.about, mailings.c.whom)
        return and_(*(column == value for column, value in zip(columns, values, strict=True)))


class Delivery(NamedTuple):
    """The outcome of a notice by one notifier; `why` says why it was not sent."""

    by: str
    outcome: DeliveryOutcome
    why: str


def send_by_each(
    ledger: Ledger,
    notifiers: Mapping[str, Notifier],
    about: NoticeKey,
    make: Callable[[NoticeKey], Notice],
) -> Iterator[Delivery]:
    """Send a notice once by each of some notifiers; see `send_once`.

    Args:
        ledger: open for writing.
        notifiers: by name, which is put before the recipient in the key of its notice.
        about: identity of the notice, without a notifier.
        make: makes the notice for a key.
    """
    for name, by in notifiers.items():
        once = msgspec.structs.replace(about, whom=f"{name}:{about.whom}")
        yield Delivery(name, *send_once(ledger, once, partial(make, once), by.send))


def send_once(
    ledger: Ledger,
    once: NoticeKey,
    make: Callable[[], Notice],
    send: Callable[[Notice], None],
    *,
    again: bool = False,
) -> tuple[DeliveryOutcome, str]:
    """Make and send a notice that was not sent yet.

    The caller holds a lock of the ledger (slurmkit_accounting.ledger.locks), so that nobody else
    sends notices of its kind: `mail`; `job mail` and `job digest` for those about jobs.

    Args:
        ledger: open for writing.
        once: identity of the notice; a notice sent before is not sent again.
        make: makes the notice; called only if it is to be sent.
        send: sends the notice.
        again: also send a notice that may have been sent before.

    Returns:
        The outcome, and why the notice was not sent.
    """
    with ledger.transaction() as connection:
        earlier = _load_or_create_record(connection, once)
    if earlier is DeliveryOutcome.BEFORE or (earlier is DeliveryOutcome.DOUBTFUL and not again):
        return earlier, ""
    handed = False
    try:
        notice = make()
        _record(ledger, once, sending=int(time.time()))
        handed = True
        send(notice)
    except MaybeSent as error:
        _record(ledger, once, error=str(error))
        return DeliveryOutcome.DOUBTFUL, str(error)
    except SlurmkitError as error:
        _record(ledger, once, error=str(error), sending=None)
        return DeliveryOutcome.FAILED, str(error)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything; other notices follow
        words = f"{type(error).__name__}: {error}"
        _record(ledger, once, error=words)
        return (DeliveryOutcome.DOUBTFUL if handed else DeliveryOutcome.FAILED), words
    _record(ledger, once, done=int(time.time()), error=None)
    return DeliveryOutcome.SENT, ""


def _load_or_create_record(connection: Connection, once: NoticeKey) -> DeliveryOutcome | None:
    """Return the recorded outcome of a notice, None if it is still to be sent; record a new one."""
    row = connection.execute(select(mailings).where(once.row)).one_or_none()
    if row is None:
        values = {"kind": once.kind, "about": once.about, "whom": once.whom}
        connection.execute(insert(mailings).values(**values, intended=int(time.time())))
        return None
    if row.done is not None:
        return DeliveryOutcome.BEFORE
    return None if row.sending is None else DeliveryOutcome.DOUBTFUL


def _record(ledger: Ledger, once: NoticeKey, **values: object) -> None:
    with ledger.transaction() as connection:
        connection.execute(update(mailings).where(once.row).values(**values))
