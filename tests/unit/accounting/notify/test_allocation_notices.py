"""Notices of allocations: to the PIs and whom the site names, at 80 and 100 %, before the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from allocation_lab import HOUR, NOW, grant, hours, posting
from mail_lab import Inbox, smtp
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting.allocations import changes
from slurmkit_accounting.allocations.changes import refund_job, top_up_allocation
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.notify.allocation_notices import notify_allocations
from slurmkit_accounting.notify.delivery import DeliveryOutcome
from slurmkit_accounting.notify.notices import notify_budgets

UTC = find_zone("UTC")
SENT, BEFORE = DeliveryOutcome.SENT, DeliveryOutcome.BEFORE


@pytest.fixture(autouse=True)
def _site(
    inbox: Inbox, configure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    monkeypatch.setattr(changes, "time", SimpleNamespace(time=lambda: NOW))
    budgets = tmp_path / "budgets.toml"
    budgets.write_text(
        '[[budget]]\npi = "vogel"\ngpu_hours = 10\nfrom = 2026-11-01\nto = 2026-12-01\n'
    )
    with smtp(inbox) as port:
        configure(
            f'[ledger]\nbudgets = "{budgets}"\n[notify]\nbudgets = ["olga@lab.example"]\n'
            '[project.llm]\naccounts = ["vision", "genomics"]\n'
            f'[mail]\nhost = "127.0.0.1"\nport = {port}\nsecurity = "none"\n'
            'sender = "ledger@lab.example"\n'
        )
        yield


@pytest.fixture
def books(ledger: Ledger) -> Ledger:
    """20 GPU-hours of alice, in vogel's group."""
    jobs = [run("alice", BEGIN + DAY, BEGIN + DAY + 10 * HOUR, gpus={"a100": 2})]
    write_books(ledger, jobs, read_to=NOW)
    return ledger


def told(books: Ledger, now: int = NOW) -> list[DeliveryOutcome]:
    return [each.outcome for each in notify_allocations(books, UTC, now)]


def test_nothing_before_80_percent(books: Ledger, inbox: Inbox) -> None:
    grant(books, 26)
    assert told(books) == []
    assert inbox.mails == []


def test_at_80_and_at_100_percent_once_each(books: Ledger, inbox: Inbox) -> None:
    number = grant(books, 24)
    assert (told(books), told(books)) == ([SENT], [BEFORE])
    top_up_allocation(books, number, hours(10), posting())
    assert told(books) == []
    grant(books, 14, holder="genomics")
    grant(books, 20, holder_kind="pi", holder="vogel")
    assert (told(books), told(books)) == ([SENT], [BEFORE])
    first, second = inbox.mails
    assert first["Subject"] == "GPU-hours of account vision: 83% of the allocation used"
    assert first["To"] == "vogel@example.org, olga@lab.example"
    assert "20.00 of 24.00 GPU-hours are used, 4.00 are left." in first.get_content()
    assert "slurmkit balance --account vision --users" in first.get_content()
    assert second["Subject"] == "GPU-hours of PI vogel: 100% of the allocation used"


def test_a_refund_is_no_reason_to_send_it_again(books: Ledger, inbox: Inbox) -> None:
    grant(books, 20)
    assert told(books) == [SENT]
    refund_job(books, "1", posting(), amount_ms=hours(1))
    assert told(books) == [SENT]  # 95 %: that of 80 % was not sent yet
    refund_job(books, "1", posting(), amount_ms=hours(1))
    assert told(books) == [BEFORE]
    assert len(inbox.mails) == 2


def test_two_weeks_before_the_end_once(books: Ledger, inbox: Inbox) -> None:
    end = NOW + 20 * DAY
    grant(books, 100, finish=end, holder_kind="project", holder="llm")
    assert told(books, end - 14 * DAY - 1) == []
    assert told(books, end - 14 * DAY) == [SENT]
    assert told(books, end - DAY) == [BEFORE]
    assert told(books, end) == []
    (mail,) = inbox.mails
    assert mail["Subject"] == "80.00 GPU-hours of project llm expire on 2026-12-11"
    assert mail["To"] == "garcia@example.org, vogel@example.org, olga@lab.example"
    assert "Allocation 1 of project llm ends on 2026-12-11" in mail.get_content()


def test_what_is_used_up_does_not_expire(books: Ledger) -> None:
    grant(books, 10, finish=NOW + DAY)
    assert len(told(books)) == 1


def test_an_allocation_takes_the_place_of_the_budget(books: Ledger, inbox: Inbox) -> None:
    assert [one.outcome for one in notify_budgets(books, UTC, NOW)] == [SENT]
    assert "slurmkit allocation import" in inbox.mails[0].get_content().replace("\n", " ")
    grant(books, 100, holder_kind="pi", holder="vogel")
    assert [*notify_budgets(books, UTC, NOW)] == []


def test_a_notice_that_was_refused_is_sent_later(books: Ledger, inbox: Inbox) -> None:
    grant(books, 20)
    inbox.data = "451 later"
    assert told(books) == [DeliveryOutcome.FAILED]
    inbox.data = "250 OK"
    assert told(books) == [SENT]
