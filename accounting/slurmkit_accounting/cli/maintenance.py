"""`slurmkit ledger status`, `verify`, `rejects`, `retract`, `export` and `import`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from slurmkit.cli.json_output import JsonOutput, indented, json_option
from slurmkit.cli.tables import Fit, print_key_values, print_table
from slurmkit.errors import BadInput, LedgerError
from slurmkit.formats.display import printable
from slurmkit.formats.memory import format_bytes
from slurmkit.slurm.machine import LOCAL_MACHINE
from slurmkit_accounting.calendar import host_zone_or_utc
from slurmkit_accounting.cli import (
    db_option,
    open_for_reading,
    open_for_writing,
    refuse_password,
    show_progress,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurmkit_accounting.audit.status import ClusterStatus, LastIngest, LedgerStatus
    from slurmkit_accounting.calendar import Zone
    from slurmkit_accounting.ingest.rejects import RejectSelection, StoredReject

_MOST_SHOWN = 20


def _json_of(
    name: str, *, has_old: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    text = "Print everything as JSON."
    return json_option(f"slurmkit.ledger.{name}/1", text=text, has_old=has_old)


@click.command("status")
@_json_of("status", has_old=True)
@db_option
def status_command(db: str | None, *, as_json: JsonOutput | None) -> None:
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
        beside = {
            "ledger": current.source, "database_schema": current.schema, "size": current.size
        }  # fmt: skip
        old = partial(indented, current)
        as_json.print(current.clusters, taken=current.made, beside=beside, old=old)
    else:
        _show_status(current, host_zone_or_utc())


@click.command("verify")
@_json_of("verify", has_old=True)
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
    from slurmkit_accounting.audit.verify import verify

    with (
        open_for_reading(db) as ledger,
        ledger.transaction() as connection,
        show_progress("checking usage") as progress,
    ):
        result = verify(connection, progress)
    if as_json:
        as_json.print([result], old=partial(indented, result, "verify result"))
    else:
        for line in result.wrong[:_MOST_SHOWN]:
            click.echo(printable(line), err=True)
        for line in result.notes:
            click.echo(line, err=True)
        click.echo(f"{result.checksum}  {result.runs} runs")
    if result.wrong:
        raise LedgerError(
            f"the ledger {ledger.source} is wrong in {len(result.wrong)} places; to correct it:"
            " slurmkit ledger rebuild"
        )


@click.command("rebuild")
@_json_of("rebuild")
@db_option
def rebuild_command(db: str | None, *, as_json: JsonOutput | None) -> None:
    """Recompute all usage from the runs.

    \b
    Examples:
      slurmkit ledger rebuild
    """
    from slurmkit_accounting.ledger.locks import hold_ledger_lock
    from slurmkit_accounting.usage.tables import rebuild_usage

    with open_for_writing(db) as ledger, hold_ledger_lock(ledger, "ingest"):
        with ledger.transaction() as connection, show_progress("computing usage") as progress:
            rebuild_usage(connection, progress)
        click.echo(f"recomputed the usage in {ledger.source} from its runs", err=True)
        if as_json:
            as_json.print([{"ledger": ledger.source}])


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
    from slurmkit_accounting.ledger.database import upgrade_ledger
    from slurmkit_accounting.ledger.schema.types import REVISION

    done = upgrade_ledger(db)
    if as_json:
        as_json.print([{"before": done.before, "after": REVISION, "copy": done.copy}])
    elif done.before == REVISION:
        click.echo(f"the ledger has the schema of this release, {REVISION}")
    else:
        click.echo(f"upgraded the ledger from schema {done.before} to {REVISION}")
    if done.copy:
        click.echo(f"a copy from before: {printable(done.copy)}", err=True)


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
    help="Dismiss the chosen lines: they are kept, but reports no longer count them.",
)  # fmt: skip
@click.option("--undo", is_flag=True, help="Undo the dismissal of the chosen lines.")
@_json_of("rejects", has_old=True)
@db_option
def rejects_command(
    db: str | None,
    *,
    all_: bool,
    again: bool,
    dismiss: str | None,
    undo: bool,
    as_json: JsonOutput | None,
    **chosen: Any,
) -> None:
    """List sacct lines that could not be read, verbatim, and why.

    Lines that nobody wants, for example those of a wrong file, can be dismissed. Reports then no
    longer count them, and --all still lists them, with who dismissed them and why.

    \b
    Examples:
      slurmkit ledger rejects
      slurmkit ledger rejects --retry
      slurmkit ledger rejects --source noise.txt --dismiss "not a file of sacct"
      slurmkit ledger rejects --source noise.txt --undo
    """
    from slurmkit_accounting.ingest import rejects, retry

    selection = _select_rejects(chosen)
    if dismiss is not None or undo:
        _dismiss_rejects(db, selection, dismiss, undo=undo)
    if again:
        with open_for_writing(db) as ledger:
            entered = retry.retry_rejects(ledger)
        read = entered.read - entered.rejected
        click.echo(f"{entered.read} lines tried again, {read} of them can now be read", err=True)
    with open_for_reading(db) as ledger, ledger.transaction() as connection:
        lines = rejects.load_rejects(connection, all_=all_, chosen=selection)
    if as_json:
        facts = [one._asdict() for one in lines]
        as_json.print(facts, old=partial(indented, facts, "reject"))
        return
    here = host_zone_or_utc()
    rows = [
        (str(one.id), one.cluster, one.source, here.show(one.at), one.reason, one.line,
         *((_reject_state(one, here),) if all_ else ()))
        for one in lines
    ]  # fmt: skip
    fit = Fit(("AT",), ("REASON",), least=("CLUSTER", "SOURCE", "AT"))
    names = ("ID", "CLUSTER", "SOURCE", "AT", "REASON", "LINE", *(("STATE",) if all_ else ()))
    print_table(names, rows, right=("ID",), fit=fit)


def _select_rejects(chosen: dict[str, Any]) -> RejectSelection:
    from slurmkit_accounting.ingest.rejects import RejectSelection

    here, days = host_zone_or_utc(), (chosen["begin"], chosen["end"])
    begin, end = (None if day is None else here.epoch(day) for day in days)
    return RejectSelection(chosen["ids"], chosen["source"], begin, end)


def _dismiss_rejects(
    db: str | None, selection: RejectSelection, because: str | None, *, undo: bool
) -> None:
    """Dismiss the chosen rejects, or undo that, and say how many these were."""
    from slurmkit_accounting.ingest import rejects

    if undo and because is not None:
        raise BadInput("--dismiss and --undo are opposites; give one of them")
    if because is not None and not because.strip():
        raise BadInput('--dismiss needs a reason, for example: --dismiss "wrong file"')
    if selection == rejects.ALL_REJECTS:
        raise BadInput(
            "say which lines, with --id, --source, --from or --to; list them with: slurmkit ledger"
            " rejects --all"
        )
    with open_for_reading(db):
        pass  # it must be there, with the schema of this release: nothing is made or migrated here
    with open_for_writing(db) as ledger, ledger.transaction() as connection:
        if because is None:
            count = rejects.restore_rejects(connection, selection)
        else:
            now, who = int(time.time()), LOCAL_MACHINE.user
            count = rejects.dismiss_rejects(
                connection, selection, now=now, who=who, because=because.strip()
            )
    if not count:
        raise BadInput(
            "there are no such lines, or nothing changes; list them with: slurmkit ledger rejects"
            " --all"
        )
    what = "no longer dismissed" if because is None else "dismissed; reports no longer count them"
    click.echo(f"{count} lines {what}", err=True)


def _reject_state(one: StoredReject, here: Zone) -> str:
    if one.dismissed is not None:
        when = here.show(one.dismissed)
        return f"dismissed by {one.dismissed_by} at {when}: {one.dismissed_because}"
    return "read since" if one.read else "unread"


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
    from slurmkit_accounting.ingest.retract import retract

    with open_for_writing(db) as ledger:
        retracted = retract(ledger, jobs, cluster, undo=undo, dry_run=dry_run)
    if as_json:
        as_json.print(retracted, beside={"undo": undo, "dry_run": dry_run})
        return
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
    _copy_ledger(db, to, as_json)


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
    _copy_ledger(source, db, as_json)


def _copy_ledger(source: str | None, target: str | None, as_json: JsonOutput | None) -> None:
    from slurmkit_accounting.audit.copy import copy_ledger

    with open_for_reading(source) as here, open_for_writing(target) as there:
        checksum = copy_ledger(here, there)
        if as_json:
            as_json.print([{"checksum": checksum, "ledger": there.source}])
        else:
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
    if one.reused:
        kept = f"{one.reused} belong to several jobs; slurmdbd's database was set up anew"
        yield "dbindexes", kept
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
