"""`slurmkit ledger status`, `verify`, `rejects`, `retract`, `export` and `import`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from slurmkit.cli.tables import print_key_values, print_table
from slurmkit.errors import LedgerError
from slurmkit.formats.display import printable
from slurmkit.formats.memory import format_bytes
from slurmkit_accounting.calendar import host_zone_or_utc
from slurmkit_accounting.cli import (
    db_option,
    open_for_reading,
    open_for_writing,
    refuse_password,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurmkit_accounting.audit.status import ClusterStatus, LastIngest, LedgerStatus
    from slurmkit_accounting.calendar import Zone

_MOST_SHOWN = 20
_json_option = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")


@click.command("status")
@_json_option
@db_option
def status_command(db: str | None, *, as_json: bool) -> None:
    """Show the ledger's coverage, its age, and what needs attention.

    \b
    Examples:
      slurmkit ledger status
      slurmkit ledger status --json
    """
    from slurmkit_accounting.audit.status import load_ledger_status

    with open_for_reading(db) as ledger:
        current = load_ledger_status(ledger)
    if as_json:
        _print_json(current)
    else:
        _show_status(current, host_zone_or_utc())


@click.command("verify")
@_json_option
@db_option
def verify_command(db: str | None, *, as_json: bool) -> None:
    """Check the ledger against its runs, and print a checksum.

    Everything that is derived from the runs is recomputed and compared. Ledgers with the same runs
    have the same checksum, whatever their database and however the runs were read. Nothing is
    changed. The exit code is 1 if something is wrong.

    \b
    Examples:
      slurmkit ledger verify
    """
    from slurmkit_accounting.audit.verify import verify

    with open_for_reading(db) as ledger, ledger.transaction() as connection:
        result = verify(connection)
    if as_json:
        _print_json(result)
    else:
        for line in result.wrong[:_MOST_SHOWN]:
            click.echo(printable(line), err=True)
        click.echo(f"{result.checksum}  {result.runs} runs")
    if result.wrong:
        raise LedgerError(
            f"the ledger {ledger.source} is wrong in {len(result.wrong)} places; to correct it:"
            " slurmkit ledger rebuild"
        )


@click.command("rebuild")
@db_option
def rebuild_command(db: str | None) -> None:
    """Recompute all usage from the runs.

    \b
    Examples:
      slurmkit ledger rebuild
    """
    from slurmkit_accounting.ledger.locks import hold_ledger_lock
    from slurmkit_accounting.usage.tables import rebuild_usage

    with open_for_writing(db) as ledger, hold_ledger_lock(ledger, "ingest"):
        with ledger.transaction() as connection:
            rebuild_usage(connection)
        click.echo(f"recomputed the usage in {ledger.source} from its runs", err=True)


@click.command("rejects")
@click.option("--all", "all_", is_flag=True, help="Also list lines whose runs could be read later.")
@click.option("--retry", "again", is_flag=True, help="Try to read the lines again first.")
@_json_option
@db_option
def rejects_command(db: str | None, *, all_: bool, again: bool, as_json: bool) -> None:
    """List sacct lines that could not be read, verbatim, and why.

    \b
    Examples:
      slurmkit ledger rejects
      slurmkit ledger rejects --retry
    """
    from slurmkit_accounting.ingest import rejects, retry

    if again:
        with open_for_writing(db) as ledger:
            entered = retry.retry_rejects(ledger)
        read = entered.read - entered.rejected
        click.echo(f"{entered.read} lines tried again, {read} of them can now be read", err=True)
    with open_for_reading(db) as ledger, ledger.transaction() as connection:
        lines = rejects.load_rejects(connection, all_=all_)
    if as_json:
        _print_json([one._asdict() for one in lines])
        return
    here = host_zone_or_utc()
    rows = [
        (str(one.id), one.cluster, one.source, here.show(one.at), one.reason, one.line)
        for one in lines
    ]
    print_table(("ID", "CLUSTER", "SOURCE", "AT", "REASON", "LINE"), rows, right=("ID",))


@click.command("retract")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB_ID...")
@click.option(
    "--cluster", metavar="NAME", help="Cluster of the jobs; needed if the ledger has several."
)
@click.option("--undo", is_flag=True, help="Count retracted runs again.")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@db_option
def retract_command(
    jobs: tuple[str, ...], cluster: str | None, db: str | None, *, undo: bool, dry_run: bool
) -> None:
    """Stop counting runs that sacct no longer shows.

    The runs stay in the ledger, marked as retracted; --undo counts them again.

    \b
    Examples:
      slurmkit ledger retract 4711 --dry-run
      slurmkit ledger retract 4711
      slurmkit ledger retract 4711 --undo
    """
    from slurmkit_accounting.ingest.retract import retract

    with open_for_writing(db) as ledger:
        retracted = retract(ledger, jobs, cluster, undo=undo, dry_run=dry_run)
    here = host_zone_or_utc()
    rows = [
        (one.cluster, one.job_id, one.user, one.state, *_format_times(here, one.start, one.end),
         str(one.gpus))
        for one in retracted
    ]  # fmt: skip
    print_table(
        ("CLUSTER", "JOBID", "USER", "STATE", "START", "END", "GPUS"), rows, right=("GPUS",)
    )
    what = "put back" if undo else "retracted"
    click.echo(
        f"{len(retracted)} {what}{'; dry run, nothing was changed' if dry_run else ''}", err=True
    )


@click.command("export")
@click.argument("to", metavar="URL", callback=refuse_password)
@db_option
def export_command(to: str, db: str | None) -> None:
    """Copy the whole ledger into a new database.

    The copy has the same checksum.

    \b
    Examples:
      slurmkit ledger export sqlite:////backup/ledger.db
      slurmkit ledger export postgresql+psycopg://slurmkit@db/slurmkit
    """
    _copy_ledger(db, to)


@click.command("import")
@click.argument("source", metavar="URL", callback=refuse_password)
@db_option
def import_command(source: str, db: str | None) -> None:
    """Fill a new ledger with a copy of another one.

    The copy has the same checksum.

    \b
    Examples:
      slurmkit ledger import sqlite:////backup/ledger.db
    """
    _copy_ledger(source, db)


def _copy_ledger(source: str | None, target: str | None) -> None:
    from slurmkit_accounting.audit.copy import copy_ledger

    with open_for_reading(source) as here, open_for_writing(target) as there:
        checksum = copy_ledger(here, there)
        click.echo(f"{checksum}  {there.source}")


def _show_status(current: LedgerStatus, here: Zone) -> None:
    size = "?" if current.size is None else format_bytes(current.size)
    print_key_values([("ledger", current.source), ("schema", current.schema), ("size", size)])
    for one in current.clusters:
        click.echo()
        print_key_values(_cluster_facts(one, here))


def _cluster_facts(one: ClusterStatus, here: Zone) -> Iterator[tuple[str, str]]:
    """Yield labels and values about a cluster."""
    yield "cluster", one.name
    yield "gpus tracked", {True: "yes", False: "no", None: "?"}[one.tracks_gpus]
    if one.only_user:
        yield "holds", f"only runs of {one.only_user}; slurmdbd shows no others"
    yield "last ingest", "none" if one.last is None else _ingest_words(one.last, here)
    for begin, end in one.covers:
        yield "covers", f"{here.show(begin)} to {here.show(end)}"
    for file in one.files[-_MOST_SHOWN:]:
        rows = f"{file.rows} rows, {here.show(file.begin)} to {here.show(file.end)}"
        yield "file", f"{file.source}: {rows}; a file does not prove that no runs are missing"
    for begin, end in one.gaps:
        yield "gap", f"{here.show(begin)} to {here.show(end)}"
    yield "lag", "?" if one.lag is None else f"{one.lag} s"
    yield "runs", f"{one.runs}, {one.open} of them without an end"
    runaways = ", ".join(map(str, one.runaways[:_MOST_SHOWN]))
    more = " ..." if len(one.runaways) > _MOST_SHOWN else ""
    yield "runaways", f"{len(one.runaways)} suspected: {runaways}{more}" if runaways else "none"
    yield "gone", f"{one.gone} that sacct no longer shows, {one.retracted} retracted"
    yield "doubtful", f"{one.doubtful} runs whose number of GPUs cannot be trusted"
    yield "rejects", f"{one.rejects} lines that could not be read"


def _ingest_words(last: LastIngest, here: Zone) -> str:
    ended = "not finished" if last.ended is None else f"ended {here.show(last.ended)}"
    counts = (
        f"{last.rows_read} read, {last.rows_new} new, {last.rows_changed} changed,"
        f" {last.rows_rejected} rejected"
    )
    return f"from {last.source}, began {here.show(last.started)}, {ended}; {counts}"


def _format_times(here: Zone, *times: int | None) -> list[str]:
    return ["?" if time is None else here.show(time) for time in times]


def _print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
