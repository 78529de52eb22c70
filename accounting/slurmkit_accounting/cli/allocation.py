"""`slurmkit allocation`: grant, move and show allocations, and enforce them in Slurm."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, print_table
from slurmkit.config.files import load_section
from slurmkit.errors import BadInput, LedgerError, SlurmError
from slurmkit.formats.display import printable
from slurmkit.slurm import commands
from slurmkit_accounting import read
from slurmkit_accounting.allocations.amounts import format_hours, parse_hours
from slurmkit_accounting.allocations.apply import apply_limits, make_plan
from slurmkit_accounting.allocations.balance import allocation_history, balances
from slurmkit_accounting.allocations.budgets_file import import_budgets
from slurmkit_accounting.allocations.changes import (
    Posting,
    expire_allocation,
    grant_allocation,
    refund_job,
    top_up_allocation,
    transfer_allocation,
)
from slurmkit_accounting.allocations.limits import is_explained
from slurmkit_accounting.allocations.moves import DoneMove, find_moves, move_jobs
from slurmkit_accounting.allocations.site import read_usable_qos
from slurmkit_accounting.calendar import find_zone, host_zone_or_utc
from slurmkit_accounting.cli import db_option, open_to_change
from slurmkit_accounting.cli.array_ids import to_slurm_ids
from slurmkit_accounting.cli.balance import (
    choose_holder,
    entry_facts,
    explain_absence,
    format_day,
    holder_options,
    print_balances_as_json,
)
from slurmkit_accounting.cli.coldfront import coldfront_group
from slurmkit_accounting.config import AllocationSection

if TYPE_CHECKING:
    from slurmkit.slurm.commands import SlurmCommands
    from slurmkit_accounting.allocations.apply import AppliedLimit, LimitPlan
    from slurmkit_accounting.allocations.balance import Balance
    from slurmkit_accounting.allocations.changes import Posted
    from slurmkit_accounting.allocations.limits import WantedLimit
    from slurmkit_accounting.allocations.model import Allocation, Entry


@click.group("allocation")
def allocation_group() -> None:
    """Grant GPU-hours to accounts, PIs and projects, and let Slurm enforce them.

    What was granted is never changed. Every change is a further entry, with who, when and why.
    Operators grant; every member sees the balance: slurmkit balance.

    \b
    Examples:
      slurmkit allocation grant 1000 --account vision --to 2028-01-01 --why "call 3"
      slurmkit allocation top-up 3 200 --why "paper deadline"
      slurmkit allocation refund 4711 --why "node c3 died"
      slurmkit allocation show
      slurmkit allocation apply --dry-run
    """


allocation_group.add_command(coldfront_group)


def _posting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--again", is_flag=True, help="Enter it although the same was entered within a day."
        ),
        click.option(
            "--reference",
            metavar="TEXT",
            help="Your own name of this change, e.g. a ticket. The same name is entered only once.",
        ),
        click.option("--why", metavar="TEXT", required=True, help="The reason, in one line."),
    ):
        command = option(command)
    return command


def _posting(asked: dict[str, Any]) -> Posting:
    identity = asked["reference"] or secrets.token_hex(16)
    known = not asked.get("new", True)
    return Posting(why=asked["why"], identity=identity, again=asked["again"], known=known)


@allocation_group.command("grant")
@click.argument("hours")
@holder_options
@click.option("--from", "begin", metavar="DATE", help="From when use counts.  [default: today]")
@click.option("--to", "end", metavar="DATE", help="When it ends; not included.  [default: open]")
@click.option(
    "--unit",
    type=click.Choice(("gpu", "billing")),
    default="gpu",
    show_default=True,
    help="GPU-hours by the weights of GPU types, or hours of Slurm's billing.",
)
@click.option("--new", is_flag=True, help="Also for a name that the ledger does not know yet.")
@_posting_options
@json_option("slurmkit.allocation.grant/1", text="Print the entry as JSON.")
@db_option
def grant_command(
    hours: str,
    account: str | None,
    pi: str | None,
    project: str | None,
    db: str | None,
    *,
    as_json: JsonOutput | None,
    **asked: Any,
) -> None:
    """Grant HOURS to an account, a PI or a project.

    Dates are in this host's time zone. Of several allocations in force, the one that ends first is
    used first. The account must be one that the ledger has runs or a group of, and the PI somebody
    in the directory; --new grants to others.

    \b
    Examples:
      slurmkit allocation grant 1000 --account vision --why "call 3"
      slurmkit allocation grant 50000 --pi vogel --from 2027-01-01 --to 2028-01-01 --why "call 3"
    """
    holder = choose_holder(account, pi, project, needed=True)
    assert holder is not None  # noqa: S101 - it is needed
    zone = find_zone()
    today = format_day(_now())
    finish = None if asked["end"] is None else zone.epoch(asked["end"])
    with open_to_change(db) as ledger:
        posted = grant_allocation(
            ledger,
            holder.kind,
            holder.name,
            parse_hours(hours),
            zone.epoch(asked["begin"] or today),
            _posting(asked),
            finish=finish,
            unit=asked["unit"],
        )
    _show_posted(posted, as_json)


def _now() -> int:
    return int(time.time())


@allocation_group.command("top-up")
@click.argument("allocation", type=int)
@click.argument("hours")
@_posting_options
@json_option("slurmkit.allocation.topup/1", text="Print the entry as JSON.")
@db_option
def top_up_command(
    allocation: int, hours: str, db: str | None, *, as_json: JsonOutput | None, **asked: Any
) -> None:
    """Add HOURS to an ALLOCATION, by its number in `slurmkit allocation show`.

    \b
    Example:
      slurmkit allocation top-up 3 200 --why "paper deadline"
    """
    with open_to_change(db) as ledger:
        posted = top_up_allocation(ledger, allocation, parse_hours(hours), _posting(asked))
    _show_posted(posted, as_json)


@allocation_group.command("transfer")
@click.argument("source", type=int)
@click.argument("target", type=int)
@click.argument("hours")
@click.option(
    "--carry-over", is_flag=True, help="SOURCE has ended, and TARGET is a later one of its holder."
)
@click.option(
    "--old-ledger", is_flag=True, help="Although the ledger has not read the jobs for 3 hours."
)
@_posting_options
@json_option("slurmkit.allocation.transfer/1", text="Print the entries as JSON.")
@db_option
def transfer_command(
    source: int,
    target: int,
    hours: str,
    db: str | None,
    *,
    carry_over: bool,
    old_ledger: bool,
    as_json: JsonOutput | None,
    **asked: Any,
) -> None:
    """Move HOURS from the allocation SOURCE to the allocation TARGET.

    At most what SOURCE has left, and only if the ledger has read the jobs lately. With
    --carry-over, SOURCE is one that has ended, and what it had left does not expire.

    \b
    Examples:
      slurmkit allocation transfer 3 5 100 --why "joint project"
      slurmkit allocation transfer 3 9 50 --carry-over --why "machine was down in December"
    """
    with open_to_change(db) as ledger:
        posted = transfer_allocation(
            ledger,
            source,
            target,
            parse_hours(hours),
            _posting(asked),
            carry_over=carry_over,
            old_ledger=old_ledger,
        )
    _show_posted(posted, as_json)


@allocation_group.command("refund")
@click.argument("job_id")
@click.option("--allocation", type=int, help="Which allocation, if several counted the job.")
@click.option("--hours", help="A part of what the job used.  [default: all of it]")
@click.option("--of-cluster", metavar="NAME", help="Its cluster, if several have had such a job.")
@click.option("--all-runs", is_flag=True, help="Of a requeued job also the runs that ended well.")
@_posting_options
@json_option("slurmkit.allocation.refund/1", text="Print the entry as JSON.")
@db_option
def refund_command(
    job_id: str,
    allocation: int | None,
    hours: str | None,
    of_cluster: str | None,
    db: str | None,
    *,
    all_runs: bool,
    as_json: JsonOutput | None,
    **asked: Any,
) -> None:
    """Give back what a job used, for example because its node died.

    A job cannot be refunded more than it used. Of a requeued job, only the runs are given back that
    were requeued, preempted or lost with a node. `slurmkit allocation apply` then tells Slurm.

    \b
    Examples:
      slurmkit allocation refund 4711 --why "node c3 died"
      slurmkit allocation refund 4711_2 --hours 3.5 --why "half of it was lost"
    """
    with open_to_change(db) as ledger:
        posted = refund_job(
            ledger,
            str(to_slurm_ids(job_id)),
            _posting(asked),
            allocation=allocation,
            amount_ms=None if hours is None else parse_hours(hours),
            cluster=of_cluster,
            all_runs=all_runs,
        )
    _show_posted(posted, as_json)


@allocation_group.command("expire")
@click.argument("allocation", type=int)
@click.option("--at", metavar="DATE", help="When it ends, not included.  [default: now]")
@_posting_options
@json_option("slurmkit.allocation.expire/1", text="Print the entry as JSON.")
@db_option
def expire_command(
    allocation: int, at: str | None, db: str | None, *, as_json: JsonOutput | None, **asked: Any
) -> None:
    """End an ALLOCATION before its end. What it has left then expires.

    \b
    Examples:
      slurmkit allocation expire 3 --why "project ended"
      slurmkit allocation expire 3 --at 2027-07-01 --why "PI leaves"
    """
    finish = None if at is None else find_zone().epoch(at)
    with open_to_change(db) as ledger:
        posted = expire_allocation(ledger, allocation, _posting(asked), finish=finish)
    _show_posted(posted, as_json)


def _show_posted(posted: Posted, as_json: JsonOutput | None) -> None:
    by_number = {one.id: one for one in posted.allocations}
    if as_json:
        rows = [entry_facts(entry, by_number[entry.allocation]) for entry in posted.entries]
        as_json.print(rows, further={"repeated": posted.repeated, "notes": posted.notes})
        return
    if posted.repeated:
        click.echo("this was entered before; nothing was entered now:", err=True)
    for entry in posted.entries:
        click.echo(printable(_entry_words(entry, by_number[entry.allocation])))
    for note in posted.notes:
        click.echo(printable(note), err=True)
    click.echo("to tell Slurm: slurmkit allocation apply", err=True)


def _entry_words(entry: Entry, allocation: Allocation) -> str:
    whose = f"allocation {allocation.id} ({allocation.holder})"
    if entry.kind == "expiry":
        return f"entry {entry.id}: {whose} ends {host_zone_or_utc().show(entry.finish or 0)}"
    sign = "" if entry.amount_ms < 0 else "+"
    hours = f"{sign}{format_hours(entry.amount_ms)} {allocation.unit_name}"
    return f"entry {entry.id}: {entry.kind} of {hours}, {whose}"


@allocation_group.command("show")
@holder_options
@click.option("--all", "all_", is_flag=True, help="Also those that have ended or not begun.")
@json_option("slurmkit.allocation.show/1", text="Print the allocations as JSON.")
@db_option
def show_command(
    account: str | None,
    pi: str | None,
    project: str | None,
    db: str | None,
    *,
    all_: bool,
    as_json: JsonOutput | None,
) -> None:
    """List the allocations that you may see, with their numbers.

    \b
    Examples:
      slurmkit allocation show
      slurmkit allocation show --account vision --all
    """
    holder = choose_holder(account, pi, project)
    with read.ledger(db) as ledger:
        found = balances(ledger, holder=holder, everything=True, ended=all_)
    if as_json:
        print_balances_as_json(found, as_json)
        return
    if not found.rows:
        explain_absence(holder, everything=True)
        return
    rows = [cells for one in found.rows for cells in _allocation_cells(one)]
    header = ("ID", "HOLDER", "UNIT", "FROM", "TO", "STATE", "GRANTED", "USED", "LEFT")
    right = ("ID", "GRANTED", "USED", "LEFT")
    print_table(header, rows, right=right, fit=Fit(("UNIT", "STATE"), ("HOLDER",)))


def _allocation_cells(one: Balance) -> Iterator[tuple[str, ...]]:
    for each in one.allocations:
        amounts = (each.granted_ms, each.used_ms, each.left_ms)
        yield (
            str(each.id), str(one.holder), one.unit, format_day(each.begin),
            format_day(each.finish), each.state, *map(format_hours, amounts),
        )  # fmt: skip


@allocation_group.command("history")
@click.argument("allocation", type=int, required=False)
@holder_options
@json_option("slurmkit.allocation.history/1", text="Print the entries as JSON.")
@db_option
def history_command(
    allocation: int | None,
    account: str | None,
    pi: str | None,
    project: str | None,
    db: str | None,
    *,
    as_json: JsonOutput | None,
) -> None:
    """List every entry of an ALLOCATION, or of all that you may see: who, when and why.

    \b
    Examples:
      slurmkit allocation history 3
      slurmkit allocation history --account vision --json
    """
    holder = choose_holder(account, pi, project)
    with read.ledger(db) as ledger:
        found = allocation_history(ledger, allocation=allocation, holder=holder)
    if allocation is not None and not found.rows:
        raise BadInput(
            f"there is no allocation {allocation}{f' of {holder}' if holder else ''} that you may"
            " see; list them with: slurmkit allocation show --all"
        )
    entries = [(entry, one) for one in found.rows for entry in one.entries]
    entries.sort(key=lambda pair: pair[0].id)
    if as_json:
        facts = [entry_facts(entry, one) for entry, one in entries]
        as_json.print(facts, taken=found.taken, further={"ledger": found.source})
        return
    here = host_zone_or_utc()
    rows = [
        (str(entry.id), here.show(entry.at), str(one.id), str(one.holder), entry.kind,
         format_hours(entry.amount_ms), entry.job_id or "", entry.who, entry.why)
        for entry, one in entries
    ]  # fmt: skip
    header = ("ENTRY", "AT", "ID", "HOLDER", "KIND", "HOURS", "JOB", "WHO", "WHY")
    fit = Fit(("AT", "HOLDER"), ("WHY",), least=("JOB",))
    print_table(header, rows, right=("ENTRY", "ID", "HOURS"), fit=fit)


@allocation_group.command("import")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--new", is_flag=True, help="Also for PIs whom the ledger does not know yet.")
@json_option("slurmkit.allocation.import/1", text="Print the entries as JSON.")
@db_option
def import_command(
    file: Path | None, db: str | None, *, new: bool, as_json: JsonOutput | None
) -> None:
    """Grant what a file of budgets, budgets.toml, says; each budget once.

    FILE is the one that [ledger] budgets names when left out. A budget is known by its PI and its
    dates, whoever imported it, and from whichever file. If its hours are others now, the command
    says what to enter, and goes on with the other budgets. It then exits with 1, as long as less
    was granted than the file says, or a budget cannot be granted.

    `slurmkit report budget` reads the file in this release for the last time.

    \b
    Example:
      slurmkit allocation import /etc/slurmkit/budgets.toml
    """
    with open_to_change(db) as ledger:
        done = import_budgets(ledger, file, known=not new)
    fresh = [one.posted for one in done if one.posted and not one.posted.repeated]
    known = sum(one.posted is not None and one.posted.repeated for one in done)
    problems = [one.problem for one in done if one.problem]
    entries = [(entry, each.allocations[0]) for each in fresh for entry in each.entries]
    notes = [note for each in fresh for note in each.notes]
    if as_json:
        rows = [entry_facts(entry, of) for entry, of in entries]
        as_json.print(rows, further={"known": known, "problems": problems, "notes": notes})
    else:
        for entry, of in entries:
            click.echo(printable(_entry_words(entry, of)))
        for line in (*notes, *problems):
            click.echo(printable(line), err=True)
        click.echo(f"{len(fresh)} granted, {known} were known", err=True)
    if missing := sum(one.lacks for one in done):
        raise LedgerError(
            f"{missing} of {len(done)} budgets are not granted in full; correct the causes above,"
            " and run it again"
        )


@allocation_group.command("apply")
@click.option("--dry-run", is_flag=True, help="Print the commands; run none.")
@click.option(
    "--free",
    metavar="NAME",
    multiple=True,
    help="Take the limit off this account or QOS, whose allocations have ended. Repeatable.",
)
@json_option("slurmkit.allocation.apply/1", text="Print the limits as JSON.")
@db_option
def apply_command(
    free: tuple[str, ...], db: str | None, *, dry_run: bool, as_json: JsonOutput | None
) -> None:
    """Set the limits in Slurm that enforce the balances, and read them back.

    Each limit is what Slurm has counted, and what is left. [allocation] enforce says what it is set
    on. Run it as an operator of Slurm, with "qos" as an administrator, right after the ledger has
    read the jobs, and again after each grant. A run that was cut off is finished by the next one.

    Limits that it has set, and that are not wanted any more because [allocation] changed, are taken
    away. Where allocations have ended, the limit stays, and jobs wait, unless --free names it.

    With [allocation] at_end = "lower", jobs that wait for a limit, and may use more than is left,
    are then moved to the first QOS of free_qos.

    \b
    Examples:
      slurmkit allocation apply --dry-run
      slurmkit allocation apply
      slurmkit allocation apply --free vision
    """
    section = load_section("allocation", AllocationSection)
    slurm = commands.LocalSlurmCommands()
    with read.ledger(db) if dry_run else open_to_change(db) as ledger:
        plan = make_plan(ledger, slurm, section, free)
        for remark in plan.remarks:
            click.echo(printable(remark), err=True)
        done: list[AppliedLimit] = []
        if not dry_run:
            done = list(apply_limits(ledger, slurm, plan.site, plan.wanted))
    moves, no_moves = _move_waiting(slurm, plan, dry_run=dry_run)
    outcomes = {_target_of(one.wanted): one for one in done}
    if as_json:
        rows = [_limit_facts(one, outcomes.get(_target_of(one))) for one in plan.wanted]
        further = {"cluster": plan.site.cluster, "dry_run": dry_run}
        as_json.print(rows, further={**further, "moves": list(map(_move_facts, moves))})
    else:
        for one in plan.wanted:
            _show_limit(one, outcomes.get(_target_of(one)))
        for move in moves:
            _show_move(move)
        if dry_run and plan.old:
            click.echo(printable(f"{plan.old} to set limits"), err=True)
        if dry_run:
            click.echo("dry run, nothing was changed", err=True)
    _raise_what_failed(done, moves, no_moves)


def _raise_what_failed(
    done: Sequence[AppliedLimit], moves: Sequence[DoneMove], no_moves: str
) -> None:
    """Raise LedgerError if a limit was not set, or a job not moved."""
    if failed := sum(one.outcome != "set" for one in done):
        raise LedgerError(
            f"{failed} of {len(done)} limits were not set; correct the cause, and run it again"
        )
    if no_moves:
        raise LedgerError(f"no job was moved to a free QOS: {no_moves}")
    if stayed := sum(one.outcome == "failed" for one in moves):
        raise LedgerError(
            f"{stayed} of {len(moves)} jobs were not moved; correct the cause, and run it again"
        )


def _move_waiting(
    slurm: SlurmCommands, plan: LimitPlan, *, dry_run: bool
) -> tuple[list[DoneMove], str]:
    """Move the jobs that are beyond a balance; return what came of each, or why none was moved.

    The limits are set by now, so nothing here may keep them from being shown.
    """
    if plan.old:
        return [], "" if dry_run or not plan.lower_qos else plan.old
    try:
        moves = find_moves(slurm, plan.site, plan.wanted, plan.lower_qos)
    except SlurmError as error:
        return [], str(error)
    return [DoneMove(one) for one in moves] if dry_run else list(move_jobs(slurm, moves)), ""


def _target_of(one: WantedLimit) -> tuple[str, str, str]:
    return (one.target_kind, one.target if one.commands else "", one.tres)


def _whose(one: WantedLimit) -> str:
    return f"{one.target_kind} {one.target}" if one.holder is None else str(one.holder)


def _show_limit(one: WantedLimit, applied: AppliedLimit | None) -> None:
    head = f"{_whose(one)} ({one.unit})"
    if one.problem:
        why = "cannot be enforced" if one.is_due and one.holder else "no limit is set"
        why = "left over" if one.holder is None else why
        click.echo(printable(f"# {head}: {why}: {one.problem}"))
        return
    if not one.commands:
        click.echo(printable(f"# {head}: {one.target_kind} {one.target} has the right limit"))
        return
    if one.after is None:
        words = "the limit is no longer wanted"
    else:
        counted = one.counted or 0
        words = f"{one.left:,} minutes left, Slurm has counted {counted:,}{_unknown_target(one)}"
    click.echo(printable(f"# {head}: {words}"))
    for cause in one.causes:
        if cause.startswith(("somebody else", "refuse:")):
            click.echo(printable(f"# {cause}"))
    for argv in (*one.commands, *((one.reset,) if one.reset else ())):
        click.echo(printable(shlex.join(argv)))
    if applied:
        click.echo(printable(f"# {applied.outcome}{': ' if applied.why else ''}{applied.why}"))


def _show_move(one: DoneMove) -> None:
    move = one.move
    most = "without a bound" if move.minutes is None else f"up to {move.minutes:,} minutes"
    beyond = f"it may use {most} ({move.unit}), {move.holder} has {move.left:,} left"
    click.echo(printable(f"# job {move.job_id} of {move.user}: {beyond}"))
    click.echo(printable(shlex.join(move.command)))
    if one.outcome:
        click.echo(printable(f"# {one.outcome}{': ' if one.why else ''}{one.why}"))


def _move_facts(one: DoneMove) -> dict[str, object]:
    move = one.move
    return {
        "job": move.job_id,
        "user": move.user,
        "holder_kind": move.holder.kind,
        "holder": move.holder.name,
        "unit": move.unit,
        "qos_before": move.before,
        "qos_after": move.after,
        "minutes": move.minutes,
        "left": move.left,
        "command": list(move.command),
        "outcome": one.outcome or None,
        "why": one.why or None,
    }


def _unknown_target(one: WantedLimit) -> str:
    return "" if one.counted is not None else f" (there is no {one.target_kind} {one.target} yet)"


def _limit_facts(one: WantedLimit, applied: AppliedLimit | None) -> dict[str, object]:
    has_limit = bool(one.target) and (not one.problem or one.holder is None)
    return {
        "holder_kind": one.holder.kind if one.holder else None,
        "holder": one.holder.name if one.holder else None,
        "unit": one.unit,
        "target_kind": one.target_kind,
        "target": one.target if has_limit else None,
        "tres": one.tres,
        "before": one.before,
        "after": one.after,
        "counted": one.counted,
        "left": one.left if has_limit and one.holder else None,
        "slurm_left": one.slurm_left,
        "difference": one.difference,
        "slack": one.slack,
        "causes": one.causes,
        "problem": one.problem or None,
        "due": one.is_due,
        "commands": [list(argv) for argv in (*one.commands, one.reset) if argv],
        "outcome": applied.outcome if applied else None,
        "why": applied.why if applied and applied.why else None,
    }


@allocation_group.command("verify")
@json_option("slurmkit.allocation.verify/1", text="Print the comparison as JSON.")
@db_option
def verify_command(db: str | None, *, as_json: JsonOutput | None) -> None:
    """Compare each balance with what Slurm has left, and name the causes of differences.

    Amounts are minutes of the TRES. A difference that can come from the age of the ledger, or from
    the time at which Slurm counts running jobs, is `in step`.

    \b
    Example:
      slurmkit ledger ingest && slurmkit allocation verify
    """
    section = load_section("allocation", AllocationSection)
    slurm = commands.LocalSlurmCommands()
    with read.ledger(db) as ledger:
        plan = make_plan(ledger, slurm, section)
    unused = [] if as_json else _unused_qos(slurm, plan)
    wrong = [one for one in plan.wanted if not is_explained(one)]
    if as_json:
        rows = [_limit_facts(one, None) for one in plan.wanted]
        as_json.print(rows, further={"cluster": plan.site.cluster, "stale": plan.stale or None})
    else:
        for remark in plan.remarks:
            click.echo(printable(remark), err=True)
        header = ("HOLDER", "UNIT", "ON", "LEDGER", "SLURM", "DIFFERENCE", "STATE")
        print_table(header, [_compared(one) for one in plan.wanted], right=header[3:6])
        for one in wrong:
            for cause in one.causes:
                click.echo(printable(f"{_whose(one)}: {cause}"), err=True)
        for one in unused:
            click.echo(printable(_unused_words(one)), err=True)
    if plan.stale:
        raise LedgerError(f"{plan.stale}: nothing can be compared; run: slurmkit ledger ingest")
    if wrong:
        raise LedgerError(
            f"{len(wrong)} of {len(plan.wanted)} balances differ from Slurm's; to set Slurm's"
            " limits: slurmkit allocation apply"
        )


def _unused_qos(slurm: SlurmCommands, plan: LimitPlan) -> list[WantedLimit]:
    """Return the limits in force on a QOS that no user may use."""
    limited = [one for one in plan.wanted if one.target_kind == "qos" and one.holder]
    limited = [one for one in limited if one.before is not None and not one.problem]
    usable = read_usable_qos(slurm, plan.site.cluster) if limited else frozenset[str]()
    return [one for one in limited if one.target not in usable]


def _unused_words(one: WantedLimit) -> str:
    holder = one.holder
    name = holder.name if holder and holder.kind == "account" else "ACCOUNT"
    return (
        f"{_whose(one)}: no user may use QOS {one.target}, so jobs run in another QOS, without this"
        " limit; make it the only one of each account of the holder: sacctmgr modify account"
        f" {name} set qos={one.target} defaultqos={one.target}"
    )


def _compared(one: WantedLimit) -> tuple[str, ...]:
    on = f"{one.target_kind} {one.target}" if one.target else "?"
    if one.problem and one.holder:
        return (_whose(one), one.unit, "?", "?", "?", "?", one.problem)
    left = "no limit" if one.slurm_left is None else f"{one.slurm_left:,}"
    if one.holder is None:
        return ("none", one.unit, on, "?", left, "?", one.problem or "no longer wanted")
    differs = "?" if one.difference is None else f"{one.difference:+,}"
    state = "in step" if is_explained(one) else "differs"
    return (_whose(one), one.unit, on, f"{one.left:,}", left, differs, state)
