"""What `slurmkit ledger backup` and `restore` do."""

from __future__ import annotations

from pathlib import Path

import click

from slurmkit.cli.json_output import JsonOutput
from slurmkit.formats.display import printable
from slurmkit.formats.memory import format_bytes
from slurmkit_accounting.audit.backup import back_up, check_backup, restore
from slurmkit_accounting.audit.backup_file import BackupHeader
from slurmkit_accounting.cli import open_for_reading, open_for_writing, show_progress
from slurmkit_accounting.ledger.schema.types import REVISION
from slurmkit_accounting.render.format import format_utc


def back_up_ledger(path: Path, db: str | None, as_json: JsonOutput | None) -> None:
    """Write a backup, and print its checksum."""
    with open_for_reading(db) as ledger, show_progress("backing up") as progress:
        header = back_up(ledger, path, progress)
    _print(header, path, as_json)


def check_file(path: Path, as_json: JsonOutput | None) -> None:
    """Read all of a backup, and print its checksum."""
    with show_progress("checking") as progress:
        header = check_backup(path, progress)
    _print(header, path, as_json)


def restore_ledger(path: Path, db: str | None, as_json: JsonOutput | None) -> None:
    """Restore a backup, and print the checksum of the ledger."""
    # The whole file first: a file that is cut off must not even make an empty ledger.
    with show_progress("checking") as progress:
        header = check_backup(path, progress)
    with open_for_writing(db) as ledger:
        with show_progress("restoring") as progress:
            restored = restore(path, ledger, progress)
        source = ledger.source
    rows = sum(header.rows.values())
    if as_json:
        facts = {"checksum": restored.checksum, "ledger": source, "rows": rows}
        as_json.print([{**facts, "before": header.checksum, "schema": header.schema}])
        return
    click.echo(f"{restored.checksum}  {printable(source)}")
    click.echo(f"{rows} rows, as of {format_utc(header.taken)}", err=True)
    if header.schema != REVISION:
        click.echo(
            f"upgraded from schema {header.schema} to {REVISION}; the checksum in the backup is of"
            f" the older schema: {header.checksum}",
            err=True,
        )


def _print(header: BackupHeader, path: Path, as_json: JsonOutput | None) -> None:
    size = path.stat().st_size
    rows = sum(header.rows.values())
    if as_json:
        facts = {"checksum": header.checksum, "file": str(path), "size": size, "rows": rows}
        about = {"schema": header.schema, "slurmkit": header.slurmkit, "at": header.taken}
        as_json.print([{**facts, **about, "ledger": header.ledger, "tables": header.rows}])
        return
    click.echo(f"{header.checksum}  {printable(str(path))}")
    click.echo(
        f"{rows} rows of {printable(header.ledger)}, as of {format_utc(header.taken)}, schema"
        f" {header.schema}; {format_bytes(size)}",
        err=True,
    )
