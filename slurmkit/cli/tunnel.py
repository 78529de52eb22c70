"""`slurmkit tunnel`."""

from __future__ import annotations

import signal
from functools import partial

import click

from slurmkit.cli.each import say
from slurmkit.cluster import Cluster
from slurmkit.machine import machine_of
from slurmkit.tunnel import Place, hold_open, node_of, reachable, ssh_command

_PORT = click.IntRange(1, 65535)


@click.command("tunnel")
@click.argument("job_id")
@click.argument("port", type=_PORT)
@click.option("--local-port", type=_PORT, help="Port on the near side.  [default: the same]")
@click.option("--node", help="Which of the job's nodes.  [default: the first]")
@click.option("--open", "hold", is_flag=True, help="Forward a port of this machine instead.")
def tunnel_command(
    job_id: str, port: int, *, local_port: int | None, node: str | None, hold: bool
) -> int:
    """Reach a port of a job's node: TensorBoard, VS Code's server, a model that is served.

    Prints the ssh command for your own machine. What listens there must do so on the node's
    address (--host 0.0.0.0), where others on the cluster reach it, too: let it ask for a token
    or password.

    --open forwards 127.0.0.1 of this machine until Ctrl-C or the job's end; everybody who is
    logged in here can use that. With --cluster it goes over the connection to the login node.

    \b
    Examples:
      slurmkit tunnel 12 6006
      slurmkit tunnel 12 80 --local-port 8080 --node c2
      slurmkit tunnel 12 6006 --open
      slurmkit --cluster lab tunnel 12 6006 --open
    """
    job = Cluster().job(job_id)
    place, local = Place(node_of(job, node), port), local_port or port
    machine = machine_of(job.cluster.slurm)
    if not reachable(place, machine):
        whose = "this machine" if machine.is_here else "the login node"
        say(f"nothing listens on {place.node}:{port} yet that {whose} can reach")
    if not hold:
        click.echo(ssh_command(place, local, job.cluster.slurm))
        return 0
    try:
        hold_open(place, local, job, partial(say, f"127.0.0.1:{local} is {place.node}:{port}"))
    except KeyboardInterrupt:
        say(f"closed; job {job.id} is left as it is")
        return 128 + signal.SIGINT
    say(f"closed: job {job.id} has ended")
    return 0
