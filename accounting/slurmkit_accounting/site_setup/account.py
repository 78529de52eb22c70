"""The account of the service on this host: who it is, and commands that root runs as it."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from typing import Any


def find_account(name: str) -> pwd.struct_passwd:
    """Return the entry of an account by its name or uid.

    Raises:
        KeyError: when this host has no such account.
    """
    return pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)


def run_as(
    person: pwd.struct_passwd, argv: Sequence[str], **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command as another account, with its groups; only root can.

    Args:
        person: entry of the account.
        argv: the command.
        more: further arguments of `subprocess.run`.

    Raises:
        OSError: when the account cannot run the command.
        subprocess.TimeoutExpired: when it takes longer than `timeout`.
    """
    return subprocess.run(
        argv, user=person.pw_uid, group=person.pw_gid,
        extra_groups=os.getgrouplist(person.pw_name, person.pw_gid), text=True, check=False, **more,
    )  # fmt: skip
