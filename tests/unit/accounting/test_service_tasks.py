"""The schedule's tasks on real books: ingest stops between batches and goes on; people; mail."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from fake_sacct import FakeSacct, job
from mail_lab import Inbox, smtp
from slurmkit_accounting import ingest
from slurmkit_accounting.ledger import Ledger, open_for_writing
from slurmkit_accounting.schema import runs
from slurmkit_accounting.service.schedule import Stopped
from slurmkit_accounting.service.tasks import Work
from slurmkit_accounting.zones import zone
from sqlalchemy import func, select
from test_month_mail import books

from slurmkit.errors import NotSent

assert books  # a fixture

UTC = zone("UTC")
JOBS = 30


def rows(ledger: Ledger) -> int:
    with ledger.transaction() as connection:
        return connection.scalar(select(func.count()).select_from(runs)) or 0


def work(fake: FakeSacct, check: Callable[[], None] = lambda: None) -> Work:
    return Work(open_for_writing, fake, check, UTC)


def test_an_ingest_stops_between_batches_and_goes_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_BATCH", 5)
    begin = int(time.time()) - 3600
    fake = FakeSacct(*(job(n, begin + n, begin + n, begin + n + 60) for n in range(1, JOBS + 1)))
    batches: list[int] = []

    def check() -> None:
        batches.append(rows(ledger))
        if len(batches) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        work(fake, check).ingest([])
    assert batches == [5, 10]
    assert rows(ledger) == 10
    assert work(fake).ingest([]).startswith("30 read, 20 new, 0 changed, 0 rejected")
    assert rows(ledger) == JOBS


def settings(port: int) -> str:
    return (
        f'[mail]\nhost = "127.0.0.1"\nport = {port}\nsecurity = "none"\nsender = "l@lab.example"\n'
    )


@pytest.mark.usefixtures("books")
def test_mail_of_the_months_that_were_due(configure: Callable[[str], None]) -> None:
    inbox, of = Inbox(), work(FakeSacct())
    with smtp(inbox) as port:
        configure(settings(port))
        inbox.data = "451 later"
        with pytest.raises(NotSent, match="2 mails were not sent, the first to garcia"):
            of.mail(["2025-10"])
        inbox.data = "250 OK"
        # chen has no address: that is told, and no reason to try again.
        assert of.mail(["2025-10", "2025-11"]) == "2025-10, 2025-11: 1 not sent, 3 sent"
        assert of.mail(["2025-11"]) == "2025-11: 1 sent before"
    assert len(inbox.mails) == 3
