"""`slurmkit jupyter kernel`: a kernel in Jupyter's launcher that runs as a job of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slurmkit.cli.job_options import (
    JobCommand,
    job_options,
    parse_job_options,
    refuse_batch_options,
)
from slurmkit.cli.jobs import print_notice
from slurmkit.cli.submit import (
    print_estimate,
    print_finding,
    print_findings,
    refuse_errors,
    typed_secret_notes,
)
from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import BadInput
from slurmkit.interactive.kernel_spec import (
    NO_COMMAND,
    check_kernel_job,
    find_kernel,
    write_kernel,
)
from slurmkit.planning.planner import plan

_BATCH_OPTIONS = ("script", "wrap")
_STEP_OPTIONS = ("mpi", "cpu_bind", "label", "log_per_rank", "preflight", "launcher")


@click.command("kernel", cls=JobCommand)
@job_options("NAME [-- PYTHON]")
def kernel_command(**options: Any) -> None:
    """Add a kernel to Jupyter's launcher, each of which is a job of its own.

    The command writes a kernel for your Jupyter and checks the job; nothing is submitted yet. A
    notebook that takes the kernel submits the job, waits for it, and ends it with the kernel. The
    notebook itself stays where Jupyter runs, e.g. on a login node. The options are those of
    `slurmkit submit` for one process: no arrays, launchers, containers or --on-timeout. The
    kernel keeps them as a job file that you may edit; the same name replaces it.

    PYTHON has ipykernel and is seen by the nodes; by default it is that of the Jupyter server.
    slurmkit must be installed in the Python of the Jupyter server. To take the kernel back:
    jupyter kernelspec remove -f slurmkit-NAME.

    \b
    Examples:
      slurmkit jupyter kernel gpu --gpus-per-node a100:1 --cpus-per-task 8 --time 4:00:00
      slurmkit jupyter kernel big --mem 100G --time 8:00:00 -- ~/torch/bin/python
    """
    name, *python = options["command"] or [""]
    if len(python) > 1:
        raise BadInput(f"one Python is enough: {' '.join(python)}; options begin with --")
    kernel = find_kernel(name)
    options["command"] = NO_COMMAND  # the kernel's own is in kernel.json
    refuse_batch_options(option for option in _BATCH_OPTIONS if options[option] is not None)
    for secret in typed_secret_notes(options["env"]):
        print_finding(secret)
    spec = parse_job_options(options).spec
    check_kernel_job(spec)
    refuse_batch_options(option for option in _STEP_OPTIONS if getattr(spec.launch, option))
    planned = plan(spec, Cluster())
    print_findings(planned)
    refuse_errors(planned, "no kernel was made")
    print_estimate(planned)
    if kernel.job_file.exists():
        print_notice(f"the kernel {kernel.name} was there, and is replaced")
    write_kernel(kernel, spec, _absolute(python[0]) if python else "python3")
    print_notice(f"Jupyter has the kernel '{kernel.name} (Slurm job)'; its job: {kernel.job_file}")
    print_notice(f"to take it back: jupyter kernelspec remove -f {kernel.folder.name}")


def _absolute(python: str) -> str:
    """Return a path that is the same in the folder of every notebook; a name stays a name."""
    return str(Path(python).expanduser().absolute()) if "/" in python else python
