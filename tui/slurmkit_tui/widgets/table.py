"""The table widget. It draws only the rows on screen, so 50,000 rows are as fast as 50."""

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

from slurmkit.formats.display import printable
from slurmkit_tui import themes
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.widgets.listing import ArrangedRows, Listing, RowContext, TableColumn
from slurmkit_tui.widgets.messages import PreviewOutdated, RowOpened

NARROW = 100  # width of the screen in cells below which texts are shortened
CELL_STYLES = frozenset({"cell--mine", "cell--gpus", "cell--muted", "cell--warn", "cell--bad"})
_CURSOR, _CHOSEN = "▸", "●"


class _Cell(NamedTuple):
    """A column and its current width in cells."""

    column: TableColumn
    width: int


class Table(ScrollView, can_focus=True):
    """A table with a fixed header, and a cursor that follows its row by key."""

    BINDINGS = key_bindings("table")
    COMPONENT_CLASSES = {"table--header", "table--cursor", "table--chosen", "table--empty"} | (
        themes.STATE_STYLES | CELL_STYLES
    )
    cursor = reactive(0, repaint=False)

    class Chosen(Message):
        """The set of chosen rows has changed."""

    class Sorted(Message):
        """The header of a column was clicked."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(self, listing: Listing, empty: str) -> None:
        super().__init__()
        self.listing = listing
        self.columns: Sequence[TableColumn] = [each for each in listing.columns if each.shown]
        self.chosen: set[str] = set()
        self._chosen_rows: list[Any] | None = None  # cache; None when out of date
        self._arranged: ArrangedRows | None = None
        self._rows: Sequence[Any] = ()
        self._keys: Sequence[str] = ()
        self._order: Sequence[int] = ()
        self._empty = empty
        self._cells: list[_Cell] = []
        self._gap = 1
        self._base = Style()

    # Content

    @property
    def arranged(self) -> ArrangedRows | None:
        """The rows shown; None before the first answer."""
        return self._arranged

    @property
    def count(self) -> int:
        """Number of rows that pass the filter, on screen or not."""
        return len(self._order)

    def row(self, at: int) -> Any:
        """Return the row at a position of the table."""
        return self._rows[self._order[at]]

    def key(self, at: int) -> str:
        """Return the key of the row at a position of the table."""
        return self._keys[self._order[at]]

    @property
    def selected(self) -> Any | None:
        """The row under the cursor."""
        return self.row(self.cursor) if self._order else None

    @property
    def chosen_rows(self) -> list[Any]:
        """The chosen rows, or else the one under the cursor."""
        if not self._order:
            return []
        if self._chosen_rows is None:  # needed for each key that may change something
            some = self._order if self.chosen else ()
            self._chosen_rows = [self._rows[at] for at in some if self._keys[at] in self.chosen]
        return self._chosen_rows or [self.selected]

    @property
    def rows_shown(self) -> list[Any]:
        """All rows that pass the filter, in the order shown."""
        return list(map(self._rows.__getitem__, self._order))

    def show(self, arranged: ArrangedRows | None, empty: str) -> None:
        """Show other rows; the cursor and the chosen rows stay.

        Args:
            arranged: the rows; None for none.
            empty: text shown when there are no rows.
        """
        at = self.key(self.cursor) if self._order else None
        place = self.cursor - self.scroll_offset.y
        self._arranged, self._empty = arranged, empty
        self._rows = arranged.sheet.rows if arranged else ()
        self._keys = arranged.sheet.keys if arranged else ()
        self._order = arranged.order if arranged else ()
        if arranged and self.chosen:
            self.chosen &= set(self._keys)
        self._chosen_rows = None
        self._measure()
        self.cursor = self._find(at)
        if self.scroll_offset.y:  # keep the cursor's row at its place on screen
            self.scroll_to(y=max(0, self.cursor - place), animate=False)
        self._reveal()
        self.refresh()

    def _find(self, key: str | None) -> int:
        if key is not None:
            with suppress(ValueError):
                return list(map(self._keys.__getitem__, self._order)).index(key)
        return max(0, min(self.cursor, self.count - 1))

    # Drawing

    @property
    def _narrow(self) -> bool:
        return self.app.size.width < NARROW

    def choose_columns(self, columns: Sequence[TableColumn]) -> None:
        """Show other columns."""
        self.columns = columns
        self._measure()
        self.refresh()

    def _measure(self) -> None:
        columns = [each for each in self.columns if not (each.wide and self._narrow)]
        self._cells = [_Cell(each, self._width(each)) for each in columns]
        narrowest = 1 + sum(cell.width for cell in self._cells) + max(0, len(columns) - 1)
        spread = narrowest + max(0, len(columns) - 1)
        room = self.size.width - (self.count >= self.size.height)  # less the scrollbar
        self._gap = 2 if spread <= room else 1
        spread += self._widen(room - spread)
        self.virtual_size = Size(spread if self._gap == 2 else narrowest, self.count + 1)

    def _width(self, column: TableColumn) -> int:
        widths = self._arranged.sheet.widths if self._arranged else {}
        widest = widths.get(column.name, 0)
        if self._narrow:
            widest = min(widest, 3 if column.brief is not str else column.narrow)
        return max(cell_len(self._title(column)), min(widest, column.limit))

    def _widen(self, free: int) -> int:
        """Give free cells to columns whose texts are cut; return how many were given."""
        widths = self._arranged.sheet.widths if self._arranged and not self._narrow else {}
        given = 0
        for at, (column, width) in enumerate(self._cells):
            more = min(widths.get(column.name, 0) - width, free - given)
            if more > 0:
                self._cells[at] = _Cell(column, width + more)
                given += more
        return given

    def _title(self, column: TableColumn) -> str:
        title = (column.short or column.title) if self._narrow else column.title
        query = self._arranged.query if self._arranged else None
        if query is None or query.sort != column.name:
            return title
        return f"{title}{'▼' if query.descending else '▲'}"

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw the visible lines; the base style is computed once, not for every cell."""
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draw one line of the screen; Textual calls this for visible lines only."""
        left, top = self.scroll_offset
        if y == 0:
            return self._header(left)
        strip = self._body(top + y - 1)
        return strip.crop_extend(left, left + self.size.width, self._base)

    def _header(self, left: int) -> Strip:
        """Draw the titles; a mark at either end shows that there are more columns on that side."""
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
        context = self._arranged.sheet.context if self._arranged else RowContext()
        for column, _ in self._cells:
            name, text = column.style(row, context), printable(column.text(row, context))
            own = self.get_component_rich_style(name, partial=True) if name else None
            yield column.brief(text) if self._narrow else text, base + own if own else base

    def _row(self, mark: str, cells: Iterable[tuple[str, Style]], base: Style) -> Strip:
        gap = Segment(" " * self._gap, base)
        segments = [Segment(mark, base)]
        for (text, style), (column, width) in zip(cells, self._cells, strict=True):
            segments += [Segment(fit_text(text, width, right=column.right), style), gap]
        missing = self.size.width - sum(cell_len(segment.text) for segment in segments)
        return Strip([*segments, Segment(" " * max(0, missing), base)])

    # Keys and mouse

    def validate_cursor(self, cursor: int) -> int:
        """Keep the cursor on a row."""
        return max(0, min(cursor, self.count - 1))

    def watch_cursor(self, old: int, new: int) -> None:
        """Redraw the old and the new row, and scroll the new one into view."""
        self.refresh_lines(old + 1)
        self.refresh_lines(new + 1)
        self._reveal()
        self.post_message(PreviewOutdated())

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
        """Choose the row under the cursor, or undo that, and go to the next row."""
        if self._order:
            self._choose(self.chosen ^ {self.key(self.cursor)})
            self.refresh_lines(self.cursor + 1)
            self.cursor += 1

    def action_choose_all(self) -> None:
        """Choose all rows shown, or none if all are chosen."""
        shown = set(map(self._keys.__getitem__, self._order))
        self._choose(set() if shown <= self.chosen else shown)
        self.refresh()

    def clear_choice(self) -> None:
        """Undo the choice of all rows."""
        self._choose(set())
        self.refresh()

    def _choose(self, keys: set[str]) -> None:
        self.chosen, self._chosen_rows = keys, None
        self.post_message(self.Chosen())

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if self._order:
            self.post_message(RowOpened())

    def on_resize(self) -> None:
        """Fit the columns to the new size."""
        self._measure()
        self._reveal()
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the mouse; a double click opens the row, a click on a header sorts."""
        at = self.scroll_offset.y + event.y - 1
        if event.y == 0 and (column := self._column_at(event.x + self.scroll_offset.x)):
            self.post_message(self.Sorted(column.name))
        elif event.y > 0 and at < self.count:
            self.cursor = at
            if event.chain == 2:
                self.post_message(RowOpened())

    def _column_at(self, x: int) -> TableColumn | None:
        right = 1
        for column, width in self._cells:
            right += width + self._gap
            if x < right:
                return column
        return None


def fit_text(text: str, width: int, *, right: bool = False) -> str:
    """Pad or cut a text to exactly `width` cells; a cut text ends with `…`."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - size) + text if right else text + " " * (width - size)
