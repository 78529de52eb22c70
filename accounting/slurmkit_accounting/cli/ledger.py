"""`slurmkit ledger`: ingest jobs, check and maintain the ledger, close months, serve it.

What a command does is in a module of its own, which is imported when the command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit_accounting.cli import db_option, refuse_password
from slurmkit_accounting.cli.people import people_group


def _maintenance() -> ModuleType:
    from slurmkit_accounting.cli import maintenance

    return maintenance


def _backup() -> ModuleType:
    from slurmkit_accounting.cli import backup

    return backup


def _json_of(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    text = "Print everything as JSON."
    return json_option(f"slurmkit.ledger.{name}/1", text=text)


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
    "--delimiter",
    help="With --file: the text between two fields. A job name can hold it, and so look like rows"
    " of other users: use a random one of 8 or more characters.  [default: |, for files without"
    " text of users]",
)  # fmt: skip
@click.option(
    "--timezone", metavar="TZ",
    help="With --file: time zone of times that are not epoch seconds.  [default: the host's]",
)  # fmt: skip
@click.option("--header", is_flag=True, help="With --file: its first line names the fields.")
@json_option("slurmkit.ledger.ingest/1", text="Print what was read as JSON.")
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


@click.command("status")
@_json_of("status")
@db_option
def status_command(db: str | None, *, as_json: JsonOutput | None) -> None:
    """Show the ledger's coverage, its age, and what needs attention.

    \b
    Examples:
      slurmkit ledger status
      slurmkit ledger status --json
    """
    _maintenance().show_status(db, as_json)


@click.command("verify")
@_json_of("verify")
@db_option
def verify_command(db: str | None, *, as_json: JsonOutput | None) -> None:
    """Check the ledger against its runs, and print a checksum.

    Everything that is derived from the runs is recomputed and compared. Ledgers with the same runs
    have the same checksum, whatever their database and however the runs were read. Nothing is
    changed. The exit code is 1 if something is wrong.

    \b
    Examples:
      slurmkit ledger verify
    """
    _maintenance().verify_ledger(db, as_json)


@click.command("rebuild")
@_json_of("rebuild")
@db_option
def rebuild_command(db: str | None, *, as_json: JsonOutput | None) -> None:
    """Recompute all usage from the runs.

    \b
    Examples:
      slurmkit ledger rebuild
    """
    _maintenance().rebuild(db, as_json)


@click.command("upgrade")
@_json_of("upgrade")
@db_option
def upgrade_command(db: str | None, *, as_json: JsonOutput | None) -> None:
    """Change the ledger's database to the schema of this release.

    Releases of slurmkit that are older then cannot use the ledger any more, and there is no way
    back. A SQLite file is copied first; the copy has the number of the old schema in its name. Make
    a copy of a PostgreSQL database yourself, with pg_dump, and stop the service before.

    \b
    Examples:
      slurmkit ledger upgrade
      pg_dump --format=custom slurmkit > ledger.dump && slurmkit ledger upgrade
    """
    _maintenance().upgrade(db, as_json)


@click.command("rejects")
@click.option(
    "--all", "all_", is_flag=True,
    help="Also list lines whose runs could be read later, and dismissed ones.",
)  # fmt: skip
@click.option("--retry", "again", is_flag=True, help="Try to read the lines again first.")
@click.option("--id", "ids", type=int, multiple=True, metavar="ID", help="Only this line.")
@click.option(
    "--source", metavar="NAME", help="Only lines of this file, as named in SOURCE; or of sacct."
)
@click.option("--from", "begin", metavar="DATE", help="Only lines of ingests from this day on.")
@click.option("--to", "end", metavar="DATE", help="Only lines of ingests before this day.")
@click.option(
    "--dismiss", metavar="REASON",
    help="Dismiss the chosen lines: they stay stored, but reports no longer count them.",
)  # fmt: skip
@click.option("--undo", is_flag=True, help="Undo the dismissal of the chosen lines.")
@click.option("--dry-run", is_flag=True, help="Say what would change; change nothing.")
@_json_of("rejects")
@db_option
def rejects_command(
    db: str | None,
    *,
    all_: bool,
    again: bool,
    dismiss: str | None,
    undo: bool,
    dry_run: bool,
    as_json: JsonOutput | None,
    **chosen: Any,
) -> None:
    """List sacct lines that could not be read, verbatim, and why.

    Lines that nobody wants, for example those of a wrong file, can be dismissed. Reports then no
    longer count them, and --all still lists them, with who dismissed them and why. A run is counted
    as soon as sacct prints a line of it that can be read, dismissed or not.

    \b
    Examples:
      slurmkit ledger rejects
      slurmkit ledger rejects --retry
      slurmkit ledger rejects --retry --id 7
      slurmkit ledger rejects --source noise.txt --dismiss "not a file of sacct"
      slurmkit ledger rejects --source noise.txt --undo
    """
    work = _maintenance()
    selection = work.select_rejects(chosen)
    if dismiss is not None or undo:
        work.dismiss(db, selection, dismiss, undo=undo, dry_run=dry_run)
    if again:
        work.retry(db, selection, dry_run=dry_run)
    work.list_rejects(db, selection, all_=all_, as_json=as_json)


@click.command("retract")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB_ID...")
@click.option(
    "--cluster", metavar="NAME", help="Cluster of the jobs; needed if the ledger has several."
)
@click.option("--undo", is_flag=True, help="Count retracted runs again.")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@_json_of("retract")
@db_option
def retract_command(
    jobs: tuple[str, ...],
    cluster: str | None,
    db: str | None,
    *,
    undo: bool,
    dry_run: bool,
    as_json: JsonOutput | None,
) -> None:
    """Stop counting runs that sacct no longer shows.

    The runs stay in the ledger, marked as retracted; --undo counts them again.

    \b
    Examples:
      slurmkit ledger retract 4711 --dry-run
      slurmkit ledger retract 4711
      slurmkit ledger retract 4711 --undo
    """
    _maintenance().retract_runs(db, jobs, cluster, undo=undo, dry_run=dry_run, as_json=as_json)


@click.command("export")
@click.argument("to", metavar="URL", callback=refuse_password)
@_json_of("export")
@db_option
def export_command(to: str, db: str | None, *, as_json: JsonOutput | None) -> None:
    """Copy the whole ledger into a new database.

    The copy has the same checksum.

    \b
    Examples:
      slurmkit ledger export sqlite:////backup/ledger.db
      slurmkit ledger export postgresql+psycopg://slurmkit@db/slurmkit
    """
    _maintenance().copy(db, to, as_json)


@click.command("import")
@click.argument("source", metavar="URL", callback=refuse_password)
@_json_of("import")
@db_option
def import_command(source: str, db: str | None, *, as_json: JsonOutput | None) -> None:
    """Fill a new ledger with a copy of another one.

    The copy has the same checksum.

    \b
    Examples:
      slurmkit ledger import sqlite:////backup/ledger.db
    """
    _maintenance().copy(source, db, as_json)


@click.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@_json_of("backup")
@db_option
def backup_command(file: Path, db: str | None, *, as_json: JsonOutput | None) -> None:
    """Write the whole ledger into a file, while the service runs.

    The backup is the ledger at one moment, whatever is written meanwhile. It can be restored into
    SQLite and into PostgreSQL. The file is compressed, has its checksum inside, and only you can
    read it. It appears once it is complete, and replaces an older backup of the same name.

    \b
    Examples:
      slurmkit ledger backup /backup/ledger.gz
      slurmkit ledger backup /backup/ledger-$(date +%F).gz
    """
    _backup().back_up_ledger(file, db, as_json)


@click.command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Only read the file and check it; restore nothing.")
@json_option(
    "slurmkit.ledger.restore/1", "slurmkit.ledger.restore.check/1",
    text="Print everything as JSON.",
)  # fmt: skip
@db_option
def restore_command(file: Path, db: str | None, *, check: bool, as_json: JsonOutput | None) -> None:
    """Fill an empty ledger from a file of `slurmkit ledger backup`.

    Stop the service first. The whole file is checked before anything is restored, and all of it is
    restored or nothing. The ledger then has the checksum of the backup. A backup of an older
    release is upgraded to the schema of this one.

    \b
    Examples:
      slurmkit ledger restore --check /backup/ledger.gz
      slurmkit ledger restore /backup/ledger.gz
      slurmkit ledger restore /backup/ledger.gz --db postgresql+psycopg://slurmkit@db/ledger
      slurmkit ledger restore /backup/ledger.gz --db sqlite:////var/lib/slurmkit/ledger.db
    """
    backup = _backup()
    if check:
        backup.check_file(file, as_json and as_json.of("slurmkit.ledger.restore.check/1"))
    else:
        backup.restore_ledger(file, db, as_json)


@click.command("close")
@click.argument("month", metavar="YYYY-MM")
@click.option("--timezone", metavar="TZ", help="Time zone of the month.  [default: the host's]")
@json_option("slurmkit.ledger.close/1", text="Print the months as JSON.")
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
    _maintenance().close(db, month, timezone, as_json)


@click.command("serve")
@db_option
def serve_command(db: str | None) -> None:
    """Keep the site's ledger up to date and answer queries.

    The service runs until SIGTERM. It can be stopped or killed at any time: nothing is lost.

    Ingest, people, budgets, closing and mail run at the times of [ledger.schedule], one at a time.
    A task that was missed while the service was down runs once after its start.

    Queries are answered on the address in `[ledger.service] listen`. Users see their own runs, PIs
    also the runs of their groups, operators everything; MUNGE, the kernel or a token of Slurm
    proves who asks. /health and /metrics are served on the address in `[ledger.service] monitor`,
    web pages for PIs on the one in `[ledger.portal] listen`, if there is one.

    \b
    Examples:
      slurmkit ledger serve
      slurmkit ledger serve --db postgresql+psycopg://slurmkit@db/slurmkit
      curl http://127.0.0.1:6831/health
    """
    from slurmkit_accounting.portal.process import portal_process
    from slurmkit_accounting.service.server import serve

    serve(db, portal_process)


for command in (
    status_command,
    verify_command,
    rebuild_command,
    upgrade_command,
    rejects_command,
    retract_command,
    export_command,
    import_command,
    backup_command,
    restore_command,
    close_command,
    serve_command,
    people_group,
):
    ledger_group.add_command(command)
