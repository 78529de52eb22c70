"""Notices of budgets: to the PI and whom the site names, at 80 and 100 %, once each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from entries import group, person
from mail_lab import Inbox, smtp
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.notify.delivery import DeliveryOutcome
from slurmkit_accounting.notify.notices import BudgetNoticeResult, notify_budgets
from slurmkit_accounting.people.model import Directory
from slurmkit_accounting.people.sync import PeopleData as Heard
from slurmkit_accounting.people.sync import sync_people
from stored_runs import ran, store_runs

from slurmkit.errors import BadInput

UTC = find_zone("UTC")
BEGIN, HOUR = UTC.epoch("2026-10-05"), 3600
NOW = UTC.epoch("2026-10-20")


@pytest.fixture(autouse=True)
def _site(inbox: Inbox, configure: Callable[[str], None], tmp_path: Path) -> Iterator[None]:
    budgets = tmp_path / "budgets.toml"
    budgets.write_text(
        '[[budget]]\npi = "vogel"\ngpu_hours = 10\nfrom = 2026-10-01\nto = 2026-11-01\n'
        '[[budget]]\npi = "vogel"\ngpu_hours = 999\nfrom = 2026-01-01\nto = 2027-01-01\n'
    )
    with smtp(inbox) as port:
        configure(
            f'[ledger]\nbudgets = "{budgets}"\n[notify]\nbudgets = ["olga@lab.example"]\n'
            f'[mail]\nhost = "127.0.0.1"\nport = {port}\nsecurity = "none"\n'
            'sender = "ledger@lab.example"\n'
        )
        yield


def used(ledger: Ledger, *gpu_hours: int) -> None:
    """Vogel's group used so many more GPU-hours."""
    people = tuple(map(person, ("alice", "vogel")))
    groups = (group("vision", "uid=alice", owners=("vogel",)),)
    sync_people(ledger, Heard(Directory(people, groups)), now=1)
    store_runs(ledger, *(ran(BEGIN, hours * HOUR // 2, db_index=hours) for hours in gpu_hours))


def told(ledger: Ledger) -> list[DeliveryOutcome]:
    return [each.outcome for each in notify_budgets(ledger, UTC, NOW)]


def test_nothing_before_80_percent(ledger: Ledger, inbox: Inbox) -> None:
    used(ledger, 7)
    assert told(ledger) == []
    assert inbox.mails == []


def test_at_80_and_at_100_percent_once_each(ledger: Ledger, inbox: Inbox) -> None:
    used(ledger, 8)
    assert told(ledger) == [DeliveryOutcome.SENT]
    assert told(ledger) == [DeliveryOutcome.BEFORE]
    used(ledger, 3)
    assert told(ledger) == [DeliveryOutcome.SENT]
    assert told(ledger) == [DeliveryOutcome.BEFORE]
    first, second = inbox.mails
    assert first["Subject"] == "GPU-hours of vogel: 80% of the budget used"
    assert first["To"] == "vogel@lab.example, olga@lab.example"
    assert "8.00 of 10.00, 2.00 left" in first.get_content()
    assert second["Subject"] == "GPU-hours of vogel: 110% of the budget used"
    assert "the budget is used up" in second.get_content()


def test_a_jump_over_both_is_told_once(ledger: Ledger, inbox: Inbox) -> None:
    used(ledger, 12)
    assert told(ledger) == [DeliveryOutcome.SENT]
    assert told(ledger) == [DeliveryOutcome.BEFORE]
    assert len(inbox.mails) == 1


def test_a_budget_that_was_raised_is_told_of_again(
    ledger: Ledger, inbox: Inbox, tmp_path: Path
) -> None:
    used(ledger, 8)
    assert told(ledger) == [DeliveryOutcome.SENT]
    budgets = tmp_path / "budgets.toml"
    budgets.write_text(budgets.read_text().replace("gpu_hours = 10\n", "gpu_hours = 20\n"))
    assert told(ledger) == []
    used(ledger, 9)
    assert told(ledger) == [DeliveryOutcome.SENT]
    assert "17.00 of 20.00" in inbox.mails[1].get_content()


def test_a_refused_notice_is_told_of_later(ledger: Ledger, inbox: Inbox) -> None:
    used(ledger, 9)
    inbox.data = "451 later"
    (failed,) = notify_budgets(ledger, UTC, NOW)
    assert (failed.outcome, failed.by) == (DeliveryOutcome.FAILED, "mail")
    inbox.data = "250 OK"
    assert told(ledger) == [DeliveryOutcome.SENT]


@pytest.mark.sql
def test_an_unknown_notifier(ledger: Ledger, configure: Callable[[str], None]) -> None:
    used(ledger, 9)
    configure('[notify]\nby = ["pigeon"]\n')
    with pytest.raises(BadInput, match="no plugin 'pigeon'"):
        list[BudgetNoticeResult](notify_budgets(ledger, UTC, NOW))
