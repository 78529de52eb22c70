"""The form over a cluster whose settings are those that a real one printed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from fake_queue import NOW, until
from recorded_lab import capabilities, slurm, standing
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.options import AppOptions
from slurmkit_tui.submit.form import SubmitForm
from slurmkit_tui.submit.form_planner import TYPING_PAUSE
from textual.pilot import Pilot

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import SlurmError
from slurmkit.state.model import Capabilities, Standing
from slurmkit.testing import sacct_text, squeue_text


async def short_pause(_seconds: float) -> None:
    """Wait as long as a machine pauses between two keys."""
    await asyncio.sleep(0.05)


class HeldPause:
    """Short pauses as `short_pause`; the pause before slurmctld is asked ends when a test says so.

    Attributes:
        ends: set while those who pause may go on.
        waiting: how many wait for that now.
    """

    def __init__(self) -> None:
        self.ends = asyncio.Event()
        self.waiting = 0

    async def __call__(self, seconds: float) -> None:
        if seconds == TYPING_PAUSE:
            await short_pause(seconds)
            return
        self.waiting += 1
        try:
            await self.ends.wait()
        finally:
            self.waiting -= 1


class Lab(Cluster):
    """A cluster of which everything but the jobs stands still."""

    known: Capabilities | None = None

    def capabilities(self, *, refresh: bool = False) -> Capabilities:
        return self.known or capabilities()

    def standing(self, user: str | None = None) -> Standing:
        return standing()


class FormScene(LiveFeed):
    """A feed that keeps what was sent, and can be made to wait.

    Attributes:
        jobs: what squeue prints; `runs` what sacct does.
        batch: what `scontrol write batch_script` prints; `stored` what sacct does.
        gate: held by a test while plans are to wait; `sending` while sbatch is.
        refusal: what sbatch fails with.
    """

    def __init__(self) -> None:
        self.jobs: list[dict[str, str]] = []
        self.runs: list[dict[str, str]] = []
        self.steps: list[dict[str, str]] = []
        self.batch = self.stored = ""
        self.gate, self.sending = threading.Lock(), threading.Lock()
        self.refusal: SlurmError | None = None
        self.sent: list[str] = []
        self.planned: list[FeedQuestion] = []
        self.abouts: list[FeedQuestion] = []
        border = slurm(squeue=self._squeue, sacct=self._sacct)
        known = dict(border._answers)
        border._answers.update(
            sbatch=lambda argv, script: self._sbatch(known, argv, script),
            scontrol=lambda argv, text: self._scontrol(known, argv, text),
        )
        super().__init__(Lab(border), "alice")

    @property
    def asked(self) -> list[str]:
        return [ask.what for ask in self.abouts]

    def fetch(self, ask: FeedQuestion) -> FeedAnswer:
        self.abouts.append(ask)
        if ask.what == "plan":
            self.planned.append(ask)
            with self.gate:
                answer = super().fetch(ask)
            return msgspec.structs.replace(answer, taken=NOW)
        return super().fetch(ask)

    def app(self, **options: object) -> SlurmkitApp:
        given = {"clock": lambda: NOW + 3, "pause": short_pause, "view": "queue", **options}
        return SlurmkitApp(self, AppOptions(**given))

    def _squeue(self, argv: Sequence[str], stdin: str | None) -> str:
        wanted = [a.removeprefix("--jobs=") for a in argv if a.startswith("--jobs=")]
        found = [j for j in self.jobs if not wanted or j["JobArrayID"] in wanted]
        return squeue_text(argv, found)

    def _sacct(self, argv: Sequence[str], stdin: str | None) -> str:
        if "--batch-script" in argv:
            return self.stored
        return sacct_text(argv, self.runs if "-X" in argv else [*self.runs, *self.steps])

    def _scontrol(self, known: dict, argv: Sequence[str], stdin: str | None) -> str:
        if "batch_script" in argv:
            return self.batch
        return known["scontrol"](argv, stdin)

    def _sbatch(self, known: dict, argv: Sequence[str], script: str | None) -> str:
        if "--test-only" in argv:
            return known["sbatch"](argv, script)
        with self.sending:
            pass
        if self.refusal is not None:
            raise self.refusal
        self.sent.append(script or "")
        self.jobs.append({"JobArrayID": "7"})
        return "7\n"


@asynccontextmanager
async def form(scene: FormScene, size: tuple[int, int] = (120, 40), **options: object
               ) -> AsyncIterator[Pilot[None]]:  # fmt: skip
    """The app with an empty form on it, once the cluster has said what it offers."""
    app = scene.app(**options)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: app.session.site is not None)
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, SubmitForm))
        await until(pilot, lambda: the_form(app)._offers is not None)
        yield pilot


def the_form(app: SlurmkitApp) -> SubmitForm:
    return next(screen for screen in app.screen_stack if isinstance(screen, SubmitForm))


async def looked_at(pilot: Pilot[None]) -> None:
    """Wait until what stands in the form now was looked at, and judged where it has no error."""
    shown = the_form(pilot.app)

    def is_done() -> bool:
        planned = shown.planner.current
        return planned is not None and bool(planned.judged or planned.errors)

    await until(pilot, is_done)
    await pilot.pause()


async def typed(pilot: Pilot[None], **texts: str) -> None:
    """Put texts into fields, `_` for `-`, and wait for what is said of them."""
    for name, text in texts.items():
        the_form(pilot.app).row(name.replace("_", "-")).text = text
    await looked_at(pilot)
