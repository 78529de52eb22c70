"""The TUI on a real cluster: how soon it paints, and how long its screen ever stands still.

Prints JSON: `tui.py paint RUNS` starts it beside an empty Textual app and the bare import of
Textual; `tui.py queue` and `tui.py nodes` use a view and watch the event loop meanwhile;
`tui.py keys JSON` presses keys in programs on a terminal and waits for what they paint;
`tui.py idle JSON` leaves them alone and looks at the processor time that they take.
"""

import asyncio
import json
import os
import pty
import select
import signal
import statistics
import sys
import time
from pathlib import Path

TICK = 0.001
LONGEST = 15.0  # seconds that a key may go unanswered
SIZE = (150, 45)
EMPTY = """
from textual.app import App
from textual.widgets import Footer, Static

class Empty(App):
    def compose(self):
        yield Static("Queue")
        yield Footer()

Empty().run()
"""
STARTS = {
    "import": [sys.executable, "-c", "import textual.app; print('Queue', flush=True)"],
    "empty": [sys.executable, "-c", EMPTY],
    "tui": ["slurmkit", "tui"],
}


def first_paint(argv: list[str]) -> float:
    """Seconds from a command's start to its first frame on a terminal."""
    began = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="150", LINES="45")
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
    said = b""
    while b"Queue" not in said:
        select.select([terminal], [], [], 10)
        said += os.read(terminal, 1 << 16)
    took = time.perf_counter() - began
    os.write(terminal, b"q\x11")  # Ctrl-Q is the empty app's
    while True:
        try:
            if not os.read(terminal, 1 << 16):
                break
        except OSError:
            break
    os.waitpid(child, 0)
    os.close(terminal)
    return took


def paint(runs: int) -> dict[str, list[float]]:
    """In turn, so that whatever else the machine does is shared out; the first round warms up."""
    rounds = [{name: first_paint(argv) for name, argv in STARTS.items()} for _ in range(runs + 1)]
    return {name: [each[name] for each in rounds[1:]] for name in STARTS}


def quiet(terminal: int, seconds: float, most: float) -> int:
    """Read until nothing has come for some seconds, or most have passed; how much came."""
    count, end = 0, time.monotonic() + most
    while time.monotonic() < end and select.select([terminal], [], [], seconds)[0]:
        try:
            count += len(os.read(terminal, 1 << 16))
        except OSError:
            break
    return count


def answers(argv: list[str], presses: int) -> list[float]:
    """Seconds from a key to the first thing painted, for keys pressed while it refreshes itself.

    What never answers counts as the longest wait; a program that paints nothing at all has none.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="150", LINES="45")
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
    took = []
    try:
        if not quiet(terminal, 5, 20):
            return []
        os.write(terminal, b"j")  # k and j in turn then always move, in Home, too
        for at in range(presses):
            quiet(terminal, 0.05, 1)
            began = time.perf_counter()
            os.write(terminal, b"kj"[at % 2 : at % 2 + 1])
            select.select([terminal], [], [], LONGEST)
            took.append(time.perf_counter() - began)
            if took[-1] >= LONGEST:
                break
            time.sleep(0.15)
    except OSError:  # it has ended
        return []
    else:
        return took
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def idle(argv: list[str], seconds: float = 30.0) -> float:
    """The part of one core that a program takes which is on a terminal and is left alone."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="150", LINES="45")
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
    try:
        quiet(terminal, 5, 20)
        before = processor_seconds(child)
        quiet(terminal, seconds, seconds)
        return (processor_seconds(child) - before) / seconds
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def processor_seconds(pid: int) -> float:
    """Seconds of a process, without those of the commands that it has started."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory() -> float:
    """Megabytes that the process has at most taken so far."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


class Meter:
    """The longest wait of a task that wants to run every millisecond, for each thing done.

    Beside it the most CPU that this process had in such a wait: what is beyond it, the machine
    gave to others.
    """

    def __init__(self) -> None:
        self.worst: dict[str, float] = {}
        self.own: dict[str, float] = {}
        self.doing = "start"

    async def run(self) -> None:
        while True:
            began, cpu = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK)
            late = time.perf_counter() - began - TICK
            own = min(late, time.process_time() - cpu)
            self.worst[self.doing] = max(self.worst.get(self.doing, 0.0), late)
            self.own[self.doing] = max(self.own.get(self.doing, 0.0), own)


class Hands:
    """Somebody at the keyboard of an app, whose every touch is measured."""

    def __init__(self, app, pilot, meter: Meter) -> None:
        self.app, self.pilot, self.meter = app, pilot, meter

    @property
    def picture(self):
        return self.app.session.last_answer(self.app.view.ask)

    async def until(self, reached) -> None:
        async with asyncio.timeout(120):
            while not reached():
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)

    async def look(self, key: str = "") -> None:
        """Go to a view and wait for its first answer."""
        self.meter.doing = f"open{key and ' view ' + key}"
        if key:
            await self.pilot.press(key)
        await self.until(lambda: self.picture.prepared is not None)

    async def refresh(self, doing: str = "refresh", times: int = 3) -> None:
        self.meter.doing = doing
        for _ in range(times):
            before = self.picture.answer
            await self.pilot.press("r")
            await self.until(lambda: self.picture.answer is not before)  # noqa: B023 - at once

    async def filter(self, text: str) -> None:
        self.meter.doing = "filter"
        keys = {":": "colon", " ": "space", ">": "greater_than_sign", "-": "minus", "/": "slash"}
        await self.pilot.press("slash", *[keys.get(key, key) for key in text], "enter", "escape")
        await asyncio.sleep(0.3)

    async def sort(self, *names: str) -> None:
        self.meter.doing = "sort"
        for name in names:
            self.app.view.set_row_query(self.app.view.row_query.sorted_by(name))
            await asyncio.sleep(0.2)

    async def scroll(self) -> None:
        self.meter.doing = "scroll"
        await self.pilot.press(*["pagedown"] * 20, "end", "home", *["j"] * 20)


async def in_queue(hands: Hands) -> int:
    await hands.look()
    await hands.refresh()
    await hands.filter("user:alice >0gpu -/9/ job")
    await hands.sort("name", "gpus", "priority", "user")
    await hands.refresh("refresh, sorted", 1)
    await hands.scroll()
    return len(hands.app.view.table.arranged.sheet.rows)


async def in_nodes(hands: Hands) -> int:
    """The nodes, then the map of their GPUs."""
    await hands.look("4")
    await hands.refresh(times=2)
    await hands.filter("state:idle gpu:h100 -/77/")
    await hands.sort("state", "gpus", "node")
    await hands.scroll()
    rows = len(hands.app.view.table.arranged.sheet.rows)
    await hands.look("3")
    await hands.refresh("refresh the map", 2)
    await hands.filter("state:free type:h100 -/77/")
    hands.meter.doing = "letters by account, job, user"
    await hands.pilot.press("b", "b", "b")
    await hands.scroll()
    return rows


async def stalls(app, use) -> dict[str, object]:
    """The longest stall in each thing done, in seconds, and its CPU; how many rows; megabytes."""
    meter = Meter()
    async with app.run_test(size=SIZE) as pilot:
        watch = asyncio.create_task(meter.run())
        rows = await use(Hands(app, pilot, meter))
        watch.cancel()
    found = {"worst": meter.worst, "own": meter.own}
    return {**found, "rows": rows, "megabytes": memory()}


def live():
    """The app on the cluster that Slurm's commands reach from here."""
    from slurmkit_tui.app.app import SlurmkitApp  # noqa: PLC0415 - the paint needs none
    from slurmkit_tui.feed.live import LiveFeed  # noqa: PLC0415
    from slurmkit_tui.feed.threads import tune_garbage_collector  # noqa: PLC0415
    from slurmkit_tui.options import AppOptions  # noqa: PLC0415 - the paint needs none

    from slurmkit.cluster.cluster import Cluster  # noqa: PLC0415

    app = SlurmkitApp(LiveFeed(Cluster()), AppOptions(interval=3600, view="queue"))
    tune_garbage_collector()  # as `slurmkit tui` does
    return app


def main(what: str, runs: str = "7") -> None:
    if what == "paint":
        found = {name: statistics.median(times) for name, times in paint(int(runs)).items()}
        print(json.dumps(found))
    elif what == "keys":
        print(json.dumps({name: answers(argv, 40) for name, argv in json.loads(runs).items()}))
    elif what == "idle":
        print(json.dumps({name: idle(argv) for name, argv in json.loads(runs).items()}))
    else:
        print(json.dumps(asyncio.run(stalls(live(), {"queue": in_queue, "nodes": in_nodes}[what]))))


if __name__ == "__main__":
    main(*sys.argv[1:])
