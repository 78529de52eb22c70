"""The sections `[mail]`, `[webhook]` and `[notify]` of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=3600)]
Event = Literal["start", "fail", "end"]


class MailSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[mail]`: the mail server, and who the mail is from.

    Attributes:
        host: name of the SMTP server; empty for none, and no mail.
        port: 25, 587 for submission, 465 with `tls`.
        security: `starttls` (verified), `tls` from the first byte (verified), or `none`, which
            sends everything in clear.
        ca_file: PEM file of the CA that signed the server's certificate; empty for the system's.
        user: who logs in there; empty for nobody.
        password_file: file with the password of `user`, not readable by others.
        sender: the address mail comes from.
        reply_to: where answers go; empty for the sender.
        timeout: seconds to wait for the server.
    """

    host: str = ""
    port: Port = 25
    security: Literal["starttls", "tls", "none"] = "starttls"
    ca_file: str = ""
    user: str = ""
    password_file: str = ""
    sender: str = ""
    reply_to: str = ""
    timeout: Seconds = 30


class WebhookSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[webhook]`: where notices are sent as JSON.

    Attributes:
        url: `https://...`; its certificate is verified.
        secret_file: file with the secret that signs each notice, not readable by others.
        ca_file: PEM file of the CA that signed the server's certificate; empty for the system's.
        timeout: seconds to wait for the server.
    """

    url: str = ""
    secret_file: str = ""
    ca_file: str = ""
    timeout: Seconds = 30


class NotifySection(msgspec.Struct, frozen=True, kw_only=True):
    """`[notify]`: how notices reach whom. In a person's own file: of their own jobs.

    Attributes:
        by: notifiers, by name: `mail`, `webhook`, or a site's own.
        jobs: what a person wants to know of their own jobs: `start`, `fail`, `end`.
        to: a person's mail address for that.
        budgets: addresses that get every notice of a budget, beside the PI it is about.
    """

    by: tuple[str, ...] = ("mail",)
    jobs: tuple[Event, ...] = ()
    to: str = ""
    budgets: tuple[str, ...] = ()
