"""A report in a mail: the renderers' HTML, and the same rows as plain text."""

from __future__ import annotations

from itertools import starmap

from slurmkit.text import printable
from slurmkit_accounting.render import rendered
from slurmkit_accounting.render.text import cells, chosen
from slurmkit_accounting.render.words import footer
from slurmkit_accounting.reports.model import Report


def as_html(report: Report) -> str:
    """One self-contained page."""
    return rendered(report, "html").decode()


def as_text(report: Report, title: str) -> str:
    """A title, the rows, and what they rest on."""
    columns = chosen(report)
    right = [column.kind != "text" for column in columns]
    table = [[column.name.upper() for column in columns], *cells(report, columns)]
    rows = [[printable(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: list[str]) -> str:
        padded = zip(row, widths, right, strict=True)
        return "  ".join(starmap(_padded, padded)).rstrip()

    words = [printable(said) for said in footer(report.meta)]
    return "\n".join((title, "", *map(line, rows), "", *words, ""))


def _padded(cell: str, width: int, right: bool) -> str:  # noqa: FBT001
    return cell.rjust(width) if right else cell.ljust(width)
