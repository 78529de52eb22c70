"""`slurmkit ledger` and `slurmkit report`. Databases and LDAP are imported when a command runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_DB = "Database of the ledger.  [default: SLURMKIT_DB, [ledger] db, or a file of your own]"


def db_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--db`."""
    return click.option("--db", metavar="URL", help=_DB)(command)
