"""What the service's schedule does: the one place that knows how each task is done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

from slurmkit.config import has_section, load_section
from slurmkit.errors import NotSent
from slurmkit.slurm import Slurm
from slurmkit_accounting.config import LedgerSection
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.service.config import ScheduleSection
from slurmkit_accounting.service.crontext import trigger
from slurmkit_accounting.service.schedule import Task
from slurmkit_accounting.zones import Zone

# More than a month, so that all of it is read again after its end and before it is closed.
SWEEP_SECONDS = 40 * 86400
Books = Callable[[], AbstractContextManager[Ledger]]
Check = Callable[[], None]
"""Raises `Stopped` when the service is to stop; called between batches."""


class Work:
    """The tasks.

    Args:
        books: opens the ledger for writing.
        slurm: the border to Slurm.
        check: see `Check`.
        zone: whose months are closed and mailed, and whose clock the times are of.
    """

    def __init__(self, books: Books, slurm: Slurm, check: Check, zone: Zone) -> None:
        self._books = books
        self._slurm = slurm
        self._check = check
        self._zone = zone

    def tasks(self, section: ScheduleSection) -> list[Task]:
        """Those that have a time, in the order in which they run where several are due.

        Raises:
            BadConfig: when a time is none.
        """
        runs: dict[str, Callable[[list[str]], str]] = {
            "people": self.people,
            "ingest": self.ingest,
            "sweep": self.sweep,
            "close": self.close,
            "budgets": self.budgets,
            "mail": self.mail,
        }
        monthly, not_at_first = {"close", "mail"}, {"close", "mail", "sweep"}
        return [
            Task(
                name=name,
                when=trigger(name, text, self._zone),
                run=run,
                at_first=name not in not_at_first,
                monthly=name in monthly,
            )
            for name, run in runs.items()
            if (text := getattr(section, name)) and (name != "people" or _people_known())
        ]

    def ingest(self, _: list[str]) -> str:
        """New and changed jobs from sacct; stops at the edge of a batch."""
        return self._ingest()

    def sweep(self, _: list[str]) -> str:
        """What was put right, or came, long after its end: a month and more, once again."""
        return self._ingest(SWEEP_SECONDS)

    def _ingest(self, again: int = 0) -> str:
        from slurmkit_accounting.ingest import back, ingest  # noqa: PLC0415 - as every task

        with self._books() as ledger:
            since = back(ledger, self._slurm, again) if again else None
            done = ingest(ledger, self._slurm, since=since, progress=lambda *_: self._check())
        rows = done.entered
        return f"{rows.read} read, {rows.new} new, {rows.changed} changed, {rows.rejected} rejected"

    def people(self, _: list[str]) -> str:
        """People, groups, overrides and coordinators."""
        from slurmkit_accounting.people_sources import hear  # noqa: PLC0415
        from slurmkit_accounting.people_sync import sync_people  # noqa: PLC0415

        heard = hear(self._slurm)
        with self._books() as ledger:
            synced = sync_people(ledger, heard.told, max_vanish=heard.max_vanish)
        return f"{heard.read}; {len(synced.changes)} changes"

    def close(self, months: list[str]) -> str:
        """Months that are over; one that was not read to its end is a failure, and tried again."""
        from slurmkit_accounting.closing import close_month  # noqa: PLC0415

        with self._books() as ledger:
            for month in months:
                close_month(ledger, month, self._zone, int(time.time()))
        return ", ".join(months) or "no month"

    def budgets(self, _: list[str]) -> str:
        """Notices of budgets; what was not sent is a failure, and tried again."""
        from slurmkit_accounting.notify.budgets import tell_budgets  # noqa: PLC0415
        from slurmkit_accounting.notify.once import Outcome  # noqa: PLC0415

        with self._books() as ledger:
            told = list(tell_budgets(ledger, self._zone, int(time.time())))
        failed = [each for each in told if each.outcome is Outcome.FAILED]
        if failed:
            raise NotSent(f"{len(failed)} notices were not sent, the first: {failed[0].why}")
        return f"{sum(each.outcome is Outcome.SENT for each in told)} notices sent"

    def mail(self, months: list[str]) -> str:
        """Each PI their month; what was not sent is a failure, and tried again."""
        from slurmkit_accounting.notify.month import Month, mail_month  # noqa: PLC0415
        from slurmkit_accounting.notify.once import Outcome  # noqa: PLC0415

        counts: Counter[Outcome] = Counter()
        whys: list[str] = []
        with self._books() as ledger:
            for name in months:
                for told in mail_month(ledger, Month(name, self._zone, int(time.time()))):
                    counts[told.outcome] += 1
                    if told.outcome is Outcome.FAILED and told.pi.mail:
                        whys.append(f"{told.pi.name}: {told.why}")
                    self._check()
        if whys:
            raise NotSent(f"{len(whys)} mails were not sent, the first to {whys[0]}")
        said = ", ".join(f"{number} {outcome.value}" for outcome, number in counts.items())
        return f"{', '.join(months) or 'no month'}: {said or 'nobody to mail'}"


def _people_known() -> bool:
    """Whether the configuration says where people are read from."""
    return has_section("ldap") or bool(load_section("ledger", LedgerSection).overrides)
