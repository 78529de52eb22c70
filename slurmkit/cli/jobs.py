"""`slurmkit job` and `slurmkit log`."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click
import msgspec

from slurmkit.cli.each import each, fail_with, say
from slurmkit.cli.show import key_values
from slurmkit.cluster import Cluster
from slurmkit.facts import Fact, course, ending, gpus, output, restarts
from slurmkit.jobs.info import UNKNOWN, JobInfo
from slurmkit.jobs.job import Job
from slurmkit.jobs.logpaths import LogFile
from slurmkit.jobs.outcome import Outcome
from slurmkit.survive.history import RunEnd


@click.command("job")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def job_command(job_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Show jobs: state, nodes, which GPUs each holds on them, and how it ended.

    With --json one job is an object, several are a list; `outcome` is null until the job has ended.

    \b
    Examples:
      slurmkit job 12
      slurmkit job 12 13_4 14+1
      slurmkit job 12 --json | jq .gpu_indices
    """
    cluster = Cluster()
    found: list[dict[str, Any]] = []

    def show(job: Job) -> None:
        info, outcome = _facts(job)
        before = job.restarts() if outcome is None else ()
        info = msgspec.structs.replace(info, job_id=job.named(info.job_id))
        if as_json:
            facts = msgspec.to_builtins(info)
            facts["outcome"] = msgspec.to_builtins(outcome)
            found.append(facts | {"restarts": msgspec.to_builtins(before)} if before else facts)
            return
        if found:
            click.echo()
        found.append({})
        key_values(_in_words(info, outcome, before))

    failed = each(cluster.handles(job_ids), show)
    if as_json and (found or len(job_ids) > 1):
        click.echo(msgspec.json.encode(found[0] if len(job_ids) == 1 else found))
    fail_with(failed)


def _facts(job: Job) -> tuple[JobInfo, Outcome | None]:
    info = job.info()
    return info, job.outcome() if info.is_over and info.state != UNKNOWN else None


def _in_words(info: JobInfo, outcome: Outcome | None, before: tuple[RunEnd, ...]) -> list[Fact]:
    who = f"{info.user}, account {info.account}, partition {info.partition}"
    return [
        ("Job", f"{info.job_id}  {info.name}"),
        ("User", who),
        *course(info),
        *(ending(outcome) if outcome else restarts(before)),
        *gpus(info),
        output(info),
        ("Source", f"{info.source}, now"),
    ]


@click.command("log")
@click.argument("job_id")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Only the last so many lines.")
@click.option("-e", "--error", "stderr", is_flag=True, help="Its standard error instead.")
@click.option("--file", "pattern", metavar="PATTERN", help="A file of its steps: srun --output.")
@click.option(
    "--rank", type=click.IntRange(min=0), help="Of one rank: --log-per-rank, or %t of --file."
)
def log_command(job_id: str, *, follow: bool, lines: int | None, **which: Any) -> int:
    """Print a job's output.

    Of an array or a sweep ID_INDEX names a task. --follow goes on across requeues. Ctrl-C ends it;
    the job runs on.

    \b
    Examples:
      slurmkit log 12
      slurmkit log -f 12_3
      slurmkit log --lines 50 --error 12
      slurmkit log --rank 3 12
      slurmkit log --file 'out-%j-%t' --rank 3 12
    """
    file = LogFile(**which)
    job = Cluster().handle(job_id)
    shown = job.named(job.id)
    try:
        for chunk in job.log(follow=follow, lines=lines, file=file, notice=say):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        say(f"no longer following; job {shown} is left as it is (slurmkit cancel {shown})")
        return 128 + signal.SIGINT
    if follow:
        click.echo(f"job {shown} ended: {dict(course(job.info()))['State']}", err=True)
    return 0
