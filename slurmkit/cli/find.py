"""`slurmkit find`: what became of a submit whose answer was cut off."""

from __future__ import annotations

import time

import click

from slurmkit.backends.tokens import SIGN, look_up
from slurmkit.cli.show import table
from slurmkit.cluster import Cluster
from slurmkit.errors import NoSuchJob
from slurmkit.facts import clock
from slurmkit.ssh.sending import Sending, all_noted, noted


@click.command("find")
@click.argument("token", required=False)
@click.option(
    "--days",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="How far back to look for one that was not sent from this machine.",
)
def find_command(token: str | None, *, days: int) -> None:
    """Say what became of a submit whose answer was cut off; prints the id of its job.

    Each submit over SSH puts a token into the job's comment, slurmkit:TOKEN. Without a token those
    are listed whose answer never came.

    \b
    Examples:
      slurmkit find
      slurmkit find 3935556409c8f0fe
      slurmkit --cluster lab find 3935556409c8f0fe
    """
    if token is None:
        rows = [(s.token, s.cluster, s.name, clock(s.since)) for s in all_noted()]
        table(("TOKEN", "CLUSTER", "NAME", "SENT"), rows)
        return
    token = token.removeprefix(SIGN)
    sending = noted(token)
    click.echo(_asked(sending) if sending else _looked_up(token, days))


def _asked(sending: Sending) -> str:
    from slurmkit.ssh.once import Gone, OnceBackend  # noqa: PLC0415 - needs the extra

    backend = Cluster(sending.cluster).backend
    if not isinstance(backend, OnceBackend):  # another one was chosen since
        return _looked_up(sending.token, 7)
    found = backend.find(sending)
    if isinstance(found, Gone):
        raise NoSuchJob(
            f"job {sending.name} was never submitted, and now never will be: submit it again"
        )
    return found


def _looked_up(token: str, days: int) -> str:
    slurm, since = Cluster().slurm, int(time.time()) - days * 86400
    from slurmkit.capabilities.standing import me  # noqa: PLC0415 - not for a list

    found = look_up(slurm, token, me(slurm), since)
    if found is None:
        raise NoSuchJob(f"no job of yours of the last {days} days has {SIGN}{token} in its comment")
    return found
