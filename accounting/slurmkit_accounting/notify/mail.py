"""Mail by SMTP: encrypted and verified unless told otherwise, no header forged, sent once."""

from __future__ import annotations

import hashlib
import re
import smtplib
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate

from slurmkit.config import load_section
from slurmkit.errors import BadConfig, BadInput, MaybeSent, NotSent
from slurmkit_accounting.notify.config import MailSection
from slurmkit_accounting.password import secret_in
from slurmkit_accounting.plugins import Notice

_ADDRESS = re.compile(r"[^\s@,;:<>()\[\]\"\\]+@[^\s@,;:<>()\[\]\"\\]+")
_TAKEN, _FOR_GOOD = 250, 500


class Mail:
    """The notifier `mail`."""

    def __init__(self) -> None:
        self.section = load_section("mail", MailSection)

    def check(self) -> None:
        """See that there is somebody to send by.

        Raises:
            BadConfig: when `[mail]` names no server or no sender.
        """
        if not (self.section.host and self.section.sender):
            raise BadConfig("[mail] names no host or no sender; set both to send mail")

    def send(self, notice: Notice) -> None:
        """Send one mail to the addresses of a notice; without any there is nothing to do.

        Raises:
            BadConfig: when `[mail]` names no server or no sender.
            BadInput: when an address is none, or a header holds a newline.
            NotSent: when the server does not take it for anybody, or not yet for one of them.
            MaybeSent: when the line broke before the server said that it took it.
        """
        if not notice.to:
            return
        self.check()
        message = compose(self.section, notice)
        with _server(self.section) as server:
            _hand_over(server, self.section.sender, notice.to, message)


def compose(section: MailSection, notice: Notice) -> EmailMessage:
    """Make a mail: plain text, and HTML beside it where there is some.

    Raises:
        BadConfig: when there is no sender.
        BadInput: when an address is none, or a header holds a newline.
    """
    if not section.sender:
        raise BadConfig("[mail] names no sender; set it to the address that mail comes from")
    message = EmailMessage(policy=SMTP)
    headers = {
        "From": _address(section.sender),
        "To": ", ".join(map(_address, notice.to)),
        "Subject": notice.subject,
        "Date": formatdate(),
        # The same for the same notice: a server or reader that gets it twice can tell.
        "Message-ID": f"<{_digest(notice)}@{section.sender.partition('@')[2]}>",
        "Auto-Submitted": "auto-generated",
    }
    if section.reply_to:
        headers["Reply-To"] = _address(section.reply_to)
    for name, value in headers.items():
        message[name] = _one_line(name, value)
    message.set_content(notice.text, cte="quoted-printable")
    if notice.html:
        message.add_alternative(notice.html, subtype="html", cte="quoted-printable")
    return message


def _digest(notice: Notice) -> str:
    return hashlib.sha256("\0".join((notice.identity, *notice.to)).encode()).hexdigest()[:32]


def _address(text: str) -> str:
    # Not every server takes other letters, and none is told of them in a header.
    if not (_ADDRESS.fullmatch(text) and text.isascii() and text.isprintable()):
        raise BadInput(
            f"{text!r} is not a mail address in ASCII; write NAME@DOMAIN, one and without a name"
        )
    return text


def _one_line(name: str, value: str) -> str:
    if any(ord(char) < 32 or char in "\x7f\x85\u2028\u2029" for char in value):
        raise BadInput(f"the mail's {name} holds a newline or control character: {value!r}")
    return value


def _trusted(section: MailSection) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=section.ca_file or None)
    except OSError as error:
        raise BadConfig(f"[mail] ca_file: cannot read {section.ca_file}: {error}") from error


@contextmanager
def _server(section: MailSection) -> Iterator[smtplib.SMTP]:
    """Connect and log in; whatever goes wrong until then, nothing was sent."""
    server: smtplib.SMTP
    with _nothing_sent(section):
        if section.security == "tls":
            server = smtplib.SMTP_SSL(
                section.host, section.port, timeout=section.timeout, context=_trusted(section)
            )
        else:
            server = smtplib.SMTP(section.host, section.port, timeout=section.timeout)
    try:
        with _nothing_sent(section):
            if section.security == "starttls":
                server.starttls(context=_trusted(section))
            if section.user:
                server.login(section.user, secret_in("[mail] password_file", section.password_file))
        yield server
    finally:
        with suppress(smtplib.SMTPException, OSError):  # taken or not: that is known by now
            server.quit()
        server.close()


@contextmanager
def _nothing_sent(section: MailSection) -> Iterator[None]:
    try:
        yield
    except (smtplib.SMTPException, OSError) as error:
        raise NotSent(
            f"the mail server {section.host}:{section.port} did not take the mail: {_words(error)};"
            " see section [mail]"
        ) from error


def _hand_over(
    server: smtplib.SMTP, sender: str, to: tuple[str, ...], message: EmailMessage
) -> None:
    try:
        server.ehlo_or_helo_if_needed()
        _expect(server.mail(sender), f"from {sender}")
        _offer(server, to)
    except (smtplib.SMTPException, OSError) as error:
        raise NotSent(f"the mail server took no mail: {_words(error)}") from error
    try:
        _expect(server.data(message.as_bytes()), "as a whole")
    except smtplib.SMTPDataError as error:  # refused before the mail itself
        raise NotSent(f"the mail server took no mail: {_words(error)}") from error
    except (smtplib.SMTPException, OSError) as error:
        raise MaybeSent(
            f"the mail server was lost while it took the mail: {_words(error)}"
        ) from error


def _offer(server: smtplib.SMTP, to: tuple[str, ...]) -> None:
    """Name those whom it is for; one who is refused for good keeps no other from getting it."""
    refused: list[NotSent] = []
    for address in to:
        code, words = server.rcpt(address)
        try:
            _expect((code, words), f"to {address}")
        except NotSent as error:
            if code < _FOR_GOOD or len(refused) + 1 == len(to):
                raise
            refused.append(error)


def _expect(said: tuple[int, bytes], what: str) -> None:
    code, words = said
    if code not in {_TAKEN, 251}:
        reason = words.decode("utf-8", "replace")
        raise NotSent(f"the mail server takes no mail {what}: {code} {reason}")


def _words(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        said = error.smtp_error
        words = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        return f"{error.smtp_code} {words}"
    return str(error) or type(error).__name__
