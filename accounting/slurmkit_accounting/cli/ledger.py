"""`slurmkit ledger`: ingest jobs, close months, serve the ledger."""

from __future__ import annotations

import time
from typing import Any

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.formats.display import printable
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli import db_option, open_for_writing
from slurmkit_accounting.cli.maintenance import (
    export_command,
    import_command,
    rebuild_command,
    rejects_command,
    retract_command,
    status_command,
    upgrade_command,
    verify_command,
)
from slurmkit_accounting.cli.people import people_group
from slurmkit_accounting.render.format import format_utc


@click.group("ledger")
def ledger_group() -> None:
    """Keep the ledger: jobs from sacct, people from LDAP.

    \b
    Examples:
      slurmkit ledger ingest
      slurmkit ledger status
      slurmkit ledger people sync --dry-run
      slurmkit ledger close 2026-10
    """


@ledger_group.command("ingest")
@click.option("--since", metavar="DATE", help="Read jobs again from this date on, YYYY-MM-DD.")
@click.option(
    "--file", "path", metavar="DUMP",
    help="Read a file with output of sacct --parsable2, not sacct itself; - is standard input.",
)  # fmt: skip
@click.option("--cluster", metavar="NAME", help="With --file: the cluster of the jobs.")
@click.option(
    "--fields", metavar="A,B,C",
    help="With --file: sacct's names of the fields of a line, in order. The last one takes the rest"
    " of the line.",
)  # fmt: skip
@click.option(
    "--delimiter", default="|", show_default=True,
    help="With --file: the text between two fields. A job name can hold it, and so look like rows"
    " of other users: use a random one of 8 or more characters.",
)  # fmt: skip
@click.option(
    "--timezone", metavar="TZ",
    help="With --file: time zone of times that are not epoch seconds.  [default: the host's]",
)  # fmt: skip
@click.option("--header", is_flag=True, help="With --file: its first line names the fields.")
@json_option("slurmkit.ledger.ingest/1", text="Print what was read as JSON.", has_old=False)
@db_option
def ingest_command(
    since: str | None, path: str | None, db: str | None, as_json: JsonOutput | None, **file: Any
) -> None:
    """Read jobs from sacct, or from a file, into the ledger.

    An ingest reads new and changed jobs. It starts 48 hours before the end of the last one, since
    recent jobs still change. The first ingest starts 30 days ago. An ingest can be interrupted at
    any time: the next one continues where it stopped. A file may have any fields in any order;
    with more fields, reports can show more.

    \b
    Examples:
      slurmkit ledger ingest
      slurmkit ledger ingest --since 2026-01-01
      mark=$(openssl rand -hex 8)
      sacct --allusers --duplicates --allocations --starttime 2025-01-01 --parsable2 --noheader
        --delimiter=$mark
        --format=JobIDRaw,User,Account,Submit,Start,End,State,AllocTRES,JobName > old.txt
      slurmkit ledger ingest --file new.txt --cluster lab --header --delimiter $mark
      slurmkit ledger ingest --file old.txt --cluster lab --timezone Europe/Berlin
        --delimiter $mark
        --fields JobIDRaw,User,Account,Submit,Start,End,State,AllocTRES,JobName
    """
    from slurmkit_accounting.cli import ingest

    if path is None:
        ingest.ingest_from_sacct(db, since, as_json, **file)
    else:
        ingest.ingest_from_file(path, db, since, as_json, **file)


@click.command("close")
@click.argument("month", metavar="YYYY-MM")
@click.option("--timezone", metavar="TZ", help="Time zone of the month.  [default: the host's]")
@json_option("slurmkit.ledger.close/1", text="Print the months as JSON.", has_old=False)
@db_option
def close_command(
    month: str, timezone: str | None, db: str | None, *, as_json: JsonOutput | None
) -> None:
    """Close a month: freeze its usage.

    From then on, reports show the usage as it was at the closing. Changes by later ingests appear
    as corrections, in rows of their own. A month that is already closed stays unchanged.

    \b
    Examples:
      slurmkit ledger close 2026-10
      slurmkit ledger close 2026-10 --timezone Europe/Berlin
    """
    from slurmkit_accounting.usage.closed_months import close_month

    with open_for_writing(db) as ledger:
        closings = close_month(ledger, month, find_zone(timezone), int(time.time()))
    if as_json:
        as_json.print(closings)
        return
    for one in closings:
        status = "closed" if one.new else f"was closed at {format_utc(one.at)}"
        where = f"{one.month} of {printable(one.cluster)} ({one.timezone})"
        click.echo(f"{where} {status}; checksum {one.checksum[:16]}")


ledger_group.add_command(close_command)
ledger_group.add_command(people_group)
for command in (
    status_command,
    verify_command,
    rebuild_command,
    rejects_command,
    retract_command,
    export_command,
    import_command,
    upgrade_command,
):
    ledger_group.add_command(command)


@click.command("serve")
@db_option
def serve_command(db: str | None) -> None:
    """Keep the site's ledger up to date and answer queries.

    The service runs until SIGTERM. It can be stopped or killed at any time: nothing is lost.

    Ingest, people, budgets, closing and mail run at the times of [ledger.schedule], one at a time.
    A task that was missed while the service was down runs once after its start.

    Queries are answered on the address in `[ledger.service] listen`. Users see their own runs, PIs
    also the runs of their groups, operators everything; munged proves who asks. /health and
    /metrics are served on the address in `[ledger.service] monitor`.

    \b
    Examples:
      slurmkit ledger serve
      slurmkit ledger serve --db postgresql+psycopg://slurmkit@db/slurmkit
      curl http://127.0.0.1:6831/health
    """
    from slurmkit_accounting.service.server import serve

    serve(db)


ledger_group.add_command(serve_command)
