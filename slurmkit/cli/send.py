"""`slurmkit send`: files and folders to a cluster, what is there already left out."""

from __future__ import annotations

from pathlib import Path

import click

from slurmkit.cli.each import say
from slurmkit.cluster import Cluster
from slurmkit.errors import BadInput
from slurmkit.ssh.border import SshSlurm
from slurmkit.ssh.copying import Choice, send


@click.command("send")
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--to", "target", default="", metavar="FOLDER", help="Where to.  [default: see above]"
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out names like this.")
def send_command(sources: tuple[Path, ...], *, target: str, exclude: tuple[str, ...]) -> None:
    """Send code to a cluster over SSH.

    A file or folder goes, by its own name, into the cluster's `folder` of the configuration, else
    into the home there. What is there with the same checksum is not sent. Each file is checked
    after it was sent, and takes its place at once. Nothing is deleted there; .git and __pycache__
    stay here.

    \b
    Examples:
      slurmkit --cluster lab send train.py
      slurmkit --cluster lab send src --to project --exclude '*.ckpt'
    """
    slurm = Cluster().slurm
    if not isinstance(slurm, SshSlurm):
        raise BadInput("name the cluster to send to: slurmkit --cluster NAME send …")
    sent = send(slurm, sources, Choice(target, exclude))
    say(
        f"{sent.sent} file{'s' * (sent.sent != 1)} sent ({sent.size:,} bytes), {sent.same} there"
        f" already, in {sent.folder}"
    )
    click.echo(sent.folder)
