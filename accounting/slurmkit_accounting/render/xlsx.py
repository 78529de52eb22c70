"""Reports as a spreadsheet: the rows, and a sheet of what they rest on."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from slurmkit.text import printable
from slurmkit_accounting.render.words import footer
from slurmkit_accounting.reports.model import Column, Kind, Report, Value

if TYPE_CHECKING:
    from openpyxl.worksheet._write_only import WriteOnlyWorksheet

_FORMATS: dict[Kind, str] = {
    "count": "#,##0",
    "hours": "#,##0.00",
    "share": "0.0%",
    "money": "#,##0.00",
    "number": "#,##0.00",
}
_WIDTH = 14


def as_xlsx(report: Report) -> bytes:
    """Make the file; text stays text, whatever it begins with."""
    from openpyxl import Workbook  # noqa: PLC0415  a tenth of a second that few commands pay

    book = Workbook(write_only=True)
    sheet = book.create_sheet(report.meta.report)
    sheet.freeze_panes = "A2"
    _set_widths(sheet, report.columns)
    sheet.append([_cell(sheet, one.name, "text", bold=True) for one in report.columns])
    for row in report.rows:
        sheet.append([_cell(sheet, row[one.name], one.kind) for one in report.columns])
    about = book.create_sheet("about")
    for line in footer(report.meta):
        about.append([_cell(about, line, "text")])
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def _cell(sheet: WriteOnlyWorksheet, value: Value, kind: Kind, *, bold: bool = False) -> object:
    from openpyxl.cell import WriteOnlyCell  # noqa: PLC0415  see as_xlsx
    from openpyxl.styles import Font  # noqa: PLC0415  see as_xlsx

    if value is None:
        return None
    text = printable(value) if isinstance(value, str) else repr(value)
    cell = WriteOnlyCell(sheet, text)
    # Text is never a formula, and stays text when somebody edits it. Numbers go in as they are in
    # JSON: openpyxl itself would round them to 16 digits.
    cell.data_type = "s" if isinstance(value, str) else "n"
    cell.quotePrefix = isinstance(value, str)
    if kind in _FORMATS:
        cell.number_format = _FORMATS[kind]
    if bold:
        cell.font = Font(bold=True)
    return cell


def _set_widths(sheet: WriteOnlyWorksheet, columns: Iterable[Column]) -> None:
    from openpyxl.utils import get_column_letter  # noqa: PLC0415  see as_xlsx

    for place, column in enumerate(columns, 1):
        letter = get_column_letter(place)
        width = max(_WIDTH, len(column.name) + 2)
        sheet.column_dimensions[letter].width = width  # type: ignore[attr-defined]
