"""Render reports as a spreadsheet: a sheet of rows, and a sheet about their data."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from openpyxl import Workbook
from openpyxl.cell import Cell, WriteOnlyCell
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.utils import get_column_letter

from slurmkit.formats.display import printable
from slurmkit_accounting.render.format import footer_lines, format_value
from slurmkit_accounting.render.text import looked_at_first, total_row
from slurmkit_accounting.reports.model import Column, ColumnKind, Report, Value

if TYPE_CHECKING:
    from openpyxl.worksheet._write_only import WriteOnlyWorksheet

_FORMATS: dict[ColumnKind, str] = {
    "count": "#,##0",
    "hours": "#,##0.00",
    "share": "0.0%",
    "money": "#,##0.00",
    "number": "#,##0.00",
    "time": 'yyyy-mm-dd hh:mm:ss "UTC"',
}
_DAY, _EPOCH = 86400, 25569  # seconds; the first day of 1970 as a spreadsheet counts days
_NARROWEST, _WIDEST = 8, 60  # width of a column, in characters
_ABOUT_WIDTH = 110
_FILTER_BUTTON = 4  # room that the header's filter button takes
# The characters that XML does not allow, other than those that `printable` escapes.
_NOT_XML = {0xFFFE: r"\ufffe", 0xFFFF: r"\uffff"}
_BOLD, _GREY = Font(bold=True), PatternFill("solid", fgColor="E7EAEE")
_LINE_ABOVE = Border(top=Side(style="medium"))


def as_xlsx(report: Report) -> bytes:
    """Render the file; text stays text, even if it looks like a formula.

    An empty row sets the totals apart, so that a filter, a sort and a pivot table leave them out.
    """
    book = Workbook(write_only=True)
    sheet = book.create_sheet(report.meta.report)
    columns = looked_at_first(report)
    total = total_row(report, columns, usual=True)
    _lay_out(sheet, report, columns, total)
    sheet.append([_mark(_cell(sheet, one.name, "text")) for one in columns])
    for row in report.rows:
        sheet.append([_cell(sheet, row[one.name], one.kind, report) for one in columns])
    if total:
        sheet.append([])
        pairs = zip(total, columns, strict=True)
        sheet.append(
            [_mark(_cell(sheet, cell, one.kind, report), last=True) for cell, one in pairs]
        )
    about = book.create_sheet("about")
    about.column_dimensions["A"].width = _ABOUT_WIDTH
    for line in footer_lines(report.meta):
        cell = _cell(about, line, "text")
        cell.alignment = Alignment(wrap_text=True, vertical="top")
        about.append([cell])
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def _cell(
    sheet: WriteOnlyWorksheet, value: Value, kind: ColumnKind, report: Report | None = None
) -> Cell:
    """Return a cell; an unknown value makes an empty one."""
    if value is None or value == "":
        return WriteOnlyCell(sheet)
    if kind == "time" and isinstance(value, int):
        value = value / _DAY + _EPOCH
    text = printable(value).translate(_NOT_XML) if isinstance(value, str) else repr(value)
    cell = WriteOnlyCell(sheet, text)
    # With quotePrefix, text stays text when somebody edits it. Numbers are written as in JSON:
    # openpyxl itself would round them to 16 digits.
    cell.data_type = "s" if isinstance(value, str) else "n"
    cell.quotePrefix = isinstance(value, str)
    if kind in _FORMATS and not isinstance(value, str):
        cell.number_format = _number_format(kind, report)
    return cell


def _number_format(kind: ColumnKind, report: Report | None) -> str:
    currency = report.meta.currency if report and kind == "money" else None
    return f'{_FORMATS[kind]} "{currency}"' if currency else _FORMATS[kind]


def _mark(cell: Cell, *, last: bool = False) -> Cell:
    """Set a cell of the header, or of the `last` row, apart from the data."""
    cell.font, cell.fill = _BOLD, _GREY
    if last:
        cell.border = _LINE_ABOVE
    return cell


def _lay_out(
    sheet: WriteOnlyWorksheet, report: Report, columns: Sequence[Column], total: Sequence[Value]
) -> None:
    """Freeze the header and the first column, add a filter, and set the widths of the columns."""
    sheet.freeze_panes = "B2"
    for place, column in enumerate(columns):
        letter = get_column_letter(place + 1)
        cells = [row[column.name] for row in report.rows] + ([total[place]] if total else [])
        texts = (format_value(cell, column.kind) for cell in cells if cell is not None)
        unit = len(report.meta.currency or "") + 1 if column.kind == "money" else 0
        width = max(len(column.name) + _FILTER_BUTTON, *_lengths(texts, unit))
        sheet.column_dimensions[letter].width = min(max(width, _NARROWEST), _WIDEST)  # type: ignore[attr-defined]
    last = get_column_letter(len(columns))
    sheet.auto_filter.ref = f"A1:{last}{len(report.rows) + 1}"  # type: ignore[attr-defined]


def _lengths(texts: Iterable[str], unit: int) -> list[int]:
    """Return the room that texts take, with a blank; a spreadsheet's font is a bit wider."""
    return [round(len(text) * 1.1) + unit + 1 for text in texts] or [0]
