"""Notices and reports by SMTP; encrypted and verified unless configured otherwise.

A report becomes plain text, with a self-contained HTML page as an alternative.
"""

from __future__ import annotations

import hashlib
import re
import smtplib
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate

from slurmkit.config.files import load_section, read_secret_file
from slurmkit.errors import BadConfig, BadInput, MaybeSent, NotSent
from slurmkit.formats.display import printable
from slurmkit_accounting.config import MailSection
from slurmkit_accounting.plugins import Notice
from slurmkit_accounting.render import render_report
from slurmkit_accounting.render.format import footer_lines
from slurmkit_accounting.render.text import table_columns, table_headings, text_rows, text_total
from slurmkit_accounting.reports.model import Report

_ADDRESS = re.compile(r"[^\s@,;:<>()\[\]\"\\]+@[^\s@,;:<>()\[\]\"\\]+")
_ACCEPTED, _PERMANENT = 250, 500  # SMTP reply codes: accepted; from 500 on refused permanently


class Mail:
    """The notifier `mail`."""

    def __init__(self) -> None:
        self.section = load_section("mail", MailSection)

    def check(self) -> None:
        """Check that a server and a sender are configured.

        Raises:
            BadConfig: when `[mail]` names no server or no sender.
        """
        if not (self.section.host and self.section.sender):
            raise BadConfig("[mail] host or sender is not set; set both to send mail")

    def send(self, notice: Notice) -> None:
        """Send one mail to the addresses of a notice; nothing if it has no address.

        Raises:
            BadConfig: when `[mail]` names no server or no sender.
            BadInput: when an address is not valid, or a header contains a newline.
            NotSent: when the server refuses all addresses, or one of them temporarily.
            MaybeSent: when the connection broke before the server confirmed the mail.
        """
        if not notice.to:
            return
        self.check()
        message = compose(self.section, notice)
        with _connected_server(self.section) as server:
            _hand_over(server, self.section.sender, notice.to, message)


def check_server(section: MailSection) -> None:
    """Connect to the mail server, encrypted and logged in as for a mail; send nothing.

    Raises:
        BadConfig: when a file that the section names cannot be read.
        NotSent: when the server cannot be reached, verified or logged in to.
    """
    with _connected_server(section) as server, _errors_as_not_sent(section):
        _check_reply(server.noop(), "NOOP")


def compose(section: MailSection, notice: Notice) -> EmailMessage:
    """Compose a mail: plain text, with HTML as an alternative if the notice has some.

    Raises:
        BadConfig: when there is no sender.
        BadInput: when an address is not valid, or a header contains a newline.
    """
    if not section.sender:
        raise BadConfig("[mail] sender is not set; set it to the address that mails come from")
    message = EmailMessage(policy=SMTP)
    digest = hashlib.sha256("\0".join((notice.identity, *notice.to)).encode()).hexdigest()
    headers = {
        "From": check_address(section.sender),
        "To": ", ".join(map(check_address, notice.to)),
        "Subject": notice.subject,
        "Date": formatdate(),
        # The same for the same notice, so that a duplicate can be recognised.
        "Message-ID": f"<{digest[:32]}@{section.sender.partition('@')[2]}>",
        "Auto-Submitted": "auto-generated",
    }
    if section.reply_to:
        headers["Reply-To"] = check_address(section.reply_to)
    for name, value in headers.items():
        message[name] = _check_header(name, value)
    message.set_content(notice.text, cte="quoted-printable")
    if notice.html:
        message.add_alternative(notice.html, subtype="html", cte="quoted-printable")
    return message


def check_address(text: str) -> str:
    """Return a mail address.

    Raises:
        BadInput: when it is not one.
    """
    # ASCII only: not every server supports SMTPUTF8.
    if not (_ADDRESS.fullmatch(text) and text.isascii() and text.isprintable()):
        raise BadInput(
            f"{text!r} is not a mail address in ASCII; write one address as NAME@DOMAIN, without a"
            " display name"
        )
    return text


def _check_header(name: str, value: str) -> str:
    if any(ord(char) < 32 or char in "\x7f\x85\u2028\u2029" for char in value):
        raise BadInput(f"mail header {name} contains a newline or control character: {value!r}")
    return value


def _ssl_context(section: MailSection) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=section.ca_file or None)
    except OSError as error:
        raise BadConfig(f"[mail] ca_file: cannot read {section.ca_file}: {error}") from error


@contextmanager
def _connected_server(section: MailSection) -> Iterator[smtplib.SMTP]:
    """Connect and log in; any error up to then is `NotSent`."""
    server: smtplib.SMTP
    with _errors_as_not_sent(section):
        if section.security == "tls":
            server = smtplib.SMTP_SSL(
                section.host, section.port, timeout=section.timeout, context=_ssl_context(section)
            )
        else:
            server = smtplib.SMTP(section.host, section.port, timeout=section.timeout)
    try:
        with _errors_as_not_sent(section):
            if section.security == "starttls":
                server.starttls(context=_ssl_context(section))
            if section.user:
                server.login(
                    section.user, read_secret_file("[mail] password_file", section.password_file)
                )
        yield server
    finally:
        with suppress(smtplib.SMTPException, OSError):  # the outcome is known by now
            server.quit()
        server.close()


@contextmanager
def _errors_as_not_sent(section: MailSection) -> Iterator[None]:
    try:
        yield
    except (smtplib.SMTPException, OSError) as error:
        raise NotSent(
            f"cannot send mail through {section.host}:{section.port}: {_error_text(error)};"
            " check section [mail]"
        ) from error


def _hand_over(
    server: smtplib.SMTP, sender: str, to: tuple[str, ...], message: EmailMessage
) -> None:
    try:
        server.ehlo_or_helo_if_needed()
        _check_reply(server.mail(sender), f"from {sender}")
        _send_recipients(server, to)
    except (smtplib.SMTPException, OSError) as error:
        raise NotSent(f"the mail server did not accept the mail: {_error_text(error)}") from error
    try:
        _check_reply(server.data(message.as_bytes()), "after it was sent")
    except smtplib.SMTPDataError as error:  # refused before the content was sent
        raise NotSent(f"the mail server did not accept the mail: {_error_text(error)}") from error
    except (smtplib.SMTPException, OSError) as error:
        raise MaybeSent(
            f"lost the mail server before it confirmed the mail: {_error_text(error)}"
        ) from error


def _send_recipients(server: smtplib.SMTP, to: tuple[str, ...]) -> None:
    """Send the recipients; a permanently refused one does not stop mail to the others.

    Raises:
        NotSent: when all are refused, or one is refused temporarily.
    """
    refused: list[NotSent] = []
    for address in to:
        code, words = server.rcpt(address)
        try:
            _check_reply((code, words), f"to {address}")
        except NotSent as error:
            if code < _PERMANENT or len(refused) + 1 == len(to):
                raise
            refused.append(error)


def _check_reply(reply: tuple[int, bytes], what: str) -> None:
    """Check that the server accepts a command; raises `NotSent`."""
    code, words = reply
    if code not in {_ACCEPTED, 251}:
        reason = words.decode("utf-8", "replace")
        raise NotSent(f"the mail server refused mail {what}: {code} {reason}")


def _error_text(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        reason = error.smtp_error
        words = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
        return f"{error.smtp_code} {words}"
    return str(error) or type(error).__name__


def report_as_html(report: Report) -> str:
    """Return the report as a self-contained page."""
    return render_report(report, "html").decode()


def report_as_text(report: Report, title: str, lead: Sequence[str] = ()) -> str:
    """Return the report as plain text: title, `lead`, table, and the lines about its data."""
    columns = table_columns(report)
    right = [column.kind != "text" for column in columns]
    total = text_total(report, columns)
    table = [
        table_headings(report, columns),
        *text_rows(report, columns),
        *([total] if total else []),
    ]
    rows = [[printable(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: list[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    notes = [printable(text) for text in footer_lines(report.meta)]
    first = [*map(printable, lead), ""] if lead else []
    return "\n".join((title, "", *first, *map(line, rows), "", *notes, ""))
