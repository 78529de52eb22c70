"""A table that draws only the rows on screen, so that 50,000 are as quick as 50."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from slurmkit.text import printable
from slurmkit_tui import states
from slurmkit_tui.actions import bindings
from slurmkit_tui.listing import Column, Context, Listing
from slurmkit_tui.messages import Opened
from slurmkit_tui.sheet import Arranged

NARROW = 100  # columns of screen below which texts are shortened
STYLES = frozenset({"cell--mine", "cell--gpus", "cell--muted", "cell--warn", "cell--bad"})
_CURSOR, _CHOSEN = "▸", "●"


class _Cell(NamedTuple):
    """A column as it is drawn now: how wide, and from which cell of the row on."""

    column: Column
    width: int


class Table(ScrollView, can_focus=True):
    """Rows under a header that stays, with a cursor that follows its row by key."""

    BINDINGS = bindings("table")
    COMPONENT_CLASSES = {"table--header", "table--cursor", "table--chosen", "table--empty"} | (
        states.STYLES | STYLES
    )
    cursor = reactive(0, repaint=False)

    class Chosen(Message):
        """Other rows are chosen."""

    class Sorted(Message):
        """The header of a column was clicked."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(self, listing: Listing, empty: str) -> None:
        super().__init__()
        self.listing = listing
        self.columns: Sequence[Column] = [each for each in listing.columns if each.shown]
        self.chosen: set[str] = set()
        self._found: list[Any] | None = None  # the rows chosen, once they were looked for
        self._arranged: Arranged | None = None
        self._rows: Sequence[Any] = ()
        self._keys: Sequence[str] = ()
        self._order: Sequence[int] = ()
        self._empty = empty
        self._cells: list[_Cell] = []
        self._gap = 1
        self._base = Style()

    # What is in it

    @property
    def arranged(self) -> Arranged | None:
        """What is shown; None before the first answer."""
        return self._arranged

    @property
    def count(self) -> int:
        """How many rows are shown, on screen and off."""
        return len(self._order)

    def row(self, at: int) -> Any:
        """A row by its place on the screen's list."""
        return self._rows[self._order[at]]

    def key(self, at: int) -> str:
        """Its key."""
        return self._keys[self._order[at]]

    @property
    def selected(self) -> Any | None:
        """The row under the cursor."""
        return self.row(self.cursor) if self._order else None

    @property
    def rows_chosen(self) -> list[Any]:
        """The rows that were chosen, or else the one under the cursor."""
        if not self._order:
            return []
        if self._found is None:  # asked for with every key that may change something
            some = self._order if self.chosen else ()
            self._found = [self._rows[at] for at in some if self._keys[at] in self.chosen]
        return self._found or [self.selected]

    @property
    def rows_shown(self) -> list[Any]:
        """All rows that pass the filter, in the order shown."""
        return list(map(self._rows.__getitem__, self._order))

    def show(self, arranged: Arranged | None, empty: str) -> None:
        """Put other rows into the table.

        Args:
            arranged: the rows; None for none.
            empty: said in place of rows when there are none.
        """
        at = self.key(self.cursor) if self._order else None
        place = self.cursor - self.scroll_offset.y
        self._arranged, self._empty = arranged, empty
        self._rows = arranged.sheet.rows if arranged else ()
        self._keys = arranged.sheet.keys if arranged else ()
        self._order = arranged.order if arranged else ()
        if arranged and self.chosen:
            self.chosen &= set(self._keys)
        self._found = None
        self._measure()
        self.cursor = self._find(at)
        if self.scroll_offset.y:  # a reader further down keeps the row at its place
            self.scroll_to(y=max(0, self.cursor - place), animate=False)
        self._reveal()
        self.refresh()

    def _find(self, key: str | None) -> int:
        if key is not None:
            with suppress(ValueError):
                return list(map(self._keys.__getitem__, self._order)).index(key)
        return max(0, min(self.cursor, self.count - 1))

    # What is drawn

    @property
    def _narrow(self) -> bool:
        return self.app.size.width < NARROW

    def choose_columns(self, columns: Sequence[Column]) -> None:
        """Show these columns."""
        self.columns = columns
        self._measure()
        self.refresh()

    def _measure(self) -> None:
        columns = [each for each in self.columns if not (each.wide and self._narrow)]
        self._cells = [_Cell(each, self._width(each)) for each in columns]
        narrowest = 1 + sum(cell.width for cell in self._cells) + max(0, len(columns) - 1)
        spread = narrowest + max(0, len(columns) - 1)
        self._gap = 2 if spread <= self._across else 1
        self.virtual_size = Size(spread if self._gap == 2 else narrowest, self.count + 1)

    @property
    def _across(self) -> int:
        return self.size.width - (self.count >= self.size.height)  # less the scrollbar

    def _width(self, column: Column) -> int:
        widths = self._arranged.sheet.widths if self._arranged else {}
        widest = widths.get(column.name, 0)
        if self._narrow:
            widest = min(widest, 3 if column.brief is not str else column.narrow)
        return max(cell_len(self._title(column)), min(widest, column.limit))

    def _title(self, column: Column) -> str:
        title = (column.short or column.title) if self._narrow else column.title
        wish = self._arranged.wish if self._arranged else None
        if wish is None or wish.sort != column.name:
            return title
        return f"{title}{'▼' if wish.descending else '▲'}"

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw what is visible; the style below all is worked out once, not for every cell."""
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draw one line of the screen; called by Textual for what is visible only."""
        left, top = self.scroll_offset
        if y == 0:
            return self._header(left)
        strip = self._body(top + y - 1)
        return strip.crop_extend(left, left + self.size.width, self._base)

    def _header(self, left: int) -> Strip:
        """The titles; a mark at either end says that there are more columns that way."""
        style = self.get_component_rich_style("table--header")
        titles = ((self._title(cell.column), style) for cell in self._cells)
        whole = self._row(" ", titles, style).crop_extend(left, left + self.size.width, style)
        before, after = "‹" if left else " ", "›" if left < self.max_scroll_x else " "
        middle = whole.crop(1, max(1, self.size.width - 1))
        return Strip([Segment(before, style), *middle, Segment(after, style)])

    def _body(self, at: int) -> Strip:
        if at < self.count:
            return self._line(at)
        words = self._empty if at == 1 and not self.count else ""
        return Strip([Segment(f"  {words}", self.get_component_rich_style("table--empty"))])

    def _line(self, at: int) -> Strip:
        chosen = self.key(at) in self.chosen
        base = self._base
        if chosen:
            base = base + self.get_component_rich_style("table--chosen", partial=True)
        if at == self.cursor:
            base = base + self.get_component_rich_style("table--cursor")
        mark = _CHOSEN if chosen else _CURSOR if at == self.cursor else " "
        return self._row(mark, self._texts(self.row(at), base), base)

    def _texts(self, row: Any, base: Style) -> Iterable[tuple[str, Style]]:
        context = self._arranged.sheet.context if self._arranged else Context()
        for column, _ in self._cells:
            name, text = column.style(row, context), printable(column.text(row, context))
            own = self.get_component_rich_style(name, partial=True) if name else None
            yield column.brief(text) if self._narrow else text, base + own if own else base

    def _row(self, mark: str, cells: Iterable[tuple[str, Style]], base: Style) -> Strip:
        gap = Segment(" " * self._gap, base)
        segments = [Segment(mark, base)]
        for (text, style), (column, width) in zip(cells, self._cells, strict=True):
            segments += [Segment(fit(text, width, right=column.right), style), gap]
        missing = self.size.width - sum(cell_len(segment.text) for segment in segments)
        return Strip([*segments, Segment(" " * max(0, missing), base)])

    # What moves

    def validate_cursor(self, cursor: int) -> int:
        """Keep the cursor on a row."""
        return max(0, min(cursor, self.count - 1))

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
        self.cursor = end * self.count

    def action_pan(self, by: int) -> None:
        """Scroll sideways."""
        self.scroll_relative(x=by, animate=False)

    def action_choose(self) -> None:
        """Choose the row under the cursor, or not any more, and go to the next."""
        if self._order:
            self._choose(self.chosen ^ {self.key(self.cursor)})
            self.refresh_lines(self.cursor + 1)
            self.cursor += 1

    def action_choose_all(self) -> None:
        """Choose all rows shown, or none when all are."""
        shown = set(map(self._keys.__getitem__, self._order))
        self._choose(set() if shown <= self.chosen else shown)
        self.refresh()

    def choose_none(self) -> None:
        """Forget what was chosen."""
        self._choose(set())
        self.refresh()

    def _choose(self, keys: set[str]) -> None:
        self.chosen, self._found = keys, None
        self.post_message(self.Chosen())

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if self._order:
            self.post_message(Opened())

    def on_resize(self) -> None:
        """Fit the columns to the screen."""
        self._measure()
        self._reveal()
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse is; twice opens the row; a header sorts."""
        at = self.scroll_offset.y + event.y - 1
        if event.y == 0 and (column := self._column_at(event.x + self.scroll_offset.x)):
            self.post_message(self.Sorted(column.name))
        elif event.y > 0 and at < self.count:
            self.cursor = at
            if event.chain == 2:
                self.post_message(Opened())

    def _column_at(self, x: int) -> Column | None:
        right = 1
        for column, width in self._cells:
            right += width + self._gap
            if x < right:
                return column
        return None


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Make a text exactly `width` cells wide, with `…` where it was cut."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - size) + text if right else text + " " * (width - size)
