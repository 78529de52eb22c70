"""`slurmkit allocation coldfront`: take over what ColdFront grants, and tell it what was used."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.config.files import load_section
from slurmkit.errors import BadInput, LedgerError
from slurmkit.formats.display import format_seconds, printable
from slurmkit_accounting import read
from slurmkit_accounting.allocations.amounts import UNIT_NAMES, format_hours
from slurmkit_accounting.allocations.coldfront import (
    coldfront_grants,
    plan_steps,
    read_coldfront,
    take_step,
    usage_script,
)
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli import db_option, open_to_change
from slurmkit_accounting.cli.balance import format_day
from slurmkit_accounting.config import ColdfrontSection

if TYPE_CHECKING:
    from slurmkit_accounting.allocations.changes import Posted
    from slurmkit_accounting.allocations.coldfront import Step


@click.group("coldfront")
def coldfront_group() -> None:
    """Take over allocations that ColdFront grants, and tell it what was used.

    \b
    Examples:
      slurmkit allocation coldfront pull --dry-run
      slurmkit allocation coldfront usage > usage.py
    """


@coldfront_group.command("pull")
@click.option("--dry-run", is_flag=True, help="Print what would be entered; enter nothing.")
@click.option(
    "--new", is_flag=True, help="Also for accounts and PIs that the ledger does not know yet."
)
@click.option(
    "--old-ledger", is_flag=True, help="Although the ledger has not read the latest jobs."
)
@json_option("slurmkit.allocation.coldfront.pull/1", text="Print the steps as JSON.")
@db_option
def pull_command(
    db: str | None, *, dry_run: bool, new: bool, old_ledger: bool, as_json: JsonOutput | None
) -> None:
    """Grant what ColdFront has in force, and end what it has not.

    An allocation of ColdFront with hours is granted to the account in its slurm_account_name, or
    without one to the PI of its project. More hours there are a top-up here. What cannot be entered
    is said, and does not stop the rest; the exit code is then 1. Run it from cron, before
    `slurmkit allocation apply`.

    \b
    Examples:
      slurmkit allocation coldfront pull --dry-run
      slurmkit allocation coldfront pull --new
    """
    section = load_section("coldfront", ColdfrontSection)
    found = read_coldfront(section)
    today = find_zone().epoch(format_day(int(time.time())))
    rows: list[dict[str, Any]] = []
    with read.ledger(db) if dry_run else open_to_change(db) as ledger:
        grants = coldfront_grants(ledger)
        for step in plan_steps(found, grants, today, section.unit, old_ledger=old_ledger):
            posted, problem = None, step.problem
            if not dry_run and not problem:
                try:
                    posted = take_step(ledger, step, section, known=not new)
                except BadInput as error:
                    problem = str(error)
            if posted is not None and posted.repeated:
                continue  # another operator has just entered it
            rows.append(_step_facts(step, posted, problem))
            if not as_json:
                _show_step(step, posted, problem, section)
    problems = sum(row["problem"] != "" for row in rows)
    if as_json:
        as_json.print(rows, further={"dry_run": dry_run, "read": len(found)})
    else:
        done = len(rows) - problems
        what = "to make; dry run, nothing was changed" if dry_run else "made"
        click.echo(f"allocations of ColdFront: {len(found)}; entries {what}: {done}", err=True)
        if done and not dry_run:
            click.echo("to tell Slurm: slurmkit allocation apply", err=True)
    if problems:
        raise LedgerError(f"{problems} of them are not as in ColdFront; see above")


def _step_facts(step: Step, posted: Posted | None, problem: str) -> dict[str, Any]:
    number = posted.allocations[0].id if posted else step.allocation
    return {
        "coldfront": step.number,
        "project": step.project,
        "kind": step.kind,
        "holder": str(step.holder) if step.holder else None,
        "hours": step.amount_ms / 3_600_000,
        "allocation": number or None,
        "problem": problem,
    }


def _show_step(step: Step, posted: Posted | None, problem: str, section: ColdfrontSection) -> None:
    title = f" ({step.project})" if step.project else ""
    whose = f"ColdFront allocation {step.number}{title}"
    if problem:
        click.echo(printable(f"{whose}: {problem}"), err=True)
        return
    hours = f"{format_hours(step.amount_ms)} {UNIT_NAMES[section.unit]}"
    number = posted.allocations[0].id if posted else step.allocation
    named = f", allocation {number}" if number else ""
    words = {
        "grant": f"grant of {hours} to {step.holder}{named}",
        "top-up": f"top-up of {hours}{named}",
        "expiry": f"end{named}: it is not in force",
    }[step.kind]
    click.echo(printable(f"{whose}: {words}"))
    for note in posted.notes if posted else ():
        click.echo(printable(note), err=True)


@coldfront_group.command("usage")
@db_option
def usage_command(db: str | None) -> None:
    """Print what was used of ColdFront's allocations, as a script for `coldfront shell`.

    ColdFront's API cannot change anything, so the script runs on ColdFront's host. It has numbers
    only, and sets the usage of the attribute that has the hours. Running it twice does no harm.

    \b
    Example:
      slurmkit allocation coldfront usage > usage.py
      coldfront shell < usage.py        (on ColdFront's host)
    """
    section = load_section("coldfront", ColdfrontSection)
    with read.ledger(db) as ledger:
        grants = coldfront_grants(ledger)
    read_at = grants.last_ingest
    age = (
        "it has never read jobs from Slurm"
        if read_at is None
        else f"it read the jobs {format_seconds(time.time() - read_at)} before"
    )
    click.echo(usage_script(grants.rows, section, age), nl=False)
