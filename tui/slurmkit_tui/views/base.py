"""Base classes of the views: any view, and one that is a table, with or without notes.

A table view has a filter, a sort order, columns and chosen rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message

from slurmkit.errors import SlurmkitError
from slurmkit.formats.display import printable
from slurmkit_tui.feed import SOURCE_NAMES, FeedAnswer, FeedQuestion
from slurmkit_tui.feed.threads import NewestOnly
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.widgets.filter_line import FilterLine
from slurmkit_tui.widgets.listing import (
    ArrangedRows,
    Listing,
    PreparedRows,
    RowContext,
    RowQuery,
    arrange_rows,
    prepare_rows,
)
from slurmkit_tui.widgets.messages import PreviewOutdated
from slurmkit_tui.widgets.table import Table
from slurmkit_tui.widgets.wrapped_text import TextLine, WrappedText

SummaryPart = str | tuple[str, str]
_NOTE_INDENT = 2
AT_ONCE = 5000  # rows that are filtered and sorted within one frame; more need a thread


class FurtherQuestion(NamedTuple):
    """A question whose answer a view shows in addition to its own.

    Attributes:
        ask: the question.
        every: time between two questions, as a multiple of the interval.
    """

    ask: FeedQuestion
    every: float


class View(Vertical):
    """A view that a digit switches to; `views.VIEWS` lists all.

    Attributes:
        NAME: name in the configuration: `queue`.
        ASK: question whose answer the view shows.
        EVERY: time between two questions, as a multiple of the interval.
        OF_JOBS: whether Enter opens a job.
        IS_TABLE: whether the rows are in a table.
        HAS_ROWS: whether there are rows at all, which Enter opens and actions apply to.
        filters_rows: whether the rows can be filtered.
        SHOWS_PARTS: whether answers to further questions are shown while its own has none.
        also: further questions, asked one after another.
    """

    NAME: ClassVar[str]
    ASK: ClassVar[FeedQuestion]
    EVERY: ClassVar[float] = 1.0
    OF_JOBS: ClassVar[bool] = False
    IS_TABLE: ClassVar[bool] = False
    HAS_ROWS: ClassVar[bool] = True
    SHOWS_PARTS: ClassVar[bool] = False
    filters_rows: ClassVar[bool] = False
    also: Sequence[FurtherQuestion] = ()

    class Changed(Message):
        """Other rows are shown: the line above must be updated."""

    class Asks(Message):
        """The question of the view has changed: ask it now."""

    class Opened(Message):
        """A part of the view was opened: go to the view it is taken from."""

        def __init__(self, view: str) -> None:
            super().__init__()
            self.view = view

    @on(events.Resize)
    def _let_preview_follow(self) -> None:
        self.post_message(PreviewOutdated())

    @property
    def ask(self) -> FeedQuestion:
        """The current question of the view."""
        return self.ASK

    def make(self, answer: Any, session: ClusterSession) -> Any:
        """Prepare an answer for the screen. Runs in a thread and touches no widget.

        Args:
            answer: a `FeedAnswer`; None for a view with `SHOWS_PARTS` while its own has none.
            session: has the answers to the further questions.
        """
        raise NotImplementedError

    def take(self, prepared: Any) -> None:
        """Show an answer that `make` prepared."""
        raise NotImplementedError

    def say(self, words: str) -> None:
        """Show a text instead of rows."""
        raise NotImplementedError

    def summary(self) -> Iterable[SummaryPart]:
        """Return the parts of the line above the view: counts of the rows shown."""
        return ()

    @property
    def rows(self) -> Sequence[Any]:
        """Rows that actions apply to: the chosen ones, or the one under the cursor."""
        return ()

    @property
    def current(self) -> Any | None:
        """The row that Enter opens; None if there is none."""
        return self.rows[0] if self.rows else None

    @property
    def lines_wanted(self) -> int | None:
        """Lines of the screen that its rows need; None if it uses as many as there are."""
        return None

    @property
    def clearable(self) -> bool:
        """Whether there is a filter, or chosen rows, that Esc clears."""
        return False

    @property
    def knows_mine(self) -> bool:
        """Whether the view can show only my rows."""
        return False

    def open_filter(self) -> None:
        """Open the filter line."""

    def clear(self) -> None:
        """Clear the filter, or else the chosen rows."""

    def focus_main(self) -> None:
        """Focus the main widget of the view."""
        raise NotImplementedError


class TableView(View):
    """A view that shows the rows of an answer in a table, filtered and sorted.

    Attributes:
        LISTING: kind of its rows, with all columns.
        columns: names of the columns shown at first; empty for the default ones.
    """

    LISTING: ClassVar[Listing]
    IS_TABLE = True
    filters_rows = True

    def __init__(self, *, mine: bool = False) -> None:
        super().__init__(id=self.NAME)
        self._row_query = RowQuery(mine=mine and self.LISTING.mine is not None)
        self._sheet: PreparedRows | None = None
        self._latest = NewestOnly()
        self.columns: Sequence[str] = ()

    def compose(self) -> ComposeResult:
        """Stack the table and the filter."""
        table = Table(self.LISTING, f"asking {self._asked}…")
        known = {column.name: column for column in self.LISTING.columns}
        if chosen := [known[name] for name in self.columns if name in known]:
            table.columns = chosen
        yield table
        yield FilterLine()

    @property
    def _asked(self) -> str:
        return SOURCE_NAMES[self.ask.what]

    # For subclasses: what differs by kind of row

    def rows_of(self, answer: FeedAnswer) -> Sequence[Any]:
        """Return the rows of an answer."""
        rows: Sequence[Any] = answer.value.rows
        return rows

    def context(self, answer: FeedAnswer, session: ClusterSession) -> RowContext:
        """Return the context on which the texts of the cells depend."""
        return RowContext(session.feed.me, answer.taken, cluster=session.cluster)

    def tally(self, rows: Sequence[Any], context: RowContext) -> Iterable[SummaryPart]:
        """Count the rows shown, for the line above the view. Runs in a thread."""
        del rows, context
        return ()

    def aside(self) -> Iterable[SummaryPart]:
        """Return parts of the line above the view that are not counted from the rows."""
        return ()

    # The rows shown

    @property
    def table(self) -> Table:
        """The table."""
        return self.query_one(Table)

    @property
    def rows(self) -> Sequence[Any]:
        return self.table.chosen_rows

    @property
    def current(self) -> Any | None:
        return self.table.selected

    @property
    def lines_wanted(self) -> int | None:
        """Lines of the header, the rows, and the filter line."""
        return 1 + self.table.count + self.filtering

    @property
    def row_query(self) -> RowQuery:
        """The current filter and sort order."""
        return self._row_query

    @property
    def filters(self) -> list[str]:
        """The active filters as texts."""
        text = self._row_query.filter.text.strip()
        return [*(["mine"] if self._row_query.mine else []), *([text] if text else [])]

    @property
    def clearable(self) -> bool:
        return self.filtering or bool(self.table.chosen)

    @property
    def knows_mine(self) -> bool:
        return self.LISTING.mine is not None

    @property
    def filtering(self) -> bool:
        """Whether the filter line is visible."""
        return bool(self.query_one(FilterLine).display)

    def make(self, answer: FeedAnswer, session: ClusterSession) -> ArrangedRows:
        sheet = prepare_rows(self.LISTING, self.rows_of(answer), self.context(answer, session))
        return self._arranged(sheet, self._row_query)

    def take(self, prepared: ArrangedRows) -> None:
        self._sheet = prepared.sheet
        if prepared.query == self._row_query:
            self._put(prepared)
        else:  # filter or order changed in the meantime
            self._arrange()

    def _arranged(self, sheet: PreparedRows, query: RowQuery) -> ArrangedRows:
        """Filter, sort and count rows; may run in a thread."""
        arranged = arrange_rows(sheet, query)
        rows = list(map(sheet.rows.__getitem__, arranged.order))
        return arranged._replace(counts=tuple(self.tally(rows, sheet.context)))

    def say(self, words: str) -> None:
        self.table.show(None, words)

    def summary(self) -> Iterable[SummaryPart]:
        if self._sheet is None:
            return
        listing, total, shown = self.LISTING, len(self._sheet.rows), self.table.count
        if self.filters:
            yield f"{shown:,} of {listing.counted(total)} ({printable(', '.join(self.filters))})"
        else:
            yield listing.counted(total)
        if chosen := len(self.table.chosen):
            yield (f"{chosen:,} chosen", "$accent bold")
        if self.table.arranged is not None:
            yield from self.table.arranged.counts
        yield from self.aside()

    def focus_main(self) -> None:
        self.table.focus()

    # Changes by the person

    def set_row_query(self, query: RowQuery) -> None:
        """Change the filter or the sort order."""
        self._row_query = query
        self._arrange()

    def toggle_mine(self) -> None:
        """Toggle between my rows and all rows."""
        self.set_row_query(replace(self._row_query, mine=not self._row_query.mine))

    def open_filter(self) -> None:
        self.query_one(FilterLine).open()

    def clear(self) -> None:
        if self.filtering:
            self.query_one(FilterLine).clear()
        else:
            self.table.clear_choice()

    @on(FilterLine.FilterTyped)
    def _typed(self, event: FilterLine.FilterTyped) -> None:
        # The grammar is imported when a filter is first typed.
        from slurmkit_tui.widgets.filters import FilterError, parse_filter  # noqa: PLC0415 - not for the first paint

        event.stop()
        wrong = ""
        try:
            self.set_row_query(
                replace(self._row_query, filter=parse_filter(event.text, self.LISTING))
            )
        except FilterError as error:  # the rows stay as they were
            wrong = str(error)
        self.query_one(FilterLine).show_error(wrong)

    @on(FilterLine.Left)
    def _left(self, event: FilterLine.Left) -> None:
        event.stop()
        self.screen.set_focus(self.table)

    @on(Table.Chosen)
    def _choose(self, event: Table.Chosen) -> None:
        event.stop()
        self.post_message(self.Changed())
        self.refresh_bindings()

    @on(Table.Sorted)
    def _sort_by(self, event: Table.Sorted) -> None:
        event.stop()
        self.set_row_query(self._row_query.sorted_by(event.column))

    def _arrange(self) -> None:
        if self._sheet is None:
            return
        if len(self._sheet.rows) <= AT_ONCE:
            self._put(self._arranged(self._sheet, self._row_query))
        else:
            self._arrange_in_thread(self._sheet, self._row_query)

    @work(description="arrange")
    async def _arrange_in_thread(self, sheet: PreparedRows, query: RowQuery) -> None:
        try:
            arranged = await self._latest.run(partial(self._arranged, sheet, query))
        except SlurmkitError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        if arranged and arranged.sheet is self._sheet and arranged.query == self._row_query:
            self._put(arranged)

    def _put(self, arranged: ArrangedRows) -> None:
        self.table.show(arranged, self._empty_text())
        self.post_message(self.Changed())

    def _empty_text(self) -> str:
        """Return the text for a table without rows."""
        noun = self.LISTING.noun
        if self._row_query.filter.text.strip():
            return f"no {noun} matches {', '.join(self.filters)}; Esc clears the filter"
        if self._row_query.mine:
            return f"no {noun} is yours; u shows all"
        return self.LISTING.empty or f"no {noun}s"


class TableViewWithNotes(TableView):
    """A table view with lines of notes below the table; see `TableView`."""

    def compose(self) -> ComposeResult:
        """Put the notes between the table and the filter."""
        table, line = super().compose()
        yield table
        yield WrappedText(classes="notes")
        yield line

    @property
    def lines_wanted(self) -> int | None:
        return None

    def notes(self, answer: FeedAnswer, session: ClusterSession) -> Sequence[str]:
        """Return the lines of notes; the caller escapes control characters."""
        raise NotImplementedError

    def make(self, answer: FeedAnswer, session: ClusterSession) -> ArrangedRows:
        notes = tuple(self.notes(answer, session))
        return super().make(answer, session)._replace(notes=notes)

    def take(self, prepared: ArrangedRows) -> None:
        super().take(prepared)
        lines = [TextLine(Content(printable(note)), _NOTE_INDENT) for note in prepared.notes]
        self.query_one(".notes", WrappedText).show(lines)
