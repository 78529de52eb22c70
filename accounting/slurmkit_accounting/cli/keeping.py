"""`slurmkit ledger status`, `verify`, `rejects`, `retract`, `export` and `import`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slurmkit.cli.show import key_values, table
from slurmkit.errors import LedgerError
from slurmkit.text import printable
from slurmkit_accounting.cli import db_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurmkit_accounting.status import ClusterStatus, LastIngest, Status
    from slurmkit_accounting.zones import Zone

_SHOWN = 20
_json = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")


@click.command("status")
@_json
@db_option
def status_command(db: str | None, *, as_json: bool) -> None:
    """Show what the books cover, how old they are, and what should be looked at.

    \b
    Examples:
      slurmkit ledger status
      slurmkit ledger status --json
    """
    from slurmkit_accounting.ledger import open_for_reading  # noqa: PLC0415
    from slurmkit_accounting.status import status  # noqa: PLC0415
    from slurmkit_accounting.zones import zone_or_utc  # noqa: PLC0415

    with open_for_reading(db) as ledger:
        found = status(ledger)
    if as_json:
        _print_json(found)
    else:
        _show_status(found, zone_or_utc())


@click.command("verify")
@_json
@db_option
def verify_command(db: str | None, *, as_json: bool) -> None:
    """Work out again all that follows from the runs, compare it, and print a checksum.

    Books of the same runs have the same checksum, in whatever database and however they were
    read. Nothing is changed; it ends with exit code 1 where something is wrong.

    \b
    Examples:
      slurmkit ledger verify
    """
    from slurmkit_accounting.ledger import open_for_reading  # noqa: PLC0415
    from slurmkit_accounting.verify import verify  # noqa: PLC0415

    with open_for_reading(db) as ledger, ledger.transaction() as connection:
        found = verify(connection)
    if as_json:
        _print_json(found)
    else:
        for line in found.wrong[:_SHOWN]:
            click.echo(printable(line), err=True)
        click.echo(f"{found.checksum}  {found.runs} runs")
    if found.wrong:
        raise LedgerError(
            f"the books of {ledger.source} are wrong in {len(found.wrong)} places; bring them in"
            " order with: slurmkit ledger rebuild"
        )


@click.command("rebuild")
@db_option
def rebuild_command(db: str | None) -> None:
    """Work out usage anew from nothing but the runs.

    \b
    Examples:
      slurmkit ledger rebuild
    """
    from slurmkit_accounting.ledger import open_for_writing  # noqa: PLC0415
    from slurmkit_accounting.locks import alone  # noqa: PLC0415
    from slurmkit_accounting.upkeep import rebuild  # noqa: PLC0415

    with open_for_writing(db) as ledger, alone(ledger, "ingest"):
        with ledger.transaction() as connection:
            rebuild(connection)
        click.echo(f"usage of {ledger.source} was worked out anew", err=True)


@click.command("rejects")
@click.option("--all", "all_", is_flag=True, help="Also those whose runs could be read since.")
@click.option("--retry", "again", is_flag=True, help="Read them again first.")
@_json
@db_option
def rejects_command(db: str | None, *, all_: bool, again: bool, as_json: bool) -> None:
    """List lines that could not be read, verbatim, and why.

    \b
    Examples:
      slurmkit ledger rejects
      slurmkit ledger rejects --retry
    """
    from slurmkit_accounting.ledger import open_for_reading, open_for_writing  # noqa: PLC0415
    from slurmkit_accounting.rejects import kept  # noqa: PLC0415
    from slurmkit_accounting.retry import retry  # noqa: PLC0415
    from slurmkit_accounting.zones import zone_or_utc  # noqa: PLC0415

    if again:
        with open_for_writing(db) as ledger:
            entered = retry(ledger)
        read = entered.read - entered.rejected
        click.echo(f"{entered.read} read again, {read} could be read", err=True)
    with open_for_reading(db) as ledger, ledger.transaction() as connection:
        found = kept(connection, all_=all_)
    if as_json:
        _print_json([one._asdict() for one in found])
        return
    here = zone_or_utc()
    rows = [
        (str(one.id), one.cluster, one.source, here.show(one.at), one.reason, one.line)
        for one in found
    ]
    table(("ID", "CLUSTER", "SOURCE", "AT", "REASON", "LINE"), rows, right=("ID",))


@click.command("retract")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB_ID...")
@click.option("--cluster", metavar="NAME", help="Whose jobs, where the ledger has several.")
@click.option("--undo", is_flag=True, help="Put back what was retracted.")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@db_option
def retract_command(
    jobs: tuple[str, ...], cluster: str | None, db: str | None, *, undo: bool, dry_run: bool
) -> None:
    """Take runs out of the books that sacct shows no more.

    They stay in the ledger, marked; --undo puts them back.

    \b
    Examples:
      slurmkit ledger retract 4711 --dry-run
      slurmkit ledger retract 4711
      slurmkit ledger retract 4711 --undo
    """
    from slurmkit_accounting.ledger import open_for_writing  # noqa: PLC0415
    from slurmkit_accounting.retract import retract  # noqa: PLC0415
    from slurmkit_accounting.zones import zone_or_utc  # noqa: PLC0415

    with open_for_writing(db) as ledger:
        found = retract(ledger, jobs, cluster, undo=undo, dry_run=dry_run)
    here = zone_or_utc()
    rows = [
        (one.cluster, one.job_id, one.user, one.state, *_times(here, one.start, one.end),
         str(one.gpus))
        for one in found
    ]  # fmt: skip
    table(("CLUSTER", "JOBID", "USER", "STATE", "START", "END", "GPUS"), rows, right=("GPUS",))
    what = "put back" if undo else "retracted"
    click.echo(
        f"{len(found)} {what}{'; dry run, nothing was changed' if dry_run else ''}", err=True
    )


@click.command("export")
@click.argument("to", metavar="URL")
@db_option
def export_command(to: str, db: str | None) -> None:
    """Copy the whole ledger into a new database, with an equal checksum.

    \b
    Examples:
      slurmkit ledger export sqlite:////backup/ledger.db
      slurmkit ledger export postgresql+psycopg://slurmkit@db/slurmkit
    """
    _move(db, to)


@click.command("import")
@click.argument("source", metavar="URL")
@db_option
def import_command(source: str, db: str | None) -> None:
    """Copy a whole ledger from another database into this new one, with an equal checksum.

    \b
    Examples:
      slurmkit ledger import sqlite:////backup/ledger.db
    """
    _move(source, db)


def _move(source: str | None, target: str | None) -> None:
    from slurmkit_accounting.ledger import open_for_reading, open_for_writing  # noqa: PLC0415
    from slurmkit_accounting.moving import move  # noqa: PLC0415

    with open_for_reading(source) as here, open_for_writing(target) as there:
        checksum = move(here, there)
        click.echo(f"{checksum}  {there.source}")


def _show_status(found: Status, here: Zone) -> None:
    size = "?" if found.size is None else f"{found.size / 2**20:.1f} MiB"
    key_values([("ledger", found.source), ("schema", found.schema), ("size", size)])
    for one in found.clusters:
        click.echo()
        key_values(_facts(one, here))


def _facts(one: ClusterStatus, here: Zone) -> Iterator[tuple[str, str]]:
    yield "cluster", one.name
    yield "gpus tracked", {True: "yes", False: "no", None: "?"}[one.tracks_gpus]
    if one.only_user:
        yield "holds", f"only runs of {one.only_user}: slurmdbd shows no others"
    yield "last ingest", "none" if one.last is None else _ingest(one.last, here)
    for begin, end in one.covers:
        yield "covers", f"{here.show(begin)} to {here.show(end)}"
    for file in one.files[-_SHOWN:]:
        told = f"{file.rows} rows, {here.show(file.begin)} to {here.show(file.end)}"
        yield "file", f"{file.source}: {told}; no proof that all runs of then are there"
    for begin, end in one.gaps:
        yield "gap", f"{here.show(begin)} to {here.show(end)}"
    yield "lag", "?" if one.lag is None else f"{one.lag} s"
    yield "runs", f"{one.runs}, {one.open} of them without an end"
    runaways = ", ".join(map(str, one.runaways[:_SHOWN]))
    more = " ..." if len(one.runaways) > _SHOWN else ""
    yield "runaways", f"{len(one.runaways)} suspected: {runaways}{more}" if runaways else "none"
    yield "gone", f"{one.gone} that sacct shows no more, {one.retracted} retracted"
    yield "doubtful", f"{one.doubtful} whose number of GPUs cannot be trusted"
    yield "rejects", f"{one.rejects} lines that could not be read"


def _ingest(last: LastIngest, here: Zone) -> str:
    ended = "did not end" if last.ended is None else f"ended {here.show(last.ended)}"
    counts = (
        f"{last.rows_read} read, {last.rows_new} new, {last.rows_changed} changed,"
        f" {last.rows_rejected} rejected"
    )
    return f"of {last.source}, began {here.show(last.started)}, {ended}; {counts}"


def _times(here: Zone, *times: int | None) -> list[str]:
    return ["?" if time is None else here.show(time) for time in times]


def _print_json(value: object) -> None:
    import msgspec  # noqa: PLC0415

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
