"""`slurmkit ledger`: keep the books."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slurmkit.text import printable
from slurmkit_accounting.cli import db_option
from slurmkit_accounting.cli.people import people_group

if TYPE_CHECKING:
    from slurmkit_accounting.ingest import Ingested
    from slurmkit_accounting.zones import Zone


@click.group("ledger")
def ledger_group() -> None:
    """Keep the books: jobs from sacct, people from LDAP."""


ledger_group.add_command(people_group)


@ledger_group.command("ingest")
@click.option("--since", metavar="DATE", help="Read again from this date on, YYYY-MM-DD.")
@db_option
def ingest_command(since: str | None, db: str | None) -> None:
    """Read new and changed jobs from sacct into the ledger.

    It goes on where the books end, less 48 hours in which rows still change; the first one
    begins 30 days ago. Books have no holes: an ingest that begins later than they end does not
    move their end. It can be interrupted and repeated at any time.

    \b
    Examples:
      slurmkit ledger ingest
      slurmkit ledger ingest --since 2026-01-01
    """
    from slurmkit.slurm import LocalSlurm  # noqa: PLC0415
    from slurmkit_accounting.ingest import ingest  # noqa: PLC0415
    from slurmkit_accounting.ledger import open_for_writing  # noqa: PLC0415
    from slurmkit_accounting.progress import shown  # noqa: PLC0415
    from slurmkit_accounting.zones import zone_or_utc  # noqa: PLC0415

    here = zone_or_utc()
    begin = None if since is None else here.epoch(since)
    with open_for_writing(db) as ledger, shown() as progress:
        done = ingest(ledger, LocalSlurm(), since=begin, progress=progress)
    _show_ingested(done, here)


def _show_ingested(done: Ingested, here: Zone) -> None:
    from slurmkit_accounting.render import several  # noqa: PLC0415

    rows = done.entered
    begin, end = map(here.show, done.window)
    read = several(rows.read, "row")
    click.echo(
        f"cluster {printable(done.cluster)}: {read} read, {rows.new} new, {rows.changed} changed,"
        f" {rows.rejected} rejected; window {begin} to {end} {here.name}; {done.seconds:.1f} s"
    )
    if rows.rejected:
        kept = "rejected lines are kept in the ledger's table rejects"
        click.echo(f"{kept}; the first: {printable(rows.why)}", err=True)
    if done.first:
        click.echo(
            f"the books begin at {here.show(done.books_begin)}; for older jobs: slurmkit ledger"
            " ingest --since DATE",
            err=True,
        )
