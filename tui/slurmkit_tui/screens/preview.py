"""The preview below a view: the row under the cursor, what its GPUs do, and the end of its log.

It takes only lines that the view leaves free, and only on a tall screen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from slurmkit.errors import LogUnavailable, SlurmkitError
from slurmkit.formats.display import printable
from slurmkit.formats.memory import format_memory_use
from slurmkit.jobs.describe import Fact
from slurmkit.jobs.log import FilePiece
from slurmkit_tui import themes
from slurmkit_tui.feed import GPUS_NOW, Feed, FeedQuestion
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.jobform.gpu_use import sum_up
from slurmkit_tui.screens.details import RowDetails, row_details
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.widgets.log_pages import last_page
from slurmkit_tui.widgets.log_view import styled_line
from slurmkit_tui.widgets.wrapped_text import WrappedText, two_columns

if TYPE_CHECKING:
    from slurmkit_tui.host import AppHost

TALL = 40  # lines of a screen from which on there may be a preview
_LEAST = 12  # lines of a preview
_FRAME = 2  # of them, its border
_PAUSE = 0.1  # seconds between two previews while the cursor moves
_REST = 0.5  # seconds that the cursor stays on a job before its log is looked for
_MOST_GPUS = 8
_WIDEST = 1000  # characters of a line of the log
_STYLES = {"log--error": "$error", "log--run": "$primary", "": ""}


class RunLog(NamedTuple):
    """The log of one run of a job: its path may have the number of the run.

    Attributes:
        begun: when the run began, in epoch seconds.
    """

    feed: Feed
    job_id: str
    begun: float


class RowPreview(Horizontal):
    """The preview. `follow` must be called whenever the row, or the room for it, may be another."""

    app: AppHost

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self._timer: Timer | None = None
        self._rows = 0  # of the log
        self._shown: RunLog | None = None
        self._wanted: RunLog | None = None  # to be read next
        self._is_loading = False
        self._paths: dict[RunLog, str] = {}
        self._problem = ""  # why the path of the log that is shown is unknown

    def compose(self) -> ComposeResult:
        """Put the log next to the facts."""
        yield WrappedText(id="row-facts")
        yield Static(id="row-log", markup=False)

    def follow(self) -> None:
        """Show the row under the cursor soon; a key need not wait for it."""
        if self._timer is None:
            self._timer = self.set_timer(_PAUSE, self._show)

    def _show(self) -> None:
        self._timer = None
        if self.screen is not self.app.screen:  # what is covered has no true size
            self._wanted = None
            return
        free = self._free_lines
        details = row_details(self.app.view.current, self.app.session) if free >= _LEAST else None
        self.display = details is not None
        log = None
        if details is not None:
            self.border_title = Content(printable(details.title))
            self.styles.height = free
            self._rows = free - _FRAME - 1  # less the path
            facts = [*_facts_of_gpus(details, self.app.session), *details.facts]
            self.query_one("#row-facts", WrappedText).show(two_columns(facts))
            if details.begun is not None:
                log = RunLog(self.app.session.feed, details.job_id, details.begun)
        self._show_log(log)

    @property
    def _free_lines(self) -> int:
        """Lines of the screen that the view leaves free."""
        wanted = self.app.view.lines_wanted
        if wanted is None or self.app.size.height < TALL:
            return 0
        return self.app.view.size.height + (self.outer_size.height if self.display else 0) - wanted

    # The log

    def _show_log(self, log: RunLog | None) -> None:
        """Read the end of a log soon; None shows none."""
        self.query_one("#row-log").display = log is not None
        if log != self._shown:
            self._shown, self._problem = log, ""
            self._put_log("" if log is None else "reading its log…", is_problem=True)
        is_known = log in self._paths
        self._wanted = log if is_known or not (self.app.paused or self._problem) else None
        if self._wanted and not self._is_loading:
            self._is_loading = True
            self._load_logs()

    def _put_log(self, text: str | Content, *, is_problem: bool) -> None:
        shown = self.query_one("#row-log", Static)
        shown.set_class(is_problem, "-problem")
        shown.update(text)

    @work(group="preview", description="preview")
    async def _load_logs(self) -> None:
        """Show the end of the log that is wanted; one is read at a time, as a disk may hang."""
        while (wanted := self._wanted) is not None:
            if wanted not in self._paths:
                await asyncio.sleep(_REST)
            if wanted == self._wanted:
                self._wanted = None
                await self._load_log(wanted)
        self._is_loading = False

    async def _load_log(self, log: RunLog) -> None:
        problem = ""
        try:
            lines = await in_thread(partial(self._read_log, log, self._rows))
        except SlurmkitError as error:
            problem = printable(str(error))
        if log == self._shown:
            self._problem = "" if log in self._paths else problem
            self._put_log(Content(problem) if problem else lines, is_problem=bool(problem))

    def _read_log(self, log: RunLog, rows: int) -> Content:
        """Read the last lines of a log, with its path above them. Runs in a thread."""
        feed = log.feed
        if log not in self._paths:
            path = feed.fetch(FeedQuestion("logpath", (log.job_id, "stdout"))).value
            if not path:
                raise LogUnavailable("the path of its log is unknown")
            self._paths[log] = path
        path = self._paths[log]

        def read(begin: int, length: int) -> FilePiece:
            about = FeedQuestion("piece", (path, str(begin), str(length)))
            piece: FilePiece = feed.fetch(about).value
            return piece

        lines = [styled_line(line.text) for line in last_page(read, rows).lines]
        shown = [Content.styled(text[:_WIDEST], _STYLES[style]) for text, style in lines]
        return Content("\n").join([Content.styled(printable(path), "$quiet"), *shown])


def _facts_of_gpus(details: RowDetails, session: ClusterSession) -> Sequence[Fact]:
    """Return what the GPUs of a running job do, as far as the last answer about them says."""
    answer = session.last_answer(GPUS_NOW).answer
    if answer is None or not details.job_id:
        return []
    passed = max(session.clock() - answer.value.taken, 0.0)
    gpus = answer.value.of_job(session.cluster, details.job_id)
    facts = []
    for gpu in gpus[:_MOST_GPUS]:
        use = sum_up([gpu], 1, passed)
        curve = use.sparkline(plain=themes.has_plain_signs())
        memory = format_memory_use(gpu.memory_mib, gpu.memory_total_mib)
        memory = "memory ?" if memory == "?" else memory
        power = "" if gpu.watts is None else f", {gpu.watts:.0f} W"
        name = f"GPU {'?' if gpu.index is None else gpu.index} of {printable(gpu.node)}"
        facts.append((name, f"{curve} {use.words}, {memory}{power}".lstrip()))
    if len(gpus) > _MOST_GPUS:
        facts.append(("", f"and {len(gpus) - _MOST_GPUS} more GPUs"))
    return facts
