"""`slurmkit sweep`: the points of sweeps, and those that failed once more."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from slurmkit.cli.planned import say_estimate, say_findings
from slurmkit.cli.show import table
from slurmkit.cli.tab import SweepIds
from slurmkit.cluster import Cluster
from slurmkit.errors import BadInput
from slurmkit.facts import clock, tally
from slurmkit.planner import plan
from slurmkit.sweeps import records
from slurmkit.sweeps.again import spec_again
from slurmkit.sweeps.results import Point, Results, results, states

_HEADER = ("POINT", "STATE", "EXIT", "TIME", "NODES")
_STATE = "Only points in these states: failed, unfinished, or Slurm's names by comma."


@click.group("sweep")
def sweep_group() -> None:
    """Show the points of a sweep, and run those that failed once more."""


@sweep_group.command("show")
@click.argument("job_id", type=SweepIds())
@click.option("-t", "--state", metavar="STATES", help=_STATE)
@click.option("--json", "as_json", is_flag=True, help="Print the points as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the points as CSV.")
def show_command(job_id: str, *, state: str | None, as_json: bool, as_csv: bool) -> None:
    """Show what became of each point: the newest of its runs, its exit code and its parameters.

    Points that were run again with `slurmkit sweep rerun` show how that went. `failed` are all
    that ended otherwise than completed or cancelled; `unfinished` also those cancelled, not sent,
    or forgotten by Slurm.

    \b
    Examples:
      slurmkit sweep show 12
      slurmkit sweep show 12 --state failed
      slurmkit sweep show 12 --csv > points.csv
    """
    if as_json and as_csv:
        raise BadInput("give either --json or --csv, not both")
    wanted = states(state) if state else None
    found = results(Cluster(), job_id)
    points = [p for p in found.points if wanted is None or p.state in wanted]
    if as_json:
        click.echo(msgspec.json.encode({"sweep": found.first, "points": points}))
    elif as_csv:
        _print_csv(points)
    else:
        _print_table(points)
        click.echo(_summary(found), err=True)


@sweep_group.command("rerun")
@click.argument("job_id", type=SweepIds())
@click.option("-t", "--state", metavar="STATES", default="failed", help=f"{_STATE}  [failed]")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--parsable", is_flag=True, help="Print only the job id.")
def rerun_command(job_id: str, *, state: str, dry_run: bool, yes: bool, parsable: bool) -> int:
    """Run points of a sweep again: the same job and the same points, as a new array.

    It is planned and shown first, and on a terminal asked about. `slurmkit sweep show` of the first
    sweep then shows the newest result of each point.

    \b
    Examples:
      slurmkit sweep rerun 12
      slurmkit sweep rerun 12 --state TIMEOUT,NODE_FAIL --dry-run
      slurmkit sweep rerun 12 --state unfinished --yes
    """
    cluster = Cluster()
    found, wanted = results(cluster, job_id), states(state)
    indices = [point.index for point in found.points if point.state in wanted]
    if not indices:
        click.echo(f"no point of sweep {found.first} is {state}: {tally(found.tally)}", err=True)
        return 0
    made = plan(spec_again(found.runs[0], indices), cluster)
    say_findings(made)
    say_estimate(made)
    if made.errors:
        raise BadInput(f"not submitted: {len(made.errors)} error{'s' * (len(made.errors) > 1)}")
    if dry_run or not _agreed(len(indices), yes=yes):
        return 0
    job = cluster.submit(made, again=found.first)
    said = f"submitted job {job.id}: {len(indices):,} points of sweep {found.first} again"
    click.echo(job.id if parsable else said)
    return 0


@sweep_group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def list_command(*, as_json: bool) -> None:
    """List the sweeps, and the arrays in several of Slurm's, that you submitted from here.

    \b
    Example:
      slurmkit sweep list
    """
    found = list(records.read_all(Cluster()))
    rows = [_listed(record) for record in found]
    if as_json:
        click.echo(msgspec.json.encode([dict(zip(_LISTED, row, strict=True)) for row in rows]))
    else:
        table(_LISTED, rows, right={"POINTS"})


_LISTED = ("SWEEP", "SUBMITTED", "POINTS", "AGAIN", "SENT", "PARAMETERS", "NAME")


def _listed(record: records.Record) -> tuple[str, ...]:
    sweep = record.spec.sweep
    return (
        record.first or f"not known ({record.token})",
        clock(int(record.submitted)),
        str(record.total),
        record.again or "",
        f"{len(record.sent)}/{record.planned}",
        ",".join(sweep.names) if sweep else "",
        record.spec.job_name or (record.spec.command[0] if record.spec.command else "script"),
    )


def _agreed(count: int, *, yes: bool) -> bool:
    if yes or not sys.stdin.isatty():
        return True
    return click.confirm(f"run {'this point' if count == 1 else f'these {count:,} points'} again?",
                         err=True)  # fmt: skip


def _cells(point: Point) -> tuple[str, ...]:
    own = (str(point.index), point.state, point.exit_code or "", point.elapsed, point.nodes)
    return (*own, *point.parameters.values())


def _names(points: Sequence[Point]) -> tuple[str, ...]:
    return tuple(points[0].parameters) if points else ()


def _print_table(points: Sequence[Point]) -> None:
    header = (*_HEADER, *_names(points))
    table(header, map(_cells, points), right={"POINT", "TIME"})


def _print_csv(points: Sequence[Point]) -> None:
    out: Any = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("point", "state", "exit", "time", "nodes", "job_id", *_names(points)))
    for point in points:
        own = _cells(point)
        out.writerow((*own[:5], point.job_id, *own[5:]))


def _summary(found: Results) -> str:
    said = [f"sweep {found.first}: {len(found.points):,} points: {tally(found.tally)}"]
    if len(found.runs) > 1:
        said.append(f"run again: {', '.join(run.first for run in found.runs[1:])}")
    if found.unsent:
        said.append(
            f"its submit broke off {found.unsent} of {found.runs[0].planned} arrays before its end;"
            f" the rest: slurmkit sweep rerun {found.first} --state unsent"
        )
    if found.without_history:
        said.append(f"ended points may be unknown: {found.without_history}")
    return "; ".join(said)
