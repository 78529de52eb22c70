"""`slurmkit plan` and `slurmkit submit`: one set of options, one plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from slurmkit.cluster import Cluster
from slurmkit.planner import Plan, plan
from slurmkit.spec import Gpus, JobSpec

_OPTIONS: tuple[tuple[str, type | None, str], ...] = (
    ("nodes", int, "Number of nodes.  [default: 1]"),
    ("gpus-per-node", None, "GPUs on each node, [TYPE:]COUNT, e.g. a100:2."),
    ("ntasks-per-node", int, "Processes per node.  [default: 1]"),
    ("cpus-per-task", int, "CPUs for each process.  [default: 1]"),
    ("mem", None, "Memory per node, e.g. 64G."),
    ("time", None, "Time limit: minutes, H:MM:SS or D-HH:MM:SS."),
    ("partition", None, "Partition."),
    ("account", None, "Slurm account to charge."),
    ("qos", None, "Quality of service."),
    ("job-name", None, "Name of the job.  [default: the command's]"),
    ("comment", None, "A comment kept with the job."),
    ("chdir", None, "Directory the job starts in.  [default: the current one]"),
    ("output", None, "File for the job's output.  [default: slurm-%j.out]"),
)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a job and its COMMAND argument."""
    command = click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)(command)
    for name, kind, text in reversed(_OPTIONS):
        command = click.option(f"--{name}", type=kind or str, help=text)(command)
    return command


@click.command("plan", context_settings={"allow_interspersed_args": False})
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan_command(*, as_json: bool, **options: Any) -> None:
    """Show exactly what `slurmkit submit` would send, byte for byte.

    \b
    Examples:
      slurmkit plan --gpus-per-node a100:2 --nodes 2 --time 10 -- python train.py
      slurmkit plan --gpus-per-node 1 --time 1:00:00 -- ./run.sh > job.sh
    """
    made = _plan(options)
    if as_json:
        click.echo(msgspec.json.encode(made))
        return
    for submission in made.submissions:
        click.echo(submission.script, nl=False)


@click.command("submit", context_settings={"allow_interspersed_args": False})
@job_options
@click.option("--parsable", is_flag=True, help="Print only the job id.")
def submit_command(*, parsable: bool, **options: Any) -> None:
    """Submit a job: COMMAND is started once per task with srun.

    \b
    Examples:
      slurmkit submit --gpus-per-node a100:2 --nodes 2 --time 10 -- python train.py
      slurmkit log --follow $(slurmkit submit --parsable --time 5 -- hostname)
    """
    job = Cluster().submit(_plan(options))
    click.echo(job.id if parsable else f"submitted job {job.id}")
    if not parsable:
        click.echo(f"follow it: slurmkit log --follow {job.id}", err=True)


def _plan(options: dict[str, Any]) -> Plan:
    given = {name: value for name, value in options.items() if value is not None}
    if "gpus_per_node" in given:
        given["gpus"] = Gpus.parse(given.pop("gpus_per_node"))
    spec = JobSpec(**given)
    if len(spec.command) == 1 and " " in spec.command[0]:
        click.echo(
            "note: one word with blanks is the name of a program; a shell line is written"
            " -- bash -c '...'",
            err=True,
        )
    return plan(spec)
