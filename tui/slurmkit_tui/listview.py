"""A view that is a table: filter, sort, columns, choice, copy and export are the same in all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult

from slurmkit.errors import SlurmkitError
from slurmkit.text import printable
from slurmkit_tui.feed import Answer
from slurmkit_tui.feed.sources import SOURCES
from slurmkit_tui.feed.threads import Latest
from slurmkit_tui.filterline import FilterLine
from slurmkit_tui.listing import Context, Listing
from slurmkit_tui.session import Session
from slurmkit_tui.sheet import Arranged, Sheet, Wish, arrange, make_sheet
from slurmkit_tui.table import Table
from slurmkit_tui.view import AT_ONCE, Part, View


class ListView(View):
    """Shows the rows of an answer that pass the filter, in the order wished for.

    Attributes:
        LISTING: what its rows are.
        columns: names of those shown at first; none for its usual ones.
    """

    LISTING: ClassVar[Listing]
    filters_rows = True

    def __init__(self, *, mine: bool = False) -> None:
        super().__init__(id=self.NAME)
        self._wish = Wish(mine=mine and self.LISTING.mine is not None)
        self._sheet: Sheet | None = None
        self._latest = Latest()
        self.columns: Sequence[str] = ()

    def compose(self) -> ComposeResult:
        """Stack the table and the filter."""
        table = Table(self.LISTING, f"asking {self._asked}…")
        known = {column.name: column for column in self.LISTING.columns}
        if wished := [known[name] for name in self.columns if name in known]:
            table.columns = wished
        yield table
        yield FilterLine()

    @property
    def _asked(self) -> str:
        return SOURCES[self.ask.what]

    # What a kind of row says of itself

    def rows_of(self, answer: Answer) -> Sequence[Any]:
        """The rows of an answer."""
        rows: Sequence[Any] = answer.value.rows
        return rows

    def context(self, answer: Answer, session: Session) -> Context:
        """What its texts depend on."""
        return Context(session.feed.me, answer.taken, cluster=session.cluster)

    def tally(self, rows: Sequence[Any], context: Context) -> Iterable[Part]:
        """What else the line above says of the rows shown; runs in a thread."""
        del rows, context
        return ()

    def aside(self) -> Iterable[Part]:
        """What the line above says that is not counted from the rows."""
        return ()

    # What is shown

    @property
    def table(self) -> Table:
        """The table."""
        return self.query_one(Table)

    @property
    def rows(self) -> Sequence[Any]:
        """See `View.rows`."""
        return self.table.rows_chosen

    @property
    def current(self) -> Any | None:
        """See `View.current`."""
        return self.table.selected

    @property
    def wish(self) -> Wish:
        """Which rows are wished for, and in which order."""
        return self._wish

    @property
    def filters(self) -> list[str]:
        """What limits the rows, in words."""
        text = self._wish.filter.text.strip()
        return [*(["mine"] if self._wish.mine else []), *([text] if text else [])]

    @property
    def clearable(self) -> bool:
        """See `View.clearable`."""
        return self.filtering or bool(self.table.chosen)

    @property
    def filtering(self) -> bool:
        """Whether the filter line is there."""
        return bool(self.query_one(FilterLine).display)

    def make(self, answer: Answer, session: Session) -> Arranged:
        """See `View.make`."""
        sheet = make_sheet(self.LISTING, self.rows_of(answer), self.context(answer, session))
        return self._counted(sheet, self._wish)

    def take(self, prepared: Arranged) -> None:
        """See `View.take`."""
        self._sheet = prepared.sheet
        if prepared.wish == self._wish:
            self._put(prepared)
        else:  # the wish changed while the answer was on its way
            self._arrange()

    def _counted(self, sheet: Sheet, wish: Wish) -> Arranged:
        """Filter, sort and count; may run in a thread."""
        found = arrange(sheet, wish)
        rows = list(map(sheet.rows.__getitem__, found.order))
        return found._replace(told=tuple(self.tally(rows, sheet.context)))

    def say(self, words: str) -> None:
        """See `View.say`."""
        self.table.show(None, words)

    def summary(self) -> Iterable[Part]:
        """See `View.summary`."""
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
            yield from self.table.arranged.told
        yield from self.aside()

    def focus_main(self) -> None:
        """See `View.focus_main`."""
        self.table.focus()

    # What changes it

    def wish_for(self, wish: Wish) -> None:
        """Show other rows, or in another order."""
        self._wish = wish
        self._arrange()

    def toggle_mine(self) -> None:
        """Show only my own, or everybody's again."""
        self.wish_for(replace(self._wish, mine=not self._wish.mine))

    def open_filter(self) -> None:
        """See `View.open_filter`."""
        self.query_one(FilterLine).open()

    def clear(self) -> None:
        """See `View.clear`."""
        if self.filtering:
            self.query_one(FilterLine).clear()
        else:
            self.table.choose_none()

    @on(FilterLine.Typed)
    def _typed(self, event: FilterLine.Typed) -> None:
        from slurmkit_tui.filters import (  # noqa: PLC0415 - when there is a filter
            FilterError,
            parse_filter,
        )

        event.stop()
        wrong = ""
        try:
            self.wish_for(replace(self._wish, filter=parse_filter(event.text, self.LISTING)))
        except FilterError as error:  # the rows stay as they were
            wrong = str(error)
        self.query_one(FilterLine).object_to(wrong)

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
        self.wish_for(self._wish.sorted_by(event.column))

    def _arrange(self) -> None:
        if self._sheet is None:
            return
        if len(self._sheet.rows) <= AT_ONCE:
            self._put(self._counted(self._sheet, self._wish))
        else:
            self._arrange_beside(self._sheet, self._wish)

    @work(description="arrange")
    async def _arrange_beside(self, sheet: Sheet, wish: Wish) -> None:
        try:
            arranged = await self._latest.run(partial(self._counted, sheet, wish))
        except SlurmkitError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        if arranged and arranged.sheet is self._sheet and arranged.wish == self._wish:
            self._put(arranged)

    def _put(self, arranged: Arranged) -> None:
        self.table.show(arranged, self._nothing())
        self.post_message(self.Changed())

    def _nothing(self) -> str:
        noun = self.LISTING.noun
        if self._wish.filter.text.strip():
            return f"no {noun} passes {', '.join(self.filters)}; Esc clears"
        if self._wish.mine:
            return f"no {noun} is mine; u shows all"
        return self.LISTING.empty or f"no {noun}s"
