"""The settings of each user for mails about jobs, stored in the ledger.

A user sees and changes their own settings through the ledger's service, which knows the user by a
MUNGE credential. So the service need not read anybody's home, and nobody can change another's.
"""

from __future__ import annotations

import os
import pwd
import time
from typing import Literal

import msgspec
from sqlalchemy import Connection, delete, insert, select

from slurmkit.config.files import load_section
from slurmkit.errors import BadInput
from slurmkit_accounting.config import JobMailSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.notices import mail_settings
from slurmkit_accounting.remote.served import also_remote, changes_remote

Mails = Literal["each", "daily", "never"]
About = Literal["all", "failures"]
MAILS: tuple[Mails, ...] = ("each", "daily", "never")
ABOUT: tuple[About, ...] = ("all", "failures")


class MailSettings(msgspec.Struct, frozen=True):
    """What a user wants of the mails about jobs.

    Attributes:
        mails: `each`: a mail for each job or array; `daily`: one mail a day with all of them;
            `never`: none.
        about: `all`: everything that `--mail-type` names; `failures`: only what went wrong.
    """

    mails: Mails = "each"
    about: About = "all"


DEFAULTS = MailSettings()


@also_remote
def show_mail_settings(ledger: Ledger, *, uid: int = -1) -> MailSettings:
    """Return a user's settings; the service says whose.

    Args:
        ledger: an open ledger.
        uid: the user; the service sets it to the uid of whoever asks.

    Raises:
        BadInput: when the site's service sends no mail about jobs.
    """
    _require_job_mail()
    with ledger.transaction() as connection:
        return settings_of(connection, *_user(uid))


@changes_remote
def change_mail_settings(
    ledger: Ledger, *, mails: Mails | None = None, about: About | None = None, uid: int = -1
) -> MailSettings:
    """Change a user's settings; return them as they are then.

    Args:
        ledger: a ledger open for writing.
        mails: see `MailSettings`; None leaves it as it is.
        about: as `mails`.
        uid: the user; the service sets it to the uid of whoever asks.

    Raises:
        BadInput: when the site's service sends no mail about jobs.
    """
    _require_job_mail()
    number, user = _user(uid)
    with ledger.transaction() as connection:
        before = settings_of(connection, number, user)
        settings = MailSettings(mails or before.mails, about or before.about)
        connection.execute(delete(mail_settings).where(mail_settings.c.uid == number))
        values = {"uid": number, "user": user, "changed": int(time.time())}
        connection.execute(insert(mail_settings).values(**values, **msgspec.to_builtins(settings)))
    return settings


def settings_of(connection: Connection, uid: int | None, user: str) -> MailSettings:
    """Return the settings of the user with this uid and name; the defaults without any."""
    table = mail_settings.c
    query = select(table.mails, table.about).where(table.uid == uid, table.user == user)
    row = connection.execute(query).one_or_none()
    return MailSettings(*row) if row else DEFAULTS


def _user(uid: int) -> tuple[int, str]:
    number = os.getuid() if uid < 0 else uid
    try:
        return number, pwd.getpwuid(number).pw_name
    except KeyError:
        raise BadInput(
            f"the ledger's host knows no user with uid {number}; ask your administrator"
        ) from None


def _require_job_mail() -> None:
    if not load_section("job_mail", JobMailSection).spool:
        raise BadInput(
            "the ledger's service sends no mails about jobs here; leave `slurmkit notify` running"
            " instead, or ask your administrator for [job_mail]"
        )
