"""Tables and facts on a terminal; everything that came from outside is escaped here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Iterable, Sequence

import click

from slurmkit.text import printable


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()
) -> None:
    """Print rows under a header to standard output, the columns named in `right` aligned right.

    On a terminal a line is cut at its width; in a pipe nothing is cut.
    """
    cells = [tuple(header), *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in cells:
        padded = (
            cell.rjust(size) if name in right else cell.ljust(size)
            for name, cell, size in zip(header, row, widths, strict=True)
        )
        click.echo("  ".join(padded).rstrip()[:width])


def key_values(facts: Iterable[tuple[str, str]]) -> None:
    """Print named facts, one a line, to standard output."""
    pairs = list(facts)
    size = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{name.ljust(size)}  {printable(value)}")
