"""`slurmkit why`: a job's explanation as plain lines."""

from __future__ import annotations

import click
import msgspec

from slurmkit.cli.show import key_values
from slurmkit.cluster import Cluster
from slurmkit.text import printable
from slurmkit.why.explain import explain
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
    cluster = Cluster()
    told = explain(cluster, _as_slurm_has(cluster, job_id), alternatives=not skip)
    if as_json:
        click.echo(msgspec.json.encode(told))
        return
    click.echo(f"{printable(told.answer)}.")
    lines = list(telling(told))
    if lines:
        click.echo()
        key_values(lines)


def _as_slurm_has(cluster: Cluster, job_id: str) -> str:
    """A task of an array in several of Slurm's by Slurm's own number for it."""
    return cluster.handle(job_id).id if "_" in job_id else job_id
