"""`slurmkit sweep`: the points of sweeps, and new runs of those that failed."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Any

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.submit import print_estimate, print_findings
from slurmkit.cli.tables import Fit, print_table
from slurmkit.cluster import sweeps
from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.sweep_results import (
    SweepPoint,
    SweepResults,
    parse_point_states,
    read_sweep_results,
    rerun_spec,
)
from slurmkit.config.paths import ARRAYS_FOLDER, recorded_job_ids
from slurmkit.errors import BadInput
from slurmkit.formats.display import format_time
from slurmkit.jobs.describe import format_state_counts
from slurmkit.planning.planner import plan

_HEADER = ("POINT", "STATE", "EXIT", "TIME", "NODES")
_STATE = "Only points in these states: failed, unfinished, or Slurm's states, separated by commas."


def _complete_sweep(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of the sweeps submitted from here, for Tab."""
    return [job_id for job_id in recorded_job_ids(ARRAYS_FOLDER) if job_id.startswith(incomplete)]


_SWEEP_ID = click.argument("job_id", shell_complete=_complete_sweep)


@click.group("sweep")
def sweep_group() -> None:
    """Show the points of a sweep, and run failed points again.

    \b
    Examples:
      slurmkit submit --sweep lr=1e-3,1e-4 --sweep seed=0..9 -- python train.py --lr {lr}
      slurmkit sweep list
      slurmkit sweep show 12 --state failed
      slurmkit sweep rerun 12
    """


@sweep_group.command("show")
@_SWEEP_ID
@click.option("-t", "--state", metavar="STATES", help=_STATE)
@json_option("slurmkit.sweep.show/1", text="Print the points as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the points as CSV.")
def show_command(
    job_id: str, *, state: str | None, as_json: JsonOutput | None, as_csv: bool
) -> None:
    """Show the state, exit code and parameters of each point.

    A point that was run again with `slurmkit sweep rerun` shows its last run. `--state failed`
    selects the points that ended, but neither completed nor were cancelled. `--state unfinished`
    also selects points that were cancelled, not submitted, or forgotten by Slurm.

    \b
    Examples:
      slurmkit sweep show 12
      slurmkit sweep show 12 --state failed
      slurmkit sweep show 12 --csv > points.csv
    """
    if as_json and as_csv:
        raise BadInput("give either --json or --csv, not both")
    wanted = parse_point_states(state) if state else None
    sweep = read_sweep_results(Cluster(), job_id)
    points = [p for p in sweep.points if wanted is None or p.state in wanted]
    if as_json:
        as_json.print(points, further={"sweep": sweep.first, "states": sweep.tally})
    elif as_csv:
        _print_csv(points)
    else:
        header = (*_HEADER, *_parameter_names(points))
        print_table(
            header,
            map(_point_row, points),
            right={"POINT", "TIME"},
            fit=Fit(whole=header[len(_HEADER) :], least=("NODES", "EXIT", "TIME")),
        )
        click.echo(_summary(sweep), err=True)


@sweep_group.command("rerun")
@_SWEEP_ID
@click.option("-t", "--state", metavar="STATES", default="failed", help=f"{_STATE}  [failed]")
@click.option(
    "-n", "--dry-run", is_flag=True, help="Show what would be submitted, and submit nothing."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--parsable", is_flag=True, help="Print only the job id.")
@json_option("slurmkit.sweep.rerun/1", text="Print the new array as JSON.")
def rerun_command(
    job_id: str,
    *,
    state: str,
    dry_run: bool,
    yes: bool,
    parsable: bool,
    as_json: JsonOutput | None,
) -> int:
    """Run points of a sweep again, as a new array of the same job.

    slurmkit shows the plan first, and on a terminal it asks for confirmation. Afterwards
    `slurmkit sweep show` of the first sweep shows the newest result of each point.

    \b
    Examples:
      slurmkit sweep rerun 12
      slurmkit sweep rerun 12 --state TIMEOUT,NODE_FAIL --dry-run
      slurmkit sweep rerun 12 --state unfinished --yes
    """
    if parsable and as_json:
        raise BadInput("give either --parsable or --json, not both")
    cluster = Cluster()
    sweep, wanted = read_sweep_results(cluster, job_id), parse_point_states(state)
    indices = [point.index for point in sweep.points if point.state in wanted]
    if not indices:
        click.echo(
            f"no point of sweep {sweep.first} is {state}: {format_state_counts(sweep.tally)}",
            err=True,
        )
        if as_json:
            as_json.print([], further={"sweep": sweep.first})
        return 0
    planned = plan(rerun_spec(sweep.runs[0], indices), cluster)
    print_findings(planned)
    print_estimate(planned)
    if planned.errors:
        raise BadInput(
            f"not submitted: {len(planned.errors)} error{'s' * (len(planned.errors) > 1)}"
        )
    if as_json and dry_run:
        as_json.print([{"job_id": None, "points": indices}], further={"sweep": sweep.first})
    if dry_run or not _confirm_rerun(len(indices), yes=yes):
        return 0
    job = cluster.submit(planned, again=sweep.first)
    if as_json:
        as_json.print([{"job_id": job.id, "points": indices}], further={"sweep": sweep.first})
        return 0
    message = f"submitted job {job.id}: {len(indices):,} points of sweep {sweep.first} again"
    click.echo(job.id if parsable else message)
    return 0


@sweep_group.command("list")
@json_option("slurmkit.sweep.list/1", text="Print them as JSON.")
def list_command(*, as_json: JsonOutput | None) -> None:
    """List the sweeps that you submitted from here.

    The list also has the job arrays that slurmkit submitted as several arrays of Slurm.

    \b
    Example:
      slurmkit sweep list
    """
    records = list(sweeps.load_records(Cluster()))
    if as_json:
        as_json.print(map(_sweep_json, records))
    else:
        rows = [_sweep_row(record) for record in records]
        fit = Fit(("SWEEP",), ("PARAMETERS", "NAME"), least=("SENT", "AGAIN", "SUBMITTED"))
        print_table(_LISTED, rows, right={"POINTS"}, fit=fit)


_LISTED = ("SWEEP", "SUBMITTED", "POINTS", "AGAIN", "SENT", "PARAMETERS", "NAME")


def _sweep_row(record: sweeps.ArrayRecord) -> tuple[str, ...]:
    """Return the row of a sweep in the list."""
    sweep = record.spec.sweep
    return (
        record.first or f"not known ({record.token})",
        format_time(int(record.submitted)),
        str(record.total),
        record.again or "",
        f"{len(record.sent)}/{record.planned}",
        ",".join(sweep.names) if sweep else "",
        _sweep_name(record),
    )


def _sweep_json(record: sweeps.ArrayRecord) -> dict[str, Any]:
    """Return a sweep of the list for programs."""
    sweep = record.spec.sweep
    return {
        "sweep": record.first or None,
        "token": record.token,
        "submitted": int(record.submitted),
        "points": record.total,
        "again": record.again,
        "arrays_sent": len(record.sent),
        "arrays_planned": record.planned,
        "parameters": sweep.names if sweep else (),
        "name": _sweep_name(record),
    }


def _sweep_name(record: sweeps.ArrayRecord) -> str:
    spec = record.spec
    return spec.job_name or (spec.command[0] if spec.command else "script")


def _confirm_rerun(count: int, *, yes: bool) -> bool:
    """Ask whether to go on; without a terminal, go on."""
    if yes or not sys.stdin.isatty():
        return True
    return click.confirm(f"run {'this point' if count == 1 else f'these {count:,} points'} again?",
                         err=True)  # fmt: skip


def _point_row(point: SweepPoint) -> tuple[str, ...]:
    own = (str(point.index), point.state, point.exit_code or "", point.elapsed, point.nodes)
    return (*own, *point.parameters.values())


def _parameter_names(points: Sequence[SweepPoint]) -> tuple[str, ...]:
    return tuple(points[0].parameters) if points else ()


def _print_csv(points: Sequence[SweepPoint]) -> None:
    out: Any = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("point", "state", "exit", "time", "nodes", "job_id", *_parameter_names(points)))
    for point in points:
        own = _point_row(point)
        out.writerow((*own[:5], point.job_id, *own[5:]))


def _summary(sweep: SweepResults) -> str:
    """Count the points by state, and say what reruns and lost records mean for them."""
    parts = [
        f"sweep {sweep.first}: {len(sweep.points):,} points: {format_state_counts(sweep.tally)}"
    ]
    if len(sweep.runs) > 1:
        parts.append(f"run again: {', '.join(run.first for run in sweep.runs[1:])}")
    if sweep.unsent:
        parts.append(
            f"the submit broke off: {sweep.unsent} of {sweep.runs[0].planned} arrays were not"
            f" submitted; submit them: slurmkit sweep rerun {sweep.first} --state unsent"
        )
    if sweep.without_history:
        parts.append(f"ended points may be unknown: {sweep.without_history}")
    return "; ".join(parts)
