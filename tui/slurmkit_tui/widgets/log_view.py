"""The widget that shows a log: pages, search, first error, and following new lines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import chain, islice
from typing import ClassVar, NamedTuple

from rich.cells import chop_cells
from rich.segment import Segment
from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static
from textual.worker import Worker

from slurmkit.errors import SlurmkitError
from slurmkit.formats.display import printable
from slurmkit.formats.memory import format_bytes
from slurmkit.jobs.log import FilePiece
from slurmkit.jobs.run_history import RUN_BEGINS
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.feed import Feed, FeedQuestion
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.widgets.log_pages import (
    LogPage,
    PageLine,
    find_backward,
    find_forward,
    first_lines,
    last_lines,
    last_page,
    line_begin,
    offset_above,
    page_from,
)

ERRORS = re.compile(
    rb"(?i)(traceback \(most recent call last\)|\b(?:fatal|killed|\w*error|\w*exception)\b"
    rb"|out of memory|NCCL WARN|segmentation fault|command not found)"
)
_SIGNS = (b"traceback", b"fatal", b"error", b"exception", b"killed", b"out of memory", b"nccl warn",
          b"segmentation fault", b"command not found")  # fmt: skip
RUNS = re.compile(b"(?m)^" + RUN_BEGINS.encode())
"""First line of each run of a job that is requeued."""
_RULE = "─"
_TAB = " " * 8
_PROGRESS_SECONDS = 0.2
_FOLLOW_SECONDS = 1.0
_UNREAD = -1  # size of a file of which nothing was read yet


class LogLines(Widget, can_focus=True):
    """The lines of the current page; this widget only draws them."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"log--found", "log--error", "log--run"}

    def __init__(self) -> None:
        super().__init__()
        self.page = LogPage((), 0, _UNREAD)
        self.left = 0
        self.wraps = False
        self.found: int | None = None
        self.pattern: re.Pattern[bytes] | None = None
        self._drawn: list[Strip] = []

    def height(self, text: bytes) -> int:
        """Return on how many lines of the screen a line is drawn."""
        return len(self._pieces(styled_line(text)[0])) if self.wraps else 1

    def _pieces(self, text: str) -> list[str]:
        """Return the part of a text that each line of the screen shows; at most one screen."""
        width, height = max(1, self.size.width), max(1, self.size.height)
        return chop_cells(text[: width * height], width)[:height] or [""]

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw the visible lines; a line that is wrapped moves the lines below it down."""
        drawn = chain.from_iterable(map(self._strips, self.page.lines))
        self._drawn = [*islice(drawn, self.size.height)]
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draw one line of the screen."""
        if y >= len(self._drawn):
            return Strip.blank(self.size.width, self.rich_style)
        return self._drawn[y]

    def _strips(self, line: PageLine) -> Iterator[Strip]:
        """Draw a line, on several lines of the screen if long lines are wrapped."""
        text, looks = styled_line(line.text)
        style, right = self.rich_style, self.left + self.size.width
        if mark := "log--found" if line.begin == self.found else looks:
            style = style + self.get_component_rich_style(mark, partial=True)
        if self.wraps and looks != "log--run":
            for piece in self._pieces(text):
                yield Strip([Segment(piece, style)]).adjust_cell_length(right, style)
            return
        if looks == "log--run":
            text = f"{text} ".ljust(right, _RULE)
        yield Strip([Segment(text[:right], style)]).crop_extend(self.left, right, style)


def errors_likely(data: bytes) -> bool:
    """Return whether `ERRORS` can match in some bytes: much faster than the search itself."""
    lower = data.lower()
    return any(sign in lower for sign in _SIGNS)


def safe_line(text: bytes) -> str:
    """Return a line as safe text: the part after the last carriage return, without escapes."""
    final = text.rstrip(b"\r").rpartition(b"\r")[2]
    plain = re.sub(rb"\x1b\[[0-9;]*[A-Za-z]", b"", final)
    return printable(plain.decode("utf-8", "replace").replace("\t", _TAB))


@lru_cache(maxsize=256)
def styled_line(text: bytes) -> tuple[str, str]:
    """Return the text of a line, and its style: of an error, of the begin of a run, or none."""
    if RUNS.match(text):
        return safe_line(text), "log--run"
    return safe_line(text), "log--error" if ERRORS.search(text) else ""


class LogPlace(NamedTuple):
    """A place in a log: the page on the screen, and the line that was found.

    Attributes:
        found: offset of the line that the last search found.
        message: result of the last search.
    """

    page: LogPage
    found: int | None = None
    message: str = ""


Step = Callable[[LogPlace], LogPlace | None]
"""Goes from one place to another; None stays where it is."""


def take_step(step: Step, place: LogPlace) -> LogPlace | None:
    """Take a step and style its lines in this thread: long lines would stall the drawing."""
    reached = step(place)
    for line in reached.page.lines if reached else ():
        styled_line(line.text)
        time.sleep(0)
    return reached


class LogView(Vertical):
    """A view of one file, read through the feed page by page."""

    BINDINGS: ClassVar[list[BindingType]] = key_bindings("log")

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed
        self._path: str | None = None
        self._following = True
        self._message = ""
        self._wrong_pattern = ""  # why the pattern in the search line cannot be searched
        self._searching = 0
        self._steps: list[Step] = []
        self._walker: Worker[None] | None = None
        self._is_search = False

    def compose(self) -> ComposeResult:
        """Stack the lines, the status line, and the search line."""
        yield LogLines()
        yield Static("", id="log-message", markup=False)
        yield Input(placeholder="regular expression; Enter searches", compact=True)

    def on_mount(self) -> None:
        """Close the search line, and follow the file from now on."""
        self._close_search()
        self.set_interval(_FOLLOW_SECONDS, self._load_new_lines)

    @property
    def lines(self) -> LogLines:
        """The widget with the lines of the page."""
        return self.query_one(LogLines)

    def open(self, path: str) -> None:
        """Show the end of a file."""
        self._path = path
        self._drop_steps()
        self._walk_on(lambda place: place._replace(page=self._last_page()))

    def say(self, words: str) -> None:
        """Show a message: why there is nothing to show, or the result of a search."""
        self._message = words
        self._update_status()

    # Reading, in threads, one step after another

    def _read(self, begin: int, length: int) -> FilePiece:
        about = (self._path or "", str(begin), str(length))
        piece: FilePiece = self._feed.fetch(FeedQuestion("piece", about)).value
        return piece

    @property
    def _rows(self) -> int:
        return max(1, self.lines.size.height)

    def _page_from(self, begin: int) -> LogPage:
        """Read the page that begins with the line at an offset."""
        page = page_from(self._read, begin, self._rows)
        return first_lines(page, self._rows, self.lines.height) if page.lines else page

    def _last_page(self) -> LogPage:
        page = last_page(self._read, self._rows)
        return last_lines(page, self._rows, self.lines.height) if page.lines else page

    def _offset_of_page_above(self, offset: int) -> int:
        """Return the begin of the page that ends before an offset."""
        begin = offset_above(self._read, offset, self._rows)
        page = page_from(self._read, begin, self._rows)
        above = page._replace(lines=tuple(line for line in page.lines if line.begin < offset))
        return last_lines(above, self._rows, self.lines.height).begin if above.lines else begin

    def _fills_screen(self, page: LogPage) -> bool:
        used = sum(self.lines.height(line.text) for line in page.lines)
        return used >= self._rows or page.end < page.size

    @work(exclusive=True, group="page", description="page")
    async def _walk(self) -> None:
        """Take the steps in the order of their keys, each from the place that the last reached."""
        while self._steps:
            place = LogPlace(self.lines.page, self.lines.found, self._message)
            try:
                reached = await in_thread(partial(take_step, self._steps.pop(0), place))
            except SlurmkitError as error:
                self.say(str(error))
                continue
            if reached is not None:
                self.lines.page, self.lines.found, self._message = reached
                self.lines.refresh()
            self._update_status()

    @property
    def _is_walking(self) -> bool:
        return self._walker is not None and not self._walker.is_finished

    def _walk_on(self, step: Step, *, is_search: bool = False) -> None:
        """Take this step after those before it."""
        self._steps.append(step)
        self._is_search = is_search
        if not self._is_walking:
            self._walker = self._walk()

    def _drop_steps(self) -> None:
        """Give up the steps that are not taken yet, and a search that still runs."""
        self._searching += 1
        self._steps = []
        if self._walker is not None:
            self._walker.cancel()
            self._walker = None

    def _load_new_lines(self) -> None:
        """Look for new lines, unless a page is still being read."""
        if self._following and self._path and self.display and not self._is_walking:
            self._walk_on(self._step_to_new_lines)

    def _step_to_new_lines(self, place: LogPlace) -> LogPlace | None:
        if self._read(0, 0).size == place.page.size:
            return None
        return place._replace(page=self._last_page())

    # Actions

    def _move(self, begin: Callable[[LogPage], int]) -> None:
        """Go to the page from another offset; the last page stays full. This ends a search."""
        if self._is_search and self._is_walking:
            self._drop_steps()
            self._message = ""

        def step(place: LogPlace) -> LogPlace:
            new = self._page_from(begin(place.page))
            return place._replace(page=new if self._fills_screen(new) else self._last_page())

        self._walk_on(step)

    def action_move(self, by: int) -> None:
        """Move by lines."""
        self._stop_following()
        if by > 0:
            self._move(lambda page: page.lines[by].begin if len(page.lines) > by else page.end)
        elif by < 0:
            self._move(lambda page: offset_above(self._read, page.begin, -by))

    def action_page(self, by: int) -> None:
        """Move by screens."""
        self._stop_following()
        if by > 0:
            self._move(lambda page: page.end)
        else:
            self._move(lambda page: self._offset_of_page_above(page.begin))

    def action_edge(self, end: int) -> None:
        """Go to the begin (0) or the end (1)."""
        self._following = bool(end)
        self._move((lambda page: page.size) if end else (lambda _page: 0))

    def action_pan(self, by: int) -> None:
        """Move sideways."""
        self.lines.left = max(0, self.lines.left + by)
        self.lines.refresh()

    def action_wrap(self) -> None:
        """Wrap long lines, or cut them at the right edge again."""
        self.lines.wraps = not self.lines.wraps
        self.lines.left = 0
        self._move((lambda page: page.size) if self._following else (lambda page: page.begin))

    def action_follow(self) -> None:
        """Follow new lines, or stop."""
        self._following = not self._following
        if self._following:
            self.action_edge(1)
        self._update_status()

    def _stop_following(self) -> None:
        self._following = False

    def action_search(self) -> None:
        """Open the search line."""
        field = self.query_one(Input)
        field.value, field.display, field.disabled = "", True, False
        field.focus()

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            self.lines.pattern = re.compile(event.value.encode(), re.IGNORECASE | re.MULTILINE)
        except re.error as error:
            self._wrong_pattern = f"/{event.value}/ is no regular expression: {error}"
            self._update_status()
            return
        self._close_search()
        self._drop_steps()
        self._look_for(self.lines.pattern, lambda place: place.page.begin, 1)

    def leave_search(self) -> bool:
        """Close the search line; return False if it was not open."""
        is_open = bool(self.display and self.query_one(Input).display)
        if is_open:
            self._close_search()
            self._update_status()
        return is_open

    def _close_search(self) -> None:
        self._wrong_pattern = ""
        field = self.query_one(Input)
        field.display, field.disabled = False, True
        self.lines.focus()

    def action_again(self, way: int) -> None:
        """Search the same pattern again."""
        if self.lines.pattern is None:
            return

        def begin(place: LogPlace) -> int:
            here = place.page.begin if place.found is None else place.found
            return here + 1 if way > 0 else here

        self._look_for(self.lines.pattern, begin, way)

    def action_run(self, way: int) -> None:
        """Go to the begin of the next run of a requeued job, or of this run."""

        def begin(place: LogPlace) -> int:
            page, found = place.page, place.found
            if found is not None and page.begin <= found < page.end:
                return found + 1 if way > 0 else found
            return page.begin if way > 0 else page.end

        self.lines.pattern = RUNS
        self._look_for(RUNS, begin, way)

    def action_first_error(self) -> None:
        """Go to the first line that looks like an error."""
        self.lines.pattern = ERRORS
        self._drop_steps()
        self._look_for(ERRORS, lambda _place: 0, 1)

    def _look_for(
        self, pattern: re.Pattern[bytes], begin: Callable[[LogPlace], int], way: int
    ) -> None:
        self._stop_following()
        search, last_shown = self._searching, time.monotonic()
        likely = errors_likely if pattern is ERRORS else bool

        def report(part: float) -> bool:
            """Show the progress now and then; return False if the search was given up."""
            nonlocal last_shown
            if search != self._searching or not self.is_attached:
                return False
            if time.monotonic() - last_shown > _PROGRESS_SECONDS:
                last_shown = time.monotonic()
                self.app.call_from_thread(self.say, f"searching: {part:.0%}")
            return True

        def step(place: LogPlace) -> LogPlace | None:
            start = begin(place)
            if way > 0:
                line = line_begin(self._read, start)
                start = start if start == line else page_from(self._read, line, 1).end
                at = find_forward(self._read, pattern, start, report, likely)
            else:
                at = find_backward(self._read, pattern, start, report)
            if search != self._searching:  # given up for another page or search
                return None
            if at is None:
                return LogPlace(place.page, None, "not found")
            top = at if self.lines.wraps else offset_above(self._read, at, self._rows // 3)
            return LogPlace(self._page_from(top), at)

        self._walk_on(step, is_search=True)

    def _update_status(self) -> None:
        page = self.lines.page
        where = "" if page.size == _UNREAD else "the file is empty"
        if page.size > 0:
            where = f"{page.end / page.size:.0%} of {format_bytes(page.size)}"
        modes = {"following": self._following, "wrapped": self.lines.wraps}
        marks = [mark for mark, is_on in modes.items() if is_on]
        message = self._wrong_pattern or self._message
        parts = [message, *marks, where, self._path if where and self._path else ""]
        self.query_one("#log-message", Static).update(printable("  ·  ".join(filter(None, parts))))
