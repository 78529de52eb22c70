"""The command `slurmkit node-check`: the program for nodes, from where slurmkit is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import as_file, files

import click


@click.command(
    "node-check",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def node_check_command(context: click.Context, options: tuple[str, ...]) -> None:
    """Check GPUs, links and disk of this machine; tell slurmctld nothing.

    It runs node_check.py, which slurmd runs on nodes, and takes its options. Exit codes are those
    of Nagios: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.

    \b
    Examples:
      slurmkit node-check
      slurmkit node-check --all
      srun -w gpu07 slurmkit node-check --json
      slurmkit node-check -- --help
    """
    with as_file(files("slurmkit_plugins") / "slurm") as folder:
        # The last --context counts.
        argv = [sys.executable, "-B", str(folder / "node_check.py"), *options, "--context", "hand"]
        context.exit(subprocess.run(argv, check=False).returncode)
