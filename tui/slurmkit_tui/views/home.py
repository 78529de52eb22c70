"""Home: the cluster and my jobs in one look. Each box opens the view it is taken from."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult

from slurmkit_tui.feed import GPUS_NOW, FeedAnswer, FeedQuestion
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.views.base import FurtherQuestion, SummaryPart, View
from slurmkit_tui.views.home_boxes import (
    LEAST_LINES,
    AttentionBox,
    BudgetBox,
    CurveBox,
    FailedBox,
    GpusBox,
    HomeBox,
    RunningBox,
    WaitingBox,
    count_text,
)
from slurmkit_tui.widgets.plots import load_plotter

if TYPE_CHECKING:
    from slurmkit_tui.views.overview import JobRowsMaker, Overview

_AGES_EVERY = 10.0  # seconds
_NARROW, _LOW = 100, 25  # columns and lines of the view; smaller ones have fewer boxes
_TOP = 8  # lines of the first row of boxes, at least
_TOP_SHARE = 0.36  # of the lines, also for the first row


class HomeView(View):
    """The cluster and my jobs in boxes; see the module."""

    NAME = "home"
    ASK = FeedQuestion("mine", ("queue",))
    HAS_ROWS = False
    SHOWS_PARTS = True
    # What the boxes are taken from, no more often than these views ask, most of it less often.
    also = (
        FurtherQuestion(FeedQuestion("nodes"), 3.0),
        FurtherQuestion(FeedQuestion("mine", ("ended",)), 6.0),
        FurtherQuestion(FeedQuestion("utilization", ("gpu-type", "24h")), 30.0),
        FurtherQuestion(FeedQuestion("usage"), 30.0),
        FurtherQuestion(GPUS_NOW, 3.0),
    )

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._overview: Overview | None = None
        self._session: ClusterSession | None = None
        self._lines: list[int] = []  # of each row of boxes
        self._making = threading.Lock()
        self._job_rows: JobRowsMaker | None = None

    def compose(self) -> ComposeResult:
        """Put the boxes into the grid; the stylesheet places them."""
        yield GpusBox()
        yield CurveBox()
        yield RunningBox()
        yield WaitingBox()
        yield FailedBox()
        yield BudgetBox()
        yield AttentionBox()

    def on_mount(self) -> None:
        """Keep the ages of the boxes up to date, also while nothing answers."""
        self.set_interval(_AGES_EVERY, self._show_ages)

    def _show_ages(self) -> None:
        if self._session is not None and self.display:
            for box in self.query(HomeBox):
                box.show_age(self._session.clock())

    def on_resize(self, event: events.Resize) -> None:
        """Show fewer boxes on a small screen."""
        self.set_class(event.size.width < _NARROW, "-narrow")
        self.set_class(event.size.height < _LOW, "-low")
        self._place()

    def make(self, answer: FeedAnswer | None, session: ClusterSession) -> Overview:
        from slurmkit_tui.views.overview import HomeQuestions, JobRowsMaker, make_overview  # noqa: PLC0415 - after the first paint

        load_plotter()
        self._session = session
        nodes, ended, utilization, usage, gpus_now = (each.ask for each in self.also)
        asks = HomeQuestions(self.ASK, ended, nodes, utilization, usage, gpus_now)
        # Each answer has a thread. All of them at once would keep the screen's own thread waiting.
        with self._making:
            self._job_rows = self._job_rows or JobRowsMaker()
            return make_overview(answer, session, asks, self._job_rows)

    def take(self, prepared: Overview) -> None:
        self._overview = prepared
        for box in self.query(HomeBox):
            box.show(prepared)
        self._place()
        self.post_message(self.Changed())

    def _place(self) -> None:
        """Give each row of boxes the lines that it needs, and what is left to the curve."""
        overview, height = self._overview, self.size.height
        if overview is None or not height:
            return
        without_budget = overview.is_known("usage") and not overview.budgets
        self.set_class(without_budget, "-no-budget")
        boxes = {type(box): box for box in self.query(HomeBox)}
        rows: list[tuple[type[HomeBox], ...]] = [(RunningBox, WaitingBox), (AttentionBox,)]
        if self.has_class("-narrow"):
            rows[:1] = [(RunningBox,), (WaitingBox,)]
        if not self.has_class("-low"):
            rows.insert(-1, (FailedBox,) if without_budget else (FailedBox, BudgetBox))
        wants = [
            max(boxes[kind].wanted_lines(self.size.width // len(row) - 4) for kind in row)
            for row in rows
        ]
        lines = share_lines(height, wants)
        if lines != self._lines:  # each change lays all boxes out again
            self._lines = lines
            self.styles.grid_rows = " ".join(map(str, lines))

    def say(self, words: str) -> None:
        for box in self.query(HomeBox):
            box.say(words)

    def summary(self) -> Iterable[SummaryPart]:
        overview = self._overview
        if overview is None:
            return
        free = sum(each.free for each in overview.gpus)
        yield (f"{count_text(overview, free, 'nodes')} GPUs free", "$success")
        yield f"{count_text(overview, len(overview.running))} of my jobs running"
        yield (f"{count_text(overview, len(overview.waiting))} waiting", "$warning")

    def focus_main(self) -> None:
        self.query(HomeBox).first().focus()

    def on_home_box_stepped(self, message: HomeBox.Stepped) -> None:
        """Go to the nearest box in a direction, if there is one."""
        message.stop()
        boxes = [box for box in self.query(HomeBox) if box.display]
        here = next((box.region for box in boxes if box.has_focus), None)
        if here is None:
            return
        found = [
            (abs(box.region.y - here.y), abs(box.region.x - here.x), at)
            for at, box in enumerate(boxes)
            if message.right * (box.region.x - here.x) + message.down * (box.region.y - here.y) > 0
            and (message.down or box.region.y == here.y)
        ]
        if found:
            boxes[min(found)[-1]].focus()


def share_lines(height: int, wants: Sequence[int]) -> list[int]:
    """Return the lines of each row of boxes: of the first row, then of the others.

    Every row has some lines. The remaining lines go to the last row, which says what needs
    attention, up to what it wants, then to the others from the top; what is left goes to the first.

    Args:
        height: lines of all rows together.
        wants: lines that all data of the rows below the first one takes.
    """
    first = max(_TOP, int(height * _TOP_SHARE))
    lines = [LEAST_LINES] * len(wants)
    left = height - first - sum(lines)
    for at in (len(wants) - 1, *range(len(wants) - 1)):
        more = min(max(0, left), max(0, wants[at] - lines[at]))
        lines[at] += more
        left -= more
    return [max(LEAST_LINES, first + left), *lines]
