"""The rows of a table made ready for the screen, away from the screen's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from slurmkit_tui.feed.turns import pause
from slurmkit_tui.listing import Column, Context, Listing

_SLICE = 500  # rows between two chances for the screen's thread to run

# Whether a row, with the text it is searched in, passes.
Test = Callable[[Any, str, Context], bool]


class Sheet(NamedTuple):
    """Rows at one moment.

    Attributes:
        keys: of the rows, in their order.
        texts: what is searched in each, in lower case.
        widths: cells that each column takes.
    """

    listing: Listing
    rows: Sequence[Any]
    keys: Sequence[str]
    texts: Sequence[str]
    widths: dict[str, int]
    context: Context


@dataclass(frozen=True)
class Filter:
    """A filter that was understood; all its terms have to pass.

    Attributes:
        text: as it was typed.
    """

    text: str = ""
    needles: tuple[str, ...] = ()
    tests: tuple[Test, ...] = ()

    def passed(
        self, rows: Sequence[Any], texts: Sequence[str], places: Sequence[int], context: Context
    ) -> Sequence[int]:
        """The places of the rows that pass; words first, they cost the least."""
        for needle in self.needles:
            places = [at for at in places if needle in texts[at]]
        for test in self.tests:
            places = [at for at in places if test(rows[at], texts[at], context)]
        return places


EVERYTHING = Filter()


@dataclass(frozen=True)
class Wish:
    """Which rows to show, and in which order.

    Attributes:
        sort: name of a column; empty for the order in which the rows came.
        mine: only the person's own.
    """

    filter: Filter = EVERYTHING
    sort: str = ""
    descending: bool = False
    mine: bool = False

    def sorted_by(self, name: str) -> Wish:
        """By a column; once more turns it around; the third time undoes it."""
        if name != self.sort:
            return replace(self, sort=name, descending=False)
        if not self.descending:
            return replace(self, descending=True)
        return replace(self, sort="", descending=False)


class Arranged(NamedTuple):
    """A sheet and which of its rows are shown, by their places in it.

    Attributes:
        told: what the line above says of these rows, counted once.
    """

    sheet: Sheet
    wish: Wish
    order: Sequence[int]
    told: Sequence[str | tuple[str, str]] = ()


def make_sheet(listing: Listing, rows: Sequence[Any], context: Context) -> Sheet:
    """Make rows ready in slices, so that no thread waits long for the interpreter."""
    keys: list[str] = []
    texts: list[str] = []
    for part in _slices(rows):
        keys += map(listing.key, part)
        texts += map(str.lower, map(listing.haystack, part))
        pause()
    widths = {}
    for column in listing.columns:
        widths[column.name] = column.width(rows)
        pause()
    return Sheet(listing, rows, keys, texts, widths, context)


def arrange(sheet: Sheet, wish: Wish) -> Arranged:
    """Filter and sort."""
    places: Sequence[int] = range(len(sheet.rows))
    mine = sheet.listing.mine
    if wish.mine and mine is not None:
        places = [at for at in places if mine(sheet.rows[at], sheet.context)]
    places = wish.filter.passed(sheet.rows, sheet.texts, places, sheet.context)
    column = sheet.listing.column(wish.sort)
    if wish.sort and column is not None:
        places = _sorted(sheet.rows, places, column, descending=wish.descending)
    return Arranged(sheet, wish, places)


def _sorted(
    rows: Sequence[Any], places: Sequence[int], column: Column, *, descending: bool
) -> list[int]:
    values = {at: column.value(rows[at]) for at in places}
    known = [at for at in places if values[at] is not None]
    unknown = [at for at in places if values[at] is None]
    known.sort(key=values.__getitem__, reverse=descending)  # type: ignore[arg-type]
    return known + unknown


def _slices(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[at : at + _SLICE] for at in range(0, len(rows), _SLICE))
