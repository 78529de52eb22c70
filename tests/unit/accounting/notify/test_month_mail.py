"""`report mail` to a real SMTP server: each PI their own month, once."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path

import pytest
from allocation_lab import grant
from entries import person
from mail_lab import Inbox, smtp
from month_books import DAY, NOVEMBER, month_books
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.schema.people import people
from slurmkit_accounting.people.model import Directory
from slurmkit_accounting.people.sync import PeopleData, sync_people
from sqlalchemy import update

from slurmkit.cli.main import cli, run_to_exit_code

assert month_books  # a fixture


@pytest.fixture(autouse=True)
def _server(inbox: Inbox, configure: Callable[[str], None]) -> Iterator[None]:
    with smtp(inbox) as port:
        configure(
            f'[mail]\nhost = "127.0.0.1"\nport = {port}\nsecurity = "none"\n'
            'sender = "ledger@lab.example"\ntimeout = 5\n'
        )
        yield


def mail(*words: str) -> int:
    return run_to_exit_code(cli, ["report", "mail", "--timezone", "UTC", *words])


def recipients(inbox: Inbox) -> list[str]:
    return [address for each in inbox.recipients for address in each]


@pytest.mark.usefixtures("books")
def test_each_pi_gets_their_own_month_once(
    inbox: Inbox, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mail("--month", "2025-10") == 1  # chen has no address
    assert capsys.readouterr().out.splitlines() == [
        "chen: not sent: the directory has no mail address of this person",
        "garcia: sent",
        "vogel: sent",
    ]
    assert recipients(inbox) == ["garcia@lab.example", "vogel@lab.example"]
    genomics, vision = inbox.mails
    assert genomics["Subject"] == "GPU-hours of garcia in 2025-10"
    text, html = (part.get_content() for part in genomics.iter_parts())
    assert "bob" in text
    assert "6.00" in text
    assert "alice" not in text
    assert "window: 2025-10-01" in text
    assert html.lstrip().lower().startswith("<!doctype html>")
    assert "alice" not in html
    assert "alice" in vision.get_body(("plain",)).get_content()

    assert mail("--month", "2025-10") == 1
    assert "garcia: sent before" in capsys.readouterr().out
    assert len(inbox.mails) == 2
    assert mail("--month", "2025-11") == 0
    assert recipients(inbox)[2:] == ["vogel@lab.example"]


@pytest.mark.usefixtures("books")
def test_a_pi_is_told_what_is_left_of_their_allocations(inbox: Inbox) -> None:
    with open_for_writing() as ledger:
        grant(ledger, 1000, holder="vision", begin=0)
        grant(ledger, 50, holder_kind="pi", holder="garcia", begin=0)
    mail("--month", "2025-10")
    for sent, own, other in zip(
        inbox.mails,
        ("PI garcia on {}: {} of 50.00", "account vision on {}: {} of 1,000.00"),
        ("account vision", "PI garcia"),
        strict=True,
    ):
        text, html = (part.get_content() for part in sent.iter_parts())
        amounts = r"[0-9,.]+"
        pattern = "Allocation of " + own.format(r"\d{4}-\d\d-\d\d", amounts)
        assert re.search(f"{pattern} GPU-hours are used, {amounts} are left", text), text
        assert re.search(pattern, html)
        assert "Left of allocations, GPU-hours" in html
        assert other not in text
        assert other not in html


@pytest.mark.sql
def test_who_has_left_gets_no_mail_where_somebody_else_may_be_now(
    books: Ledger, inbox: Inbox, capsys: pytest.CaptureFixture[str]
) -> None:
    sync_people(books, PeopleData(Directory((person("alice"),), ())), now=NOVEMBER + DAY)
    assert mail("--month", "2025-11") == 1
    said = "vogel: not sent: the directory no longer has this person"
    assert capsys.readouterr().out.splitlines() == [said]
    assert inbox.mails == []


@pytest.mark.sql
@pytest.mark.usefixtures("books")
def test_an_address_that_no_server_takes_keeps_nobody_else_waiting(
    books: Ledger, inbox: Inbox, capsys: pytest.CaptureFixture[str]
) -> None:
    with books.transaction() as connection:
        garcia = people.c.mail == "garcia@lab.example"
        connection.execute(update(people).where(garcia).values(mail="garc\u00eda@lab.example"))
    assert mail("--month", "2025-10") == 1
    said = capsys.readouterr().out
    assert "is not a mail address in ASCII" in said
    assert "vogel: sent\n" in said
    assert recipients(inbox) == ["vogel@lab.example"]


@pytest.mark.usefixtures("books")
def test_a_refused_mail_is_sent_by_the_next_run(
    inbox: Inbox, capsys: pytest.CaptureFixture[str]
) -> None:
    inbox.data = "451 try later"
    assert mail("--month", "2025-11") == 1
    assert (
        "vogel: not sent: the mail server refused mail after it was sent" in capsys.readouterr().out
    )
    inbox.data = "250 OK"
    assert mail("--month", "2025-11") == 0
    assert len(inbox.mails) == 1


@pytest.mark.usefixtures("books")
def test_what_may_have_arrived_waits_for_a_word(
    inbox: Inbox, capsys: pytest.CaptureFixture[str]
) -> None:
    inbox.drop = True
    assert mail("--month", "2025-11") == 1
    inbox.drop = False
    assert mail("--month", "2025-11") == 1
    assert "vogel: may have been sent before" in capsys.readouterr().out
    assert len(inbox.mails) == 1
    assert mail("--month", "2025-11", "--again") == 0
    assert inbox.mails[0]["Message-ID"] == inbox.mails[1]["Message-ID"]


@pytest.mark.usefixtures("books")
def test_killed_between_two_mails(inbox: Inbox) -> None:
    """A process of its own is killed while the second mail is under way."""
    child = os.fork()
    if child == 0:
        from slurmkit_accounting.notify import mail as sending  # noqa: PLC0415

        real, sent = sending.Mail.send, []

        def send(self: sending.Mail, notice: object) -> None:
            if sent:
                os.kill(os.getpid(), signal.SIGKILL)
            sent.append(real(self, notice))  # type: ignore[arg-type]

        sending.Mail.send = send  # type: ignore[method-assign,assignment]
        mail("--month", "2025-10")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert recipients(inbox) == ["garcia@lab.example"]
    mail("--month", "2025-10")
    assert recipients(inbox) == ["garcia@lab.example"]  # vogel's was cut off on its way
    mail("--month", "2025-10", "--again")
    assert recipients(inbox) == ["garcia@lab.example", "vogel@lab.example"]


@pytest.mark.usefixtures("books")
def test_a_dry_run_writes_files_and_sends_nothing(inbox: Inbox, tmp_path: Path) -> None:
    assert mail("--month", "2025-10", "--dry-run", str(tmp_path / "mails")) == 0
    files = sorted((tmp_path / "mails").iterdir())
    assert [file.name for file in files] == ["2025-10-garcia.eml", "2025-10-vogel.eml"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    made = message_from_bytes(files[0].read_bytes(), policy=default)
    assert isinstance(made, EmailMessage)
    assert made["To"] == "garcia@lab.example"
    assert inbox.mails == []
    assert mail("--month", "2025-10", "--dry-run", str(tmp_path / "mails")) == 0  # once more
    assert mail("--month", "2025-10") == 1
    assert len(inbox.mails) == 2


@pytest.mark.parametrize("month", ["2125-01", "october"])
def test_no_month(month: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_for_writing():
        pass
    assert mail("--month", month) == 2
    assert "is not over yet" in (said := capsys.readouterr().err) or "is not a month" in said


def test_no_server(configure: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    configure("")
    assert mail("--month", "2025-10") == 2
    assert "[mail] host or sender is not set" in capsys.readouterr().err
