"""`report mail`: mail each PI the report of their month, once."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
from sqlalchemy import select

from slurmkit.config.files import load_section
from slurmkit.errors import BadInput, LedgerError
from slurmkit.formats.display import printable
from slurmkit_accounting.allocations.amounts import UNIT_NAMES, to_hours
from slurmkit_accounting.allocations.balance import Balance, balances
from slurmkit_accounting.allocations.uses import Holders
from slurmkit_accounting.calendar import Zone, day_of
from slurmkit_accounting.calendar import month_span as window_of_month
from slurmkit_accounting.config import MailSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.people import people
from slurmkit_accounting.notify.allocation_notices import balance_lines
from slurmkit_accounting.notify.delivery import DeliveryOutcome, NoticeKey, send_once
from slurmkit_accounting.notify.mail import Mail, compose, report_as_html, report_as_text
from slurmkit_accounting.plugins import Notice
from slurmkit_accounting.reports.counted import CountedUsage, Question
from slurmkit_accounting.reports.model import Panel, Series
from slurmkit_accounting.reports.question import Scope
from slurmkit_accounting.reports.usage import usage_report

KIND = "month"
_BY = ("user",)


class ReportedPi(msgspec.Struct, frozen=True):
    """A PI who gets a monthly report.

    Attributes:
        person_id: id in table `people` of this ledger.
        directory_id: permanent id in the directory.
        name: user name.
        mail: address from the directory; empty if the PI has left, as it may be reassigned.
        left: whether the directory no longer has the PI.
    """

    person_id: int
    directory_id: str
    name: str
    mail: str
    left: bool = False


class MailResult(msgspec.Struct, frozen=True):
    """The outcome of one PI's mail; `why` says why it was not sent."""

    pi: ReportedPi
    outcome: DeliveryOutcome
    why: str = ""


class PastMonth(msgspec.Struct, frozen=True):
    """A past month in a time zone.

    Attributes:
        name: YYYY-MM.
        zone: time zone of the month.
        now: when it is mailed, epoch seconds.
    """

    name: str
    zone: Zone
    now: int

    @property
    def window(self) -> tuple[int, int]:
        """Begin and end of the month, epoch seconds.

        Raises:
            BadInput: when the name is not a month, or the month is not over.
        """
        begin, end = window_of_month(self.name, self.zone)
        if end > self.now:
            raise BadInput(f"{self.name} is not over yet; mail it after its end")
        return begin, end


def mail_month(ledger: Ledger, month: PastMonth, *, again: bool = False) -> Iterator[MailResult]:
    """Mail each PI with usage in a month their report; a PI who already got it is skipped.

    Args:
        ledger: open for writing.
        month: the month.
        again: also send mails that were cut off and may have arrived.

    Raises:
        BadConfig: when `[mail]` names no server or sender.
        BadInput: when the name is not a month, or the month is not over.
        LedgerError: when another process is mailing, or the ledger cannot be read.
    """
    mail = Mail()
    mail.check()
    with hold_ledger_lock(ledger, "mail"):
        left = balances_by_pi(ledger, month)
        for pi in pis_of_month(ledger, month):
            if not pi.mail:
                lacking = "no longer has" if pi.left else "has no mail address of"
                why = f"the directory {lacking} this person"
                yield MailResult(pi, DeliveryOutcome.FAILED, why)
                continue
            once = NoticeKey(KIND, month.name, pi.directory_id)
            make = partial(month_notice, ledger, month, pi, left.get(pi.person_id, ()))
            yield MailResult(pi, *send_once(ledger, once, make, mail.send, again=again))


def write_month_mails(
    ledger: Ledger, month: PastMonth, folder: Path
) -> Iterator[tuple[ReportedPi, Path]]:
    """Write the mails of a month to files `MONTH-NAME.eml`, and send none.

    Raises:
        BadInput: when the name is not a month, or the month is not over.
        LedgerError: when a file cannot be written.
    """
    section = load_section("mail", MailSection)
    section = msgspec.structs.replace(section, sender=section.sender or "ledger@localhost")
    left = balances_by_pi(ledger, month)
    for pi in pis_of_month(ledger, month):
        if not pi.mail:
            continue
        name = "".join(char if char.isalnum() or char in "._-" else "_" for char in pi.name)
        path = folder / f"{month.name}-{name}.eml"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            notice = month_notice(ledger, month, pi, left.get(pi.person_id, ()))
            _write_private(path, compose(section, notice).as_bytes())
        except OSError as error:
            raise LedgerError(f"cannot write {path}: {error.strerror}") from error
        yield pi, path


def _write_private(path: Path, mail: bytes) -> None:
    """Write a file that nobody else can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(mail)


def pis_of_month(ledger: Ledger, month: PastMonth) -> list[ReportedPi]:
    """Return the PIs in whose groups something ran in a month, by name."""
    question = Question(window=month.window, zone=month.zone, now=month.now)
    with ledger.transaction() as connection:
        counted = CountedUsage(connection, question)
        owners = {counted.dimensions.owner(key).pi.person_id for _, key, _ in counted.cells}
        query = select(people.c.id, people.c.directory_id, people.c.mail, people.c.closed_at)
        label = counted.dimensions.people.label
        found = [
            ReportedPi(
                row.id, row.directory_id, label(row.id), "" if left else row.mail.strip(), left
            )
            for row in connection.execute(query)
            if row.id in owners
            for left in [row.closed_at is not None]
        ]
    return sorted(found, key=lambda pi: (pi.name, pi.person_id))


def balances_by_pi(ledger: Ledger, month: PastMonth) -> dict[int, list[Balance]]:
    """Return the balances of each PI, by id in table `people`, as they are when it is mailed."""
    found: dict[int, list[Balance]] = defaultdict(list)
    rows = balances(ledger, everything=True, now=month.now).rows
    with ledger.transaction() as connection:
        holders = Holders(connection)
        for one in rows:
            for pi in frozenset().union(*holders.pis_of(one.holder, month.now)):
                found[pi].append(one)
    return found


def month_notice(
    ledger: Ledger, month: PastMonth, pi: ReportedPi, left: Sequence[Balance] = ()
) -> Notice:
    """Make the mail with the report of one PI's month, and with what is left of allocations."""
    question = Question(
        window=month.window,
        zone=month.zone,
        scope=Scope(people=frozenset(), pis=frozenset((pi.person_id,))),
        now=month.now,
    )
    report = usage_report(ledger, question, _BY, panels=True)
    title = f"GPU-hours of {printable(pi.name)} in {month.name}"
    day = day_of(month.now, month.zone).isoformat()
    lines = [
        f"Allocation of {one.holder} on {day}: {' '.join(balance_lines(one, month.zone))}"
        for one in left
    ]
    panels = (*_panels_of_balances(left, lines), *report.panels)
    return Notice(
        kind=KIND,
        identity=NoticeKey(KIND, month.name, pi.directory_id).identity,
        to=(pi.mail,),
        subject=title,
        text=report_as_text(report, title, lines),
        html=report_as_html(msgspec.structs.replace(report, panels=panels)),
    )


def _panels_of_balances(left: Sequence[Balance], lines: Sequence[str]) -> Iterator[Panel]:
    """Yield a chart of what is left, for each unit."""
    for unit in dict.fromkeys(one.unit for one in left):
        ours = [(one, line) for one, line in zip(left, lines, strict=True) if one.unit == unit]
        yield Panel(
            "bars",
            f"Left of allocations, {UNIT_NAMES[unit]}",
            "hours",
            tuple(str(one.holder) for one, _ in ours),
            (Series("left", tuple(max(to_hours(one.left_ms), 0.0) for one, _ in ours)),),
            " ".join(line for _, line in ours),
        )
