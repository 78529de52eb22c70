"""`slurmkit ledger close`."""

from __future__ import annotations

import time

import click

from slurmkit.text import printable
from slurmkit_accounting.cli import db_option


@click.command("close")
@click.argument("month", metavar="YYYY-MM")
@click.option("--timezone", metavar="TZ", help="Of the month.  [default: the host's]")
@db_option
def close_command(month: str, timezone: str | None, db: str | None) -> None:
    """Close a month: what the books say of it is kept as it is.

    Reports go on to show that; what later ingests change comes as corrections, in rows of their
    own. A month that is closed already stays as it was.

    \b
    Examples:
      slurmkit ledger close 2026-10
      slurmkit ledger close 2026-10 --timezone Europe/Berlin
    """
    from slurmkit_accounting.closing import close_month  # noqa: PLC0415
    from slurmkit_accounting.ledger import open_for_writing  # noqa: PLC0415
    from slurmkit_accounting.render.words import moment  # noqa: PLC0415
    from slurmkit_accounting.zones import zone  # noqa: PLC0415

    with open_for_writing(db) as ledger:
        found = close_month(ledger, month, zone(timezone), int(time.time()))
    for one in found:
        said = "closed" if one.new else f"was closed at {moment(one.at)}"
        where = f"{one.month} of {printable(one.cluster)} ({one.timezone})"
        click.echo(f"{where} {said}; checksum {one.checksum[:16]}")
