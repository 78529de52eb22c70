"""`slurmkit ledger people`: who was who, in which group, under which PI, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from slurmkit.cli.show import key_values, table
from slurmkit.text import printable
from slurmkit_accounting.cli import db_option

if TYPE_CHECKING:
    from slurmkit_accounting.dated import Change
    from slurmkit_accounting.history import History
    from slurmkit_accounting.moves import Move
    from slurmkit_accounting.people_sync import Synced

_CHANGES_SHOWN = 50
HOUR_SECONDS = 3600
_KINDS = {
    "person": "people",
    "group": "groups",
    "membership": "memberships",
    "override": "overrides",
    "coordinator": "coordinators",
}


@click.group("people")
def people_group() -> None:
    """Who was who, in which group, under which PI, and when."""


@people_group.command("sync")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@click.option("--force", is_flag=True, help="Apply it also if more than max_vanish would be gone.")
@db_option
def sync_command(db: str | None, *, dry_run: bool, force: bool) -> None:
    """Read people and groups from LDAP, coordinators from Slurm, and the site's overrides.

    The server is named in section [ldap] of the configuration; the password of its bind_dn comes
    from bind_password_file or SLURMKIT_LDAP_PASSWORD; the file of overrides is [ledger] overrides.

    A dry run also says how many GPU-hours would be another PI's.

    \b
    Examples:
      slurmkit ledger people sync --dry-run
      slurmkit ledger people sync
    """
    from slurmkit.slurm import LocalSlurm  # noqa: PLC0415
    from slurmkit_accounting.ledger import open_for_writing  # noqa: PLC0415
    from slurmkit_accounting.people_sources import hear  # noqa: PLC0415
    from slurmkit_accounting.people_sync import sync_people  # noqa: PLC0415

    heard = hear(LocalSlurm())
    share = 1.0 if force else heard.max_vanish
    with open_for_writing(db) as ledger:
        synced = sync_people(ledger, heard.told, dry_run=dry_run, max_vanish=share)
    for note in heard.notes:
        click.echo(printable(note), err=True)
    _show_synced(synced, dry_run=dry_run)
    end = "; dry run, nothing was changed" if dry_run else ""
    click.echo(f"{printable(heard.read)}{end}", err=True)


def _show_synced(synced: Synced, *, dry_run: bool) -> None:
    _show_changes(synced.changes)
    if dry_run:
        _show_moves(synced.moves)
    if synced.refusal:
        click.echo(f"it would be refused: {printable(synced.refusal)}", err=True)


def _show_changes(changes: tuple[Change, ...]) -> None:
    for change in changes[:_CHANGES_SHOWN]:
        click.echo(f"{change.kind} {change.what}: {printable(change.who)}")
    if len(changes) > _CHANGES_SHOWN:
        click.echo(f"and {len(changes) - _CHANGES_SHOWN} more")
    for kind, plural in _KINDS.items():
        mine = [one.what for one in changes if one.kind == kind]
        words = (
            ("added", "changed", "closed") if kind in {"person", "group"} else ("added", "closed")
        )
        if mine or kind in {"person", "group", "membership"}:
            click.echo(f"{plural}: {', '.join(f'{mine.count(what)} {what}' for what in words)}")


def _show_moves(moves: tuple[Move, ...]) -> None:
    from slurmkit_accounting.render.words import amount  # noqa: PLC0415

    if not moves:
        click.echo("no GPU-hours in the books would be another PI's")
    for move in moves:
        hours = amount(move.gpu_seconds / HOUR_SECONDS)
        names = printable(f"{move.giver.name} to {move.taker.name}")
        click.echo(f"GPU-hours that would move: {hours} from {names}")


@people_group.command("unmapped")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@db_option
def unmapped_command(db: str | None, *, as_json: bool) -> None:
    """Show usage that has no PI, and how to mend it.

    Of runs that have ended. A run by somebody in the directory is on its account's own line in a
    report by PI, any other one on the line `unmapped`.

    \b
    Examples:
      slurmkit ledger people unmapped
      slurmkit ledger people unmapped --json
    """
    from slurmkit_accounting.ledger import open_for_reading  # noqa: PLC0415
    from slurmkit_accounting.render.words import amount  # noqa: PLC0415
    from slurmkit_accounting.unmapped import unmapped  # noqa: PLC0415

    with open_for_reading(db) as ledger, ledger.transaction() as connection:
        found = unmapped(connection)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    header = ("CLUSTER", "ACCOUNT", "USER", "COUNTED_AS", "RUNS", "GPU_HOURS", "FIX")
    rows = [
        (one.cluster, one.account, one.user, one.counted_as, f"{one.runs:,}",
         amount(one.gpu_hours), one.fix)
        for one in found
    ]  # fmt: skip
    table(header, rows, right=("RUNS", "GPU_HOURS"))
    _advise(found[0].account if found else None)


def _advise(account: str | None) -> None:
    if account is None:
        click.echo("everything in the books has a PI", err=True)
        return
    entry = f'[[override]] with account = "{printable(account)}" and pi = "NAME"'
    click.echo(
        "what is mended in the directory holds for jobs from then on; for earlier ones too, put"
        f" {entry} into the file that [ledger] overrides names, then run: slurmkit ledger people"
        " sync",
        err=True,
    )


@people_group.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@db_option
def show_command(name: str, db: str | None, *, as_json: bool) -> None:
    """Show all that is known of a person or a group, with dates.

    NAME is a user name or the name of a group, of today or of any time. Groups are those a person
    was in directly or through other groups; PIs those of their jobs under the groups' accounts.

    \b
    Examples:
      slurmkit ledger people show alice
      slurmkit ledger people show vision --json
    """
    from slurmkit_accounting.history import histories  # noqa: PLC0415
    from slurmkit_accounting.ledger import open_for_reading  # noqa: PLC0415

    with open_for_reading(db) as ledger, ledger.transaction() as connection:
        found = histories(connection, name)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    for number, one in enumerate(found):
        if number:
            click.echo()
        _show_history(one)


def _show_history(one: History) -> None:
    seen = _date(one.first_seen)
    there = "still" if one.closed_at is None else f"gone since {_date(one.closed_at)}"
    facts = [
        (one.kind, one.display_name),
        ("directory id", one.directory_id),
        ("in the directory", f"first seen {seen}, {there}"),
    ]
    if one.mail is not None:
        facts.append(("mail", one.mail or "?"))
        facts.append(("account", "active" if one.active else "expired or gone"))
    key_values(facts)
    rows = ((each.what, each.value, *_dates(each.since, each.until)) for each in one.lines)
    table(("WHAT", "VALUE", "FROM", "UNTIL"), rows)


def _dates(since: int, until: int | None) -> tuple[str, str]:
    return _date(since) if since else "always", "still" if until is None else _date(until)


def _date(epoch: int) -> str:
    from slurmkit_accounting.zones import zone_or_utc  # noqa: PLC0415

    return zone_or_utc().show(epoch)


@people_group.group("overrides")
def overrides_group() -> None:
    """The site's own word on whose an account or a user is."""


@overrides_group.command("check")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check_command(*, as_json: bool) -> None:
    """Check the file that [ledger] overrides names, and show its entries.

    What would change: slurmkit ledger people sync --dry-run.

    \b
    Examples:
      slurmkit ledger people overrides check
    """
    from slurmkit.errors import BadConfig  # noqa: PLC0415
    from slurmkit_accounting.people_sources import configured_overrides  # noqa: PLC0415

    found = configured_overrides()
    if found is None:
        raise BadConfig("there is no file of overrides; name one in [ledger] overrides")
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    rows = [
        (one.account or "any", one.user or "anybody", one.pi, *_dates(one.valid_from, one.valid_to))
        for one in found
    ]
    table(("ACCOUNT", "USER", "PI", "FROM", "UNTIL"), rows)
