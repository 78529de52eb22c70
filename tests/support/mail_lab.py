"""A real mail server, on this host, and certificates for it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any, cast

from aiosmtpd.controller import Controller
from slurmkit_accounting.plugins import Notice

NOTICE = Notice(
    kind="month",
    identity="month\n2026-10\ngarcia",
    to=("garcia@lab.example",),
    subject="GPU-hours of October 2026",
    text="Grüße\n.\nFrom here on\n",
    html="<p>Grüße</p>",
    facts={"month": "2026-10"},
)


class Inbox:
    """Keeps mail; `rcpt`, and for one address `of`, and `data` make it refuse."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.rcpt = "250 OK"
        self.of: dict[str, str] = {}
        self.data = "250 OK"
        self.drop = False

    async def handle_RCPT(self, *asked: Any) -> str:  # noqa: N802 - aiosmtpd looks for it
        _, _, envelope, address, _ = asked
        answer = self.of.get(address, self.rcpt)
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        del session
        if self.data.startswith("250"):
            mail = message_from_bytes(envelope.content, policy=default)
            self.mails.append(cast("EmailMessage", mail))
            self.recipients.append(envelope.rcpt_tos)
        if self.drop:  # taken, but its answer is lost
            server.transport.abort()
        return self.data


@contextmanager
def smtp(inbox: Inbox, tls: SSLContext | None = None) -> Iterator[int]:
    """Serve an inbox; its port. With `tls`, only over STARTTLS."""
    controller = Controller(
        inbox, hostname="127.0.0.1", port=0, tls_context=tls, require_starttls=tls is not None
    )
    _any_port(controller)
    try:
        yield controller.server.sockets[0].getsockname()[1]
    finally:
        controller.stop()


def _any_port(controller: Controller) -> None:
    # It would look for itself on port 0, so it is told the one it got.
    start = controller._create_server

    async def create() -> Any:
        server = await start()
        controller.port = server.sockets[0].getsockname()[1]
        return server

    controller._create_server = create
    controller.start()


def certificate(folder: Path, name: str = "127.0.0.1") -> tuple[Path, SSLContext]:
    """A certificate for an address, that signs itself; and a server's context with it."""
    folder.mkdir(exist_ok=True)
    key, pem = folder / f"{name}.key", folder / f"{name}.pem"
    kind = "IP" if name[0].isdigit() else "DNS"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         f"/CN={name}", "-addext", f"subjectAltName={kind}:{name}", "-keyout", key, "-out", pem],
        check=True, capture_output=True,
    )  # fmt: skip
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    return pem, context


def text_of(mail: EmailMessage) -> str:
    """Return the plain text of a mail."""
    body = mail.get_body(("plain",))
    assert body is not None
    return str(body.get_content()).replace("\r\n", "\n")


def html_of(mail: EmailMessage) -> str:
    """Return the HTML of a mail."""
    body = mail.get_body(("html",))
    assert body is not None
    return str(body.get_content())
