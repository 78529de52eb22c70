"""Write a screenshot of a view of `slurmkit tui` on the live cluster to standard output, as SVG.

Run on a login node, as a person who may ask squeue:

    python - gpus < docs/pictures/queue.py > docs/pictures/gpus.svg
"""

import asyncio
import sys

from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.options import AppOptions

from slurmkit.cluster.cluster import Cluster

SIZE = (120, 30)
PATIENCE = 60  # seconds until squeue has answered


async def picture(view: str) -> str:
    """Open the app with no terminal, wait for an answer, and draw what it shows."""
    app = SlurmkitApp(LiveFeed(Cluster()), AppOptions(view=view))
    async with app.run_test(size=SIZE) as pilot, asyncio.timeout(PATIENCE):
        while app.session.last_answer(app.view.ask).prepared is None:
            await pilot.pause(0.1)
        await pilot.pause()
        return app.export_screenshot(title="slurmkit tui")


sys.stdout.write(asyncio.run(picture(sys.argv[1])))
