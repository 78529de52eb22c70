"""Declarations of tables, and their rows filtered and sorted.

A table's columns say how a value is shown, sorted and searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

from slurmkit.formats.display import printable
from slurmkit_tui.feed.threads import let_others_run

Value = str | float | None
_SLICE = 500  # rows between two pauses for the screen's thread


@dataclass(frozen=True)
class RowContext:
    """What the text of a cell may depend on besides its row.

    Attributes:
        me: login name of the person at the screen.
        now: epoch seconds at which the rows were read.
        gpus_known: whether the cluster tracks GPUs at all.
        cluster: name of the cluster; None while unknown.
    """

    me: str = ""
    now: float = 0.0
    gpus_known: bool = True
    cluster: str | None = None


def no_style(_row: Any, _context: RowContext) -> str:
    """Return no style class, for an ordinary cell."""
    return ""


@dataclass(frozen=True)
class TableColumn:
    """One column of a table.

    Attributes:
        name: name for filters (`user:alice`), sorting and the choice of columns.
        title: the header.
        text: returns the text of a cell; called only for rows on screen. It may hold control
            characters.
        value: returns the value to sort and compare by; a number where `>` and `<` make sense.
            None is unknown, and comes last.
        size: width in cells, or a fast function that returns the width from all rows.
        match: returns the text that `name:text` searches, if it is not the value.
        aliases: other names.
        short: the header on a narrow screen.
        limit: largest width in cells, unless the screen has room to spare; a longer text is cut,
            and Enter shows it in full.
        narrow: largest width on a narrow screen.
        wide: whether the column is left out on a narrow screen.
        right: whether it is aligned right.
        brief: shortens a text on a narrow screen.
        style: returns the style class of a cell; empty for none.
        shown: whether the column is shown by default.
    """

    name: str
    title: str
    text: Callable[[Any, RowContext], str]
    value: Callable[[Any], Value]
    size: int | Callable[[Sequence[Any]], int] = 8
    match: Callable[[Any], str] | None = None
    aliases: tuple[str, ...] = ()
    short: str = ""
    limit: int = 16
    narrow: int = 14
    wide: bool = False
    right: bool = False
    brief: Callable[[str], str] = str
    style: Callable[[Any, RowContext], str] = no_style
    shown: bool = True

    def width(self, rows: Sequence[Any]) -> int:
        """Return the width of the widest text in cells, exactly or nearly."""
        return self.size if isinstance(self.size, int) else self.size(rows)


@dataclass(frozen=True)
class Listing:
    """One kind of row, with all columns that can be shown.

    Attributes:
        noun: name of a row in the singular: `job`.
        key: returns a key that stays the same for this row in the next answer.
        haystack: returns the text that a filter word without a field is searched in.
        empty: text shown when there are no rows at all.
        mine: returns whether a row is the person's own; None if rows have no owner.
    """

    noun: str
    columns: tuple[TableColumn, ...]
    key: Callable[[Any], str]
    haystack: Callable[[Any], str]
    mine: Callable[[Any, RowContext], bool] | None = None
    empty: str = ""

    def column(self, name: str) -> TableColumn | None:
        """Return the column with this name, alias, or unique begin of a name; None for none."""
        word = name.lower()
        for column in self.columns:
            if word in (column.name, *column.aliases):
                return column
        begun = [column for column in self.columns if word and column.name.startswith(word)]
        return begun[0] if len(begun) == 1 else None

    def counted(self, number: int) -> str:
        """Return a number with the noun: `3 jobs`."""
        return f"{number:,} {self.noun}{'' if number == 1 else 's'}"


def longest_text(attribute: str) -> Callable[[Sequence[Any]], int]:
    """Return a function for the width of a column whose text is an attribute.

    It measures with built-in functions alone, which is fast for many rows.
    """
    get = attrgetter(attribute)

    def width(rows: Sequence[Any]) -> int:
        texts = list(map(get, rows))
        shown = texts if "".join(texts).isprintable() else map(printable, texts)
        return max(map(len, shown), default=0)

    return width


# Returns whether a row passes; the text is the row's searchable text.
RowTest = Callable[[Any, str, RowContext], bool]


class PreparedRows(NamedTuple):
    """The rows of one answer, prepared for a table.

    Attributes:
        keys: key of each row.
        texts: searchable text of each row, in lower case.
        widths: width of each column in cells, by name.
    """

    listing: Listing
    rows: Sequence[Any]
    keys: Sequence[str]
    texts: Sequence[str]
    widths: dict[str, int]
    context: RowContext


@dataclass(frozen=True)
class RowFilter:
    """A parsed filter; a row must pass all terms.

    Attributes:
        text: the filter as typed.
        needles: texts that must occur in the row's searchable text.
        tests: functions for all other terms.
    """

    text: str = ""
    needles: tuple[str, ...] = ()
    tests: tuple[RowTest, ...] = ()

    def passing(
        self, rows: Sequence[Any], texts: Sequence[str], places: Sequence[int], context: RowContext
    ) -> Sequence[int]:
        """Return the indices of the rows that pass. Words come first: they cost the least."""
        for needle in self.needles:
            places = [at for at in places if needle in texts[at]]
        for test in self.tests:
            places = [at for at in places if test(rows[at], texts[at], context)]
        return places


NO_FILTER = RowFilter()


@dataclass(frozen=True)
class RowQuery:
    """Which rows to show, and in which order.

    Attributes:
        sort: name of the sort column; empty for the order of the answer.
        mine: show only the person's own rows.
    """

    filter: RowFilter = NO_FILTER
    sort: str = ""
    descending: bool = False
    mine: bool = False

    def sorted_by(self, name: str) -> RowQuery:
        """Return a copy sorted by a column: first ascending, then descending, then unsorted."""
        if name != self.sort:
            return replace(self, sort=name, descending=False)
        if not self.descending:
            return replace(self, descending=True)
        return replace(self, sort="", descending=False)


class ArrangedRows(NamedTuple):
    """The rows to show, after filtering and sorting.

    Attributes:
        order: indices of the rows to show, in order.
        counts: numbers of these rows, for the line above the view.
        notes: lines below the table, of the answer that the rows are from.
    """

    sheet: PreparedRows
    query: RowQuery
    order: Sequence[int]
    counts: Sequence[str | tuple[str, str]] = ()
    notes: Sequence[str] = ()


def prepare_rows(listing: Listing, rows: Sequence[Any], context: RowContext) -> PreparedRows:
    """Prepare rows in slices, so that no other thread waits long for the interpreter."""
    keys: list[str] = []
    texts: list[str] = []
    for at in range(0, len(rows), _SLICE):
        part = rows[at : at + _SLICE]
        keys += map(listing.key, part)
        texts += map(str.lower, map(listing.haystack, part))
        let_others_run()
    widths = {}
    for column in listing.columns:
        widths[column.name] = column.width(rows)
        let_others_run()
    return PreparedRows(listing, rows, keys, texts, widths, context)


def arrange_rows(sheet: PreparedRows, query: RowQuery) -> ArrangedRows:
    """Filter and sort the rows."""
    places: Sequence[int] = range(len(sheet.rows))  # indices of the rows
    mine = sheet.listing.mine
    if query.mine and mine is not None:
        places = [at for at in places if mine(sheet.rows[at], sheet.context)]
    places = query.filter.passing(sheet.rows, sheet.texts, places, sheet.context)
    column = sheet.listing.column(query.sort)
    if query.sort and column is not None:
        places = _sorted(sheet.rows, places, column, descending=query.descending)
    return ArrangedRows(sheet, query, places)


def _sorted(
    rows: Sequence[Any], places: Sequence[int], column: TableColumn, *, descending: bool
) -> list[int]:
    """Sort indices by a column; rows with an unknown value come last in both directions."""
    values = {at: column.value(rows[at]) for at in places}
    known = [at for at in places if values[at] is not None]
    unknown = [at for at in places if values[at] is None]
    known.sort(key=values.__getitem__, reverse=descending)  # type: ignore[arg-type]
    return known + unknown
