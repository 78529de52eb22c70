"""`slurmkit tui`."""

from __future__ import annotations

import sys

import click

from slurmkit.cluster import Cluster
from slurmkit.errors import BadInput
from slurmkit_tui.app import Options, SlurmkitApp
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.pace import FLOOR
from slurmkit_tui.views import VIEWS

NAMES = [view.NAME for view in VIEWS]


@click.command("tui")
@click.option(
    "--interval",
    type=click.FloatRange(min=FLOOR),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help=f"Ask this often; {FLOOR:g} at least, and less often when Slurm is slow.",
)
@click.option("--mine/--all", default=False, help="Start with my jobs or all.  [default: all]")
@click.option("--read-only", is_flag=True, help="Refuse everything that changes the cluster.")
@click.option("--view", type=click.Choice(NAMES), default=NAMES[0], show_default=True,
              help="The view to start with; digits switch.")  # fmt: skip
def tui_command(interval: float, view: str, *, mine: bool, read_only: bool) -> None:
    """Watch the cluster in the terminal; digits switch views, ? shows the keys.

    \b
    Examples:
      slurmkit tui
      slurmkit tui --mine --interval 30
      slurmkit tui --view nodes
      slurmkit tui --read-only
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("slurmkit tui needs a terminal; in a script use: slurmkit queue --json")
    options = Options(interval=interval, view=view, mine=mine, read_only=read_only)
    app = SlurmkitApp(LiveFeed(Cluster()), options)
    app.run()
    sys.exit(app.return_code)
