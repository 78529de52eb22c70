"""The TUI on the real queue: how soon it paints, and how long its screen ever stands still."""

import asyncio
import json
import os
import pty
import select
import sys
import time
from pathlib import Path

from slurmkit_tui.app import Options, SlurmkitApp
from slurmkit_tui.feed.live import LiveFeed

from slurmkit import Cluster

TICK = 0.001
SIZE = (150, 45)
STARTS = int(sys.argv[1])


def first_paint() -> float:
    """Seconds from the command's start to the first frame on a terminal."""
    began = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="150", LINES="45")
        os.execvp("slurmkit", ["slurmkit", "tui"])  # noqa: S606 - no shell is wanted
    said = b""
    while b"Queue" not in said:
        select.select([terminal], [], [], 10)
        said += os.read(terminal, 1 << 16)
    took = time.perf_counter() - began
    os.write(terminal, b"q")
    while True:
        try:
            if not os.read(terminal, 1 << 16):
                break
        except OSError:
            break
    os.waitpid(child, 0)
    os.close(terminal)
    return took


def memory() -> float:
    """Megabytes that the process has at most taken so far."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


class Meter:
    """The longest wait of a task that wants to run every millisecond, for each thing done."""

    def __init__(self) -> None:
        self.worst: dict[str, float] = {}
        self.doing = "start"

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK)
            late = time.perf_counter() - began - TICK
            self.worst[self.doing] = max(self.worst.get(self.doing, 0.0), late)


async def until(reached) -> None:
    async with asyncio.timeout(120):
        while not reached():
            await asyncio.sleep(0.02)


async def stalls() -> tuple[dict[str, float], int]:
    """The longest stall of refreshing, filtering, sorting and scrolling; and how many rows."""
    app, meter = SlurmkitApp(LiveFeed(Cluster()), Options(interval=3600)), Meter()
    async with app.run_test(size=SIZE) as pilot:
        watch = asyncio.create_task(meter.run())
        await until(lambda: app.session.picture(app.view.ask).prepared is not None)
        await asyncio.sleep(0.5)
        await go(app, pilot, meter)
        watch.cancel()
        return meter.worst, len(app.view.table.arranged.sheet.rows)


async def go(app: SlurmkitApp, pilot, meter: Meter) -> None:
    picture = app.session.picture(app.view.ask)
    meter.doing = "refresh"
    for _ in range(3):
        before = picture.answer
        await pilot.press("r")
        await until(lambda: picture.answer is not before)  # noqa: B023 - awaited at once
        await asyncio.sleep(0.3)
    meter.doing = "filter"
    keys = {":": "colon", " ": "space", ">": "greater_than_sign", "-": "minus", "/": "slash"}
    await pilot.press("slash")
    for key in "user:alice >0gpu -/9/ job":
        await pilot.press(keys.get(key, key))
    await pilot.press("enter", "escape")
    await asyncio.sleep(0.3)
    meter.doing = "sort"
    for name in ("name", "gpus", "priority", "user"):
        app.view.wish_for(app.view.wish.sorted_by(name))
        await asyncio.sleep(0.2)
    meter.doing = "refresh, sorted"
    before = picture.answer
    await pilot.press("r")
    await until(lambda: picture.answer is not before)
    await asyncio.sleep(0.3)
    meter.doing = "scroll"
    await pilot.press(*["pagedown"] * 20, "end", "home", *["j"] * 20)


paints = [first_paint() for _ in range(STARTS)]
worst, rows = asyncio.run(stalls())
print(json.dumps({"paint": paints, "worst": worst, "rows": rows, "megabytes": memory()}))
