"""The map of GPUs on a terminal: letters tell holders apart, colours only repeat it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import cycle, groupby

import click
import msgspec

from slurmkit.gpumap.drawing import CLOSED, By, cell, count, letters, meanings, note_on, types_of
from slurmkit.gpumap.model import Gpu
from slurmkit.nodes.read import NodeRow
from slurmkit.text import printable

_COLOURS = tuple(
    "cyan magenta yellow blue green bright_red bright_cyan bright_magenta bright_yellow"
    " bright_blue bright_green".split()
)
_ACROSS = 4  # entries of the legend on one line


class _Line(msgspec.Struct, frozen=True):
    """A node: what stands before its cells, its cells, and what stands after them."""

    name: str
    types: str
    cells: tuple[str, ...]
    note: str


def draw(gpus: Sequence[Gpu], rows: Sequence[NodeRow], by: By) -> None:
    """Print a line for each node that has GPUs, then what letters and marks mean."""
    counted = count(gpus, by)
    letter = letters(tuple(counted))
    cells = {node: tuple(cell(gpu, by, letter) for gpu in of) for node, of in _by_node(gpus)}
    lines = [_line(row, cells[row.name]) for row in rows if row.name in cells]
    if not lines:
        return
    colours = dict(zip(letter.values(), cycle(_COLOURS), strict=False)) | {CLOSED: "red"}
    _print_lines(lines, colours)
    _print_legend(letter, counted, {mark for line in lines for mark in line.cells}, colours)


def _by_node(gpus: Iterable[Gpu]) -> Iterable[tuple[str, Iterable[Gpu]]]:
    return groupby(gpus, key=lambda gpu: gpu.node)


def _line(row: NodeRow, cells: tuple[str, ...]) -> _Line:
    name, note = printable(row.name), printable(note_on(row, cells))
    return _Line(name, printable(types_of(row)), cells, note)


def _print_lines(lines: Sequence[_Line], colours: dict[str, str]) -> None:
    most = max(len(line.cells) for line in lines)
    size = max(len(mark) for line in lines for mark in (*line.cells, str(most - 1)))
    name = max(len(line.name) for line in [*lines, _Line("NODE", "", (), "")])
    types = max(len(line.types) for line in [*lines, _Line("", "TYPE", (), "")])
    indices = " ".join(str(at).rjust(size) for at in range(most))
    click.echo(f"{'NODE'.ljust(name)}  {'TYPE'.ljust(types)}  {indices}")
    for line in lines:
        drawn = " ".join(_coloured(mark, size, colours) for mark in line.cells)
        gap = " " * ((size + 1) * (most - len(line.cells)))
        note = f"{gap}  {line.note}" if line.note else ""
        click.echo(f"{line.name.ljust(name)}  {line.types.ljust(types)}  {drawn}{note}".rstrip())


def _print_legend(
    letter: dict[str, str], counted: Counter[str], marks: set[str], colours: dict[str, str]
) -> None:
    entries = [
        f"{_coloured(sign, len(sign), colours)} {printable(name)}: {counted[name]}"
        for name, sign in letter.items()
    ]
    click.echo()
    for at in range(0, len(entries), _ACROSS):
        click.echo("   ".join(entries[at : at + _ACROSS]))
    click.echo("   ".join(f"{mark} {meaning}" for mark, meaning in meanings(marks)))


def _coloured(mark: str, size: int, colours: dict[str, str]) -> str:
    """Colour a mark; click takes the colour away again where the output is no terminal."""
    colour = None if os.environ.get("NO_COLOR") else colours.get(mark)
    return click.style(mark.rjust(size), fg=colour) if colour else mark.rjust(size)
