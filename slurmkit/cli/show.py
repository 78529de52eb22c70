"""Tables and facts on a terminal; everything that came from outside is escaped here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice, repeat

import click

from slurmkit.text import printable

Paint = Callable[[str, str], str | None]
"""The colour of a cell, by its column and its text; None for the plain one."""

_TOGETHER = 1000  # lines
_NARROW = 40  # columns; nothing is broken for less
_LEAST = 8  # columns that a text keeps
_MORE = "…"


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    paint: Paint | None = None,
) -> None:
    """Print rows under a header to standard output, the columns named in `right` aligned right.

    On a terminal rows are made to fit: the widest texts are cut, then the last columns left out,
    both marked with `…`; numbers stay whole. `paint` colours cells unless NO_COLOR is set. In a
    pipe nothing is cut or coloured.
    """
    lines = iter(table_lines(header, rows, right=right, paint=paint))
    while some := list(islice(lines, _TOGETHER)):
        click.echo("\n".join(some))


def table_lines(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    paint: Paint | None = None,
) -> Iterator[str]:
    """The lines that `table` prints."""
    columns = [_shown(cells) for cells in zip(tuple(header), *map(tuple, rows), strict=True)]
    fixed = [name in right for name in header]
    terminal = sys.stdout.isatty()
    fitted = _fitted(columns, fixed, terminal_columns()) if terminal else columns
    padded = [
        _padded(cells, right=number) for cells, number in zip(fitted, [*fixed, False], strict=False)
    ]
    lines = map(str.rstrip, map("  ".join, zip(*padded, strict=True)))
    colours = paint if colourful() else None
    if terminal:
        lines = map(_cut, lines, repeat(terminal_columns()))
    if colours is None:
        yield from lines
        return
    # By what cells said before they were cut.
    texts, cells = zip(*columns, strict=True), zip(*padded, strict=True)
    for line, row, pads in zip(lines, texts, cells, strict=True):
        yield _coloured(line, pads, zip(header, row, strict=True), colours)


def key_values(facts: Iterable[tuple[str, str]]) -> None:
    """Print named facts, one a line, to standard output.

    On a terminal long ones are broken at blanks, but for those that begin with one: commands.
    """
    pairs = list(facts)
    size = max(len(name) for name, _ in pairs)
    room = terminal_columns() - size - 2 if sys.stdout.isatty() else 0
    for name, value in pairs:
        shown = printable(value)
        fits = room < _NARROW or shown.startswith(" ") or len(shown) <= room
        lines = [shown] if fits else _broken(shown, room)
        for at, line in enumerate(lines):
            click.echo(f"{'' if at else name:{size}}  {line}")


def hanging(head: str, text: str, *, indent: int, err: bool = False) -> None:
    """Print `head`, which may be coloured, and after it a text from outside.

    On a terminal it is broken at blanks, and what follows is indented.
    """
    stream = sys.stderr if err else sys.stdout
    shown, begun = printable(text), cell_width(click.unstyle(head))
    room = terminal_columns() if stream.isatty() else 0
    if room - indent >= _NARROW and begun + cell_width(shown) > room:
        shown = "\n".join(_broken(shown, room, first=begun, others=indent))[begun:]
    click.echo(head + shown, err=err)


def _broken(text: str, room: int, *, first: int = 0, others: int = 0) -> list[str]:
    """Lines of at most `room` columns, indented by as many blanks."""
    from textwrap import TextWrapper  # noqa: PLC0415 - few commands need it, and it costs a start

    wrapper = TextWrapper(room, initial_indent=" " * first, subsequent_indent=" " * others)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.wrap(text)


def colourful() -> bool:
    """Whether standard output is a terminal that may show colours (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def cell_width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - few tables need it, and it costs a start

    return cell_len(text)


def terminal_columns() -> int:
    """How wide the terminal is; 80 in a pipe."""
    import shutil  # noqa: PLC0415 - a pipe needs none, and it costs a start

    return shutil.get_terminal_size().columns


# Column by column: one look at all cells tells that they need no care, as nearly always, and then
# the loops run in C.
def _shown(cells: Sequence[str]) -> Sequence[str]:
    return cells if "".join(cells).isprintable() else list(map(printable, cells))


def _fitted(
    columns: Sequence[Sequence[str]], fixed: Sequence[bool], room: int
) -> Sequence[Sequence[str]]:
    """Columns that take no more than `room` together; those that are `fixed` are never cut."""
    sizes = list(map(_size, columns))
    kept, limit = len(columns), _limit(sizes, fixed, room)
    while limit is None and kept > 1:
        kept -= 1
        limit = _limit(sizes[:kept], fixed, room - len(_MORE) - 2)
    if limit is None:
        return columns
    fitted = [
        cells if number or size <= limit else [_cut(cell, limit, _MORE) for cell in cells]
        for cells, number, size in zip(columns[:kept], fixed, sizes, strict=False)
    ]
    return fitted if kept == len(columns) else [*fitted, [_MORE] * len(columns[0])]


def _limit(sizes: Sequence[int], fixed: Sequence[bool], room: int) -> int | None:
    """The most that a text may take so that all fit; None where that is too little."""
    room -= 2 * (len(sizes) - 1)
    for limit in range(max(*sizes, _LEAST), _LEAST - 1, -1):
        taken = (
            size if number else min(size, limit) for size, number in zip(sizes, fixed, strict=False)
        )
        if sum(taken) <= room:
            return limit
    return None


def _size(cells: Sequence[str]) -> int:
    return max(map(len if "".join(cells).isascii() else cell_width, cells))


def _padded(cells: Sequence[str], *, right: bool) -> list[str]:
    size = _size(cells)
    if "".join(cells).isascii():
        return list(map(str.rjust if right else str.ljust, cells, repeat(size)))
    blanks = (" " * (size - cell_width(cell)) for cell in cells)
    return [b + cell if right else cell + b for cell, b in zip(cells, blanks, strict=True)]


def _cut(text: str, room: int, mark: str = "") -> str:
    """What fits of a text, with a mark at its end where that is not all."""
    if cell_width(text) <= room:
        return text
    left = room - len(mark)
    if text.isascii():
        return text[:left] + mark
    from rich.cells import set_cell_size  # noqa: PLC0415 - few tables need it, and it costs a start

    return set_cell_size(text, left) + mark


def _coloured(
    line: str, padded: Sequence[str], named: Iterable[tuple[str, str]], paint: Paint
) -> str:
    """Colour what is left of each cell in a line that may have been cut."""
    done, at = "", 0
    for cell, (name, text) in zip(padded, named, strict=False):
        piece = line[at : at + len(cell)]
        colour = paint(name, text.strip())
        done += click.style(piece, fg=colour) if colour and piece else piece
        done += line[at + len(cell) : at + len(cell) + 2]
        at += len(cell) + 2
    return done
