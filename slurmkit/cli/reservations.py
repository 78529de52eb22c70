"""`slurmkit reservations`: list reservations with a timeline, create them and delete them."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from slurmkit.cli.completion import CachedNames
from slurmkit.cli.jobs import print_notice
from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, print_key_values, print_table, terminal_columns
from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.reservations import (
    ReservationConflicts,
    ReservationRequest,
    find_conflicts,
    require_operator,
)
from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput
from slurmkit.formats.display import DAY_SECONDS, TimeAxis, format_time, printable
from slurmkit.formats.durations import format_duration
from slurmkit.formats.scontrol import fold_nodes
from slurmkit.state.model import Capabilities, Reservation, Standing, reserved_gpus
from slurmkit.state.queue import QueueFilter
from slurmkit.state.queue_rows import QueueRow

_DAYS = 7.0
_NAME_COLUMNS = 16  # columns
_NARROWEST_BAR = 20
_MARKS = {True: "█", False: "░", None: "▒"}
_MAY_USE_WORDS = {True: "you", False: "no", None: "?"}
_COLUMNS = tuple("NAME STATE WHEN START END NODES GPUS FOR YOU FLAGS".split())
_FIT = Fit(
    whole=("NAME", "WHEN", "START", "END", "YOU"),
    wrapped=("NODES", "FOR"),
    least=("FLAGS", "STATE", "WHEN", "END", "GPUS"),
)
_JOBS = ("JOBID", "USER", "STATE", "NODES", "USED", "LIMIT", "NAME")
_YES = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
_JSON_TEXT = "Print the reservation as JSON; needs --yes or --dry-run."
_DRY = click.option("-n", "--dry-run", is_flag=True, help="Only show what would be done.")


class _ReservationsGroup(click.Group):
    """A group that lists reservations without a subcommand; `create` and `delete` load on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return ["create", "delete"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx

        known = {"create": create_command, "delete": delete_command}
        return known.get(cmd_name)


@click.group("reservations", cls=_ReservationsGroup, invoke_without_command=True)
@json_option("slurmkit.reservations/1", text="Print reservations as JSON.")
@click.option(
    "--days",
    type=click.FloatRange(0.01, 366),
    help="Draw a timeline of this many days.  [default: 7 on a terminal, none in a pipe]",
)
@click.pass_context
def reservations_command(
    ctx: click.Context, *, as_json: JsonOutput | None, days: float | None
) -> None:
    """List the reservations of nodes: their times, nodes and users, and whether you may use them.

    Below the table a timeline shows the days to come. Operators can create and delete
    reservations.

    \b
    Examples:
      slurmkit reservations
      slurmkit reservations --days 14
      slurmkit submit --reservation course --time 10 -- hostname
      slurmkit reservations --json | jq '.rows[] | select(.may_use) | .name'
      slurmkit reservations create course --start 2026-12-24T10:00 --duration 2:00:00 \\
        --nodes c1 --users alice,bob
      slurmkit reservations delete course
    """
    if ctx.invoked_subcommand is not None:
        return
    cluster = Cluster()
    standing, capabilities = cluster.standing(), cluster.capabilities()
    reservations = sorted(standing.reservations, key=lambda each: each.start)
    if as_json:
        entries = [_reservation_json(each, standing, capabilities) for each in reservations]
        as_json.print(entries, taken=standing.taken)
        return
    print_table(
        _COLUMNS,
        [_reservation_row(each, standing, capabilities) for each in reservations],
        right={"GPUS"},
        fit=_FIT,
    )
    if days is None and sys.stdout.isatty():
        days = _DAYS
    if reservations and days is not None:
        click.echo()
        click.echo("\n".join(_timeline(reservations, standing, days)))
    plural = "" if len(reservations) == 1 else "s"
    click.echo(
        f"{len(reservations)} reservation{plural}, from scontrol at {format_time(standing.taken)}",
        err=True,
    )


def _timeline(reservations: list[Reservation], standing: Standing, days: float) -> Iterator[str]:
    """Yield a timeline from now on, with a bar for each reservation and whether you may use it."""
    axis = TimeAxis(
        standing.taken,
        days * DAY_SECONDS,
        max(_NARROWEST_BAR, terminal_columns() - _NAME_COLUMNS - 7),
    )
    yield f"{'':{_NAME_COLUMNS + 7}}{axis.days()}"
    for each in reservations:
        may = _may_use(each, standing)
        bar = axis.bar(each.start, each.end, _MARKS[may])
        name = printable(each.name)[:_NAME_COLUMNS]
        allowed = _MAY_USE_WORDS[may] if bar.strip() else f"{_MAY_USE_WORDS[may]}  (later)"
        yield f"{name:<{_NAME_COLUMNS}}  {allowed:<3}  {bar}".rstrip()
    yield f"{_MARKS[True]} you may use it   {_MARKS[False]} you may not   > goes on   {days:g} days"


def _reservation_json(
    each: Reservation, standing: Standing, capabilities: Capabilities
) -> dict[str, object]:
    return msgspec.structs.asdict(each) | {
        "gpus": reserved_gpus(each, capabilities),
        "may_use": _may_use(each, standing),
        "starts_in": max(0, each.start - round(standing.taken)),
    }


def _reservation_row(
    each: Reservation, standing: Standing, capabilities: Capabilities
) -> tuple[str, ...]:
    gpus = reserved_gpus(each, capabilities)
    may = _may_use(each, standing)
    return (
        each.name,
        each.state,
        _time_left(each, standing.taken),
        format_time(each.start),
        format_time(each.end),
        fold_nodes(each.nodes) or "none yet",
        "?" if gpus is None else str(gpus),
        "; ".join(_for_whom(each)) or "everybody",
        "?" if may is None else "yes" if may else "no",
        ",".join(each.flags),
    )


def _time_left(each: Reservation, now: float) -> str:
    if each.start > now:
        return f"starts in {format_duration(round(each.start - now))}"
    return f"ends in {format_duration(max(0, round(each.end - now)))}"


def _for_whom(each: Reservation) -> Iterator[str]:
    """Describe who may use a reservation, and who may not; nothing if everybody may."""
    listed = {
        "users": each.users,
        "groups": each.groups,
        "accounts": each.accounts,
        "QOS": each.qos,
        "partitions": each.allowed_partitions or tuple(filter(None, [each.partition])),
    }
    for kind, names in listed.items():
        may = [name for name in names if not name.startswith("-")]
        may_not = [name[1:] for name in names if name.startswith("-")]
        yield from [f"{kind} {','.join(may)}"] if may else []
        yield from [f"not {kind} {','.join(may_not)}"] if may_not else []


def _may_use(each: Reservation, standing: Standing) -> bool | None:
    """Return whether a job in any of the user's accounts may use it; None if unknown."""
    own = [
        association for association in standing.associations if association.user == standing.user
    ]
    chains = [standing.chain(association) for association in own]
    accounts = [list(dict.fromkeys(above.account for above in chain)) for chain in chains]
    if any(each.admits(standing.user, names, standing.groups) for names in accounts):
        return True
    seen_to_the_top = chains and all(chain[-1].account == "root" for chain in chains)
    return False if seen_to_the_top else None


@click.command("create")
@click.argument("name")
@click.option("--start", required=True, help="Start: now, now+2hours or 2026-12-24T18:00.")
@click.option("--duration", required=True, help="Length, as for --time: 2:00:00 or 1-00:00:00.")
@click.option("--nodes", type=CachedNames("node"), help="Which nodes, e.g. c[1-2], or ALL.")
@click.option("--count", type=click.IntRange(min=1), help="Number of nodes; Slurm chooses them.")
@click.option("--partition", type=CachedNames("partition"), help="Partition of the nodes.")
@click.option("--users", help="Users that may use it, separated by commas.")
@click.option("--accounts", type=CachedNames("account"), help="Accounts that may use it.")
@click.option("--groups", help="Unix groups that may use it.")
@click.option("--flags", help="Slurm's flags, e.g. MAINT, IGNORE_JOBS, OVERLAP.")
@_YES
@_DRY
@json_option("slurmkit.reservations.create/1", text=_JSON_TEXT)
def create_command(*, yes: bool, dry_run: bool, as_json: JsonOutput | None, **given: Any) -> None:
    """Reserve nodes, after asking for confirmation.

    slurmkit first shows the overlapping jobs and reservations, and the exact command. Only
    operators of Slurm may reserve nodes.

    \b
    Examples:
      slurmkit reservations create course --start 2026-12-24T10:00 --duration 2:00:00 \\
        --nodes c[1-2] --users alice,bob
      slurmkit reservations create upgrade --start now+7days --duration 1-00:00:00 --nodes ALL \\
        --users root --flags MAINT,IGNORE_JOBS --dry-run
    """
    booking, cluster, now = ReservationRequest(**given), Cluster(), time.time()
    known = [each.name for each in cluster.standing().reservations]
    if booking.name in known:
        raise BadInput(f"a reservation {booking.name} already exists; choose another name")
    met = find_conflicts(cluster, booking, now)
    argv = booking.argv(now)
    if not as_json:
        _print_booking(cluster, booking, met, now)
        click.echo(f"  {shlex.join(argv)}")
    require_operator(cluster, "create reservations")
    if reasons := list(met.refusals(booking.flags)):
        raise BadInput(f"slurmctld would refuse it: {'; '.join(reasons)}")
    done = not dry_run and _confirm("create it", yes=yes, as_json=as_json)
    if done:
        cluster.slurm.run(argv)
    if as_json:
        _print_change(as_json, booking.name, argv, met.jobs, done=done)
    elif done:
        click.echo(f"created reservation {booking.name}")


def _print_booking(
    cluster: Cluster, booking: ReservationRequest, met: ReservationConflicts, now: float
) -> None:
    """Print the reservation to create, and what overlaps it."""
    begin = booking.begin(now)
    names = booking.node_names(cluster.capabilities())
    whom = {"users": booking.users, "accounts": booking.accounts, "groups": booking.groups}
    nodes = f"{booking.count} that Slurm chooses" if names is None else fold_nodes(names)
    print_key_values(
        [
            ("Reservation", booking.name),
            ("Nodes", f"{nodes} ({len(names)})" if names else nodes),
            ("From", f"{format_time(begin)}, in {format_duration(max(0, round(begin - now)))}"),
            (
                "To",
                f"{format_time(begin + booking.seconds)}, {format_duration(booking.seconds)} long",
            ),
            ("For", "; ".join(f"{kind} {who}" for kind, who in whom.items() if who)),
            ("Overlaps", ", ".join(each.name for each in met.reservations) or "no other"),
        ]
    )
    if names is None:
        print_notice("overlapping jobs are not known before Slurm has chosen the nodes")
    else:
        _print_jobs(met.jobs, "may still run there when it begins")


def _print_jobs(rows: Sequence[QueueRow], what: str) -> None:
    if not rows:
        click.echo(f"no job {what}")
        return
    click.echo(f"{len(rows)} job{'s' * (len(rows) > 1)} {what}:")
    print_table(
        _JOBS,
        [(r.job_id, r.user, r.state, r.node_list, r.time_used, r.time_limit, r.name) for r in rows],
        right=("USED", "LIMIT"),
        fit=Fit(whole=("JOBID",), wrapped=("NODES",), least=("LIMIT", "USED", "STATE")),
    )


def _print_change(
    as_json: JsonOutput, name: str, argv: Sequence[str], jobs: Sequence[QueueRow], *, done: bool
) -> None:
    """Print a reservation that is created or deleted, and the jobs that it concerns, as JSON."""
    ids = [row.job_id for row in jobs]
    as_json.print([{"name": name, "command": argv, "jobs": ids, "done": done}])


def _confirm(doing: str, *, yes: bool, as_json: JsonOutput | None) -> bool:
    """Ask whether to go on; raises BadInput if there is no terminal to ask on."""
    if yes:
        return True
    if as_json:
        raise BadInput("--json does not ask for confirmation; add --yes or --dry-run")
    if not sys.stdin.isatty():
        raise BadInput(
            f"no terminal to ask for confirmation on; to {doing} without asking: add --yes"
        )
    return click.confirm(f"{doing}?", err=True)


@click.command("delete")
@click.argument("name", type=CachedNames("reservation"))
@_YES
@_DRY
@json_option("slurmkit.reservations.delete/1", text=_JSON_TEXT)
def delete_command(name: str, *, yes: bool, dry_run: bool, as_json: JsonOutput | None) -> None:
    """Delete a reservation, after asking for confirmation.

    slurmkit first shows the jobs that run or wait in it. Only operators of Slurm may delete
    reservations.

    \b
    Example:
      slurmkit reservations delete course
    """
    cluster = Cluster()
    reservation = _find_reservation(cluster, name)
    rows = cluster.queue(QueueFilter(reservation=name)).rows
    argv = ["scontrol", "delete", f"ReservationName={name}"]
    if not as_json:
        _print_deletion(reservation, rows)
        click.echo(f"  {shlex.join(argv)}")
    require_operator(cluster, "delete reservations")
    if rows:
        raise BadInput("slurmctld would refuse it while jobs run or wait in it; cancel them first")
    done = not dry_run and _confirm("delete it", yes=yes, as_json=as_json)
    if done:
        cluster.slurm.run(argv)
    if as_json:
        _print_change(as_json, name, argv, rows, done=done)
    elif done:
        click.echo(f"deleted reservation {name}")


def _print_deletion(reservation: Reservation, rows: Sequence[QueueRow]) -> None:
    """Print the reservation to delete, and the jobs that run or wait in it."""
    print_key_values(
        [
            ("Reservation", f"{reservation.name}, {reservation.state}"),
            ("Nodes", fold_nodes(reservation.nodes) or "none"),
            ("From", format_time(reservation.start)),
            ("To", format_time(reservation.end)),
        ]
    )
    _print_jobs(rows, "runs or waits in it" if len(rows) < 2 else "run or wait in it")


def _find_reservation(cluster: Cluster, name: str) -> Reservation:
    """Return the reservation of that name; raises BadInput with a similar name if there is none."""
    known = {each.name: each for each in cluster.standing().reservations}
    if name not in known:
        hint = did_you_mean(name, list(known)) if known else "this cluster has no reservations"
        raise BadInput(f"no reservation {name!r}; {hint}")
    return known[name]
