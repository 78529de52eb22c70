"""Mail to a real SMTP server: what arrives, what is refused, and what may have arrived."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from mail_lab import NOTICE, Inbox, certificate, smtp
from slurmkit_accounting.config import MailSection
from slurmkit_accounting.notify.mail import Mail, compose

from slurmkit.errors import BadConfig, BadInput, MaybeSent, NotSent

SECTION = MailSection(host="127.0.0.1", sender="ledger@lab.example", security="none", timeout=5)


@pytest.fixture
def port(inbox: Inbox) -> Iterator[int]:
    with smtp(inbox) as port:
        yield port


def mailer(**settings: object) -> Mail:
    mail = Mail()
    mail.section = msgspec.structs.replace(SECTION, **settings)
    return mail


def test_a_mail_arrives_whole(inbox: Inbox, port: int) -> None:
    mailer(port=port, reply_to="olga@lab.example").send(NOTICE)
    (mail,) = inbox.mails
    assert mail["From"] == "ledger@lab.example"
    assert mail["To"] == "garcia@lab.example"
    assert mail["Reply-To"] == "olga@lab.example"
    assert mail["Subject"] == NOTICE.subject
    assert mail["Auto-Submitted"] == "auto-generated"
    text, html = mail.iter_parts()
    assert text.get_content().replace("\r\n", "\n") == NOTICE.text
    assert html.get_content().strip() == NOTICE.html
    assert inbox.recipients == [["garcia@lab.example"]]


def test_the_same_notice_has_the_same_id(inbox: Inbox, port: int) -> None:
    other = msgspec.structs.replace(NOTICE, identity="another")
    for notice in (NOTICE, NOTICE, other):
        mailer(port=port).send(notice)
    first, second, third = (mail["Message-ID"] for mail in inbox.mails)
    assert first == second != third


@pytest.mark.parametrize(
    "change",
    [
        {"subject": "Hi\nBcc: mallory@evil.example"},
        {"subject": "Hi\rX: y"},
        {"subject": "Hi\x85"},
        {"to": ("garcia@lab.example\nBcc: mallory@evil.example",)},
        {"to": ("garcia@lab.example, mallory@evil.example",)},
        {"to": ("Garcia <garcia@lab.example>",)},
        {"to": ("garcia",)},
        {"to": ("garc\u00eda@lab.example",)},
        {"to": ("garcia\x00@lab.example",)},
    ],
)
def test_nothing_forges_a_header(inbox: Inbox, port: int, change: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        mailer(port=port).send(msgspec.structs.replace(NOTICE, **change))
    assert inbox.mails == []


def test_no_sender_and_no_server() -> None:
    with pytest.raises(BadConfig, match="sender is not set"):
        compose(MailSection(host="x"), NOTICE)
    with pytest.raises(BadConfig, match="host or sender is not set"):
        mailer(host="").send(NOTICE)
    mailer(host="").send(msgspec.structs.replace(NOTICE, to=()))  # nobody to tell


@pytest.mark.parametrize("answers", [{"rcpt": "550 no such user"}, {"data": "452 disk full"}])
def test_a_refusal_is_known_for_one(inbox: Inbox, port: int, answers: dict[str, str]) -> None:
    vars(inbox).update(answers)
    with pytest.raises(NotSent, match=r"no such user|disk full"):
        mailer(port=port).send(NOTICE)
    assert inbox.mails == []


@pytest.mark.parametrize(
    ("answer", "sent"), [("550 no such user", ["olga@lab.example"]), ("451 not yet", None)]
)
@pytest.mark.parametrize("first", ["garcia@lab.example", "olga@lab.example"])
def test_one_who_is_refused_for_good_keeps_no_other_from_getting_it(
    inbox: Inbox, port: int, answer: str, sent: list[str] | None, first: str
) -> None:
    inbox.of = {"garcia@lab.example": answer}
    to = tuple(sorted(("garcia@lab.example", "olga@lab.example"), key=lambda one: one != first))
    notice = msgspec.structs.replace(NOTICE, to=to)
    if sent is None:  # later it may be taken for both
        with pytest.raises(NotSent, match="not yet"):
            mailer(port=port).send(notice)
    else:
        mailer(port=port).send(notice)
    assert inbox.recipients == ([sent] if sent else [])


def test_a_lost_answer_is_a_doubt(inbox: Inbox, port: int) -> None:
    inbox.drop = True
    with pytest.raises(MaybeSent, match="lost the mail server before it confirmed the mail"):
        mailer(port=port).send(NOTICE)
    assert len(inbox.mails) == 1


def test_no_server_there() -> None:
    with pytest.raises(NotSent, match=r"cannot send mail through 127\.0\.0\.1:9"):
        mailer(port=9).send(NOTICE)


def test_starttls_is_verified(inbox: Inbox, tmp_path: Path) -> None:
    ca, context = certificate(tmp_path / "tls")
    with smtp(inbox, context) as port:
        with pytest.raises(NotSent, match="certificate verify failed"):
            mailer(port=port, security="starttls").send(NOTICE)
        with pytest.raises(NotSent, match="STARTTLS"):  # the server wants it
            mailer(port=port).send(NOTICE)
        mailer(port=port, security="starttls", ca_file=str(ca)).send(NOTICE)
    other, context = certificate(tmp_path / "tls", "mail.example")
    with smtp(inbox, context) as port, pytest.raises(NotSent, match="certificate verify failed"):
        mailer(port=port, security="starttls", ca_file=str(other)).send(NOTICE)
    assert len(inbox.mails) == 1


def test_a_server_without_starttls_gets_nothing(inbox: Inbox, port: int) -> None:
    with pytest.raises(NotSent, match="STARTTLS"):
        mailer(port=port, security="starttls").send(NOTICE)
    assert inbox.mails == []


def test_settings_come_from_the_configuration(configure: Callable[[str], None]) -> None:
    configure('[mail]\nhost = "mail.example"\nsender = "a@b.c"\n')
    assert (Mail().section.host, Mail().section.security) == ("mail.example", "starttls")
