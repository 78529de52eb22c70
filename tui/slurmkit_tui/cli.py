"""`slurmkit tui`."""

from __future__ import annotations

import sys

import click

from slurmkit.cluster import Cluster
from slurmkit.errors import BadInput
from slurmkit_tui.app import Options, SlurmkitApp
from slurmkit_tui.pace import FLOOR


@click.command("tui")
@click.option(
    "--interval",
    type=click.FloatRange(min=FLOOR),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help=f"Ask squeue this often; {FLOOR:g} at least, and less often when squeue is slow.",
)
@click.option("--mine/--all", default=False, help="Start with my jobs or all.  [default: all]")
@click.option("--read-only", is_flag=True, help="Refuse everything that changes the cluster.")
def tui_command(interval: float, *, mine: bool, read_only: bool) -> None:
    """Watch the cluster's queue in the terminal; ? shows the keys.

    \b
    Examples:
      slurmkit tui
      slurmkit tui --mine --interval 30
      slurmkit tui --read-only
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("slurmkit tui needs a terminal; in a script use: slurmkit queue --json")
    app = SlurmkitApp(Cluster(), Options(interval=interval, mine=mine, read_only=read_only))
    app.run()
    sys.exit(app.return_code)
