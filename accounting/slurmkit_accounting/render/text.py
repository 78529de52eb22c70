"""Reports as a table, as CSV, as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec

from slurmkit.errors import BadInput
from slurmkit.text import printable
from slurmkit_accounting.render.words import shown
from slurmkit_accounting.reports.model import Column, Report, Value

_ALWAYS = frozenset(("jobs", "gpu_hours", "cpu_hours", "idle"))
# What one looks at first, in this order; reports that are not named here show all they have.
_FIRST = {
    "usage": (
        "jobs", "users", "gpu_hours", "gpu_hours_lost", "cost", "cloud_cost", "cpu_hours",
        "wait_hours", "gpu_efficiency", "cpu_efficiency",
    ),
    "efficiency": ("jobs", "gpu_hours", "gpu_efficiency", "cpu_efficiency"),
    "explain": ("gpu_hours", "gpus", "start", "end", "cpu_hours"),
}  # fmt: skip
# What a spreadsheet would take for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def chosen(report: Report, names: Sequence[str] = ()) -> list[Column]:
    """The columns of a table: what it is by, and those named or `all`; else the first to look at.

    Raises:
        BadInput: for a name that is no column.
    """
    known = {column.name: column for column in report.columns}
    if not names:
        return first(report)
    if list(names) == ["all"]:
        return list(report.columns)
    for name in names:
        if name not in known:
            raise BadInput(f"there is no column {name!r}; there are {', '.join(known)}, and all")
    # Rows of what was corrected after a month was closed are never shown as other rows.
    keys = (*report.meta.by, "correction")
    return [known[name] for name in dict.fromkeys((*keys, *names)) if name in known]


def first(report: Report) -> list[Column]:
    """The columns that one looks at first, where there is something to see in them."""
    there = seen(report)
    order = _FIRST.get(report.meta.report)
    if order is None:
        return there
    by_name = {column.name: column for column in there}
    keys = [column for column in there if column.kind == "text"]
    return [*keys, *(by_name[name] for name in order if name in by_name)]


def seen(report: Report) -> list[Column]:
    """The columns in which there is something to see: of usage, which has many, more than 0."""
    nothing = (None, "", 0) if report.meta.report == "usage" else (None, "")
    return [
        column
        for column in report.columns
        if not (column.name == "users" and "user" in report.meta.by)  # one in each row
        if column.name in {*_ALWAYS, *report.meta.by}
        or not report.rows
        or any(row[column.name] not in nothing for row in report.rows)
    ]


def cells(report: Report, columns: Sequence[Column]) -> list[list[str]]:
    """Rows as text; not escaped yet."""
    return [[shown(row[one.name], one.kind) for one in columns] for row in report.rows]


def as_csv(report: Report) -> str:
    """CSV with a header, at full precision; what is unknown is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.name for column in report.columns)
    for row in report.rows:
        writer.writerow(_plain(row[column.name]) for column in report.columns)
    return out.getvalue()


def as_json(report: Report) -> str:
    """An object of `meta` and `rows`, at full precision; null where unknown."""
    whole = {"meta": report.meta, "rows": report.rows}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


def _plain(value: Value) -> str:
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(FORMULA) else text
    return "" if value is None else repr(value)
