"""`slurmkit ledger` and `slurmkit report`. Databases and LDAP are imported when a command runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from slurmkit.cli.show import table
from slurmkit.text import printable

if TYPE_CHECKING:
    from slurmkit_accounting.ingest import Ingested
    from slurmkit_accounting.people_sync import Change
    from slurmkit_accounting.report import Report
    from slurmkit_accounting.zones import Zone

_CHANGES_SHOWN = 50
_DB = "Database of the ledger.  [default: SLURMKIT_DB, [ledger] db, or a file of your own]"


def db_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--db`."""
    return click.option("--db", metavar="URL", help=_DB)(command)


@click.group("ledger")
def ledger_group() -> None:
    """Keep the books: jobs from sacct, people from LDAP."""


@ledger_group.group("people")
def people_group() -> None:
    """Who was who, in which group, under which PI, and when."""


@people_group.command("sync")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@db_option
def sync_command(db: str | None, *, dry_run: bool) -> None:
    """Read people and research groups from LDAP into the ledger.

    The server is named in section [ldap] of the configuration; the password of its bind_dn comes
    from bind_password_file or SLURMKIT_LDAP_PASSWORD.

    \b
    Examples:
      slurmkit ledger people sync --dry-run
      slurmkit ledger people sync
    """
    from slurmkit.config import load_section  # noqa: PLC0415
    from slurmkit_accounting.config import LdapSection  # noqa: PLC0415
    from slurmkit_accounting.directory import read_directory  # noqa: PLC0415
    from slurmkit_accounting.ledger import open_for_writing  # noqa: PLC0415
    from slurmkit_accounting.password import bind_password  # noqa: PLC0415
    from slurmkit_accounting.people import doubts  # noqa: PLC0415
    from slurmkit_accounting.people_sync import sync_people  # noqa: PLC0415
    from slurmkit_accounting.render import several  # noqa: PLC0415

    section = load_section("ldap", LdapSection)
    directory = read_directory(section, bind_password(section))
    with open_for_writing(db) as ledger:
        changes = sync_people(ledger, directory, dry_run=dry_run)
    for doubt in doubts(directory):
        click.echo(printable(doubt), err=True)
    _show_changes(changes)
    people = "1 person" if len(directory.people) == 1 else f"{len(directory.people)} people"
    found = f"{people} and {several(len(directory.groups), 'group')} in {section.uri}"
    click.echo(f"{found}{'; dry run, nothing was changed' if dry_run else ''}", err=True)


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


@click.group("report")
def report_group() -> None:
    """GPU-hours and CPU-hours out of the ledger."""


@report_group.command("usage")
@click.option("--from", "begin", metavar="DATE", required=True, help="YYYY-MM-DD[THH:MM:SS].")
@click.option("--to", "end", metavar="DATE", required=True, help="Likewise; not included.")
@click.option(
    "--by", type=click.Choice(["pi", "account", "user"]), required=True, help="One row for each."
)
@click.option("--job", metavar="JOB_ID", help="Only this job, with all its parts.")
@click.option("--timezone", metavar="TZ", help="What the dates mean.  [default: the host's]")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table",
    help="How to print it.  [default: table]",
)  # fmt: skip
@db_option
def usage_command(begin: str, end: str, form: str, db: str | None, **asked: Any) -> None:
    """Sum GPU-hours and CPU-hours by PI, account or user.

    Every run counts for as long as it held its GPUs within the window, whatever became of it;
    jobs still running count up to now.

    \b
    Examples:
      slurmkit report usage --from 2026-10-01 --to 2026-11-01 --by pi
      slurmkit report usage --from 2026-10-01 --to 2026-11-01 --by user --format csv > oct.csv
      slurmkit report usage --from 2026-10-01 --to 2026-11-01 --by pi --job 4711
      slurmkit report usage --from 2026-11-20T10:15:00 --to 2026-11-21 --by account --timezone UTC
    """
    from slurmkit_accounting import read  # noqa: PLC0415

    with read.ledger(db) as books:
        report = read.usage(books, begin, end, **asked)
    _show_report(report, form)


def _show_report(report: Report, form: str) -> None:
    from slurmkit_accounting import render  # noqa: PLC0415

    if form == "json":
        click.echo(render.as_json(report))
        return
    if form == "csv":
        click.echo(render.as_csv(report), nl=False)
    else:
        names = render.header(report)
        table([name.upper() for name in names], map(render.cells, report.rows), right=_RIGHT)
    for line in render.footer(report.meta):
        click.echo(printable(line), err=True)


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


def _show_changes(changes: list[Change]) -> None:
    for change in changes[:_CHANGES_SHOWN]:
        click.echo(f"{change.kind} {change.what}: {printable(change.who)}")
    if len(changes) > _CHANGES_SHOWN:
        click.echo(f"and {len(changes) - _CHANGES_SHOWN} more")
    for kind, plural in (("person", "people"), ("group", "groups"), ("membership", "memberships")):
        counts = [
            f"{sum(one.kind == kind and one.what == what for one in changes)} {what}"
            for what in ("added", "changed", "closed")
            if (kind, what) != ("membership", "changed")
        ]
        click.echo(f"{plural}: {', '.join(counts)}")


_RIGHT = frozenset(("JOBS", "GPU_HOURS", "CPU_HOURS"))
