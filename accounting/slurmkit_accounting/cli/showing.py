"""Show a report: the rows on standard output or in a file, what they rest on beside them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from slurmkit.cli.show import hanging, table
from slurmkit.errors import SlurmkitError

if TYPE_CHECKING:
    from pathlib import Path

    from slurmkit_accounting.cli.asking import Form
    from slurmkit_accounting.reports.model import Report


def show(report: Report, form: Form) -> None:
    """Print or write a report in a format.

    Raises:
        BadInput: for a column or format that there is none of.
        SlurmkitError: when the file cannot be written.
    """
    from slurmkit_accounting.render import rendered  # noqa: PLC0415

    if form.name == "table":
        _table(report, form)
    elif form.output is None:
        sys.stdout.buffer.write(rendered(report, form.name))
    else:
        _write(form.output, rendered(report, form.name))
    if form.name in {"table", "csv"}:
        _footer(report)


def _table(report: Report, form: Form) -> None:
    from slurmkit_accounting.render.text import cells, chosen, seen  # noqa: PLC0415

    columns = chosen(report, form.columns)
    names = [column.name.upper() for column in columns]
    right = [name for name, one in zip(names, columns, strict=True) if one.kind != "text"]
    table(names, cells(report, columns), right=right)
    hidden = [one.name for one in seen(report) if one not in columns]
    if hidden and report.rows and not form.columns:
        hanging("", f"not shown: {', '.join(hidden)}; --columns all shows them", indent=2, err=True)


def _footer(report: Report) -> None:
    from slurmkit_accounting.render.words import footer  # noqa: PLC0415

    for line in footer(report.meta):
        hanging("", line, indent=2, err=True)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SlurmkitError(
            f"cannot write {path}: {error.strerror}; name another --output"
        ) from error
    click.echo(f"written to {path}", err=True)
