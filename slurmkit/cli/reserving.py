"""`slurmkit reservations create` and `delete`: shown first, then asked."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from slurmkit.capabilities.model import Reservation
from slurmkit.capabilities.nodes import folded
from slurmkit.cli.each import say
from slurmkit.cli.show import key_values, table
from slurmkit.cli.tab import CachedNames
from slurmkit.cluster import Cluster
from slurmkit.config import nearest
from slurmkit.durations import format_duration
from slurmkit.errors import BadInput
from slurmkit.facts import clock
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import QueueFilter
from slurmkit.reserving import Booking, InTheWay, in_the_way, refuse_others

_JOBS = ("JOBID", "USER", "STATE", "NODES", "USED", "LIMIT", "NAME")
_YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
_DRY = click.option("-n", "--dry-run", is_flag=True, help="Only show what would be done.")


@click.command("create")
@click.argument("name")
@click.option("--start", required=True, help="now, now+2hours or 2026-12-24T18:00.")
@click.option("--duration", required=True, help="As of --time, e.g. 2:00:00 or 1-00:00:00.")
@click.option("--nodes", type=CachedNames("node"), help="Which nodes, e.g. c[1-2], or ALL.")
@click.option("--count", type=click.IntRange(min=1), help="How many nodes; Slurm chooses.")
@click.option("--partition", type=CachedNames("partition"), help="Of which partition.")
@click.option("--users", help="Who may use it, with commas.")
@click.option("--accounts", type=CachedNames("account"), help="Accounts that may use it.")
@click.option("--groups", help="Unix groups that may use it.")
@click.option("--flags", help="Slurm's, e.g. MAINT, IGNORE_JOBS, OVERLAP.")
@_YES
@_DRY
def create_command(*, yes: bool, dry_run: bool, **given: Any) -> None:
    """Reserve nodes: what it meets and the exact command are shown first, then it asks.

    For operators of Slurm.

    \b
    Examples:
      slurmkit reservations create course --start 2026-12-24T10:00 --duration 2:00:00 \\
        --nodes c[1-2] --users alice,bob
      slurmkit reservations create upgrade --start now+7days --duration 1-00:00:00 --nodes ALL \\
        --users root --flags MAINT,IGNORE_JOBS --dry-run
    """
    booking, cluster, now = Booking(**given), Cluster(), time.time()
    known = [each.name for each in cluster.standing().reservations]
    if booking.name in known:
        raise BadInput(f"there is a reservation {booking.name} already; choose another name")
    met = in_the_way(cluster, booking, now)
    argv = booking.argv(now)
    _show(cluster, booking, met, now)
    click.echo(f"  {shlex.join(argv)}")
    refuse_others(cluster, "create reservations")
    if reasons := list(met.refusals(booking.flags)):
        raise BadInput(f"slurmctld would refuse it: {'; '.join(reasons)}")
    if dry_run or not _agreed("create it", yes=yes):
        return
    cluster.slurm.run(argv)
    click.echo(f"created reservation {booking.name}")


def _show(cluster: Cluster, booking: Booking, met: InTheWay, now: float) -> None:
    begin = booking.begin(now)
    names = booking.node_names(cluster.capabilities())
    whom = {"users": booking.users, "accounts": booking.accounts, "groups": booking.groups}
    nodes = f"{booking.count} that Slurm chooses" if names is None else folded(names)
    key_values(
        [
            ("Reservation", booking.name),
            ("Nodes", f"{nodes} ({len(names)})" if names else nodes),
            ("From", f"{clock(begin)}, in {format_duration(max(0, round(begin - now)))}"),
            ("To", f"{clock(begin + booking.seconds)}, {format_duration(booking.seconds)} long"),
            ("For", "; ".join(f"{kind} {who}" for kind, who in whom.items() if who)),
            ("Overlaps", ", ".join(each.name for each in met.reservations) or "no other"),
        ]
    )
    if names is None:
        say("which jobs it meets is not known before Slurm has chosen the nodes")
    else:
        _show_jobs(met.jobs, "may still run there when it begins")


def _show_jobs(rows: Sequence[QueueRow], what: str) -> None:
    if not rows:
        click.echo(f"no job {what}")
        return
    click.echo(f"{len(rows)} job{'s' * (len(rows) > 1)} {what}:")
    table(
        _JOBS,
        [(r.job_id, r.user, r.state, r.node_list, r.time_used, r.time_limit, r.name) for r in rows],
    )


def _agreed(doing: str, *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise BadInput(f"will not {doing} unasked, and this is no terminal to ask on: add --yes")
    return click.confirm(f"{doing}?", err=True)


@click.command("delete")
@click.argument("name", type=CachedNames("reservation"))
@_YES
@_DRY
def delete_command(name: str, *, yes: bool, dry_run: bool) -> None:
    """Remove a reservation: jobs that run or wait in it are shown first, then it asks.

    For operators of Slurm.

    \b
    Example:
      slurmkit reservations delete course
    """
    cluster = Cluster()
    found = _found(cluster, name)
    rows = cluster.queue(QueueFilter(reservation=name)).rows
    argv = ["scontrol", "delete", f"ReservationName={name}"]
    key_values(
        [
            ("Reservation", f"{found.name}, {found.state}"),
            ("Nodes", folded(found.nodes) or "none"),
            ("From", clock(found.start)),
            ("To", clock(found.end)),
        ]
    )
    _show_jobs(rows, "runs or waits in it" if len(rows) < 2 else "run or wait in it")
    click.echo(f"  {shlex.join(argv)}")
    refuse_others(cluster, "delete reservations")
    if rows:
        raise BadInput("slurmctld would refuse it while jobs run or wait in it; cancel these first")
    if dry_run or not _agreed("delete it", yes=yes):
        return
    cluster.slurm.run(argv)
    click.echo(f"deleted reservation {name}")


def _found(cluster: Cluster, name: str) -> Reservation:
    known = {each.name: each for each in cluster.standing().reservations}
    if name not in known:
        hint = nearest(name, list(known)) if known else "there is none"
        raise BadInput(f"no reservation {name!r}; {hint}")
    return known[name]
