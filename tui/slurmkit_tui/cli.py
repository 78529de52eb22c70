"""`slurmkit tui`."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from difflib import get_close_matches
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast, get_args

import click
from click.shell_completion import CompletionItem

from slurmkit.cluster.cluster import Cluster
from slurmkit.config.extras import missing_extra
from slurmkit.config.files import set_default_cluster
from slurmkit.errors import BadInput
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.app.startup import load_options
from slurmkit_tui.feed import Feed
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.feed.threads import tune_garbage_collector
from slurmkit_tui.options import ThemeName
from slurmkit_tui.session import SHORTEST_INTERVAL
from slurmkit_tui.views import VIEWS

NAMES = [view.name for view in VIEWS]
LOOKS = get_args(ThemeName)
SAMPLE = "sample"


def _recordings(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete the name of the sample, or file names."""
    sample = [CompletionItem(SAMPLE)] if SAMPLE.startswith(begun) else []
    return sample or [CompletionItem(begun, type="file")]


@click.command("tui")
@click.option(
    "--interval",
    type=click.FloatRange(min=SHORTEST_INTERVAL),
    show_default="10",
    metavar="SECONDS",
    help=f"Refresh this often, {SHORTEST_INTERVAL:g} at least; less often while Slurm is slow.",
)
@click.option(
    "--mine/--all",
    default=False,
    help="Start with the queue of my jobs only, or of all.  [default: all]",
)
@click.option("--theme", type=click.Choice(LOOKS), show_default="dark",
              help="Colours for a dark or a light terminal, or none.")  # fmt: skip
@click.option("--read-only/--read-write", default=None,
              help="Refuse everything that changes the cluster.")  # fmt: skip
@click.option(
    "--cluster", metavar="NAME", help="Show a cluster over SSH, as slurmkit --cluster does."
)
@click.option("--view", type=click.Choice(NAMES), show_default="home",
              help="Start with this view; the keys 0 to 8 switch.")  # fmt: skip
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Record all data that is shown into FILE, for --replay.")  # fmt: skip
@click.option("--replay", metavar="FILE", shell_complete=_recordings,
              help=f"Show a recording, without Slurm; {SAMPLE} is the demo cluster.")  # fmt: skip
def tui_command(**given: Any) -> None:
    """Watch the cluster in the terminal; the keys 0 to 8 switch views, ? shows all keys.

    The section [tui] of the configuration can set other defaults.

    \b
    Examples:
      slurmkit tui
      slurmkit tui --mine --interval 30
      slurmkit tui --view nodes
      slurmkit tui --read-only
      slurmkit tui --cluster lab
      slurmkit tui --record monday.rec
      slurmkit tui --replay monday.rec
      slurmkit tui --replay sample
    """
    if find_spec("plotext") is None:  # imported later, for the first curve
        raise missing_extra("plotext", "tui")
    if given.pop("cluster") is not None:
        set_default_cluster(click.get_current_context().params["cluster"])
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("slurmkit tui needs a terminal; in a script use: slurmkit queue --json")
    record, replay = given.pop("record"), given.pop("replay")
    if record and replay:
        raise BadInput("give either --record or --replay, not both")
    with ExitStack() as stack:
        feed = _feed(record, replay, stack)
        given["view"] = given["view"] or _first_view(feed)
        app = SlurmkitApp(feed, load_options(given))
        tune_garbage_collector()
        app.run()
        app.session.history.save()
        if trouble := getattr(feed, "trouble", ""):
            click.echo(f"{record}: {trouble}", err=True)
    sys.exit(app.return_code)


def _first_view(feed: Feed) -> str | None:
    """Return the view that a recording without Home was made of; None for the usual one."""
    recorded = getattr(feed, "recorded", ("mine",))
    return None if "mine" in recorded else next((n for n in recorded if n in NAMES), None)


def _feed(record: Path | None, replay: str | None, stack: ExitStack) -> Feed:
    if record is None and replay is None:
        return _live_feed()
    from slurmkit_tui.feed import recording

    if replay is not None:
        return recording.ReplayFeed(_recording_path(replay, stack))
    return stack.enter_context(closing(recording.RecordingFeed(_live_feed(), cast("Path", record))))


def _live_feed() -> LiveFeed:
    cluster = Cluster()
    live = LiveFeed(cluster, name=cluster.name)
    # Login prompts have been answered by now; later ones would disturb the screen.
    getattr(cluster.slurm, "never_ask", lambda: None)()
    return live


def _recording_path(name: str, stack: ExitStack) -> Path:
    if name != SAMPLE:
        _refuse_missing(name)
        return Path(name)
    return stack.enter_context(as_file(files("slurmkit_tui") / "sample.rec"))


def _refuse_missing(name: str) -> None:
    """Refuse a missing file; suggest the sample for a name that resembles it."""
    if not Path(name).exists():
        meant = f"did you mean {SAMPLE!r}? " if get_close_matches(name, [SAMPLE]) else ""
        wanted = f"name a file that --record wrote, or {SAMPLE!r} for the demo cluster"
        raise BadInput(f"--replay {name}: there is no such file; {meant}{wanted}")
