"""The work of `slurmkit ledger ingest`: read sacct or a file into the ledger."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from slurmkit.cli.json_output import JsonOutput
from slurmkit.config.files import load_section
from slurmkit.errors import BadInput
from slurmkit.formats.display import printable
from slurmkit.slurm import commands
from slurmkit_accounting.calendar import Zone, find_zone, host_zone_or_utc
from slurmkit_accounting.cli import mention_service
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ingest.enter import IngestCounts
from slurmkit_accounting.ingest.file import IngestedFile, SacctFile, ingest_file
from slurmkit_accounting.ingest.ingest import Ingested, check_source, ingest
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.ledger.location import is_default_ledger, ledger_url
from slurmkit_accounting.remote.client import is_the_service
from slurmkit_accounting.sacct.file import (
    SacctFileReader,
    forgeable_fields,
    missing_information,
    parse_field_names,
)


def ingest_from_sacct(
    db: str | None, since: str | None, as_json: JsonOutput | None, **file: Any
) -> None:
    """Read new and changed jobs from sacct, and print how many there were.

    Args:
        db: URL of the ledger's database; None for the usual one.
        since: date from which jobs are read again, YYYY-MM-DD.
        as_json: print the counts as JSON.
        file: the options of `--file`, which are refused.
    """
    _refuse_file_options(file)
    here = host_zone_or_utc()
    begin = None if since is None else here.epoch(since)
    slurm, private = commands.LocalSlurmCommands(), _is_own_ledger(db)
    check_source(slurm, begin, private=private)  # if it fails, no empty ledger is left behind
    with open_for_writing(db) as ledger, _show_progress() as progress:
        done = ingest(ledger, slurm, since=begin, progress=progress, private=private)
    _show_ingested(done, here, as_json)
    mention_service(db, ledger.source)


def _is_own_ledger(db: str | None) -> bool:
    """Return whether this is a user's own ledger, not the ledger of the site's service."""
    service = load_section("ledger.service", ServiceSection)
    return is_default_ledger(ledger_url(db)) and not is_the_service(service)


def _refuse_file_options(file: dict[str, Any]) -> None:
    """Refuse options that need `--file`."""
    for name in ("cluster", "fields", "timezone", "header"):
        if file[name]:
            raise BadInput(f"--{name} needs --file DUMP; sacct itself knows it, so leave it out")


def ingest_from_file(
    path: str, db: str | None, since: str | None, as_json: JsonOutput | None, **asked: Any
) -> None:
    """Read jobs from a file with output of sacct, and print how many there were.

    Args:
        path: the file; `-` for standard input.
        db: URL of the ledger's database; None for the usual one.
        since: refused, since it is for sacct.
        as_json: print the counts as JSON.
        asked: options `cluster`, `fields`, `delimiter`, `timezone` and `header`.
    """
    if since is not None:
        raise BadInput(
            "--since is for sacct; a file is always read as a whole, so leave --since out"
        )
    _check_file_options(asked)
    given, where = asked["delimiter"], find_zone(asked["timezone"])
    delimiter = "|" if given is None else given
    with _open_input(path) as stream:
        if asked["fields"]:
            fields = parse_field_names(asked["fields"])
            if asked["header"]:
                SacctFileReader(stream, fields, delimiter, where).skip_header()
        else:
            fields = _read_header(stream, delimiter)
        if given is None:
            _refuse_forgeable(fields, delimiter)
        for line in missing_information(fields):
            click.echo(line, err=True)
        file = SacctFile(path, stream, asked["cluster"], fields, delimiter, where)
        with open_for_writing(db) as ledger, _show_progress() as progress:
            done = ingest_file(ledger, file, progress)
    _show_file_ingested(done, where, as_json)
    mention_service(db, ledger.source)


def _check_file_options(asked: dict[str, Any]) -> None:
    """Raise BadInput that names all options that `--file` lacks."""
    lacking = [] if asked["cluster"] else ["--cluster"]
    lacking += ["--delimiter"] * (asked["delimiter"] == "")
    if not asked["fields"] and not asked["header"]:
        lacking.append("--fields (or --header, if the first line of the file names the fields)")
    if lacking:
        raise BadInput(
            f"--file needs {' and '.join(lacking)}; for an example: slurmkit ledger ingest --help"
        )


def _refuse_forgeable(fields: Sequence[str], delimiter: str) -> None:
    """Raise BadInput if users could have written rows of others, and nobody says to trust them."""
    if names := forgeable_fields(fields, delimiter):
        raise BadInput(
            f"users choose {' and '.join(names)}, and a line break and {delimiter!r} in it look"
            " like a row of another user. Write the file again with a random delimiter of 8 or more"
            " characters (sacct --parsable2 --delimiter=RANDOM) and give --delimiter RANDOM. If you"
            f" cannot, and trust all of its rows, give --delimiter {delimiter!r}"
        )


def _read_header(stream: BinaryIO, delimiter: str) -> tuple[str, ...]:
    """Read the first line of a file, and return the fields that it names.

    Raises:
        BadInput: when it does not name the fields that are needed.
    """
    line = stream.readline().decode("utf-8", "replace").rstrip("\r\n").removesuffix(delimiter)
    try:
        return parse_field_names(line.replace(delimiter, ","))
    except BadInput as error:
        words = str(error).replace("--fields", "the header")
        raise BadInput(
            f"{words}; it is {line[:200]!r}; give the --delimiter between its names, or --fields"
        ) from error


@contextmanager
def _open_input(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(path).open("rb") as stream:
            yield stream
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error


def _show_ingested(done: Ingested, here: Zone, as_json: JsonOutput | None) -> None:
    begin, end = map(here.show, done.window)
    if as_json:
        as_json.print([done])
    else:
        window = f"window {begin} to {end} {here.name}"
        click.echo(_count_line(done.cluster, done.entered, window, done.seconds))
    _show_rejected(done.entered)
    _show_reused(done.cluster, done.entered)
    if done.only:
        click.echo(
            f"slurmdbd (PrivateData=jobs) shows you only the jobs of {printable(done.only)}, so"
            " this ledger has no others",
            err=True,
        )
    if done.gone:
        click.echo(
            f"{done.gone} runs are gone from sacct; they still count; to stop counting them:"
            " slurmkit ledger retract JOB_ID",
            err=True,
        )
    if done.no_outages:
        click.echo(
            "the outages of nodes could not be read, and are missing in `slurmkit report nodes`"
            f" until they can be: {printable(done.no_outages)}",
            err=True,
        )
    if done.first:
        click.echo(
            f"the ledger begins at {here.show(done.books_begin)}; for older jobs: slurmkit ledger"
            " ingest --since DATE",
            err=True,
        )


def _show_file_ingested(done: IngestedFile, where: Zone, as_json: JsonOutput | None) -> None:
    window = "no rows"
    if done.window:
        begin, end = map(where.show, done.window)
        window = f"times from {begin} to {end} {where.name}"
    if as_json:
        as_json.print([done])
    else:
        click.echo(_count_line(done.cluster, done.entered, window, done.seconds))
    _show_rejected(done.entered)
    _show_reused(done.cluster, done.entered)
    if done.steps:
        click.echo(f"{done.steps} lines of steps were left out", err=True)
    if done.forgeable:
        _warn_of_forged_rows(done)


def _warn_of_forged_rows(done: IngestedFile) -> None:
    """Say that users could have written rows of this file, and how to exclude that."""
    names = printable(" and ".join(done.forgeable))
    click.echo(
        f"any of these {done.entered.read:,} rows may be forged: users choose {names}, and a line"
        " break and the delimiter in it look like a row of another user. If users may have done"
        " that, write the file again with a random delimiter of 8 or more characters (sacct"
        " --parsable2 --delimiter=RANDOM), and give it here with --delimiter RANDOM",
        err=True,
    )
    if done.ambiguous:
        click.echo(
            f"rows with a line break or the delimiter in their last field: {done.ambiguous:,};"
            " check in the file whose these are",
            err=True,
        )


def _count_line(cluster: str, rows: IngestCounts, window: str, seconds: float) -> str:
    read = f"{rows.read} row{'' if rows.read == 1 else 's'}"
    return (
        f"cluster {printable(cluster)}: {read} read, {rows.new} new, {rows.changed} changed,"
        f" {rows.rejected} rejected; {window}; {seconds:.1f} s"
    )


def _show_rejected(rows: IngestCounts) -> None:
    if rows.rejected:
        stored = "rejected lines are stored; see them with: slurmkit ledger rejects"
        click.echo(f"{stored}; the first: {printable(rows.why)}", err=True)


def _show_reused(cluster: str, rows: IngestCounts) -> None:
    if warning := rows.reuse_warning(printable(cluster)):
        click.echo(warning, err=True)


@contextmanager
def _show_progress() -> Iterator[Callable[[IngestCounts, float], None]]:
    """Show a progress bar on standard error during an ingest."""
    columns = (TextColumn("reading"), BarColumn(), TextColumn("{task.fields[rows]} rows"))
    console = Console(stderr=True)
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        task = progress.add_task("ingest", total=1.0, rows=0)
        yield lambda entered, part: progress.update(task, completed=part, rows=entered.read)
