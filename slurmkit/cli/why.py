"""`slurmkit why`: why a job waits, is slow or failed."""

from __future__ import annotations

import click
import msgspec

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import print_key_values
from slurmkit.cluster.cluster import Cluster
from slurmkit.diagnose.explain import explain
from slurmkit.diagnose.model import Explanation
from slurmkit.diagnose.render import explanation_lines
from slurmkit.errors import BadInput
from slurmkit.formats.display import printable
from slurmkit.formats.job_ids import group_by_id
from slurmkit.jobs.job import Job
from slurmkit.state.queue import QueueFilter


@click.command("why")
@click.argument("job_id")
@json_option("slurmkit.why/1", text="Print the explanation as JSON.")
@click.option(
    "--no-alternatives",
    "skip",
    is_flag=True,
    help="Do not search for a job that would start sooner; this asks slurmctld up to five times.",
)
@click.option(
    "--no-probe",
    "no_probe",
    is_flag=True,
    help="Do not look at the processes of your running job; that takes a step of some seconds.",
)
@click.option(
    "--stacks",
    is_flag=True,
    help="Also show where Python waits in a running job; this needs py-spy on its nodes.",
)
def why_command(
    job_id: str, *, as_json: JsonOutput | None, skip: bool, no_probe: bool, stacks: bool
) -> None:
    """Explain why a job waits, whether it is slow or stuck, or why it failed.

    \b
    Examples:
      slurmkit why 12
      slurmkit why 12 --stacks
      slurmkit why 12_3 --no-alternatives
      slurmkit why 12 --json | jq -r '.rows[].waiting.alternatives[].command'
    """
    if no_probe and stacks:
        raise BadInput("--stacks looks at the processes of the job; leave out --no-probe")
    job = Cluster().handle(job_id)
    part = _part_to_explain(job)
    found = explain(job.cluster, part.id, alternatives=not skip, probe=not no_probe, stacks=stacks)
    explanation = _with_user_id(job, found)
    if as_json:
        facts = msgspec.to_builtins(explanation)
        row = {name: value for name, value in facts.items() if name != "taken"}
        as_json.print([row], taken=explanation.taken)
        return
    click.echo(f"{printable(explanation.answer)}.")
    lines = list(explanation_lines(explanation))
    if lines:
        click.echo()
        print_key_values(lines)


def _part_to_explain(job: Job) -> Job:
    """Return the part of a split array to explain: a pending one, else a running, else a failed."""
    if len(job.parts) == 1:
        return job
    only = QueueFilter(job_ids=tuple(part.id for part in job.parts))
    rows = group_by_id(only.job_ids, job.cluster.backend.queue(only).rows)
    waits = (part for part in job.parts if any(row.waits for row in rows[part.id]))
    runs = (part for part in job.parts if rows[part.id])
    failed = (part for part in job.parts if part.info().state != "COMPLETED")
    return next(waits, None) or next(runs, None) or next(failed, job.parts[0])


def _with_user_id(job: Job, explanation: Explanation) -> Explanation:
    """Put the user's job id into an explanation; its commands keep Slurm's id."""
    name = job.named(explanation.job_id)
    answer = explanation.answer.replace(f"job {explanation.job_id} ", f"job {name} ")
    return msgspec.structs.replace(explanation, job_id=name, answer=answer)
