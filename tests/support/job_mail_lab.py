"""What tests of the mails about jobs need: a spool, a mail server, a ledger, and a Slurm."""

from __future__ import annotations

import time
from collections.abc import Sequence
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from mail_lab import Inbox
from mail_spool import job_environment, write_event
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import JobMailSection
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.schema.notices import job_events, mailings
from slurmkit_accounting.notify.job_events import load_waiting_events
from slurmkit_accounting.notify.job_mail import JobMailer
from sqlalchemy import func, select
from stored_runs import ran

from slurmkit.errors import DatabaseDown, NoSuchJob, SlurmError
from slurmkit.testing import FakeSlurm, sacct_text, squeue_text

UTC = find_zone("UTC")
NOW = int(time.time()) // 86400 * 86400 + 43200  # noon: all of a test is in one day
MEASURED = {"cpu_used_ms": 600_000, "mem_peak_mib": 2048, "gpu_used_permille": 400}
PRICES = """
[[gpu.a100.prices]]
since = 2026-01-01
currency = "EUR"
on_premises = 0.90
"""


class Lab:
    """A spool, a mail server, a ledger, and a Slurm that knows some ended jobs."""

    def __init__(self, ledger: Ledger, spool: Path, inbox: Inbox, **section: Any) -> None:
        self.ledger = ledger
        self.spool = spool
        self.inbox = inbox
        self.ended: list[dict[str, str]] = []
        self.queued: list[str] = []
        self.away = False
        self.comment = ""
        self.unknown = ""  # a user whom squeue does not know
        config = "ClusterName             = lab\n"
        answers = {"sacct": self._sacct, "squeue": self._squeue, "scontrol": lambda *_: config}
        self.slurm = FakeSlurm(answers)
        self.mailer = self.new_mailer(**section)

    def new_mailer(self, **section: Any) -> JobMailer:
        """The mailer of a service that was started again."""
        settings = JobMailSection(spool=str(self.spool), **section)
        return JobMailer(open_for_writing, self.slurm, lambda: None, UTC, settings)

    def _sacct(self, argv: Sequence[str], _: str | None) -> str:
        if self.away:
            raise DatabaseDown("slurmdbd does not answer")
        (asked,) = [word.removeprefix("--jobs=") for word in argv if word.startswith("--jobs=")]
        found = [
            each for each in self.ended
            if {each["JobID"], each["JobID"].partition("_")[0]} & set(asked.split(","))
        ]  # fmt: skip
        return sacct_text(argv, found)

    def _squeue(self, argv: Sequence[str], _: str | None) -> str:
        if self.unknown and any(self.unknown in word for word in argv):
            raise SlurmError(f"squeue: error: Invalid user: {self.unknown}")
        if not self.queued and any(word.startswith("--jobs") for word in argv):
            raise NoSuchJob("slurm_load_jobs error: Invalid job id specified")
        rows = [{"JobArrayID": one, "Comment": self.comment} for one in self.queued]
        return squeue_text(argv, rows)

    def end(self, job_id: str, state: str, code: str = "0:0", **other: str) -> None:
        """A job that Slurm's accounting has."""
        times = {"Submit": str(NOW - 660), "Start": str(NOW - 600), "End": str(NOW)}
        facts = {"JobID": job_id, "State": state, "ExitCode": code, "StdOut": "/none/log"}
        self.ended.append(facts | times | other)

    def event(self, job_id: int, kind: str = "Ended", *, at: int = NOW, **other: Any) -> Path:
        given = {name: other.pop(name) for name in ("address", "whole_array") if name in other}
        return write_event(self.spool, at, job_environment(job_id, kind, **other), **given)

    def run(self, at: int = NOW) -> str:
        return self.mailer.run(at)

    @property
    def mails(self) -> list[EmailMessage]:
        return self.inbox.mails

    @property
    def subjects(self) -> list[str]:
        return [mail["Subject"] for mail in self.mails]

    @property
    def waiting(self) -> int:
        with self.ledger.transaction() as connection:
            return len(load_waiting_events(connection))

    @property
    def tried(self) -> int:
        """How many events wait for a mail that was tried to send."""
        with self.ledger.transaction() as connection:
            return sum(each.mailing is not None for each in load_waiting_events(connection))

    @property
    def remembered(self) -> tuple[int, int]:
        """Rows of events and of mails."""
        with self.ledger.transaction() as connection:
            events, mails = (
                connection.scalars(select(func.count()).select_from(table)).one()
                for table in (job_events, mailings)
            )
            return events, mails


def stored(number: int, **other: Any) -> dict[str, Any]:
    """A run of ten minutes that the ledger has."""
    return ran(NOW - 600, 600, db_index=number, submit=NOW - 660, **(MEASURED | other))
