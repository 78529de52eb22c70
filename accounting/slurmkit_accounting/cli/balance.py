"""`slurmkit balance`, and how balances and allocations are printed."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, print_table
from slurmkit.errors import BadInput
from slurmkit.formats.display import format_distance, printable
from slurmkit_accounting import read
from slurmkit_accounting.allocations.amounts import UNIT_NAMES, format_hours, to_hours
from slurmkit_accounting.allocations.balance import balances
from slurmkit_accounting.allocations.balance_words import (
    day_words,
    range_words,
    remarks,
    share_words,
)
from slurmkit_accounting.allocations.model import make_holder
from slurmkit_accounting.calendar import host_zone_or_utc
from slurmkit_accounting.cli import db_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from slurmkit_accounting.allocations.balance import Balance, Balances
    from slurmkit_accounting.allocations.model import Allocation, Entry, Holder
    from slurmkit_accounting.allocations.pace import Pace, PastForecasts

_USERS_SHOWN = 20


def holder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--account`, `--pi` and `--project` to a command."""
    for name, text in (
        ("project", "A project, from [project.NAME] of the configuration."),
        ("pi", "A PI, by user name: the use of all their groups."),
        ("account", "A Slurm account."),
    ):
        command = click.option(f"--{name}", metavar="NAME", help=text)(command)
    return command


def choose_holder(
    account: str | None, pi: str | None, project: str | None, *, needed: bool = False
) -> Holder | None:
    """Return the holder that the options mean.

    Raises:
        BadInput: when there are several, or none and one is needed.
    """
    if account and not (pi or project):
        return make_holder("account", account)
    if pi and not (account or project):
        return make_holder("pi", pi)
    if project and not (account or pi):
        return make_holder("project", project)
    if account or pi or project:
        raise BadInput("give one of --account, --pi and --project")
    if needed:
        raise BadInput("say whose: give one of --account NAME, --pi NAME and --project NAME")
    return None


@click.command("balance")
@holder_options
@click.option("--all", "all_", is_flag=True, help="All balances that you may see, not only yours.")
@click.option("--users", is_flag=True, help="Also show what each user used, as far as you may see.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "ood")),
    default="table",
    show_default=True,
    help="ood: the balances.json of Open OnDemand.",
)
@json_option("slurmkit.balance/1", text="Print the balances as JSON.")
@db_option
def balance_command(
    account: str | None,
    pi: str | None,
    project: str | None,
    db: str | None,
    *,
    all_: bool,
    users: bool,
    form: str,
    as_json: JsonOutput | None,
) -> None:
    """Show what is left of the allocations of your accounts.

    LEFT is what was granted, less what ended and running jobs used so far. MAY_USE is an upper
    bound: what running jobs may still use, and waiting jobs may use, up to their time limits.
    RUNS_OUT is when nothing is left, at the pace of the group's last 13 weeks: a range that holds
    in nine of ten cases if the group goes on as before, then a middle. The second table has what
    will be left at the end of the month, and how often such ranges held in the past.

    Every member sees the balance and their own use. Whose the rest was is shown to the PI and to
    operators.

    \b
    Examples:
      slurmkit balance
      slurmkit balance --account vision --users
      slurmkit balance --all --json
      slurmkit balance --all --format ood > balances.json
    """
    holder = choose_holder(account, pi, project)
    if form == "ood" and (as_json or users):
        raise BadInput("--format ood is JSON of its own; leave out --json and --users")
    with read.ledger(db) as ledger:
        everything = all_ or holder is not None
        if form == "ood":
            _print_ood(balances(ledger, holder=holder, everything=everything, members=True))
            return
        found = balances(ledger, holder=holder, everything=everything)
    if as_json:
        print_balances_as_json(found, as_json)
        return
    if not found.rows:
        explain_absence(holder, everything=everything)
        return
    _print_balances(found)
    _print_forecasts(found.rows)
    if users:
        _print_users(found.rows)
    print_remarks(found)


def _print_ood(found: Balances) -> None:
    content, left_out = ood_balances(found)
    click.echo(json.dumps(content, indent=2))
    if left_out:
        words = f"{left_out} balances in billing-hours are left out, because a file has one unit"
        click.echo(words, err=True)


def explain_absence(holder: Holder | None, *, everything: bool) -> None:
    """Say why nothing is shown."""
    if holder is not None:
        words = f"{holder} has no allocation in force that you may see"
    elif everything:
        words = (
            "there is no allocation in force that you may see, so only Slurm's own limits apply;"
            " ask your administrators if you need one"
        )
    else:
        words = "none of your accounts has an allocation in force; others: slurmkit balance --all"
    click.echo(printable(words), err=True)


def _print_balances(found: Balances) -> None:
    header = (
        "HOLDER", "UNIT", "GRANTED", "USED", "RUNNING", "MAY_USE", "LEFT", "LEFT%", "YOURS",
        "ENDS", "RUNS_OUT",
    )  # fmt: skip
    here = host_zone_or_utc()
    rows = [
        (str(one.holder), one.unit, format_hours(one.granted_ms), format_hours(one.used_ms),
         format_hours(one.running_ms), _may_use(one), format_hours(one.left_ms), share_words(one),
         format_hours(one.mine_ms), format_day(one.finish), range_words(one, here))
        for one in found.rows
    ]  # fmt: skip
    fit = Fit(("ENDS", "UNIT"), ("RUNS_OUT",), least=("YOURS", "RUNNING", "MAY_USE", "LEFT%"))
    right = ("GRANTED", "USED", "RUNNING", "MAY_USE", "LEFT", "LEFT%", "YOURS")
    print_table(header, rows, right=right, fit=fit)


def _print_forecasts(rows: Iterable[Balance]) -> None:
    """Print what is left when the month ends, and how often past forecasts held."""
    shown = [
        (str(one.holder), one.unit, format_day(pace.until), _hours_range(pace.left_then_ms[1::2]),
         _hours_range(pace.left_then_ms[::4]), *_past_words(pace.past))
        for one in rows
        if (pace := one.pace) is not None and pace.left_then_ms is not None
    ]  # fmt: skip
    if not shown:
        return
    header = ("HOLDER", "UNIT", "UNTIL", "LEFT_50%", "LEFT_90%", "HELD_50%", "HELD_90%")
    click.echo()
    print_table(header, shown, fit=Fit(("HELD_50%", "UNIT"), ("HELD_90%",)))


def _hours_range(ends: Sequence[int]) -> str:
    return f"{format_hours(ends[0])} to {format_hours(ends[-1])}"


def _past_words(past: PastForecasts | None) -> tuple[str, str]:
    """Write how many forecasts of 14 days held: `4 of 8`, for both ranges."""
    if past is None:
        return ("?", "?")
    return (f"{past.half} of {past.cases}", f"{past.most} of {past.cases}")


def _may_use(one: Balance) -> str:
    amount = format_hours(one.may_use_ms + one.reserved_ms)
    return f"{amount}+?" if one.without_limit else amount


def format_day(epoch: int | None, none: str = "open") -> str:
    """Write a day in this host's time zone."""
    return day_words(epoch, host_zone_or_utc(), none)


def _print_users(rows: Iterable[Balance]) -> None:
    shown = [
        (str(one.holder), user.user, format_hours(user.used_ms))
        for one in rows
        for user in one.users[:_USERS_SHOWN]
    ]
    click.echo()
    print_table(("HOLDER", "USER", "USED"), shown, right=("USED",))


def print_remarks(found: Balances) -> None:
    """Print the source and age of balances, and what could not be counted, to standard error."""
    age = "never" if found.last_ingest is None else (
        f"{format_distance(found.last_ingest - found.taken)}"
    )  # fmt: skip
    click.echo(
        f"{printable(found.source)}, jobs read: {age}; running jobs count up to now", err=True
    )
    for line in dict.fromkeys(_remarks(found.rows)):
        click.echo(printable(line), err=True)


def _remarks(rows: Iterable[Balance]) -> Iterator[str]:
    for one in rows:
        if one.without_limit:
            yield (
                f"{one.holder}: {one.without_limit} jobs have no known time limit, so MAY_USE is"
                " open"
            )
        yield from remarks(one, host_zone_or_utc())


def print_balances_as_json(found: Balances, as_json: JsonOutput) -> None:
    """Print balances as JSON; amounts in hours."""
    further = {
        "ledger": found.source, "last_ingest": found.last_ingest, "everything": found.everything
    }  # fmt: skip
    rows = [_balance_facts(one) for one in found.rows]
    as_json.print(rows, taken=found.taken, further=further)


def _balance_facts(one: Balance) -> dict[str, object]:
    amounts = ("granted", "used", "running", "may_use", "reserved", "left", "outside", "mine")
    return {
        "holder_kind": one.holder.kind,
        "holder": one.holder.name,
        "unit": one.unit,
        **{name: to_hours(getattr(one, f"{name}_ms")) for name in amounts},
        "without_limit": one.without_limit,
        "users": [{"user": each.user, "used": to_hours(each.used_ms)} for each in one.users],
        "ends": one.finish,
        "runs_out": one.pace and _pace_facts(one.pace),
        "last_entry": one.last_entry,
        "allocations": [
            {"id": each.id, "begins": each.begin, "ends": each.finish, "state": each.state,
             "granted": to_hours(each.granted_ms), "used": to_hours(each.used_ms),
             "left": to_hours(each.left_ms)}
            for each in one.allocations
        ],
        "notes": one.notes,
    }  # fmt: skip


def _pace_facts(pace: Pace) -> dict[str, object]:
    left = pace.left_then_ms
    names = ("least", "less", "middle", "more", "most")
    return {
        "earliest": pace.earliest, "early": pace.early, "middle": pace.middle, "late": pace.late,
        "latest": pace.latest, "days": pace.days, "per_day": to_hours(pace.per_day_ms),
        "until": pace.until,
        "left_then": left and dict(zip(names, map(to_hours, left), strict=True)),
        "past_forecasts": pace.past and {
            "forecasts": pace.past.cases, "held_50": pace.past.half, "held_90": pace.past.most,
        },
    }  # fmt: skip


def entry_facts(entry: Entry, allocation: Allocation) -> dict[str, object]:
    """Return an entry for JSON; its amount in hours."""
    return {
        "entry": entry.id,
        "allocation": allocation.id,
        "holder_kind": allocation.holder.kind,
        "holder": allocation.holder.name,
        "unit": allocation.unit,
        "kind": entry.kind,
        "hours": to_hours(entry.amount_ms),
        "at": entry.at,
        "who": entry.who,
        "why": entry.why,
        "ends": entry.finish,
        "pair": entry.pair,
        "job_id": entry.job_id,
    }


def ood_balances(found: Balances) -> tuple[dict[str, object], int]:
    """Return the content of balances.json, and the number of balances that are left out.

    Open OnDemand reads that file, which has one unit: GPU-hours, or billing-hours if there is
    nothing else. Each user of a balance has a row; without `members`, only the user who asks.
    """
    unit = "gpu" if any(one.unit == "gpu" for one in found.rows) or not found.rows else "billing"
    shown = [one for one in found.rows if one.unit == unit]
    content: dict[str, object] = {
        "version": 1,
        "timestamp": found.taken if found.last_ingest is None else found.last_ingest,
        "config": {"unit": UNIT_NAMES[unit], "project_type": "project"},
        "balances": [
            {"user": user, "project": _project(one), "value": round(to_hours(one.left_ms), 2)}
            for one in shown
            for user in ((_me(),) if one.members is None else one.members)
        ],
    }
    return content, len(found.rows) - len(shown)


def _project(one: Balance) -> str:
    return f"PI {one.holder.name}" if one.holder.kind == "pi" else one.holder.name


def _me() -> str:
    return pwd.getpwuid(os.getuid()).pw_name
