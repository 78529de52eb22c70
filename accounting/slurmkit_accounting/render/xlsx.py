"""Render reports as a spreadsheet: a sheet of rows, and a sheet about their data."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.styles import Font
from openpyxl.utils import get_column_letter

from slurmkit.formats.display import printable
from slurmkit_accounting.render.format import footer_lines
from slurmkit_accounting.reports.model import Column, ColumnKind, Report, Value

if TYPE_CHECKING:
    from openpyxl.worksheet._write_only import WriteOnlyWorksheet

_FORMATS: dict[ColumnKind, str] = {
    "count": "#,##0",
    "hours": "#,##0.00",
    "share": "0.0%",
    "money": "#,##0.00",
    "number": "#,##0.00",
}
_WIDTH = 14
# The characters that XML does not allow, besides those that `printable` escapes.
_NOT_XML = {0xFFFE: r"\ufffe", 0xFFFF: r"\uffff"}


def as_xlsx(report: Report) -> bytes:
    """Render the file; text stays text, even if it looks like a formula."""
    book = Workbook(write_only=True)
    sheet = book.create_sheet(report.meta.report)
    sheet.freeze_panes = "A2"
    _set_widths(sheet, report.columns)
    sheet.append([_cell(sheet, one.name, "text", bold=True) for one in report.columns])
    for row in report.rows:
        sheet.append([_cell(sheet, row[one.name], one.kind) for one in report.columns])
    about = book.create_sheet("about")
    for line in footer_lines(report.meta):
        about.append([_cell(about, line, "text")])
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def _cell(
    sheet: WriteOnlyWorksheet, value: Value, kind: ColumnKind, *, bold: bool = False
) -> object:
    if value is None:
        return None
    text = printable(value).translate(_NOT_XML) if isinstance(value, str) else repr(value)
    cell = WriteOnlyCell(sheet, text)
    # With quotePrefix, text stays text when somebody edits it. Numbers are written as in JSON:
    # openpyxl itself would round them to 16 digits.
    cell.data_type = "s" if isinstance(value, str) else "n"
    cell.quotePrefix = isinstance(value, str)
    if kind in _FORMATS:
        cell.number_format = _FORMATS[kind]
    if bold:
        cell.font = Font(bold=True)
    return cell


def _set_widths(sheet: WriteOnlyWorksheet, columns: Iterable[Column]) -> None:
    for place, column in enumerate(columns, 1):
        letter = get_column_letter(place)
        width = max(_WIDTH, len(column.name) + 2)
        sheet.column_dimensions[letter].width = width  # type: ignore[attr-defined]
