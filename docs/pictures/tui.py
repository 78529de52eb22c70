"""Write pictures of `slurmkit tui` as SVG: of the sample, and a form on this cluster.

Run on a login node: python - FOLDER < docs/pictures/tui.py
"""

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path

from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.cli import SAMPLE, _feed
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.options import AppOptions
from slurmkit_tui.submit.form import SubmitForm
from textual.pilot import Pilot

from slurmkit.cluster.cluster import Cluster

SIZE = (120, 30)
PATIENCE = 60  # seconds until something has answered
FIND = ("slash", *"pretrain", "enter")
PICTURES = {
    "tui-home": ("home", ()),
    "tui-utilization": ("utilization", ()),
    "tui-mine": ("mine", ()),
    "tui-gpus": ("gpus", ("right",)),
    "tui-job-gpus": ("mine", (*FIND, "U")),
    "tui-map-by-use": ("gpus", ("b", "b", "b")),
    "tui-log": ("mine", (*FIND, "l")),
    "tui-why": ("mine", ("slash", *"70b", "enter", "w")),
}
FORM = {
    "what": "python3 first_steps.py --epochs 20",
    "job-name": "first-steps",
    "gpus": "a100:2",
    "cpus-per-task": "8",
    "mem": "32G",
    "time": "1:00:00",
}


async def settled(pilot: Pilot[None], seconds: float = 1.5) -> None:
    """Wait for what was asked for."""
    await pilot.pause(seconds)


async def of_the_sample(view: str, keys: tuple[str, ...]) -> str:
    """A view of the recording at its end, after some keys."""
    feed = _feed(None, SAMPLE, ExitStack())
    feed.seek(feed.end)
    app = SlurmkitApp(feed, AppOptions(view=view))
    async with app.run_test(size=SIZE) as pilot, asyncio.timeout(PATIENCE):
        await settled(pilot)
        for key in keys:
            await pilot.press(key)
        await settled(pilot)
        return app.export_screenshot(title="slurmkit tui")


async def form() -> str:
    """The form with a job in it that fits."""
    app = SlurmkitApp(LiveFeed(Cluster()), AppOptions())
    async with app.run_test(size=SIZE) as pilot, asyncio.timeout(PATIENCE):
        await settled(pilot)
        await pilot.press("n")
        await settled(pilot)
        screen = app.screen
        if not isinstance(screen, SubmitForm):
            raise SystemExit("the form did not open")
        for name, text in FORM.items():
            screen.row(name).text = text
        await settled(pilot, 3)
        return app.export_screenshot(title="slurmkit tui")


async def main(folder: Path) -> None:
    """Draw all."""
    for name, (view, keys) in PICTURES.items():
        (folder / f"{name}.svg").write_text(await of_the_sample(view, keys), "utf-8")
    (folder / "tui-form.svg").write_text(await form(), "utf-8")


asyncio.run(main(Path(sys.argv[1])))
