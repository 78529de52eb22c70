"""Notices of allocations in force: at 80 and 100 % used, and before one expires; once each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from slurmkit.config.files import load_section
from slurmkit.formats.display import printable
from slurmkit_accounting.allocations.amounts import UNIT_NAMES, format_hours, to_hours
from slurmkit_accounting.allocations.balance import AllocationBalance, Balance, balances
from slurmkit_accounting.allocations.model import Holder, load_allocations
from slurmkit_accounting.allocations.uses import Holders
from slurmkit_accounting.calendar import Zone, day_of
from slurmkit_accounting.config import NotifySection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.usage import DAY
from slurmkit_accounting.notify.delivery import NoticeKey, send_by_each
from slurmkit_accounting.notify.notices import BudgetNoticeResult
from slurmkit_accounting.plugins import Notice, notifier
from slurmkit_accounting.reports.budget import NOTICES

ALLOCATION_KIND = "allocation"
EXPIRY_DAYS = 14  # before the end of an allocation, while something is left of it


class _Occasion(NamedTuple):
    """Why there is a notice: its own name, which is sent once, and the words."""

    about: str
    subject: str
    words: str


def notify_allocations(ledger: Ledger, zone: Zone, now: int) -> Iterator[BudgetNoticeResult]:
    """Notify PIs, and the addresses of `[notify] budgets`, of allocations in force.

    An allocation that passes 80 and 100 % between two calls causes one notice, at 100 %. After a
    further grant, top-up or transfer to its holder, both can be sent again.

    Args:
        ledger: open for writing.
        zone: time zone of the days in the notices.
        now: epoch seconds.

    Raises:
        BadInput: for an unknown notifier.
        LedgerError: when another process is sending, or the ledger cannot be read.
    """
    section = load_section("notify", NotifySection)
    rows = balances(ledger, everything=True, now=now).rows
    with ledger.transaction() as connection:
        added = _last_additions(connection, now)
        holders = Holders(connection)
        owners = {one.holder: _mails_of_pis(holders, one.holder, now) for one in rows}
    notifiers = {name: notifier(name) for name in section.by}
    with hold_ledger_lock(ledger, "mail"):
        for one in rows:
            to = tuple(dict.fromkeys((*owners[one.holder], *section.budgets)))
            for occasion in _occasions(one, added, zone, now):
                once = NoticeKey(ALLOCATION_KIND, occasion.about, str(one.holder))
                make = partial(_notice, one, occasion, to, zone)
                for each in send_by_each(ledger, notifiers, once, make):
                    yield BudgetNoticeResult(str(one.holder), *each)


def _last_additions(connection: Connection, now: int) -> dict[tuple[Holder, str], int]:
    """Return the newest entry that added hours, other than refunds, by holder and unit."""
    found: dict[tuple[Holder, str], int] = {}
    for one in load_allocations(connection):
        if not one.is_in_force(now):
            continue
        more = [entry.id for entry in one.entries if entry.amount_ms > 0 and entry.kind != "refund"]
        key = (one.holder, one.unit)
        found[key] = max((found.get(key, 0), *more))
    return found


def _mails_of_pis(holders: Holders, holder: Holder, now: int) -> list[str]:
    """Return the mail addresses of the PIs of a holder, as far as they are known."""
    pis = frozenset().union(*holders.pis_of(holder, now))
    mails = (holders.people.mail(pi).strip() for pi in pis)
    return sorted(filter(None, mails))


def balance_lines(one: Balance, zone: Zone) -> list[str]:
    """Say what a holder has left of the allocations in force, and when nothing is left."""
    used, granted, left = map(format_hours, (one.used_ms, one.granted_ms, abs(one.left_ms)))
    rest = f"{left} are left" if one.left_ms >= 0 else f"{left} more than was granted"
    lines = [f"{used} of {granted} {UNIT_NAMES[one.unit]} are used, {rest}."]
    if one.pace and one.left_ms > 0:
        days = [
            "never" if at is None else day_of(at, zone).isoformat()
            for at in (one.pace.earliest, one.pace.latest, one.pace.middle)
        ]
        lines.append(f"At this pace nothing is left between {days[0]} and {days[1]}, middle"
                     f" {days[2]}.")  # fmt: skip
    return lines


def _occasions(
    one: Balance, added: dict[tuple[Holder, str], int], zone: Zone, now: int
) -> Iterator[_Occasion]:
    reached = next((limit for limit in NOTICES if one.used_ms >= limit * one.granted_ms), None)
    if reached is not None and one.used_ms > 0:
        share = f"{one.used_ms / one.granted_ms:.0%}" if one.granted_ms > 0 else "more than 100%"
        yield _Occasion(
            f"{one.unit}/entry {added[one.holder, one.unit]}/{reached:.0%}",
            f"{UNIT_NAMES[one.unit]} of {one.holder}: {share} of the allocation used",
            f"{one.holder} has used {share} of its allocation.",
        )
    for each in one.allocations:
        if _expires_soon(each, now):
            day = day_of(each.finish or 0, zone).isoformat()
            left = f"{format_hours(each.left_ms)} {UNIT_NAMES[one.unit]}"
            yield _Occasion(
                f"{each.id}/ends {each.finish}",
                f"{left} of {one.holder} expire on {day}",
                f"Allocation {each.id} of {one.holder} ends on {day}. What it then has left"
                f" expires; now that is {left}.",
            )


def _expires_soon(one: AllocationBalance, now: int) -> bool:
    ends = one.finish is not None and one.finish - now <= EXPIRY_DAYS * DAY
    return one.state == "in force" and ends and one.left_ms > 0


def _notice(
    one: Balance, occasion: _Occasion, to: tuple[str, ...], zone: Zone, once: NoticeKey
) -> Notice:
    option = f"--{one.holder.kind} {one.holder.name}"
    lines = [occasion.words, *balance_lines(one, zone)]
    lines += ["", f"For more, run: slurmkit balance {option} --users", ""]
    amounts = ("granted", "used", "running", "left")
    return Notice(
        kind=ALLOCATION_KIND,
        identity=once.identity,
        to=to,
        subject=printable(occasion.subject),
        text="\n".join(map(printable, lines)),
        facts={
            "holder_kind": one.holder.kind,
            "holder": one.holder.name,
            "unit": one.unit,
            "ends": one.finish,
            **{name: to_hours(getattr(one, f"{name}_ms")) for name in amounts},
        },
    )
