"""`slurmkit tui`."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import click
from click.shell_completion import CompletionItem

from slurmkit.chosen import choose
from slurmkit.errors import BadInput
from slurmkit_tui.app import SlurmkitApp
from slurmkit_tui.config import Look
from slurmkit_tui.feed import Feed
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.memory import calm
from slurmkit_tui.pace import FLOOR
from slurmkit_tui.starting import options
from slurmkit_tui.views import VIEWS

NAMES = [view.name for view in VIEWS]
LOOKS = get_args(Look)
SAMPLE = "sample"


def _recordings(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """The sample, or files."""
    sample = [CompletionItem(SAMPLE)] if SAMPLE.startswith(begun) else []
    return sample or [CompletionItem(begun, type="file")]


@click.command("tui")
@click.option(
    "--interval",
    type=click.FloatRange(min=FLOOR),
    show_default="10",
    metavar="SECONDS",
    help=f"Ask this often; {FLOOR:g} at least, and less often when Slurm is slow.",
)
@click.option("--mine/--all", default=False, help="Start with my jobs or all.  [default: all]")
@click.option("--theme", type=click.Choice(LOOKS), show_default="dark",
              help="Colours for a dark or a light terminal, or none.")  # fmt: skip
@click.option("--read-only/--read-write", default=None,
              help="Refuse everything that changes the cluster.")  # fmt: skip
@click.option("--cluster", metavar="NAME", help="As slurmkit --cluster: one over SSH.")
@click.option("--view", type=click.Choice(NAMES), show_default="queue",
              help="The view to start with; digits switch.")  # fmt: skip
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write down all that the screen is told.")  # fmt: skip
@click.option("--replay", metavar="FILE", shell_complete=_recordings,
              help=f"Show a recording, without Slurm; {SAMPLE} is one of the demo.")  # fmt: skip
def tui_command(**given: Any) -> None:
    """Watch the cluster in the terminal; digits switch views, ? shows the keys.

    Defaults are those of [tui] in the configuration, where it has any.

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
    calm()
    if given.pop("cluster") is not None:
        choose(click.get_current_context().params["cluster"])
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("slurmkit tui needs a terminal; in a script use: slurmkit queue --json")
    record, replay = given.pop("record"), given.pop("replay")
    if record and replay:
        raise BadInput("give either --record or --replay, not both")
    with ExitStack() as stack:
        feed = _feed(record, replay, stack)
        app = SlurmkitApp(feed, options(given))
        app.run()
        if trouble := getattr(feed, "trouble", ""):
            click.echo(f"{record}: {trouble}", err=True)
    sys.exit(app.return_code)


def _feed(record: Path | None, replay: str | None, stack: ExitStack) -> Feed:
    if replay is not None:
        return _replay(replay, stack)
    from slurmkit.cluster import Cluster  # noqa: PLC0415 - not for a recording

    cluster = Cluster()
    live = LiveFeed(cluster, name=cluster.name)
    # What logging in asks is answered by now; from here on the screen is in the way.
    getattr(cluster.slurm, "never_ask", lambda: None)()
    if record is None:
        return live
    from slurmkit_tui.feed.recording import RecordingFeed  # noqa: PLC0415 - seldom used

    return stack.enter_context(closing(RecordingFeed(live, record)))


def _replay(name: str, stack: ExitStack) -> Feed:
    from importlib.resources import as_file, files  # noqa: PLC0415 - seldom used

    from slurmkit_tui.feed.recording import ReplayFeed  # noqa: PLC0415 - seldom used

    if name != SAMPLE:
        _refuse_missing(name)
        return ReplayFeed(Path(name))
    return ReplayFeed(stack.enter_context(as_file(files("slurmkit_tui") / "sample.rec")))


def _refuse_missing(name: str) -> None:
    """Most that is no file was to be the sample."""
    if not Path(name).exists():
        meant = f"did you mean {SAMPLE!r}? " if get_close_matches(name, [SAMPLE]) else ""
        wanted = f"name a file that --record wrote, or {SAMPLE!r} for the demo cluster"
        raise BadInput(f"--replay {name}: there is no such file; {meant}{wanted}")
