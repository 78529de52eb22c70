"""`slurmkit shell`: an allocation, and a shell on its first node."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click
import msgspec

from slurmkit.chosen import chosen
from slurmkit.cli.joboptions import job_options, refuse_unattended, spec_from
from slurmkit.cli.planned import say_estimate, say_findings
from slurmkit.cluster import Cluster
from slurmkit.errors import BadInput
from slurmkit.planner import Plan, plan
from slurmkit.planning.contained import contained

# What makes no sense of a shell at a terminal, by sbatch's names.
_NO_PART = ("script", "array", "sweep", "hold")
_NOT_HERE = ("script", "output", "error", "open_mode", "requeue", "no_requeue")
_OF_STEPS = ("mpi", "label", "log_per_rank", "preflight")
_NOT_OF_SALLOC = (
    "output error open-mode requeue no-requeue export export-file input propagate ignore-pbs"
).split()
# A step of its own kind, which holds all that the job has on its first node (salloc(1),
# "LaunchParameters=use_interactive_step").
_STEP = ("srun", "--interactive", "--preserve-env", "--pty")


@click.command("shell", context_settings={"allow_interspersed_args": False})
@job_options
def shell_command(**options: Any) -> int:
    """Get nodes and GPUs, and a shell there; they are given back when it ends.

    Options are those of `slurmkit submit`, and checked as there; COMMAND is your shell unless you
    name another program. It ends with that program's exit code, 2 when it can never start.

    \b
    Examples:
      slurmkit shell --gpus-per-node a100:1 --time 1:00:00
      slurmkit shell --gpus-per-node shard:1 --time 30 -- python3
      slurmkit shell --gpus-per-node 2 --container-image pytorch/pytorch --time 2:00:00
    """
    named = bool(options["command"])
    options["command"] = options["command"] or _own_shell()
    refuse_unattended(name for name in _NOT_HERE if options[name] is not None)
    asked = spec_from(options)
    if asked.spec.container is not None and not named:  # one's own shell need not be in the image
        asked = msgspec.structs.replace(
            asked, spec=msgspec.structs.replace(asked.spec, command=("bash",))
        )
    refuse_unattended(name for name in _NO_PART if getattr(asked.spec, name) not in (None, False))
    if "B" in (asked.spec.signal or "").rpartition(":")[0]:
        raise BadInput(f"--signal={asked.spec.signal}: B is for a batch script; leave it away")
    refuse_unattended(name for name in _OF_STEPS if getattr(asked.spec.launch, name))
    if asked.spec.launch.launcher:
        raise BadInput("--launch is for jobs that run by themselves; start it in the shell")
    cluster = Cluster()
    # The environment goes from process to process, and so may hold what no script should.
    made = plan(msgspec.structs.replace(asked.spec, environment={}), cluster)
    say_findings(made)
    if made.errors:
        raise BadInput(f"no shell: {len(made.errors)} error{'s' * (len(made.errors) > 1)}")
    say_estimate(made)
    environment = made.spec.environment | asked.spec.environment
    return cluster.attach(_argv(made, cluster, environment), environment)


def _own_shell() -> tuple[str, ...]:
    """That of who asks; on a cluster over SSH that of this machine need not exist."""
    return ("bash" if chosen() else os.environ.get("SHELL") or "bash", "-l")


def _argv(made: Plan, cluster: Cluster, environment: dict[str, str]) -> list[str]:
    spec = msgspec.structs.replace(made.spec, environment=environment)
    found = contained(spec, cluster.capabilities())
    words = (*found.wrapped.srun_options, "--", *found.wrapped.prefix, *made.spec.command)
    script = "\n".join(found.around((shlex.join([*_STEP, *words]),)))
    given = [
        f"--{name}={value}" if value else f"--{name}"
        for name, value in made.submissions[0].options
        if name not in _NOT_OF_SALLOC
    ]
    return ["salloc", *given, "bash", "-c", script]
