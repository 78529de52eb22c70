"""A queue of made-up jobs behind a FakeSlurm, and ways to wait for the app."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from queue_lines import job_records
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.options import AppOptions
from slurmkit_tui.screens.tables import cell_texts
from slurmkit_tui.views.queue import QueueView
from slurmkit_tui.widgets.table import Table
from textual.pilot import Pilot

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import SlurmError
from slurmkit.testing import FakeSlurm, squeue_text

NOW = 1_700_000_000.0
CONFIG = "AccountingStorageTRES   = cpu,mem,gres/gpu,gres/gpu:a100\nClusterName             = lab\n"
_ROUNDS = 1000  # of the event loop; each takes 20 ms or more
_CPU_TIME = 5.0  # seconds of this process
SHOW_JOB = "     Nodes=c1 CPU_IDs=0 Mem=1024 GRES=gpu:a100:2(IDX:0-1)\n"
_DEFAULTS = {
    "UserName": "bob",
    "NumCPUs": "8",
    "tres-alloc": "cpu=8,mem=64G,node=1,gres/gpu=2,gres/gpu:a100=2",
    "PriorityLong": "4294",
    "SubmitTime": "1699990000",
    "StartTime": "1699993000",
    "TimeUsed": "1:56:40",
    "TimeLimit": "1-00:00:00",
    "WorkDir": "/home/bob",
    "STDOUT": "/home/bob/slurm.out",
}
WAITING = {
    "State": "PENDING",
    "NodeList": "",
    "Reason": "Priority",
    "TimeUsed": "0:00",
    "StartTime": "N/A",
}


def job(job_id: str, **fields: str) -> dict[str, str]:
    """The fields squeue prints for a job; `tres_alloc` is `tres-alloc`."""
    given = {name.replace("_", "-"): value for name, value in fields.items()}
    ids = {"JobArrayID": job_id, "JobID": job_id.partition("_")[0]}
    return {**_DEFAULTS, **ids, **given}


def waiting(job_id: str, **fields: str) -> dict[str, str]:
    """A job that waits."""
    return job(job_id, **{**WAITING, **fields})


@dataclass
class Scene:
    """A cluster that can be changed while the app looks at it.

    Attributes:
        jobs: what squeue prints.
        error: what squeue fails with instead.
        gate: called by squeue before it answers.
        refusal: what scancel fails with.
    """

    jobs: list[dict[str, str]]
    error: SlurmError | None = None
    gate: Callable[[], object] = lambda: None
    refusal: SlurmError | None = None
    config: str = CONFIG
    level: str = "None"
    slurm: FakeSlurm = field(init=False)

    def __post_init__(self) -> None:
        answers = {
            "squeue": self._squeue,
            "scontrol": self._scontrol,
            "scancel": self._scancel,
            "sacct": lambda *_: "",
            "sacctmgr": lambda *_: self.level + "|",
        }
        self.slurm = FakeSlurm(answers)

    def app(self, **options: object) -> SlurmkitApp:
        """The app of alice, looking at this cluster."""
        given = {"clock": lambda: NOW + 3, "view": "queue", **options}
        return SlurmkitApp(LiveFeed(Cluster(self.slurm), "alice"), AppOptions(**given))

    def commands(self, name: str) -> list[list[str]]:
        """How a command was called."""
        return [argv for argv in self.slurm.asked if argv[0] == name]

    def _squeue(self, argv: Sequence[str], stdin: str | None) -> str:
        self.gate()
        if self.error is not None:
            raise self.error
        wanted = [a.removeprefix("--jobs=") for a in argv if a.startswith("--jobs=")]
        found = [j for j in self.jobs if not wanted or j["JobArrayID"] in wanted]
        return squeue_text(argv, found)

    def _scontrol(self, argv: Sequence[str], stdin: str | None) -> str:
        if "config" in argv:
            return self.config
        if stdin is None:
            return SHOW_JOB
        names = [line.split()[-1] for line in stdin.splitlines()]
        return job_records("".join(f"JobId={name} JobName=x\n{SHOW_JOB}" for name in names), stdin)

    def _scancel(self, argv: Sequence[str], stdin: str | None) -> str:
        if self.refusal is not None:
            raise self.refusal
        return ""


async def until(pilot: Pilot[None], reached: Callable[[], bool]) -> None:
    """Let the app work until something is the case.

    The patience is in rounds of the event loop and in CPU time of this process: the app gets both
    on a loaded machine too, only later.

    Raises:
        AssertionError: with the screen's text.
    """
    rounds, began = 0, time.process_time()
    while not reached():
        if rounds >= _ROUNDS and time.process_time() - began >= _CPU_TIME:
            raise AssertionError(f"not reached; the screen shows:\n{text(pilot.app)}")
        rounds += 1
        await pilot.pause()


async def expect_text(pilot: Pilot[None], *words: str) -> None:
    """Let the app work until all these words are on the screen.

    Raises:
        AssertionError: with the words that are missing, and the screen's text.
    """
    shown = ""

    def is_shown() -> bool:
        nonlocal shown
        shown = text(pilot.app)
        return all(each in shown for each in words)

    try:
        await until(pilot, is_shown)
    except AssertionError:
        missing = ", ".join(repr(each) for each in words if each not in shown)
        raise AssertionError(f"{missing} not on the screen, which shows:\n{shown}") from None


@asynccontextmanager
async def running(
    app: SlurmkitApp, size: tuple[int, int] = (120, 30)
) -> AsyncIterator[Pilot[None]]:
    """The app after its first answer from squeue."""
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: view(app).table.count > 0)
        await pilot.pause()
        yield pilot


def view(app: SlurmkitApp) -> QueueView:
    """The queue, whatever lies over it."""
    return app.screen_stack[0].query_one(QueueView)


def table(app: SlurmkitApp) -> Table:
    """The table of the queue."""
    return view(app).table


def ids(app: SlurmkitApp) -> list[str]:
    """The jobs shown."""
    return [row.job_id for row in table(app).rows_shown]


def cells(app: SlurmkitApp, column: str) -> list[str]:
    """What a column says."""
    heads = [each.name for each in table(app).columns]
    return [line[heads.index(column)] for line in cell_texts(view(app), table(app).rows_shown)]


def text(app: SlurmkitApp) -> str:
    """What is on screen, as a person reads it."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    assert len(strips) == height
    assert all(strip.cell_length == width for strip in strips)
    return "\n".join(strip.text.rstrip() for strip in strips)
