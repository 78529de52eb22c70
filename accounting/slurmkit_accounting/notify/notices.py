"""Notices of budgets that are used to 80 and to 100 %."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from slurmkit.config.files import load_section
from slurmkit.formats.display import printable
from slurmkit_accounting.allocations.model import load_allocations
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.config import BUDGETS_LAST_RELEASE, NotifySection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.allocations import allocations
from slurmkit_accounting.ledger.schema.people import people, usernames
from slurmkit_accounting.notify.delivery import DeliveryOutcome, NoticeKey, send_by_each
from slurmkit_accounting.plugins import Notice, notifier
from slurmkit_accounting.reports.budget import NOTICES, budget_report
from slurmkit_accounting.reports.counted import Question

BUDGETS_KIND = "budget"


class BudgetNoticeResult(msgspec.Struct, frozen=True):
    """The outcome of one notice by one notifier; `why` says why it was not sent."""

    pi: str
    by: str
    outcome: DeliveryOutcome
    why: str = ""


def notify_budgets(ledger: Ledger, zone: Zone, now: int) -> Iterator[BudgetNoticeResult]:
    """Notify PIs, and the addresses of `[notify] budgets`, of budgets used to 80 and to 100 %.

    A budget that passes both limits between two calls causes one notice, at 100 %. A PI with an
    allocation in force gets the notices of `notify_allocations` instead.

    Args:
        ledger: open for writing.
        zone: time zone of the days on which budgets begin and end.
        now: epoch seconds.

    Raises:
        BadConfig: when the budgets cannot be read.
        BadInput: for an unknown notifier.
        LedgerError: when another process is sending, or the ledger cannot be read.
    """
    section = load_section("notify", NotifySection)
    question = Question(window=(now - 1, now), zone=zone, now=now)
    replaced = _pis_with_allocation(ledger, now)
    rows = [row for row in budget_report(ledger, question).rows if row["pi"] not in replaced]
    notifiers = {name: notifier(name) for name in section.by}
    with hold_ledger_lock(ledger, "mail"):
        for row in rows:
            limit = next((limit for limit in NOTICES if row["used"] >= limit), None)
            if limit is None:
                continue
            # The GPU-hours are included: a budget that was raised is a new budget.
            about = f"{row['from']}/{row['to']}/{row['gpu_hours_budget']:g}/{limit:.0%}"
            once = NoticeKey(BUDGETS_KIND, about, row["pi"])
            make = partial(_notice, ledger, row, section.budgets)
            for each in send_by_each(ledger, notifiers, once, make):
                yield BudgetNoticeResult(row["pi"], *each)


def _pis_with_allocation(ledger: Ledger, now: int) -> set[str]:
    of_pis = (allocations.c.holder_kind == "pi", allocations.c.unit == "gpu")
    with ledger.transaction() as connection:
        found = load_allocations(connection, *of_pis)
    return {one.holder.name for one in found if one.is_in_force(now)}


def _notice(
    ledger: Ledger, row: dict[str, Any], others: tuple[str, ...], once: NoticeKey
) -> Notice:
    with ledger.transaction() as connection:
        own = mail_address_of(connection, row["pi"])
    name, share = printable(row["pi"]), f"{row['used']:.0%}"
    text = (
        f"{name} has used {share} of the GPU-hours from {row['from']} to {row['to']}:\n"
        f"{row['gpu_hours_used']:,.2f} of {row['gpu_hours_budget']:,.2f},"
        f" {row['gpu_hours_left']:,.2f} left.\n"
        f"Recent use is {row['gpu_hours_per_day']:,.2f} GPU-hours a day"
        f"{_end_words(row['runs_out'])}.\n\nFor more, run: slurmkit report budget\n\n"
        f"{BUDGETS_LAST_RELEASE}\n"
    )
    return Notice(
        kind=BUDGETS_KIND,
        identity=once.identity,
        to=tuple(dict.fromkeys(filter(None, (own, *others)))),
        subject=f"GPU-hours of {name}: {share} of the budget used",
        text=text,
        facts=row,
    )


def _end_words(when: str) -> str:
    if not when or when == "used up":
        return f"; the budget is {when}" if when else ""
    return f"; at this rate the budget is used up on {when}"


def mail_address_of(connection: Connection, pi: str) -> str:
    """Return the mail address of the person who has a user name now; empty if unknown."""
    query = (
        select(people.c.mail)
        .join(usernames, usernames.c.person_id == people.c.id)
        .where(usernames.c.username == pi, usernames.c.valid_to.is_(None))
    )
    return (connection.scalar(query) or "").strip()
