"""What `slurmkit ledger status`, `verify`, `rejects`, `retract`, `close` and others do."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import Any

import click

from slurmkit.cli.json_output import JsonOutput
from slurmkit.cli.tables import Fit, print_key_values, print_table
from slurmkit.errors import BadInput, LedgerError
from slurmkit.formats.display import printable
from slurmkit.formats.memory import format_bytes
from slurmkit.slurm.machine import LOCAL_MACHINE
from slurmkit_accounting.audit.backup import copy_ledger
from slurmkit_accounting.audit.status import (
    ClusterStatus,
    LastIngest,
    LedgerStatus,
    load_ledger_status,
)
from slurmkit_accounting.audit.verify import verify
from slurmkit_accounting.calendar import Zone, find_zone, host_zone_or_utc
from slurmkit_accounting.cli import open_for_reading, open_for_writing, show_progress
from slurmkit_accounting.ingest.rejects import (
    ALL_REJECTS,
    RejectSelection,
    StoredReject,
    dismiss_rejects,
    load_rejects,
    restore_rejects,
)
from slurmkit_accounting.ingest.retract import retract
from slurmkit_accounting.ingest.retry import retry_rejects
from slurmkit_accounting.ledger.database import upgrade_ledger
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.types import REVISION
from slurmkit_accounting.render.format import format_utc
from slurmkit_accounting.usage.closed_months import close_month
from slurmkit_accounting.usage.tables import rebuild_usage

_MOST_SHOWN = 20


def show_status(db: str | None, as_json: JsonOutput | None) -> None:
    """Print the status of the ledger."""
    with open_for_reading(db) as ledger:
        current = load_ledger_status(ledger)
    if as_json:
        further = {
            "ledger": current.source, "database_schema": current.schema, "size": current.size
        }  # fmt: skip
        as_json.print(current.clusters, taken=current.made, further=further)
    else:
        _show_status(current, host_zone_or_utc())


def verify_ledger(db: str | None, as_json: JsonOutput | None) -> None:
    """Check the ledger, and print what is wrong and the checksum.

    Raises:
        LedgerError: when something is wrong.
    """
    with (
        open_for_reading(db) as ledger,
        ledger.transaction() as connection,
        show_progress("checking usage") as progress,
    ):
        result = verify(connection, progress)
    if as_json:
        as_json.print([result])
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


def rebuild(db: str | None, as_json: JsonOutput | None) -> None:
    """Recompute all usage from the runs."""
    with open_for_writing(db) as ledger, hold_ledger_lock(ledger, "ingest"):
        with ledger.transaction() as connection, show_progress("computing usage") as progress:
            rebuild_usage(connection, progress)
        click.echo(f"recomputed the usage in {ledger.source} from its runs", err=True)
        if as_json:
            as_json.print([{"ledger": ledger.source}])


def upgrade(db: str | None, as_json: JsonOutput | None) -> None:
    """Migrate the ledger, and print from which schema."""
    done = upgrade_ledger(db)
    if as_json:
        as_json.print([{"before": done.before, "after": REVISION, "copy": done.copy}])
    elif done.before == REVISION:
        click.echo(f"the ledger has the schema of this release, {REVISION}")
    else:
        click.echo(f"upgraded the ledger from schema {done.before} to {REVISION}")
    if done.copy:
        click.echo(f"a copy from before: {printable(done.copy)}", err=True)


def select_rejects(chosen: dict[str, Any]) -> RejectSelection:
    """Return the rejects that the options mean."""
    here, days = host_zone_or_utc(), (chosen["begin"], chosen["end"])
    begin, end = (None if day is None else here.epoch(day) for day in days)
    return RejectSelection(chosen["ids"], chosen["source"], begin, end)


def _dry(dry_run: bool) -> str:  # noqa: FBT001
    return "; dry run, nothing was changed" if dry_run else ""


def dismiss(
    db: str | None, selection: RejectSelection, because: str | None, *, undo: bool, dry_run: bool
) -> None:
    """Dismiss the chosen rejects, or undo that, and say how many these were.

    Raises:
        BadInput: when no rejects are chosen, or nothing changes.
    """
    if undo and because is not None:
        raise BadInput("--dismiss and --undo are opposites; give one of them")
    if because is not None and not because.strip():
        raise BadInput('--dismiss needs a reason, for example: --dismiss "wrong file"')
    if selection == ALL_REJECTS:
        raise BadInput(
            "say which lines, with --id, --source, --from or --to; list them with: slurmkit ledger"
            " rejects --all"
        )
    with open_for_reading(db):
        pass  # it must be there, with the schema of this release: nothing is made or migrated here
    with open_for_writing(db) as ledger, ledger.transaction(rehearsal=dry_run) as connection:
        if because is None:
            count = restore_rejects(connection, selection)
        else:
            now, who = int(time.time()), LOCAL_MACHINE.user
            count = dismiss_rejects(
                connection, selection, now=now, who=who, because=because.strip()
            )
    if not count:
        raise BadInput(
            "there are no such lines, or nothing changes; list them with: slurmkit ledger rejects"
            " --all"
        )
    what = "no longer dismissed" if because is None else "dismissed; reports no longer count them"
    click.echo(f"{count} lines {what}{_dry(dry_run)}", err=True)


def retry(db: str | None, selection: RejectSelection, *, dry_run: bool) -> None:
    """Try to read the chosen rejects again, and say how many can be read now."""
    with open_for_writing(db) as ledger:
        entered = retry_rejects(ledger, selection, dry_run=dry_run)
    read = entered.read - entered.rejected
    click.echo(
        f"{entered.read} lines tried again, {read} of them can now be read{_dry(dry_run)}",
        err=True,
    )


def list_rejects(
    db: str | None, selection: RejectSelection, *, all_: bool, as_json: JsonOutput | None
) -> None:
    """Print the chosen rejects."""
    with open_for_reading(db) as ledger, ledger.transaction() as connection:
        lines = load_rejects(connection, all_=all_, chosen=selection)
    if as_json:
        facts = [one._asdict() for one in lines]
        as_json.print(facts)
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


def _reject_state(one: StoredReject, here: Zone) -> str:
    if one.read:
        return "read since"
    if one.dismissed is not None:
        when = here.show(one.dismissed)
        return f"dismissed by {one.dismissed_by} at {when}: {one.dismissed_because}"
    return "unread"


def retract_runs(
    db: str | None,
    jobs: Collection[str],
    cluster: str | None,
    *,
    undo: bool,
    dry_run: bool,
    as_json: JsonOutput | None,
) -> None:
    """Retract runs of some jobs, or undo that, and print them."""
    with open_for_writing(db) as ledger:
        retracted = retract(ledger, jobs, cluster, undo=undo, dry_run=dry_run)
    if as_json:
        as_json.print(retracted, further={"undo": undo, "dry_run": dry_run})
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
    click.echo(f"{len(retracted)} {what}{_dry(dry_run)}", err=True)


def close(db: str | None, month: str, timezone: str | None, as_json: JsonOutput | None) -> None:
    """Close a month of all clusters, and print which were closed."""
    with open_for_writing(db) as ledger:
        closings = close_month(ledger, month, find_zone(timezone), int(time.time()))
    if as_json:
        as_json.print(closings)
        return
    for one in closings:
        status = "closed" if one.new else f"was closed at {format_utc(one.at)}"
        where = f"{one.month} of {printable(one.cluster)} ({one.timezone})"
        click.echo(f"{where} {status}; checksum {one.checksum[:16]}")


def copy(source: str | None, target: str | None, as_json: JsonOutput | None) -> None:
    """Copy a ledger into a new database, and print the checksum of both."""
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
        shared = f"{one.reused} belong to several jobs; slurmdbd's database was re-created"
        yield "dbindexes", shared
    begins = [*(begin for begin, _ in one.covers), *(file.begin for file in one.files)]
    see = ""
    if one.doubtful and begins:
        since = here.show(min(begins))[:10]
        see = f"; to list them: slurmkit report explain --runs doubtful --from {since}"
    yield "doubtful", f"{one.doubtful} runs whose number of GPUs cannot be trusted{see}"
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
