"""`slurmkit tui`."""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click

from slurmkit.errors import BadInput
from slurmkit_tui.app import Options, SlurmkitApp
from slurmkit_tui.feed import Feed
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.pace import FLOOR
from slurmkit_tui.views import VIEWS

NAMES = [view.name for view in VIEWS]


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
@click.option("--view", type=click.Choice(NAMES), default="queue", show_default=True,
              help="The view to start with; digits switch.")  # fmt: skip
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write down all that the screen is told.")  # fmt: skip
@click.option("--replay", metavar="FILE", help="Show a recording, without Slurm.")
def tui_command(interval: float, view: str, **given: Any) -> None:
    """Watch the cluster in the terminal; digits switch views, ? shows the keys.

    \b
    Examples:
      slurmkit tui
      slurmkit tui --mine --interval 30
      slurmkit tui --view nodes
      slurmkit tui --read-only
      slurmkit tui --record monday.rec
      slurmkit tui --replay monday.rec
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("slurmkit tui needs a terminal; in a script use: slurmkit queue --json")
    record, replay = given.pop("record"), given.pop("replay")
    if record and replay:
        raise BadInput("give either --record or --replay, not both")
    with ExitStack() as stack:
        app = SlurmkitApp(
            _feed(record, replay, stack), Options(interval=interval, view=view, **given)
        )
        gc.freeze()  # what is imported stays; looking through it again and again would stall
        app.run()
    sys.exit(app.return_code)


def _feed(record: Path | None, replay: str | None, stack: ExitStack) -> Feed:
    if replay is not None:
        from slurmkit_tui.feed.recording import ReplayFeed  # noqa: PLC0415 - seldom used

        return ReplayFeed(Path(replay))
    from slurmkit.cluster import Cluster  # noqa: PLC0415 - not for a recording

    live = LiveFeed(Cluster())
    if record is None:
        return live
    from slurmkit_tui.feed.recording import RecordingFeed  # noqa: PLC0415 - seldom used

    return stack.enter_context(closing(RecordingFeed(live, record)))
