"""Render reports as a table, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import chain

from slurmkit.cli.json_output import encode_rows
from slurmkit.errors import BadInput
from slurmkit.formats.display import printable
from slurmkit_accounting.render.format import format_value
from slurmkit_accounting.reports.model import Column, Report, Value

_ALWAYS_SHOWN = frozenset(("jobs", "gpu_hours", "cpu_hours", "idle"))
# The main columns of a report, in this order; a report not named here shows all its columns.
_MAIN_COLUMNS = {
    "usage": (
        "gpu_hours", "gpu_hours_used", "gpu_hours_lost", "cost", "jobs", "users", "cloud_cost",
        "cpu_hours", "wait_hours", "gpu_efficiency", "cpu_efficiency",
    ),
    "efficiency": (
        "jobs", "gpu_hours", "gpu_efficiency", "cpu_efficiency", "gpu_hours_wasted",
        "gpu_hours_idle", "cpu_hours_wasted", "gpu_hours_smaller", "smaller_gpu",
        "would_have_fitted",
    ),
}  # fmt: skip
TOTAL = "total"
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
            raise BadInput(
                f"there is no column {name!r}; choose from {', '.join(known)}, or all"
                f"{_by_hint(report, name)}"
            )
    # `correction` is always shown, so that rows of corrections do not look like other rows, and so
    # is how much of a column is known.
    keys = (*report.meta.by, "correction")
    completeness = {one.known_of: one.name for one in report.columns if one.known_of}
    chosen = chain.from_iterable((name, completeness.get(name, "")) for name in (*keys, *names))
    return [known[name] for name in dict.fromkeys(chosen) if name in known]


def _by_hint(report: Report, name: str) -> str:
    """Return how to get a column of names that the rows can be made by."""
    from slurmkit_accounting.reports.dimensions import (  # noqa: PLC0415 - SQLAlchemy is slow
        ALL_DIMENSIONS,
        KEY_DIMENSIONS,
    )

    by = {"usage": ALL_DIMENSIONS, "efficiency": KEY_DIMENSIONS, "wait": KEY_DIMENSIONS}
    offered = name in by.get(report.meta.report, ())
    return f"; to have it, add --by {name.replace('_', '-')}" if offered else ""


def main_columns(report: Report) -> list[Column]:
    """Return the main columns, without empty ones."""
    filled = filled_columns(report)
    order = _MAIN_COLUMNS.get(report.meta.report)
    if order is None:
        return filled
    by_name = {column.name: column for column in filled}
    keys = [column for column in filled if column.kind == "text" and column.name not in order]
    return [*keys, *(by_name[name] for name in order if name in by_name)]


def filled_columns(report: Report) -> list[Column]:
    """Return the columns that are not empty; in a usage report, 0 counts as empty too."""
    nothing = (None, "", 0) if report.meta.report in {"usage", "efficiency"} else (None, "")
    return [
        column
        for column in report.columns
        if not (column.name == "users" and "user" in report.meta.by)  # it would always be 1
        if column.name in {*_ALWAYS_SHOWN, *report.meta.by}
        or not report.rows
        or any(row[column.name] not in nothing for row in report.rows)
    ]


def table_headings(report: Report, columns: Sequence[Column]) -> list[str]:
    """Return the headings of a table; money has its currency there: `COST_EUR`."""
    currency = report.meta.currency
    return [
        f"{one.name}_{currency}".upper() if one.kind == "money" and currency else one.name.upper()
        for one in columns
    ]


def text_rows(report: Report, columns: Sequence[Column]) -> list[list[str]]:
    """Return the rows as text, not escaped."""
    return [[format_value(row[one.name], one.kind) for one in columns] for row in report.rows]


def text_total(report: Report, columns: Sequence[Column]) -> list[str]:
    """Return the last row of a table as text; empty if there is none."""
    cells = total_row(report, columns, usual=True)
    return [format_value(cell, one.kind) for cell, one in zip(cells, columns, strict=False)]


def looked_at_first(report: Report) -> list[Column]:
    """Return all columns, the main ones first."""
    return list(dict.fromkeys((*main_columns(report), *report.columns)))


def total_row(report: Report, columns: Sequence[Column], *, usual: bool) -> list[Value]:
    """Return the cells of the last row: the sums, `total` in the first other column, else empty.

    Args:
        report: the report.
        columns: the columns of the table.
        usual: whether the format has such a row, if the report leaves it open. Then a report of
            one row has none.

    Returns:
        An empty list if there is no such row.
    """
    sums = report.sums
    label = next((one.name for one in columns if one.name not in sums), None)
    wanted = usual and len(report.rows) > 1 if report.total_row is None else report.total_row
    if not wanted or label is None or not any(one.name in sums for one in columns):
        return []
    return [TOTAL if one.name == label else sums.get(one.name, "") for one in columns]


def as_csv(report: Report) -> str:
    """Return CSV with a header, at full precision; unknown values are empty.

    Programs add up the rows, so there is no row of totals unless the report asks for it.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.name for column in report.columns)
    for row in report.rows:
        writer.writerow(_csv_value(row[column.name]) for column in report.columns)
    if total := total_row(report, report.columns, usual=False):
        writer.writerow(map(_csv_value, total))
    return out.getvalue()


def as_json(report: Report) -> str:
    """Return a line of JSON with `rows` and `meta`, at full precision; unknown values are null."""
    schema, meta = f"slurmkit.report.{report.meta.report}/1", report.meta
    return encode_rows(schema, report.rows, taken=meta.made, further={"meta": meta})


def _csv_value(value: Value) -> str:
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(FORMULA_STARTS) else text
    return "" if value is None else repr(value)
