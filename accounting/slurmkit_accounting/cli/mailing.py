"""`slurmkit report mail`: each PI their month."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmkit.errors import NotSent
from slurmkit.text import printable
from slurmkit_accounting.cli import db_option

if TYPE_CHECKING:
    from slurmkit_accounting.notify.month import Month


@click.command("mail")
@click.option("--month", metavar="YYYY-MM", required=True, help="Which; it must be over.")
@click.option("--timezone", metavar="TZ", help="Whose month it is.  [default: the service's]")
@click.option(
    "--dry-run", metavar="FOLDER", type=click.Path(path_type=Path), help="Write .eml files there."
)
@click.option("--again", is_flag=True, help="Send also what was cut off and may have arrived.")
@db_option
def mail_command(
    month: str, timezone: str | None, dry_run: Path | None, db: str | None, *, again: bool
) -> None:
    """Mail each PI the report of their month, to the address in the directory.

    Each PI gets a month once, however often this runs. What was cut off while the mail server
    took it is not sent again by itself, since it may have arrived. The mail server is named in
    section [mail] of the configuration. It reads the ledger itself, not through its service.

    \b
    Examples:
      slurmkit report mail --month 2026-10 --dry-run ./mails
      slurmkit report mail --month 2026-10
    """
    import time  # noqa: PLC0415

    from slurmkit.config import load_section  # noqa: PLC0415
    from slurmkit_accounting.notify.month import Month  # noqa: PLC0415
    from slurmkit_accounting.service.config import ScheduleSection  # noqa: PLC0415
    from slurmkit_accounting.zones import zone  # noqa: PLC0415

    where = timezone or load_section("ledger.schedule", ScheduleSection).timezone
    which = Month(month, zone(where or None), int(time.time()))
    if dry_run:
        _write(which, dry_run, db)
    else:
        _send(which, db, again=again)


def _write(month: Month, folder: Path, db: str | None) -> None:
    from slurmkit_accounting.ledger import open_for_reading  # noqa: PLC0415
    from slurmkit_accounting.notify.month import write_month  # noqa: PLC0415

    with open_for_reading(db) as ledger:
        for pi, path in write_month(ledger, month, folder):
            click.echo(f"{printable(pi.name)}: {printable(str(path))}")


def _send(month: Month, db: str | None, *, again: bool) -> None:
    from slurmkit_accounting.ledger import open_for_writing  # noqa: PLC0415
    from slurmkit_accounting.notify.month import mail_month  # noqa: PLC0415
    from slurmkit_accounting.notify.once import Outcome  # noqa: PLC0415

    missed = 0
    with open_for_writing(db) as ledger:
        for told in mail_month(ledger, month, again=again):
            why = f": {printable(told.why)}" if told.why else ""
            click.echo(f"{printable(told.pi.name)}: {told.outcome.value}{why}")
            missed += told.outcome in {Outcome.FAILED, Outcome.DOUBTFUL}
    if missed:
        raise NotSent(
            f"{missed} of the mails were not sent, or may not have arrived; the reasons are above."
            " Run it again, with --again for those that may have arrived"
        )
