"""`slurmkit shell`, an allocation with a shell on its first node; `slurmkit tunnel` to a job."""

from __future__ import annotations

import os
import shlex
import signal
from functools import partial
from typing import Any

import click
import msgspec

from slurmkit.cli.job_options import (
    JobCommand,
    job_options,
    parse_job_options,
    refuse_batch_options,
)
from slurmkit.cli.jobs import print_notice
from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.submit import (
    print_estimate,
    print_finding,
    print_findings,
    refuse_errors,
    typed_secret_notes,
)
from slurmkit.cluster.cluster import Cluster
from slurmkit.config.files import default_cluster_name
from slurmkit.errors import BadInput
from slurmkit.interactive.tunnel import (
    NodePort,
    choose_node,
    forward_until_job_ends,
    is_reachable,
    ssh_command,
)
from slurmkit.planning.containers import container_step
from slurmkit.planning.planner import Plan, plan
from slurmkit.slurm.machine import machine_of

# Options that make no sense for a shell at a terminal, by sbatch's names.
_BATCH_FIELDS = ("script", "array", "sweep", "hold")
_BATCH_OPTIONS = tuple("script wrap export output error open_mode requeue no_requeue".split())
_STEP_OPTIONS = ("mpi", "cpu_bind", "label", "log_per_rank", "preflight")
_NOT_FOR_SALLOC = (
    "output error open-mode requeue no-requeue export export-file input propagate ignore-pbs"
).split()
# An interactive step, which holds everything that the job has on its first node (salloc(1),
# "LaunchParameters=use_interactive_step").
_INTERACTIVE_STEP = ("srun", "--interactive", "--preserve-env", "--pty")
_PORT = click.IntRange(1, 65535)


@click.command("shell", cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options()
def shell_command(**options: Any) -> int:
    """Allocate nodes and GPUs, and open a shell on them. They are released when the shell ends.

    The options and checks are the same as for `slurmkit submit`. COMMAND is your shell unless you
    name another program. slurmkit exits with the program's exit code, or with 2 if the job can
    never start.

    \b
    Examples:
      slurmkit shell --gpus-per-node a100:1 --time 1:00:00
      slurmkit shell --gpus-per-node shard:1 --time 30 -- python3
      slurmkit shell --gpus-per-node 2 --container-image pytorch/pytorch --time 2:00:00
    """
    named = bool(options["command"])
    options["command"] = options["command"] or _own_shell()
    refuse_batch_options(name for name in _BATCH_OPTIONS if options[name] is not None)
    for note in typed_secret_notes(options["env"]):
        print_finding(note)
    asked = parse_job_options(options)
    if asked.spec.container is not None and not named:  # the user's shell may not be in the image
        asked = msgspec.structs.replace(
            asked, spec=msgspec.structs.replace(asked.spec, command=("bash",))
        )
    refuse_batch_options(
        name for name in _BATCH_FIELDS if getattr(asked.spec, name) not in (None, False)
    )
    if "B" in (asked.spec.signal or "").rpartition(":")[0]:
        raise BadInput(f"--signal={asked.spec.signal}: B: needs a batch script; leave out B:")
    refuse_batch_options(name for name in _STEP_OPTIONS if getattr(asked.spec.launch, name))
    if asked.spec.launch.launcher:
        raise BadInput("--launch does not work here; start the launcher in the shell")
    cluster = Cluster()
    # salloc passes the environment directly, so secrets in it stay out of the planned script.
    planned = plan(msgspec.structs.replace(asked.spec, environment={}), cluster)
    print_findings(planned)
    refuse_errors(planned, "no shell was started")
    print_estimate(planned)
    environment = planned.spec.environment | asked.spec.environment
    return cluster.attach(_salloc_command(planned, cluster, environment), environment)


def _own_shell() -> tuple[str, ...]:
    """Return the user's login shell; bash over SSH, where that shell may not exist."""
    return ("bash" if default_cluster_name() else os.environ.get("SHELL") or "bash", "-l")


def _salloc_command(planned: Plan, cluster: Cluster, environment: dict[str, str]) -> list[str]:
    """Return the salloc command that starts the program in an interactive step."""
    spec = msgspec.structs.replace(planned.spec, environment=environment)
    step = container_step(spec, cluster.capabilities())
    words = (*step.wrapped.srun_options, "--", *step.wrapped.prefix, *planned.spec.command)
    script = "\n".join(step.around((shlex.join([*_INTERACTIVE_STEP, *words]),)))
    options = [
        f"--{name}={value}" if value else f"--{name}"
        for name, value in planned.submissions[0].options
        if name not in _NOT_FOR_SALLOC
    ]
    return ["salloc", *options, "bash", "-c", script]


@click.command("tunnel")
@click.argument("job_id")
@click.argument("port", type=_PORT)
@click.option("--local-port", type=_PORT, help="Local port to open.  [default: PORT]")
@click.option("--node", help="Node of the job.  [default: the first]")
@click.option(
    "--open",
    "hold",
    is_flag=True,
    help="Open the port on this machine instead of printing the ssh command.",
)
@json_option("slurmkit.tunnel/1", text="Print the ssh command as JSON.")
def tunnel_command(
    job_id: str,
    port: int,
    *,
    local_port: int | None,
    node: str | None,
    hold: bool,
    as_json: JsonOutput | None,
) -> int:
    """Reach a port on a job's node, for example of TensorBoard, VS Code's server or a model server.

    The command prints the ssh command for your own machine. The server must listen on the node's
    address (--host 0.0.0.0). Other users of the cluster can reach that address, too. Therefore let
    the server ask for a token or password.

    --open opens the port on 127.0.0.1 of this machine until Ctrl-C or the job's end. Everybody who
    is logged in here can use that port. With --cluster it goes through the connection to the login
    node. When that connection breaks, slurmkit makes it again for as long as the job runs.

    \b
    Examples:
      slurmkit tunnel 12 6006
      slurmkit tunnel 12 80 --local-port 8080 --node c2
      slurmkit tunnel 12 6006 --open
      slurmkit --cluster lab tunnel 12 6006 --open
    """
    if hold and as_json:
        raise BadInput("give either --open or --json, not both")
    job = Cluster().job(job_id)
    place, local = NodePort(choose_node(job, node), port), local_port or port
    machine = machine_of(job.cluster.slurm)
    if not is_reachable(place, machine):
        whose = "this machine" if machine.is_here else "the login node"
        print_notice(
            f"{whose} cannot connect to {place.node}:{port} yet: nothing listens there, or the"
            " connection is blocked"
        )
    if not hold:
        command = ssh_command(place, local, job.cluster.slurm)
        if as_json:
            facts = {"job_id": job.id, "node": place.node, "port": place.port}
            as_json.print([facts | {"local_port": local, "tunnel": command}])
        else:
            click.echo(command)
        return 0
    try:
        forward_until_job_ends(
            place,
            local,
            job,
            partial(print_notice, f"127.0.0.1:{local} leads to {place.node}:{port}"),
            print_notice,
        )
    except KeyboardInterrupt:
        print_notice(f"closed; job {job.id} goes on")
        return 128 + signal.SIGINT
    print_notice(f"closed: job {job.id} has ended")
    return 0
