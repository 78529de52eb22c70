"""A table that draws only the rows on screen, so that 50,000 are as quick as 50."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from slurmkit_tui import columns, states
from slurmkit_tui.actions import bindings
from slurmkit_tui.columns import Column
from slurmkit_tui.snapshot import Line

NARROW = 100  # columns of screen below which texts are shortened
_CURSOR = "▸"


class Table(ScrollView, can_focus=True):
    """Rows under a header that stays, with a cursor that follows its row by key."""

    BINDINGS = bindings("table")
    COMPONENT_CLASSES = {"table--header", "table--cursor", "table--empty"} | (
        states.STYLES | columns.STYLES
    )
    cursor = reactive(0, repaint=False)

    class Opened(Message):
        """A row was double-clicked."""

    def __init__(self, heads: Sequence[Column], empty: str) -> None:
        super().__init__()
        self._all_heads = heads
        self._heads = heads
        self._empty = empty
        self._lines: Sequence[Line] = ()
        self._longest: Sequence[int] = ()
        self._widths = [len(head.title) for head in heads]
        self._at = list(range(len(heads)))
        self._gap = 1

    @property
    def lines(self) -> Sequence[Line]:
        """The rows, on screen and off."""
        return self._lines

    @property
    def selected(self) -> Line | None:
        """The row under the cursor."""
        return self._lines[self.cursor] if self._lines else None

    def show(self, lines: Sequence[Line], longest: Sequence[int], empty: str) -> None:
        """Put other rows into the table.

        Args:
            lines: the rows.
            longest: length of the longest text in each column.
            empty: said in place of rows when there are none.
        """
        chosen, place = self.selected, self.cursor - self.scroll_offset.y
        self._lines, self._longest, self._empty = lines, longest, empty
        self._measure()
        self.cursor = self._find(chosen)
        if self.scroll_offset.y:  # a reader further down keeps the row at its place
            self.scroll_to(y=max(0, self.cursor - place), animate=False)
        self._reveal()
        self.refresh()

    def _find(self, chosen: Line | None) -> int:
        if chosen is not None:
            with suppress(ValueError):
                return list(map(attrgetter("key"), self._lines)).index(chosen.key)
        return max(0, min(self.cursor, len(self._lines) - 1))

    # What is drawn

    @property
    def _narrow(self) -> bool:
        return self.app.size.width < NARROW

    def _measure(self) -> None:
        self._at = [at for at, h in enumerate(self._all_heads) if not (h.wide and self._narrow)]
        self._heads = [self._all_heads[at] for at in self._at]
        self._widths = [self._width(at) for at in self._at]
        narrowest = 1 + sum(self._widths) + len(self._heads) - 1
        spread = narrowest + len(self._heads) - 1
        self._gap = 2 if spread <= self._across else 1
        self.virtual_size = Size(spread if self._gap == 2 else narrowest, len(self._lines) + 1)

    @property
    def _across(self) -> int:
        return self.size.width - (len(self._lines) >= self.size.height)  # less the scrollbar

    def _width(self, at: int) -> int:
        head, longest = self._all_heads[at], self._longest[at] if self._longest else 0
        if self._narrow:
            longest = min(longest, 3 if head.brief is not str else head.narrow)
        return max(cell_len(self._title(head)), min(longest, head.limit))

    def _title(self, head: Column) -> str:
        return head.short if self._narrow else head.title

    def render_line(self, y: int) -> Strip:
        """Draw one line of the screen; called by Textual for what is visible only."""
        left, top = self.scroll_offset
        if y == 0:
            return self._header(left)
        strip = self._body(top + y - 1)
        return strip.crop_extend(left, left + self.size.width, self.rich_style)

    def _header(self, left: int) -> Strip:
        """The titles; a mark at either end says that there are more columns that way."""
        style = self.get_component_rich_style("table--header")
        titles = ((self._title(head), style) for head in self._heads)
        whole = self._row(" ", titles, style).crop_extend(left, left + self.size.width, style)
        before, after = "‹" if left else " ", "›" if left < self.max_scroll_x else " "
        middle = whole.crop(1, max(1, self.size.width - 1))
        return Strip([Segment(before, style), *middle, Segment(after, style)])

    def _body(self, at: int) -> Strip:
        if at < len(self._lines):
            return self._line(at)
        words = self._empty if at == 1 and not self._lines else ""
        return Strip([Segment(f"  {words}", self.get_component_rich_style("table--empty"))])

    def _line(self, at: int) -> Strip:
        line, here = self._lines[at], at == self.cursor
        base = self.get_component_rich_style("table--cursor") if here else self.rich_style
        return self._row(_CURSOR if here else " ", self._cells(line, base), base)

    def _cells(self, line: Line, base: Style) -> Iterable[tuple[str, Style]]:
        for head, at in zip(self._heads, self._at, strict=True):
            name, text = head.style(line), line.cells[at]
            own = self.get_component_rich_style(name, partial=True) if name else None
            yield head.brief(text) if self._narrow else text, base + own if own else base

    def _row(self, mark: str, cells: Iterable[tuple[str, Style]], base: Style) -> Strip:
        gap = Segment(" " * self._gap, base)
        segments = [Segment(mark, base)]
        for (text, style), head, width in zip(cells, self._heads, self._widths, strict=True):
            segments += [Segment(fit(text, width, right=head.right), style), gap]
        missing = self.size.width - sum(cell_len(segment.text) for segment in segments)
        return Strip([*segments, Segment(" " * max(0, missing), base)])

    # What moves

    def validate_cursor(self, cursor: int) -> int:
        """Keep the cursor on a row."""
        return max(0, min(cursor, len(self._lines) - 1))

    def watch_cursor(self, old: int, new: int) -> None:
        """Redraw the two rows concerned and bring the new one into view."""
        self.refresh_lines(old + 1)
        self.refresh_lines(new + 1)
        self._reveal()

    def _reveal(self) -> None:
        room, top = self._room, round(self.scroll_y)
        lowest = max(0, self.cursor - room + 1)
        self.scroll_to(y=max(lowest, min(top, self.cursor)), animate=False)

    @property
    def _room(self) -> int:
        return max(1, self.scrollable_content_region.height - 1)

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self.cursor += by

    def action_page(self, by: int) -> None:
        """Move the cursor by screens."""
        self.cursor += by * self._room

    def action_edge(self, end: int) -> None:
        """Move the cursor to the first row (0) or the last one (1)."""
        self.cursor = end * len(self._lines)

    def action_pan(self, by: int) -> None:
        """Scroll sideways."""
        self.scroll_relative(x=by, animate=False)

    def on_resize(self) -> None:
        """Fit the columns to the screen."""
        self._measure()
        self._reveal()
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse is; twice opens the row."""
        at = self.scroll_offset.y + event.y - 1
        if event.y > 0 and at < len(self._lines):
            self.cursor = at
            if event.chain == 2:
                self.post_message(self.Opened())


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Make a text exactly `width` cells wide, with `…` where it was cut."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - size) + text if right else text + " " * (width - size)
