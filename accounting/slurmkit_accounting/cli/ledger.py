"""`slurmkit ledger`: keep the books."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from slurmkit.errors import BadInput
from slurmkit.text import printable
from slurmkit_accounting.cli import db_option
from slurmkit_accounting.cli.closing import close_command
from slurmkit_accounting.cli.keeping import (
    export_command,
    import_command,
    rebuild_command,
    rejects_command,
    retract_command,
    status_command,
    verify_command,
)
from slurmkit_accounting.cli.people import people_group
from slurmkit_accounting.cli.service import serve_command

if TYPE_CHECKING:
    from slurmkit_accounting.books import Entered
    from slurmkit_accounting.dump_ingest import Loaded
    from slurmkit_accounting.ingest import Ingested
    from slurmkit_accounting.zones import Zone


@click.group("ledger")
def ledger_group() -> None:
    """Keep the books: jobs from sacct, people from LDAP."""


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
):
    ledger_group.add_command(command)
ledger_group.add_command(serve_command)


@ledger_group.command("ingest")
@click.option("--since", metavar="DATE", help="Read again from this date on, YYYY-MM-DD.")
@click.option(
    "--file", "path", metavar="DUMP",
    help="Read output of sacct --parsable2 in a file, - for standard input, in place of sacct.",
)  # fmt: skip
@click.option("--cluster", metavar="NAME", help="With --file: whose jobs they are.")
@click.option(
    "--fields", metavar="A,B,C",
    help="With --file: sacct's names of its fields, in order; the last takes the rest of a line.",
)  # fmt: skip
@click.option("--delimiter", default="|", show_default=True, help="With --file: between fields.")
@click.option(
    "--timezone", metavar="TZ",
    help="With --file: of times that are not epoch seconds.  [default: the host's]",
)  # fmt: skip
@click.option("--header", is_flag=True, help="With --file: its first line names the fields.")
@db_option
def ingest_command(since: str | None, path: str | None, db: str | None, **file: Any) -> None:
    """Read new and changed jobs from sacct, or from a file, into the ledger.

    It goes on where the books end, less 48 hours in which rows still change; the first one
    begins 30 days ago. It can be interrupted and repeated at any time, and goes on where it was
    cut off. A file may hold any fields in any order: the more of them, the more can be told.

    \b
    Examples:
      slurmkit ledger ingest
      slurmkit ledger ingest --since 2026-01-01
      slurmkit ledger ingest --file old.txt --cluster lab --timezone Europe/Berlin
        --fields JobIDRaw,User,Account,Submit,Start,End,State,AllocTRES,JobName
    """
    if path is not None:
        _ingest_file(path, db, since, **file)
        return
    _refuse_without_file(file)
    from slurmkit.slurm import LocalSlurm  # noqa: PLC0415
    from slurmkit_accounting.ingest import ingest  # noqa: PLC0415
    from slurmkit_accounting.ledger import open_for_writing  # noqa: PLC0415
    from slurmkit_accounting.progress import shown  # noqa: PLC0415
    from slurmkit_accounting.zones import zone_or_utc  # noqa: PLC0415

    here = zone_or_utc()
    begin = None if since is None else here.epoch(since)
    with open_for_writing(db) as ledger, shown() as progress:
        slurm, private = LocalSlurm(), _is_private(db)
        done = ingest(ledger, slurm, since=begin, progress=progress, private=private)
    _show_ingested(done, here)
    _tell_of_the_sites(db, ledger.source)


def _is_private(db: str | None) -> bool:
    """Whether it is a person's own ledger, and not that of the site's service."""
    from slurmkit.config import load_section  # noqa: PLC0415
    from slurmkit_accounting.location import is_own, ledger_url  # noqa: PLC0415
    from slurmkit_accounting.service.client import is_the_service  # noqa: PLC0415
    from slurmkit_accounting.service.config import ServiceSection  # noqa: PLC0415

    service = load_section("ledger.service", ServiceSection)
    return is_own(ledger_url(db)) and not is_the_service(service)


def _refuse_without_file(file: dict[str, Any]) -> None:
    for name in ("cluster", "fields", "timezone", "header"):
        if file[name]:
            raise BadInput(f"--{name} is for --file DUMP; sacct itself says so")


def _ingest_file(path: str, db: str | None, since: str | None, **asked: Any) -> None:
    from slurmkit_accounting.dump import cannot_say, field_names  # noqa: PLC0415
    from slurmkit_accounting.dump_ingest import File, ingest_file  # noqa: PLC0415
    from slurmkit_accounting.ledger import open_for_writing  # noqa: PLC0415
    from slurmkit_accounting.progress import shown  # noqa: PLC0415
    from slurmkit_accounting.zones import zone  # noqa: PLC0415

    if since is not None:
        raise BadInput("--since is for sacct; a file is read as a whole")
    for name in ("cluster", "fields", "delimiter"):
        if not asked[name]:
            raise BadInput(f"--file needs --{name}")
    fields, where = field_names(asked["fields"]), zone(asked["timezone"])
    for line in cannot_say(fields):
        click.echo(line, err=True)
    with (
        _opened(path) as stream, open_for_writing(db) as ledger, shown() as progress,
    ):  # fmt: skip
        file = File(
            path, stream, asked["cluster"], fields, asked["delimiter"], where, asked["header"]
        )
        done = ingest_file(ledger, file, progress)
    _show_loaded(done, where)
    _tell_of_the_sites(db, ledger.source)


def _tell_of_the_sites(db: str | None, source: str) -> None:
    """Say that reports are not made of these books, where nobody has named them."""
    from slurmkit.config import load_section  # noqa: PLC0415
    from slurmkit_accounting.location import is_sqlite, ledger_url  # noqa: PLC0415
    from slurmkit_accounting.service.client import is_the_service  # noqa: PLC0415
    from slurmkit_accounting.service.config import ServiceSection  # noqa: PLC0415

    section = load_section("ledger.service", ServiceSection)
    if db or os.environ.get("SLURMKIT_DB") or not section.url or is_the_service(section):
        return
    url = f"sqlite:///{source}" if is_sqlite(ledger_url()) else source
    click.echo(
        f"these books are in {printable(source)}, and not the site's: reports ask the ledger's"
        f" service at {printable(section.url)}; to read these: --db {printable(url)}",
        err=True,
    )


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(path).open("rb") as stream:
            yield stream
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error


def _show_ingested(done: Ingested, here: Zone) -> None:
    begin, end = map(here.show, done.window)
    window = f"window {begin} to {end} {here.name}"
    click.echo(_counted(done.cluster, done.entered, window, done.seconds))
    _show_rejected(done.entered)
    if done.only:
        click.echo(
            f"slurmdbd's PrivateData=jobs shows {printable(done.only)} no other people's jobs:"
            " this ledger holds only theirs",
            err=True,
        )
    if done.gone:
        click.echo(
            f"{done.gone} runs are gone from sacct; they still count (slurmkit ledger retract"
            " takes them out)",
            err=True,
        )
    if done.first:
        click.echo(
            f"the books begin at {here.show(done.books_begin)}; for older jobs: slurmkit ledger"
            " ingest --since DATE",
            err=True,
        )


def _show_loaded(done: Loaded, where: Zone) -> None:
    window = "no rows"
    if done.window:
        begin, end = map(where.show, done.window)
        window = f"times from {begin} to {end} {where.name}"
    click.echo(_counted(done.cluster, done.entered, window, done.seconds))
    _show_rejected(done.entered)
    if done.steps:
        click.echo(f"{done.steps} lines of steps were left out", err=True)


def _counted(cluster: str, rows: Entered, window: str, seconds: float) -> str:
    read = f"{rows.read} row{'' if rows.read == 1 else 's'}"
    return (
        f"cluster {printable(cluster)}: {read} read, {rows.new} new, {rows.changed} changed,"
        f" {rows.rejected} rejected; {window}; {seconds:.1f} s"
    )


def _show_rejected(rows: Entered) -> None:
    if rows.rejected:
        kept = "rejected lines are kept; see them with: slurmkit ledger rejects"
        click.echo(f"{kept}; the first: {printable(rows.why)}", err=True)
