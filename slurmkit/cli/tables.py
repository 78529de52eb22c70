"""Tables, named facts and wrapped text on a terminal. Text from outside is escaped here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice, repeat
from textwrap import TextWrapper
from types import ModuleType

import click

from slurmkit.formats.display import printable

Paint = Callable[[str, str], str | None]
"""Returns the colour of a cell from its column's name and its text; None for no colour."""

_LINES_PER_WRITE = 1000  # lines written in one call
_NARROWEST_WRAPPED = 40  # columns; in a narrower terminal no line is wrapped
_NARROWEST_TEXT = 8  # columns to which a text may be cut
_CUT_MARK = "…"


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    paint: Paint | None = None,
) -> None:
    """Print rows under a header to standard output.

    On a terminal rows are made to fit: first the widest texts are cut, then the last columns are
    left out. `…` marks both. In a pipe nothing is cut or coloured.

    Args:
        header: names of the columns.
        rows: texts of the cells.
        right: names of number columns; they are aligned right and never cut.
        paint: gives the colour of a cell; not used if NO_COLOR is set.
    """
    lines = format_table(header, rows, right=right, paint=paint)
    while block := list(islice(lines, _LINES_PER_WRITE)):
        click.echo("\n".join(block))


def format_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    paint: Paint | None = None,
) -> Iterator[str]:
    """Yield the lines that `print_table` prints."""
    columns = [_escape_cells(cells) for cells in zip(tuple(header), *map(tuple, rows), strict=True)]
    fixed = [name in right for name in header]
    terminal = sys.stdout.isatty()
    fitted = _fit_columns(columns, fixed, terminal_columns()) if terminal else columns
    padded = [
        _pad_cells(cells, right=number)
        for cells, number in zip(fitted, [*fixed, False], strict=False)
    ]
    lines = map(str.rstrip, map("  ".join, zip(*padded, strict=True)))
    colours = paint if has_colours() else None
    if terminal:
        lines = map(_cut_text, lines, repeat(terminal_columns()))
    if colours is None:
        yield from lines
        return
    # Colours depend on the whole texts, from before they were cut.
    texts, cells = zip(*columns, strict=True), zip(*padded, strict=True)
    for line, row, pads in zip(lines, texts, cells, strict=True):
        yield _colour_line(line, pads, zip(header, row, strict=True), colours)


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
        fits = room < _NARROWEST_WRAPPED or shown.startswith(" ") or len(shown) <= room
        lines = [shown] if fits else _wrap(shown, room)
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
    """Return whether standard output is a terminal and colours are wanted (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


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


def _fit_columns(
    columns: Sequence[Sequence[str]], fixed: Sequence[bool], room: int
) -> Sequence[Sequence[str]]:
    """Cut columns so that together they take at most `room`; `fixed` ones are never cut."""
    sizes = list(map(_column_width, columns))
    columns_kept, limit = len(columns), _widest_text(sizes, fixed, room)
    while limit is None and columns_kept > 1:
        columns_kept -= 1
        limit = _widest_text(sizes[:columns_kept], fixed, room - len(_CUT_MARK) - 2)
    if limit is None:
        return columns
    fitted = [
        cells if number or size <= limit else [_cut_text(cell, limit, _CUT_MARK) for cell in cells]
        for cells, number, size in zip(columns[:columns_kept], fixed, sizes, strict=False)
    ]
    return fitted if columns_kept == len(columns) else [*fitted, [_CUT_MARK] * len(columns[0])]


def _widest_text(sizes: Sequence[int], fixed: Sequence[bool], room: int) -> int | None:
    """Return the widest that texts may be so that all columns fit.

    Return None if that is below `_NARROWEST_TEXT`.
    """
    room -= 2 * (len(sizes) - 1)
    for limit in range(max(*sizes, _NARROWEST_TEXT), _NARROWEST_TEXT - 1, -1):
        taken = (
            size if number else min(size, limit) for size, number in zip(sizes, fixed, strict=False)
        )
        if sum(taken) <= room:
            return limit
    return None


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
