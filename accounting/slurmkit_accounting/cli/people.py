"""`slurmkit ledger people`: people, their groups and PIs, over time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, print_key_values, print_table
from slurmkit.errors import BadConfig
from slurmkit.formats.display import printable
from slurmkit.slurm import commands
from slurmkit_accounting.calendar import host_zone_or_utc
from slurmkit_accounting.cli import db_option, open_for_reading, open_for_writing, show_progress
from slurmkit_accounting.render.format import format_amount

if TYPE_CHECKING:
    from slurmkit_accounting.people.dated import PeopleChange
    from slurmkit_accounting.people.history import History
    from slurmkit_accounting.people.sync import PeopleSync
    from slurmkit_accounting.people.unmapped import UsageMove

_CHANGES_SHOWN = 50
HOUR_SECONDS = 3600
_PLURALS = {
    "person": "people",
    "group": "groups",
    "membership": "memberships",
    "override": "overrides",
    "coordinator": "coordinators",
}


@click.group("people")
def people_group() -> None:
    """Read and show people, their groups and PIs, over time.

    \b
    Examples:
      slurmkit ledger people sync --dry-run
      slurmkit ledger people show alice
      slurmkit ledger people unmapped
      slurmkit ledger people xdmod /srv/xdmod-import --unit "Example University"
    """


@people_group.command("sync")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Apply the changes even if a larger share than max_vanish would be gone.",
)
@json_option("slurmkit.ledger.people.sync/1", text="Print the changes as JSON.")
@db_option
def sync_command(db: str | None, *, dry_run: bool, force: bool, as_json: JsonOutput | None) -> None:
    """Read people and groups from LDAP, coordinators from Slurm, and the site's overrides.

    Section [ldap] of the configuration names the server. The password of its bind_dn comes from
    bind_password_file or SLURMKIT_LDAP_PASSWORD. [ledger] overrides names the file of overrides.

    A dry run also shows how many GPU-hours would move to another PI.

    \b
    Examples:
      slurmkit ledger people sync --dry-run
      slurmkit ledger people sync
    """
    from slurmkit_accounting.people.sync import read_people_sources, sync_people

    heard = read_people_sources(commands.LocalSlurmCommands())
    share = 1.0 if force else heard.max_vanish
    with open_for_writing(db) as ledger, show_progress("moving usage") as progress:
        synced = sync_people(
            ledger, heard.data, dry_run=dry_run, max_vanish=share, progress=progress
        )
    for note in heard.notes:
        click.echo(printable(note), err=True)
    if as_json:
        further = {"moves": synced.moves, "refusal": synced.refusal, "dry_run": dry_run}
        as_json.print(synced.changes, further=further | {"notes": heard.notes})
        return
    _show_synced(synced, dry_run=dry_run)
    end = "; dry run, nothing was changed" if dry_run else ""
    click.echo(f"{printable(heard.read)}{end}", err=True)


def _show_synced(synced: PeopleSync, *, dry_run: bool) -> None:
    _show_changes(synced.changes)
    if dry_run:
        _show_moves(synced.moves)
    if synced.refusal:
        click.echo(
            f"without --dry-run, this would be refused: {printable(synced.refusal)}", err=True
        )


def _show_changes(changes: tuple[PeopleChange, ...]) -> None:
    for change in changes[:_CHANGES_SHOWN]:
        click.echo(f"{change.kind} {change.what}: {printable(change.who)}")
    if len(changes) > _CHANGES_SHOWN:
        click.echo(f"and {len(changes) - _CHANGES_SHOWN} more")
    for kind, plural in _PLURALS.items():
        mine = [one.what for one in changes if one.kind == kind]
        words = (
            ("added", "changed", "closed") if kind in {"person", "group"} else ("added", "closed")
        )
        if mine or kind in {"person", "group", "membership"}:
            click.echo(f"{plural}: {', '.join(f'{mine.count(what)} {what}' for what in words)}")


def _show_moves(moves: tuple[UsageMove, ...]) -> None:
    if not moves:
        click.echo("no GPU-hours would move to another PI")
    for move in moves:
        hours = format_amount(move.gpu_seconds / HOUR_SECONDS)
        names = printable(f"{move.giver.name} to {move.taker.name}")
        click.echo(f"GPU-hours that would move: {hours} from {names}")


@people_group.command("unmapped")
@json_option("slurmkit.ledger.people.unmapped/1", text="Print JSON.")
@db_option
def unmapped_command(db: str | None, *, as_json: JsonOutput | None) -> None:
    """Show usage that has no PI, and how to fix it.

    Only ended runs are shown. In a report by PI, their GPU-hours are on a line named like their
    account if the directory knows the user, else on the line `unmapped`.

    \b
    Examples:
      slurmkit ledger people unmapped
      slurmkit ledger people unmapped --json
    """
    from slurmkit_accounting.people.unmapped import load_unmapped_usage

    with open_for_reading(db) as ledger, ledger.transaction() as connection:
        usage = load_unmapped_usage(connection)
    if as_json:
        as_json.print(usage)
        return
    header = ("CLUSTER", "ACCOUNT", "USER", "COUNTED_AS", "RUNS", "GPU_HOURS", "FIX")
    rows = [
        (one.cluster, one.account, one.user, one.counted_as, f"{one.runs:,}",
         format_amount(one.gpu_hours), one.fix)
        for one in usage
    ]  # fmt: skip
    fit = Fit(("ACCOUNT", "USER"), ("FIX",), least=("CLUSTER", "RUNS", "COUNTED_AS"))
    print_table(header, rows, right=("RUNS", "GPU_HOURS"), fit=fit)
    _show_advice(usage[0].account if usage else None)


def _show_advice(account: str | None) -> None:
    if account is None:
        click.echo("all usage of ended runs in the ledger has a PI", err=True)
        return
    click.echo("only ended runs are listed", err=True)
    entry = f'[[override]] with account = "{printable(account)}" and pi = "NAME"'
    click.echo(
        "a fix in the directory counts only for jobs submitted after it; to fix earlier jobs too,"
        f" put {entry} into the file that [ledger] overrides names, then run: slurmkit ledger"
        " people sync",
        err=True,
    )


@people_group.command("show")
@click.argument("name")
@json_option("slurmkit.ledger.people.show/1", text="Print JSON.")
@db_option
def show_command(name: str, db: str | None, *, as_json: JsonOutput | None) -> None:
    """Show everything known about a person or a group, with dates.

    NAME is a present or former name of a user or group. A person's groups include groups that
    contain their groups. A person's PIs are the PIs of their jobs under the accounts of these
    groups.

    \b
    Examples:
      slurmkit ledger people show alice
      slurmkit ledger people show vision --json
    """
    from slurmkit_accounting.people.history import load_histories

    with open_for_reading(db) as ledger, ledger.transaction() as connection:
        people_and_groups = load_histories(connection, name)
    if as_json:
        as_json.print(people_and_groups)
        return
    for number, one in enumerate(people_and_groups):
        if number:
            click.echo()
        _show_history(one)


@people_group.command("xdmod")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--unit", required=True, help="Top of the hierarchy, e.g. the university.")
@json_option("slurmkit.ledger.people.xdmod/1", text="Print JSON.")
@db_option
def xdmod_command(folder: Path, unit: str, db: str | None, *, as_json: JsonOutput | None) -> None:
    """Write files for Open XDMoD: names of users and accounts, departments and their PIs.

    FOLDER gets names.csv, hierarchy.csv and group-to-hierarchy.csv: who has which name now, and who
    is the PI of each account that has runs. In XDMoD an account has the name of its PI.

    \b
    Examples:
      slurmkit ledger people xdmod /srv/xdmod-import --unit "Example University"
    """
    from slurmkit_accounting.people.xdmod import GROUPS, HIERARCHY, NAMES, load_xdmod_files

    with open_for_reading(db) as ledger, ledger.transaction() as connection:
        files = load_xdmod_files(connection, unit, int(time.time()))
    files.write(folder)
    counts = {
        "names": len(files.names), "hierarchy": len(files.hierarchy), "accounts": len(files.groups),
    }  # fmt: skip
    if as_json:
        as_json.print([{"folder": str(folder), **counts, "without_pi": files.without_pi}])
        return
    click.echo(
        f"wrote {NAMES} ({counts['names']} names), {HIERARCHY} ({counts['hierarchy']} rows) and"
        f" {GROUPS} ({counts['accounts']} accounts) in {printable(str(folder))}"
    )
    if files.without_pi:
        names = printable(", ".join(files.without_pi))
        click.echo(
            f"accounts without a PI: {names}; see slurmkit ledger people unmapped",
            err=True,
        )
    click.echo("on the host of XDMoD run:", err=True)
    for kind, name in (("names", NAMES), ("hierarchy", HIERARCHY), ("group-to-hierarchy", GROUPS)):
        click.echo(f"  xdmod-import-csv -t {kind} -i {name}", err=True)
    click.echo("and xdmod-ingestor, for the dates of the jobs that shall change", err=True)


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
    print_key_values(facts)
    rows = ((each.what, each.value, *_dates(each.since, each.until)) for each in one.lines)
    print_table(("WHAT", "VALUE", "FROM", "UNTIL"), rows)


def _dates(since: int, until: int | None) -> tuple[str, str]:
    return _date(since) if since else "always", "still" if until is None else _date(until)


def _date(epoch: int) -> str:
    return host_zone_or_utc().show(epoch)


@people_group.group("overrides")
def overrides_group() -> None:
    """Check the PIs that the site itself sets for accounts or users.

    \b
    Example:
      slurmkit ledger people overrides check
    """


@overrides_group.command("check")
@json_option("slurmkit.ledger.people.overrides.check/1", text="Print JSON.")
def check_command(*, as_json: JsonOutput | None) -> None:
    """Check the file that [ledger] overrides names, and show its entries.

    To see what it would change: slurmkit ledger people sync --dry-run.

    \b
    Examples:
      slurmkit ledger people overrides check
    """
    from slurmkit_accounting.people.sync import load_configured_overrides

    overrides = load_configured_overrides()
    if overrides is None:
        raise BadConfig("there is no file of overrides; name one in [ledger] overrides")
    if as_json:
        as_json.print(overrides)
        return
    rows = [
        (one.account or "any", one.user or "anybody", one.pi, *_dates(one.valid_from, one.valid_to))
        for one in overrides
    ]
    print_table(("ACCOUNT", "USER", "PI", "FROM", "UNTIL"), rows)
