"""A log on the screen: pages, search, the first error, and following what is written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import ClassVar

from rich.segment import Segment
from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static

from slurmkit.errors import SlurmkitError
from slurmkit.jobs.pages import Piece
from slurmkit.survive.history import RUN_BEGINS
from slurmkit.text import printable
from slurmkit_tui.actions import bindings
from slurmkit_tui.feed import Ask, Feed
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.log.pages import Page, above, find, find_back, last_page, line_at, page_from

ERRORS = re.compile(
    rb"(?i)(traceback \(most recent call last\)|\b(?:fatal|killed|\w*error|\w*exception)\b"
    rb"|out of memory|NCCL WARN|segmentation fault|command not found)"
)
_SIGNS = (b"traceback", b"fatal", b"error", b"exception", b"killed", b"out of memory", b"nccl warn",
          b"segmentation fault", b"command not found")  # fmt: skip
RUNS = re.compile(b"(?m)^" + RUN_BEGINS.encode())
"""A run of a job that survives begins."""
_RULE = "─"
_TAB = " " * 8
_TOLD_SECONDS = 0.2
_FOLLOW_SECONDS = 1.0


class Lines(Widget, can_focus=True):
    """The lines of the page; it only draws."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"log--found", "log--error", "log--run"}

    def __init__(self) -> None:
        super().__init__()
        self.page = Page((), 0, 0)
        self.left = 0
        self.found: int | None = None
        self.pattern: re.Pattern[bytes] | None = None

    def render_line(self, y: int) -> Strip:
        """Draw one line of the screen."""
        if y >= len(self.page.lines):
            return Strip.blank(self.size.width, self.rich_style)
        line = self.page.lines[y]
        text, looks = looked_at(line.text)
        style, right = self.rich_style, self.left + self.size.width
        if mark := "log--found" if line.begin == self.found else looks:
            style = style + self.get_component_rich_style(mark, partial=True)
        if looks == "log--run":
            text = f"{text} ".ljust(right, _RULE)
        return Strip([Segment(text[:right], style)]).crop_extend(self.left, right, style)


def errors_likely(data: bytes) -> bool:
    """Whether `ERRORS` may be found in some bytes: much quicker than a look for it."""
    lower = data.lower()
    return any(sign in lower for sign in _SIGNS)


def shown(text: bytes) -> str:
    """A line as a terminal may show it: after the last carriage return, without escapes."""
    final = text.rstrip(b"\r").rpartition(b"\r")[2]
    plain = re.sub(rb"\x1b\[[0-9;]*[A-Za-z]", b"", final)
    return printable(plain.decode("utf-8", "replace").replace("\t", _TAB))


@lru_cache(maxsize=256)
def looked_at(text: bytes) -> tuple[str, str]:
    """A line as it is shown, and the style of what it looks like: an error, a run's beginning."""
    if RUNS.match(text):
        return shown(text), "log--run"
    return shown(text), "log--error" if ERRORS.search(text) else ""


def prepared(make: Callable[[], Page | None]) -> Page | None:
    """A page whose lines were looked at: long ones would hold up the drawing."""
    page = make()
    for line in page.lines if page else ():
        looked_at(line.text)
        time.sleep(0)
    return page


class LogView(Vertical):
    """One file, read through the feed a page at a time."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("log")

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed
        self._path: str | None = None
        self._following = True
        self._said = ""
        self._searching = 0
        self._reading: Callable[[], Page | None] | None = None

    def compose(self) -> ComposeResult:
        """Stack the lines, what is said of them, and the line to search in."""
        yield Lines()
        yield Static("", id="log-said", markup=False)
        yield Input(placeholder="regular expression; Enter searches on", compact=True)

    def on_mount(self) -> None:
        """Begin at the end, and follow."""
        self._close_search()
        self.set_interval(_FOLLOW_SECONDS, self._grow)

    @property
    def lines(self) -> Lines:
        """The page."""
        return self.query_one(Lines)

    def open(self, path: str) -> None:
        """Show the end of a file."""
        self._path = path
        self._go(partial(last_page, self._read, self._rows))

    def say(self, words: str) -> None:
        """Say why there is nothing to show, or what became of a search."""
        self._said = words
        self._tell()

    # Reading, in threads; the last wish wins

    def _read(self, begin: int, length: int) -> Piece:
        about = (self._path or "", str(begin), str(length))
        piece: Piece = self._feed.fetch(Ask("piece", about)).value
        return piece

    @property
    def _rows(self) -> int:
        return max(1, self.lines.size.height)

    @work(exclusive=True, group="page", description="page")
    async def _go(self, make: Callable[[], Page | None]) -> None:
        self._reading = make
        try:
            page = await in_thread(partial(prepared, make))
        except SlurmkitError as error:
            self.say(str(error))
            return
        finally:
            if self._reading is make:
                self._reading = None
        if page is not None:
            self.lines.page = page
            self.lines.refresh()
        self._tell()

    def _grow(self) -> None:
        """Look for what was written meanwhile, unless a slow disk has not given the last page."""
        if self._following and self._path and self.display and self._reading is None:
            self._go(partial(self._newer, self.lines.page.size))

    def _newer(self, size: int) -> Page | None:
        return None if self._read(0, 0).size == size else last_page(self._read, self._rows)

    # What the keys do

    def _step(self, begin: Callable[[Page], int]) -> None:
        """Go to another begin; at the end of the file the page stays full. It ends a search."""
        self._searching += 1
        rows, page = self._rows, self.lines.page

        def make() -> Page:
            made = page_from(self._read, begin(page), rows)
            return made if len(made.lines) >= rows else last_page(self._read, rows)

        self._go(make)

    def action_move(self, by: int) -> None:
        """Move by lines."""
        self._stop_following()
        if by > 0 and len(self.lines.page.lines) > by:
            self._step(lambda page: page.lines[by].begin)
        elif by < 0:
            self._step(lambda page: above(self._read, page.begin, -by))

    def action_page(self, by: int) -> None:
        """Move by screens."""
        self._stop_following()
        if by > 0:
            self._step(lambda page: page.end)
        else:
            self._step(lambda page: above(self._read, page.begin, self._rows))

    def action_edge(self, end: int) -> None:
        """Go to the begin (0) or the end (1)."""
        self._following = bool(end)
        self._step((lambda page: page.size) if end else (lambda _page: 0))

    def action_pan(self, by: int) -> None:
        """Move sideways."""
        self.lines.left = max(0, self.lines.left + by)
        self.lines.refresh()

    def action_follow(self) -> None:
        """Follow what is written, or stop."""
        self._following = not self._following
        if self._following:
            self.action_edge(1)
        self._tell()

    def _stop_following(self) -> None:
        self._following = False

    def action_search(self) -> None:
        """Type what to look for."""
        field = self.query_one(Input)
        field.value, field.display, field.disabled = "", True, False
        field.focus()

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            self.lines.pattern = re.compile(event.value.encode(), re.IGNORECASE | re.MULTILINE)
        except re.error as error:
            self.say(f"/{event.value}/ is no regular expression: {error}")
            return
        self._close_search()
        self._look_for(self.lines.pattern, self.lines.page.begin, 1)

    def leave_search(self) -> bool:
        """Close the line to search in; False where it is not open."""
        is_open = bool(self.display and self.query_one(Input).display)
        if is_open:
            self._close_search()
        return is_open

    def _close_search(self) -> None:
        field = self.query_one(Input)
        field.display, field.disabled = False, True
        self.lines.focus()

    def action_again(self, way: int) -> None:
        """Look for the same once more."""
        page, found = self.lines.page, self.lines.found
        if self.lines.pattern is None:
            return
        here = page.begin if found is None else found
        self._look_for(self.lines.pattern, here + 1 if way > 0 else here, way)

    def action_run(self, way: int) -> None:
        """Go to where the next run of a requeued job begins, or to where this one did."""
        page, found = self.lines.page, self.lines.found
        seen = found is not None and page.begin <= found < page.end
        here = found if seen and found is not None else page.begin if way > 0 else page.end
        self.lines.pattern = RUNS
        self._look_for(RUNS, here + 1 if way > 0 and seen else here, way)

    def action_first_error(self) -> None:
        """Go to the first line that looks like an error."""
        self.lines.pattern = ERRORS
        self._look_for(ERRORS, 0, 1)

    def _look_for(self, pattern: re.Pattern[bytes], begin: int, way: int) -> None:
        self._stop_following()
        self._searching += 1
        mine, said = self._searching, time.monotonic()
        likely = errors_likely if pattern is ERRORS else bool

        def told(part: float) -> bool:
            nonlocal said
            if mine != self._searching or not self.is_attached:
                return False
            if time.monotonic() - said > _TOLD_SECONDS:
                said = time.monotonic()
                self.app.call_from_thread(self.say, f"searching: {part:.0%}")
            return True

        def make() -> Page | None:
            if way > 0:
                start = begin if begin == line_at(self._read, begin) else self._after(begin)
                at = find(self._read, pattern, start, told, likely)
            else:
                at = find_back(self._read, pattern, begin, told)
            if mine != self._searching:  # given up, for another page or another search
                return None
            self.lines.found = at
            self._said = "" if at is not None else "not found"
            if at is None:
                return None
            return page_from(self._read, above(self._read, at, self._rows // 3), self._rows)

        self._go(make)

    def _after(self, offset: int) -> int:
        """The begin of the next line."""
        page = page_from(self._read, line_at(self._read, offset), 1)
        return page.end

    def _tell(self) -> None:
        page = self.lines.page
        part = page.end / page.size if page.size else 1.0
        where = f"{part:.0%} of {size_in_words(page.size)}" if page.size else ""
        marks = ["following"] if self._following else []
        parts = [self._said, *marks, where, self._path if where and self._path else ""]
        self.query_one("#log-said", Static).update(printable("  ·  ".join(filter(None, parts))))


def size_in_words(size: int) -> str:
    """Bytes with three digits: `1.07 GB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
