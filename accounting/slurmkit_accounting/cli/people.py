"""`slurmkit ledger people`: who was who, in which group, under which PI, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slurmkit.text import printable
from slurmkit_accounting.cli import db_option

if TYPE_CHECKING:
    from slurmkit_accounting.people_sync import Change

_CHANGES_SHOWN = 50


@click.group("people")
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
