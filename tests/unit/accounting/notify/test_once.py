"""Each thing is told once, however often it is tried and wherever it is cut off."""

from __future__ import annotations

import pytest
from mail_lab import NOTICE
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.notices import mailings
from slurmkit_accounting.notify.delivery import DeliveryOutcome, NoticeKey, send_once
from slurmkit_accounting.plugins import Notice
from sqlalchemy import select

from slurmkit.errors import MaybeSent, NotSent

pytestmark = pytest.mark.sql

OCTOBER = NoticeKey("month", "2026-10", "garcia")


class Sender:
    def __init__(self) -> None:
        self.sent = 0
        self.error: BaseException | None = None

    def __call__(self, notice: Notice) -> None:
        assert notice is NOTICE
        if self.error:
            raise self.error
        self.sent += 1


@pytest.fixture
def sender() -> Sender:
    return Sender()


def told(
    ledger: Ledger, sender: Sender, once: NoticeKey = OCTOBER, *, again: bool = False
) -> DeliveryOutcome:
    return send_once(ledger, once, lambda: NOTICE, sender, again=again)[0]


def test_once(ledger: Ledger, sender: Sender) -> None:
    assert told(ledger, sender) is DeliveryOutcome.SENT
    assert told(ledger, sender) is DeliveryOutcome.BEFORE
    assert told(ledger, sender, again=True) is DeliveryOutcome.BEFORE
    assert sender.sent == 1
    for other in (
        NoticeKey("budget", "2026-10", "garcia"),
        NoticeKey("month", "2026-11", "garcia"),
        NoticeKey("month", "2026-10", "vogel"),
    ):
        assert told(ledger, sender, other) is DeliveryOutcome.SENT
    assert sender.sent == 4


def test_what_was_refused_is_sent_later(ledger: Ledger, sender: Sender) -> None:
    sender.error = NotSent("disk full")
    assert send_once(ledger, OCTOBER, lambda: NOTICE, sender) == (
        DeliveryOutcome.FAILED,
        "disk full",
    )
    sender.error = None
    assert told(ledger, sender) is DeliveryOutcome.SENT
    with ledger.transaction() as connection:
        row = connection.execute(select(mailings)).one()
    assert row.done is not None
    assert row.error is None


@pytest.mark.parametrize("error", [MaybeSent("lost"), KeyError("in a plugin"), KeyboardInterrupt()])
def test_what_may_have_been_sent_is_not_sent_again_unasked(
    ledger: Ledger, sender: Sender, error: BaseException
) -> None:
    sender.error = error
    if isinstance(error, Exception):
        assert told(ledger, sender) is DeliveryOutcome.DOUBTFUL
    else:  # cut off while it was handed over
        with pytest.raises(KeyboardInterrupt):
            told(ledger, sender)
    sender.error = None
    assert told(ledger, sender) is DeliveryOutcome.DOUBTFUL
    assert sender.sent == 0
    assert told(ledger, sender, again=True) is DeliveryOutcome.SENT
    assert told(ledger, sender) is DeliveryOutcome.BEFORE


def test_what_was_never_handed_over_is_no_doubt(ledger: Ledger, sender: Sender) -> None:
    def cut() -> Notice:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        send_once(ledger, OCTOBER, cut, sender)
    assert told(ledger, sender) is DeliveryOutcome.SENT


def test_a_notice_that_cannot_be_made_keeps_no_other_from_being_sent(
    ledger: Ledger, sender: Sender
) -> None:
    def broken() -> Notice:
        raise ZeroDivisionError("by zero")

    said = send_once(ledger, OCTOBER, broken, sender)
    assert said == (DeliveryOutcome.FAILED, "ZeroDivisionError: by zero")
    assert told(ledger, sender) is DeliveryOutcome.SENT
