"""Tables, named facts and wrapped text on a terminal. Text from outside is escaped here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice, repeat
from textwrap import TextWrapper
from types import ModuleType
from typing import NamedTuple, TypeAlias

import click

from slurmkit.formats.display import printable

Paint = Callable[[str, str], str | None]
"""Returns the colour of a cell from its column's name and its text; None for no colour."""

_LINES_PER_WRITE = 1000  # lines written in one call
_NARROWEST_WRAPPED = 40  # columns; in a narrower terminal no line is wrapped
_NARROWEST_TEXT = 8  # columns to which a text may be cut
_WRAPPED_TEXT = 24  # columns to which a text is wrapped before columns are left out
_NARROWEST_CELL = 12  # columns to which a text is cut before columns are left out, or wrapped after
_BREAK_AFTER = ",-_/:"  # signs after which a long word is broken
_CUT_MARK = "…"


class Fit(NamedTuple):
    """What a table gives up first on a narrow terminal, by the names of its columns.

    A text that is named nowhere is cut, a number never.

    Attributes:
        whole: columns whose texts are not cut. If no column is left to leave out, they are wrapped.
        wrapped: likewise, but they are wrapped before columns are left out.
        least: columns in the order in which they are left out. After them come those that are
            neither `whole` nor `wrapped`, from the last one on.
    """

    whole: Collection[str] = ()
    wrapped: Collection[str] = ()
    least: Sequence[str] = ()


_PLAIN = Fit()


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    paint: Paint | None = None,
    fit: Fit = _PLAIN,
) -> None:
    """Print rows under a header to standard output.

    On a terminal the table is made to fit: long texts are cut or wrapped, and columns are left
    out, as `fit` says. `…` ends a text that was cut, and a header that lacks columns. In a pipe
    nothing is cut, wrapped or coloured.

    Args:
        header: names of the columns.
        rows: texts of the cells.
        right: names of number columns; they are aligned right and never cut.
        paint: gives the colour of a cell; not used if NO_COLOR is set.
        fit: which columns matter most.
    """
    lines = format_table(header, rows, right=right, paint=paint, fit=fit)
    while block := list(islice(lines, _LINES_PER_WRITE)):
        click.echo("\n".join(block))


def format_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    paint: Paint | None = None,
    fit: Fit = _PLAIN,
) -> Iterator[str]:
    """Yield the lines that `print_table` prints."""
    columns = [_escape_cells(cells) for cells in zip(tuple(header), *map(tuple, rows), strict=True)]
    names, texts, terminal = list(header), columns, sys.stdout.isatty()
    if terminal:
        names, texts, columns = _fit_columns(names, columns, right, fit)
    padded = [
        _pad_cells(cells, right=name in right) for name, cells in zip(names, columns, strict=True)
    ]
    lines = map(str.rstrip, map("  ".join, zip(*padded, strict=True)))
    colours = paint if has_colours() else None
    if terminal:
        lines = map(_cut_text, lines, repeat(terminal_columns()))
    if colours is None:
        yield from lines
        return
    # Colours depend on the whole texts, from before they were cut.
    whole, cells = zip(*texts, strict=True), zip(*padded, strict=True)
    for line, row, pads in zip(lines, whole, cells, strict=True):
        yield _colour_line(line, pads, zip(names, row, strict=True), colours)


def print_key_values(facts: Iterable[tuple[str, str]]) -> None:
    """Print named facts, one a line, to standard output.

    On a terminal long texts are wrapped, except those that begin with a blank: commands.
    """
    for line in format_key_values(facts):
        click.echo(line)


def format_key_values(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines that `print_key_values` prints."""
    pairs = list(facts)
    size = max(len(name) for name, _ in pairs)
    room = terminal_columns() - size - 2 if sys.stdout.isatty() else 0
    for name, value in pairs:
        shown = printable(value)
        is_command = shown.startswith(" ") and not shown.startswith("  ")
        fits = room < _NARROWEST_WRAPPED or shown.startswith(" ") or len(shown) <= room
        lines = [shown[is_command:]] if fits else _wrap(shown, room)
        for at, line in enumerate(lines):
            yield f"{'' if at else name:{size}}  {line}"


def print_wrapped(head: str, text: str, *, indent: int, err: bool = False) -> None:
    """Print `head`, which may be coloured, and a text from outside after it.

    On a terminal long text is wrapped, and its further lines are indented by `indent` blanks.
    """
    stream = sys.stderr if err else sys.stdout
    shown, begun = printable(text), cell_width(click.unstyle(head))
    room = terminal_columns() if stream.isatty() else 0
    if room - indent >= _NARROWEST_WRAPPED and begun + cell_width(shown) > room:
        shown = "\n".join(_wrap(shown, room, first=begun, others=indent))[begun:]
    click.echo(head + shown, err=err)


def _wrap(text: str, room: int, *, first: int = 0, others: int = 0) -> list[str]:
    """Wrap text to lines of at most `room` columns, the first indented by `first` blanks."""
    wrapper = TextWrapper(room, initial_indent=" " * first, subsequent_indent=" " * others)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.wrap(text)


def has_colours() -> bool:
    """Return whether standard output gets colours."""
    wanted = wants_colours()
    return sys.stdout.isatty() if wanted is None else wanted


def wants_colours() -> bool | None:
    """Return whether the environment asks for colours or against them; None: on a terminal only.

    NO_COLOR (https://no-color.org) wins over FORCE_COLOR (https://force-color.org).
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None


def in_colour(text: str, colour: str | None, *, bold: bool = False) -> str:
    """Return a text in a colour, unless colours are unwanted; click removes it in a pipe."""
    if colour is None or wants_colours() is False:
        return text
    return click.style(text, fg=colour, bold=bold or None)


def cell_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return int(_rich_cells().cell_len(text))


def _rich_cells() -> ModuleType:
    from rich import cells

    return cells


def terminal_columns() -> int:
    """Return the width of the terminal; 80 in a pipe."""
    return terminal_size().columns


def terminal_size() -> os.terminal_size:
    """Return the columns and lines of the terminal; 80 and 24 in a pipe."""
    import shutil

    return shutil.get_terminal_size()


# Tables are built column by column for speed: if a whole column is plain text, as it nearly always
# is, one test covers all its cells, and the loops run in C.
def _escape_cells(cells: Sequence[str]) -> Sequence[str]:
    """Escape the cells of a column."""
    return cells if "".join(cells).isprintable() else list(map(printable, cells))


_Column: TypeAlias = Sequence[str]


def _fit_columns(
    names: Sequence[str], columns: Sequence[_Column], numbers: Collection[str], fit: Fit
) -> tuple[list[str], list[_Column], list[_Column]]:
    """Make columns fit the terminal.

    Returns:
        Of the columns that are shown: their names, their whole texts and their fitted texts.
    """
    widths = _fitted_widths(names, list(map(_column_width, columns)), numbers, fit)
    shown = [names[place] for place in widths]
    texts = [columns[place] for place in widths]
    fitted: list[_Column] = []
    broken: dict[int, list[list[str]]] = {}
    for number, (cells, (place, room)) in enumerate(zip(texts, widths.items(), strict=True)):
        too_wide = _column_width(cells) > room
        if too_wide and names[place] in (*fit.whole, *fit.wrapped):
            broken[number] = [_wrap_cell(cell, room) for cell in cells]
        fitted.append([_cut_text(cell, room, _CUT_MARK) for cell in cells] if too_wide else cells)
    if broken:
        heights = [max(map(len, lines)) for lines in zip(*broken.values(), strict=True)]
        texts = [
            [cell for cell, height in zip(cells, heights, strict=True) for _ in range(height)]
            for cells in texts
        ]
        fitted = [
            _stack_lines(broken.get(number, [[cell] for cell in cells]), heights)
            for number, cells in enumerate(fitted)
        ]
    if len(shown) == len(names):
        return shown, texts, fitted
    mark = [_CUT_MARK, *repeat("", len(fitted[0]) - 1)]
    return [*shown, _CUT_MARK], [*texts, mark], [*fitted, mark]


def _fitted_widths(
    names: Sequence[str], sizes: Sequence[int], numbers: Collection[str], fit: Fit
) -> dict[int, int]:
    """Return the width of each column that is shown, by its place in the table."""
    room, places = terminal_columns(), range(len(names))
    point = (*fit.whole, *fit.wrapped)
    least = [names.index(name) for name in fit.least if name in names]
    others = [place for place in reversed(places) if names[place] not in point]
    left_out = list(dict.fromkeys((*least, *others, *reversed(places))))[:-1]
    gently = dict.fromkeys(fit.whole, room) | dict.fromkeys(fit.wrapped, _WRAPPED_TEXT)
    tightly = dict.fromkeys(names, _NARROWEST_TEXT) | dict.fromkeys(point, _NARROWEST_CELL)
    steps = (gently, 0, len(least)), (tightly, len(least), len(left_out))
    for floors, first, last in steps:
        for count in range(first, last + 1):
            shown = {place: sizes[place] for place in places if place not in left_out[:count]}
            floor = {
                place: floors.get(names[place], _NARROWEST_CELL)
                for place in shown
                if names[place] not in numbers
            }
            mark = len(_CUT_MARK) + 2 if count else 0
            if widths := _shrink(shown, floor, room - mark - 2 * (len(shown) - 1)):
                return widths
    return dict(enumerate(sizes))


def _shrink(sizes: dict[int, int], floors: dict[int, int], room: int) -> dict[int, int] | None:
    """Make the widest columns narrower, each down to its floor, until all fit `room`.

    Columns without a floor are numbers. Return None if the columns cannot fit.
    """
    for limit in range(min(max(sizes.values()), room), 0, -1):
        widths = {
            place: min(size, max(limit, floors.get(place, size))) for place, size in sizes.items()
        }
        if sum(widths.values()) <= room:
            return widths
    return None


def _stack_lines(cells: Sequence[Sequence[str]], heights: Sequence[int]) -> list[str]:
    """Join the lines of wrapped cells to one column, with blanks below short cells."""
    return [
        line
        for lines, height in zip(cells, heights, strict=True)
        for line in (*lines, *repeat("", height - len(lines)))
    ]


def _wrap_cell(text: str, room: int) -> list[str]:
    """Break a text into lines of at most `room` columns: at blanks, and long words at signs."""
    if cell_width(text) <= room:
        return [text]
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_width(joined) <= room:
            lines[-1] = joined
        else:
            lines += _break_word(word, room)
    return lines if lines[0] else lines[1:]


def _break_word(word: str, room: int) -> Iterator[str]:
    while cell_width(word) > room:
        most = next(n for n in range(room, 0, -1) if cell_width(word[:n]) <= room)
        sign = max(word.rfind(sign, 0, most) for sign in _BREAK_AFTER) + 1
        size = sign if sign > most / 2 else most
        yield word[:size]
        word = word[size:]
    yield word


def _column_width(cells: Sequence[str]) -> int:
    """Return the width of the widest cell."""
    return max(map(len if "".join(cells).isascii() else cell_width, cells))


def _pad_cells(cells: Sequence[str], *, right: bool) -> list[str]:
    """Pad the cells of a column to one width."""
    size = _column_width(cells)
    if "".join(cells).isascii():
        return list(map(str.rjust if right else str.ljust, cells, repeat(size)))
    blanks = (" " * (size - cell_width(cell)) for cell in cells)
    return [b + cell if right else cell + b for cell, b in zip(cells, blanks, strict=True)]


def _cut_text(text: str, room: int, mark: str = "") -> str:
    """Cut a text to `room` columns, and put `mark` at the end of a text that was cut."""
    if cell_width(text) <= room:
        return text
    left = room - len(mark)
    if text.isascii():
        return text[:left] + mark
    return f"{_rich_cells().set_cell_size(text, left)}{mark}"


def _colour_line(
    line: str, padded: Sequence[str], named: Iterable[tuple[str, str]], paint: Paint
) -> str:
    """Colour the cells of a line, which may have been cut."""
    done, at = "", 0
    for cell, (name, text) in zip(padded, named, strict=False):
        piece = line[at : at + len(cell)]
        colour = paint(name, text.strip())
        done += click.style(piece, fg=colour) if colour and piece else piece
        done += line[at + len(cell) : at + len(cell) + 2]
        at += len(cell) + 2
    return done
