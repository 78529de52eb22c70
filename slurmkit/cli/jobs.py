"""`slurmkit job`, `log` and `cancel`."""

from __future__ import annotations

import sys

import click
import msgspec

from slurmkit.cli.show import key_values
from slurmkit.cluster import Cluster, Job
from slurmkit.errors import SlurmkitError
from slurmkit.facts import Fact, course, gpus, output
from slurmkit.jobinfo import JobInfo
from slurmkit.text import printable


@click.command("job")
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def job_command(job_id: str, *, as_json: bool) -> None:
    """Show one job: its state, its nodes, and which GPUs it holds on each.

    \b
    Examples:
      slurmkit job 12
      slurmkit job 12 --json | jq .gpu_indices
    """
    job = Cluster().job(job_id)
    info = job.info()
    if as_json:
        click.echo(msgspec.json.encode(info))
        return
    key_values(_facts(info))


@click.command("log")
@click.argument("job_id")
@click.option("-f", "--follow", "until_over", is_flag=True, help="Go on until the job has ended.")
def log_command(job_id: str, *, until_over: bool) -> None:
    """Print a job's output.

    \b
    Examples:
      slurmkit log 12
      slurmkit log -f 12
    """
    job = Cluster().job(job_id)
    for chunk in job.log(until_over=until_over, notice=_say):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    if until_over:
        click.echo(f"job {job.id} ended: {dict(course(job.info()))['State']}", err=True)


@click.command("cancel")
@click.argument("job_ids", nargs=-1, required=True)
def cancel_command(job_ids: tuple[str, ...]) -> None:
    """Cancel jobs.

    \b
    Example:
      slurmkit cancel 12 13
    """
    cluster = Cluster()
    jobs: list[Job] = [cluster.job(job_id) for job_id in job_ids]  # all ids are checked first
    failures = [error for job in jobs if (error := _cancel(job))]
    for error in failures[:-1]:
        _say(str(error))
    if failures:
        raise failures[-1]


def _cancel(job: Job) -> SlurmkitError | None:
    try:
        job.cancel()
    except SlurmkitError as error:
        return error
    click.echo(f"cancelled job {job.id}")
    return None


def _say(words: str) -> None:
    click.echo(f"slurmkit: {printable(words)}", err=True)


def _facts(info: JobInfo) -> list[Fact]:
    who = f"{info.user}, account {info.account}, partition {info.partition}"
    return [
        ("Job", f"{info.job_id}  {info.name}"),
        ("User", who),
        *course(info),
        *gpus(info),
        output(info),
        ("Source", f"{info.source}, now"),
    ]
