"""Notices of budgets that are nearly, or all, used up: each once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from slurmkit.config import load_section
from slurmkit.text import printable
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.locks import alone
from slurmkit_accounting.notify.config import NotifySection
from slurmkit_accounting.notify.once import Once, Outcome, send_once
from slurmkit_accounting.plugins import Notice, notifier
from slurmkit_accounting.reports.budget import NOTICES, budget_report
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.schema import people, usernames
from slurmkit_accounting.zones import Zone

KIND = "budget"


class Told(msgspec.Struct, frozen=True):
    """What became of one notice by one notifier, and why it was not sent."""

    pi: str
    by: str
    outcome: Outcome
    why: str = ""


def tell_budgets(ledger: Ledger, zone: Zone, now: int) -> Iterator[Told]:
    """Tell PIs, and whom `[notify] budgets` names, of budgets used to 80 and to 100 %.

    A budget that passes both between two looks is told of once, at 100 %.

    Args:
        ledger: open for writing.
        zone: of the days on which budgets begin and end.
        now: epoch seconds.

    Raises:
        BadConfig: when the budgets cannot be read.
        BadInput: for a notifier that there is none of.
        LedgerError: when somebody else is sending, or the ledger cannot be read.
    """
    section = load_section("notify", NotifySection)
    question = Question(window=(now - 1, now), zone=zone, now=now)
    rows = budget_report(ledger, question).rows
    notifiers = {name: notifier(name) for name in section.by}
    with alone(ledger, "mail"):
        for row in rows:
            limit = next((limit for limit in NOTICES if row["used"] >= limit), None)
            if limit is None:
                continue
            # A budget that was raised is another one.
            about = f"{row['from']}/{row['to']}/{row['gpu_hours_budget']:g}/{limit:.0%}"
            for name, by in notifiers.items():
                once = Once(KIND, about, f"{name}:{row['pi']}")
                make = partial(_notice, ledger, once, row, section.budgets)
                yield Told(row["pi"], name, *send_once(ledger, once, make, by.send))


def _notice(ledger: Ledger, once: Once, row: dict[str, Any], others: tuple[str, ...]) -> Notice:
    with ledger.transaction() as connection:
        own = _address(connection, row["pi"])
    name, share = printable(row["pi"]), f"{row['used']:.0%}"
    text = (
        f"{name} has used {share} of the GPU-hours from {row['from']} to {row['to']}:\n"
        f"{row['gpu_hours_used']:,.2f} of {row['gpu_hours_budget']:,.2f},"
        f" {row['gpu_hours_left']:,.2f} left.\n"
        f"Of late it was {row['gpu_hours_per_day']:,.2f} a day"
        f"{_runs_out(row['runs_out'])}.\n\nslurmkit report budget shows more.\n"
    )
    return Notice(
        kind=KIND,
        identity=once.identity,
        to=tuple(dict.fromkeys(filter(None, (own, *others)))),
        subject=f"GPU-hours of {name}: {share} of the budget used",
        text=text,
        facts=row,
    )


def _runs_out(when: str) -> str:
    if not when or when == "used up":
        return f"; the budget is {when}" if when else ""
    return f"; at this rate the budget is used up on {when}"


def _address(connection: Connection, pi: str) -> str:
    """The mail address of who has a user name now."""
    query = (
        select(people.c.mail)
        .join(usernames, usernames.c.person_id == people.c.id)
        .where(usernames.c.username == pi, usernames.c.valid_to.is_(None))
    )
    return (connection.scalar(query) or "").strip()
