"""`slurmkit why`: a job's explanation as plain lines."""

from __future__ import annotations

import click
import msgspec

from slurmkit.cli.show import key_values
from slurmkit.cluster import Cluster
from slurmkit.jobs.ids import group
from slurmkit.jobs.job import Job
from slurmkit.queue.snapshot import QueueFilter
from slurmkit.text import printable
from slurmkit.why.explain import explain
from slurmkit.why.model import Explanation
from slurmkit.why.telling import telling


@click.command("why")
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
@click.option(
    "--no-alternatives",
    "skip",
    is_flag=True,
    help="Do not look for what would start sooner, which asks slurmctld up to five times.",
)
def why_command(job_id: str, *, as_json: bool, skip: bool) -> None:
    """Say why a job waits and what would start sooner, or why it failed.

    \b
    Examples:
      slurmkit why 12
      slurmkit why 12_3 --no-alternatives
      slurmkit why 12 --json | jq -r '.waiting.alternatives[].command'
    """
    job = Cluster().handle(job_id)
    told = _named(job, explain(job.cluster, _telling(job).id, alternatives=not skip))
    if as_json:
        click.echo(msgspec.json.encode(told))
        return
    click.echo(f"{printable(told.answer)}.")
    lines = list(telling(told))
    if lines:
        click.echo()
        key_values(lines)


def _telling(job: Job) -> Job:
    """Of an array in several of Slurm's one that waits, else runs, else has failed."""
    if len(job.parts) == 1:
        return job
    only = QueueFilter(job_ids=tuple(part.id for part in job.parts))
    rows = group(only.job_ids, job.cluster.queue(only).rows)
    waits = (part for part in job.parts if any(row.waits for row in rows[part.id]))
    runs = (part for part in job.parts if rows[part.id])
    found = next(waits, None) or next(runs, None)
    return found or next((part for part in job.parts if _failed(part)), job.parts[0])


def _failed(part: Job) -> bool:
    return part.info().state != "COMPLETED"


def _named(job: Job, told: Explanation) -> Explanation:
    """With the id that its user knows; commands keep Slurm's own."""
    name = job.named(told.job_id)
    answer = told.answer.replace(f"job {told.job_id} ", f"job {name} ")
    return msgspec.structs.replace(told, job_id=name, answer=answer)
