"""The commands `slurmkit ledger`, `report` and `notify`.

SQLAlchemy and LDAP are imported when a command runs, so that `--help` and Tab are quick.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmkit.config.files import load_section
from slurmkit.errors import BadInput, LedgerError
from slurmkit.formats.display import printable

if TYPE_CHECKING:
    from slurmkit_accounting.ledger.database import Ledger
    from slurmkit_accounting.remote.served import AnyLedger

_DB = "Database of the ledger.  [default: SLURMKIT_DB, [ledger] db, or a file of your own]"


_TOLD = "slurmkit_accounting.private_ledgers"  # in click's context: what was said of
_PASSWORD = re.compile(r"[\w+]+://[^:/]*:[^@]+@")  # as SQLAlchemy finds it


def refuse_password(_: click.Context, param: click.Parameter, url: str | None) -> str | None:
    """Return the URL of a ledger from a command line, unless it has a password.

    Raises:
        BadInput: when it has one; it is not shown.
    """
    if url and _PASSWORD.match(url):
        name = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
        raise BadInput(
            f"{name} has a password, which everybody on this host can see in the list of processes;"
            " take it out of the URL, and put it into ~/.pgpass"
        )
    return url


def db_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--db` to a command."""
    return click.option("--db", metavar="URL", callback=refuse_password, help=_DB)(command)


@contextmanager
def show_progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar over runs on standard error, if that is a terminal.

    Args:
        doing: what is done, for example `checking`.

    Yields:
        A function to call with the number of runs done, and of all.
    """
    from rich import console, progress

    columns = (
        progress.TextColumn(doing),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
    )
    stderr = console.Console(stderr=True)
    shown = sys.stderr.isatty()
    with progress.Progress(*columns, console=stderr, transient=True, disable=not shown) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def open_for_reading(db: str | None) -> AbstractContextManager[Ledger]:
    """Open the ledger that a command reads; see `slurmkit_accounting.ledger.database`."""
    return _open(db, writing=False)


@contextmanager
def open_to_change(db: str | None) -> Iterator[AnyLedger]:
    """Open the named ledger for writing; without a name the site's, through its service.

    It must be there, with the schema of this release: nothing is made or migrated here.
    """
    from slurmkit_accounting.remote.client import configured_remote

    if not (db or os.environ.get("SLURMKIT_DB")) and (remote := configured_remote()):
        yield remote
        return
    with open_for_reading(db):
        pass
    with open_for_writing(db) as ledger:
        yield ledger


def open_for_writing(db: str | None) -> AbstractContextManager[Ledger]:
    """Open the ledger that a command changes; see `slurmkit_accounting.ledger.database`."""
    return _open(db, writing=True)


@contextmanager
def _open(db: str | None, *, writing: bool) -> Iterator[Ledger]:
    from slurmkit_accounting.ledger import database
    from slurmkit_accounting.ledger.location import describe_url, ledger_url

    opener = database.open_for_writing if writing else database.open_for_reading
    with ExitStack() as stack:
        try:
            ledger = stack.enter_context(opener(db))
        except LedgerError as error:
            if not _service_beside(db) or Path(describe_url(ledger_url())).exists():
                raise
            why = str(error).partition("; ")[0]  # without the advice for a ledger of one's own
            raise LedgerError(
                "this command reads the ledger itself, not through its service: run it on the host"
                f" of the service, as the service's account, or name a ledger with --db ({why})"
            ) from error
        mention_service(db, ledger.source)
        yield ledger


def mention_service(db: str | None, source: str) -> None:
    """Say once that a user's own ledger is not that of the site's service, if there is one."""
    context = click.get_current_context(silent=True)
    told: set[str] = context.meta.setdefault(_TOLD, set()) if context else set()
    if source not in told and (url := _service_beside(db)):
        told.add(source)
        click.echo(
            f"this ledger, {printable(source)}, is not the site's: reports use the site's service"
            f" at {printable(url)}; to use this ledger, add: --db {printable(f'sqlite:///{source}')}",
            err=True,
        )


def _service_beside(db: str | None) -> str:
    """Return the URL of the site's service, if a command uses the user's own file nevertheless."""
    from slurmkit_accounting.config import ServiceSection
    from slurmkit_accounting.ledger.location import is_default_ledger, ledger_url
    from slurmkit_accounting.remote.client import is_the_service

    if db or os.environ.get("SLURMKIT_DB") or not is_default_ledger(ledger_url()):
        return ""
    section = load_section("ledger.service", ServiceSection)
    return "" if is_the_service(section) else section.url
