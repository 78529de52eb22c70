"""Render reports as a table, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec

from slurmkit.errors import BadInput
from slurmkit.formats.display import printable
from slurmkit_accounting.render.format import format_value
from slurmkit_accounting.reports.model import Column, Report, Value

_ALWAYS_SHOWN = frozenset(("jobs", "gpu_hours", "cpu_hours", "idle"))
# The main columns of a report, in this order; a report not named here shows all its columns.
_MAIN_COLUMNS = {
    "usage": (
        "jobs", "users", "gpu_hours", "gpu_hours_lost", "cost", "cloud_cost", "cpu_hours",
        "wait_hours", "gpu_efficiency", "cpu_efficiency",
    ),
    "efficiency": ("jobs", "gpu_hours", "gpu_efficiency", "cpu_efficiency"),
    "explain": ("gpu_hours", "gpus", "start", "end", "cpu_hours"),
}  # fmt: skip
# A spreadsheet takes texts that begin with these for formulas.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def table_columns(report: Report, names: Sequence[str] = ()) -> list[Column]:
    """Return the columns of a table: the dimensions and the named columns; else the main columns.

    Args:
        report: the report.
        names: names of columns, or `all` alone; empty for the main columns.

    Raises:
        BadInput: for an unknown column.
    """
    known = {column.name: column for column in report.columns}
    if not names:
        return main_columns(report)
    if list(names) == ["all"]:
        return list(report.columns)
    for name in names:
        if name not in known:
            raise BadInput(f"there is no column {name!r}; choose from {', '.join(known)}, or all")
    # `correction` is always shown, so that rows of corrections do not look like other rows.
    keys = (*report.meta.by, "correction")
    return [known[name] for name in dict.fromkeys((*keys, *names)) if name in known]


def main_columns(report: Report) -> list[Column]:
    """Return the main columns, without empty ones."""
    filled = filled_columns(report)
    order = _MAIN_COLUMNS.get(report.meta.report)
    if order is None:
        return filled
    by_name = {column.name: column for column in filled}
    keys = [column for column in filled if column.kind == "text"]
    return [*keys, *(by_name[name] for name in order if name in by_name)]


def filled_columns(report: Report) -> list[Column]:
    """Return the columns that are not empty; in a usage report, 0 counts as empty too."""
    nothing = (None, "", 0) if report.meta.report == "usage" else (None, "")
    return [
        column
        for column in report.columns
        if not (column.name == "users" and "user" in report.meta.by)  # it would always be 1
        if column.name in {*_ALWAYS_SHOWN, *report.meta.by}
        or not report.rows
        or any(row[column.name] not in nothing for row in report.rows)
    ]


def text_rows(report: Report, columns: Sequence[Column]) -> list[list[str]]:
    """Return the rows as text, not escaped."""
    return [[format_value(row[one.name], one.kind) for one in columns] for row in report.rows]


def as_csv(report: Report) -> str:
    """Return CSV with a header, at full precision; unknown values are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.name for column in report.columns)
    for row in report.rows:
        writer.writerow(_csv_value(row[column.name]) for column in report.columns)
    return out.getvalue()


def as_json(report: Report) -> str:
    """Return a JSON object of `meta` and `rows`, at full precision; unknown values are null."""
    whole = {"meta": report.meta, "rows": report.rows}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


def _csv_value(value: Value) -> str:
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(FORMULA_STARTS) else text
    return "" if value is None else repr(value)
