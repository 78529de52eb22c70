"""`report mail`: each PI their month, once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from slurmkit.config import load_section
from slurmkit.errors import BadInput, LedgerError
from slurmkit.text import printable
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.locks import alone
from slurmkit_accounting.notify.config import MailSection
from slurmkit_accounting.notify.mail import Mail, compose
from slurmkit_accounting.notify.once import Once, Outcome, send_once
from slurmkit_accounting.notify.shape import as_html, as_text
from slurmkit_accounting.plugins import Notice
from slurmkit_accounting.reports.counted import Counted, Question
from slurmkit_accounting.reports.model import Report
from slurmkit_accounting.reports.periods import month as window_of_month
from slurmkit_accounting.reports.scope import Scope
from slurmkit_accounting.reports.usage import usage_report
from slurmkit_accounting.schema import people
from slurmkit_accounting.zones import Zone

KIND = "month"
_BY = ("user",)


class Pi(msgspec.Struct, frozen=True):
    """Somebody who gets a report.

    Attributes:
        person_id: in this ledger.
        directory_id: for ever.
        name: user name.
        mail: address, from the directory; empty for who has left, whose it may be no more.
        left: whether the directory does not have them any more.
    """

    person_id: int
    directory_id: str
    name: str
    mail: str
    left: bool = False


class Told(msgspec.Struct, frozen=True):
    """What became of one PI's mail, and why it was not sent."""

    pi: Pi
    outcome: Outcome
    why: str = ""


class Month(msgspec.Struct, frozen=True):
    """A month in a zone, that is over.

    Attributes:
        name: YYYY-MM.
        now: epoch seconds; of when it is mailed.
    """

    name: str
    zone: Zone
    now: int

    @property
    def window(self) -> tuple[int, int]:
        """Begin and end, epoch seconds.

        Raises:
            BadInput: when it is no month, or not over.
        """
        begin, end = window_of_month(self.name, self.zone)
        if end > self.now:
            raise BadInput(f"{self.name} is not over yet; mail it after its end")
        return begin, end


def mail_month(ledger: Ledger, month: Month, *, again: bool = False) -> Iterator[Told]:
    """Mail each PI with usage in a month their report; whoever got it gets it no more.

    Args:
        ledger: open for writing.
        month: that is over.
        again: send also what was cut off on its way, and may have arrived.

    Raises:
        BadConfig: when `[mail]` names no server or sender.
        BadInput: when the month is none, or not over.
        LedgerError: when another one is mailing, or the ledger cannot be read.
    """
    mail = Mail()
    mail.check()
    with alone(ledger, "mail"):
        for pi in pis(ledger, month):
            if not pi.mail:
                lacking = "them any more" if pi.left else "a mail address of theirs"
                yield Told(pi, Outcome.FAILED, f"the directory does not have {lacking}")
                continue
            once = Once(KIND, month.name, pi.directory_id)
            make = partial(notice, ledger, month, pi)
            yield Told(pi, *send_once(ledger, once, make, mail.send, again=again))


def write_month(ledger: Ledger, month: Month, folder: Path) -> Iterator[tuple[Pi, Path]]:
    """Write the mails of a month as files `MONTH-NAME.eml`, and send none.

    Raises:
        BadInput: when the month is none, or not over.
        LedgerError: when a file cannot be written.
    """
    section = load_section("mail", MailSection)
    section = msgspec.structs.replace(section, sender=section.sender or "ledger@localhost")
    for pi in pis(ledger, month):
        if not pi.mail:
            continue
        name = "".join(char if char.isalnum() or char in "._-" else "_" for char in pi.name)
        path = folder / f"{month.name}-{name}.eml"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(path, compose(section, notice(ledger, month, pi)).as_bytes())
        except OSError as error:
            raise LedgerError(f"cannot write {path}: {error.strerror}") from error
        yield pi, path


def _write(path: Path, mail: bytes) -> None:
    """Make a file that nobody else can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(mail)


def pis(ledger: Ledger, month: Month) -> list[Pi]:
    """Everybody in whose groups something ran, by name."""
    question = Question(window=month.window, zone=month.zone, now=month.now)
    with ledger.transaction() as connection:
        counted = Counted(connection, question)
        owners = {counted.dimensions.owner(key)[1].person_id for _, key, _ in counted.cells}
        found = _known(connection, {owner for owner in owners if owner is not None})
        label = counted.dimensions.people.label
        named = [
            Pi(row.id, row.directory_id, label(row.id), "" if left else row.mail.strip(), left)
            for row in found
            for left in [row.closed_at is not None]
        ]
    return sorted(named, key=lambda pi: (pi.name, pi.person_id))


def notice(ledger: Ledger, month: Month, pi: Pi) -> Notice:
    """The report of one PI's month, as a mail."""
    report = _report(ledger, month, pi)
    return Notice(
        kind=KIND,
        identity=Once(KIND, month.name, pi.directory_id).identity,
        to=(pi.mail,),
        subject=f"GPU-hours of {printable(pi.name)} in {month.name}",
        text=as_text(report, f"GPU-hours of {printable(pi.name)} in {month.name}"),
        html=as_html(report),
    )


def _report(ledger: Ledger, month: Month, pi: Pi) -> Report:
    question = Question(
        window=month.window,
        zone=month.zone,
        scope=Scope(people=frozenset(), pis=frozenset((pi.person_id,))),
        now=month.now,
    )
    return usage_report(ledger, question, _BY, panels=True)


def _known(connection: Connection, numbers: set[int]) -> list[Any]:
    """Rows of people with these numbers."""
    query = select(people.c.id, people.c.directory_id, people.c.mail, people.c.closed_at)
    return [row for row in connection.execute(query) if row.id in numbers]
