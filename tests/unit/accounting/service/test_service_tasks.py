"""The schedule's tasks on real books: ingest stops between batches and goes on; people; mail."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from entries import person
from fake_sacct import FakeSacct, job
from mail_lab import Inbox, smtp
from month_books import month_books
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ingest import ingest
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.people.model import Directory
from slurmkit_accounting.people.sync import PeopleData, sync_people
from slurmkit_accounting.service.schedule import ServiceStopped
from slurmkit_accounting.service.tasks import ServiceTasks
from slurmkit_accounting.usage.closed_months import load_closed_months
from sqlalchemy import func, select
from stored_runs import ran, store_runs

from slurmkit.errors import BadInput, NotSent

assert month_books  # a fixture

HERE = find_zone("UTC")
JOBS = 30


def rows(ledger: Ledger) -> int:
    with ledger.transaction() as connection:
        return connection.scalar(select(func.count()).select_from(runs)) or 0


def work(fake: FakeSacct, check: Callable[[], None] = lambda: None) -> ServiceTasks:
    return ServiceTasks(open_for_writing, fake, check, HERE)


def _noon(days_ago: int) -> int:
    """Noon (UTC) of a day before today: an hour's run from then is in one window of an ingest."""
    return (int(time.time()) // 86400 - days_ago) * 86400 + 43200


def test_an_ingest_stops_between_batches_and_goes_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_BATCH", 5)
    begin = _noon(1)
    fake = FakeSacct(*(job(n, begin + n, begin + n, begin + n + 60) for n in range(1, JOBS + 1)))
    batches: list[int] = []

    def check() -> None:
        batches.append(rows(ledger))
        if len(batches) == 2:
            raise ServiceStopped

    with pytest.raises(ServiceStopped):
        work(fake, check).ingest([])
    assert batches == [5, 10]
    assert rows(ledger) == 10
    assert work(fake).ingest([]).startswith("30 read, 20 new, 0 changed, 0 rejected")
    assert rows(ledger) == JOBS


def test_an_ingest_says_that_an_accounting_database_was_re_created(ledger: Ledger) -> None:
    fake = FakeSacct(job(1, _noon(9), _noon(9), _noon(9) + 60))
    assert "re-created" not in work(fake).ingest([])
    fake.jobs = [job(40, _noon(1) + 7, _noon(1) + 8, _noon(1) + 60, DBIndex=1001)]
    said = work(fake).ingest([])
    assert said.startswith("1 read, 1 new, 0 changed, 0 rejected; the accounting database of lab")
    assert said.endswith("1 DBIndexes belong to other jobs now; both are stored")


@pytest.mark.sql
def test_a_sweep_finds_what_was_put_right_long_after_its_end(ledger: Ledger) -> None:
    begin = _noon(20)
    fake = FakeSacct(job(1, begin, begin, begin + 3600))
    assert work(fake).ingest([]).startswith("1 read, 1 new")
    fake.jobs[0] = job(1, begin, begin, begin + 60)
    assert work(fake).ingest([]).startswith("0 read")
    assert work(fake).sweep([]).startswith("1 read, 0 new, 1 changed")


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


def test_a_month_is_closed_once_it_was_read(ledger: Ledger) -> None:
    fake = FakeSacct()
    now = int(time.time())
    last = f"{datetime.fromtimestamp(now, UTC).replace(day=1) - timedelta(days=1):%Y-%m}"
    store_runs(ledger)
    with pytest.raises(BadInput, match="not all of"):
        work(fake).close([last])
    ingest.ingest(ledger, fake, since=now - 70 * 86400)
    assert work(fake).close([last]) == last
    assert work(fake).close([last]) == last
    with ledger.transaction() as connection:
        (closing,) = load_closed_months(connection)
    assert (closing.month, closing.timezone) == (last, "UTC")


@pytest.mark.sql
def test_notices_of_budgets(
    ledger: Ledger, configure: Callable[[str], None], tmp_path: Path
) -> None:
    inbox, of, today = Inbox(), work(FakeSacct()), datetime.now(UTC).date()
    sync_people(ledger, PeopleData(Directory((person("alice"),), ())), now=1)
    start = int(time.time()) - 4 * 3600
    # An account of its own is nobody's group: vogel is not even known, and told by the site alone.
    store_runs(ledger, ran(start, 3600, account="vogel"))
    tomorrow, before = today + timedelta(days=1), today - timedelta(days=9)
    budgets = tmp_path / "budgets.toml"
    budgets.write_text(
        f'[[budget]]\npi = "vogel"\ngpu_hours = 2\nfrom = {before}\nto = {tomorrow}\n'
    )
    with smtp(inbox) as port:
        site = f'[ledger]\nbudgets = "{budgets}"\n[notify]\nbudgets = ["olga@lab.example"]\n'
        configure(site + settings(port))
        inbox.data = "451 later"
        with pytest.raises(NotSent, match="1 notices were not sent"):
            of.budgets([])
        inbox.data = "250 OK"
        assert of.budgets([]) == "1 notices sent"
        assert of.budgets([]) == "0 notices sent"
    assert inbox.mails[0]["Subject"] == "GPU-hours of vogel: 100% of the budget used"
