"""Write a screenshot of `slurmkit tui` on the live cluster to standard output, as SVG.

Run on a login node, as a person who may ask squeue:

    python - < docs/pictures/queue.py > docs/pictures/queue.svg
"""

import asyncio
import sys

from slurmkit_tui.app import SlurmkitApp
from slurmkit_tui.table import Table

from slurmkit import Cluster

SIZE = (120, 30)
PATIENCE = 60  # seconds until squeue has answered


async def picture() -> str:
    """Open the app with no terminal, wait for rows, and draw what it shows."""
    app = SlurmkitApp(Cluster())
    async with app.run_test(size=SIZE) as pilot, asyncio.timeout(PATIENCE):
        while not app.query_one(Table).lines:
            await pilot.pause(0.1)
        await pilot.pause()
        return app.export_screenshot(title="slurmkit tui")


sys.stdout.write(asyncio.run(picture()))
