"""Pages of reports: any window and grouping as a link; whoever opens it sees what they may see."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from flask import Blueprint, Response, abort, render_template, request

from slurmkit_accounting.calendar import UNITS
from slurmkit_accounting.portal.asked import (
    EMPTY,
    FORMATS,
    FORMS,
    ONE_BY,
    WITHOUT_WINDOW,
    Asked,
    ask_report,
    parse_asked,
    zone_name,
)
from slurmkit_accounting.portal.context import portal
from slurmkit_accounting.portal.links import row_links, total_links, why_no_links
from slurmkit_accounting.portal.run_pages import (
    note_owners,
    note_owners_of_acts,
    note_owners_of_job,
)
from slurmkit_accounting.render import render_report
from slurmkit_accounting.render.html import ReportPage, column_heading, report_page
from slurmkit_accounting.reports.explain import RUNS
from slurmkit_accounting.reports.model import Report

pages = Blueprint("reports", __name__)
_TILES = {"GPU-hours": "gpu_hours", "lost GPU-hours": "gpu_hours_lost"}
MOST_ROWS = 500  # rows on a page; a download has all
_PLAIN_NAME = re.compile(r"[^0-9A-Za-z]+")


@pages.get("/report/<name>")
def page(name: str) -> str | Response:
    """Show a report, or send it as a file."""
    if name not in FORMS:
        abort(404)
    asked = parse_asked(name, request.args)
    form = request.args.get("format", "")
    arguments = asked.arguments(zone_name())
    if name == "usage":
        arguments["panels"] = form in {"", "html"}
    if name == "explain" and not form:
        arguments["most"] = MOST_ROWS
    report = ask_report(name, **arguments)
    _note_who_is_named(report, arguments)
    if form:
        return _download(report, form)
    return render_template(
        "report_page.html",
        title=_heading(name, report),
        name=name,
        form=FORMS[name],
        forms=FORMS,
        asked=asked,
        fixed=asked.fixed(report),
        view=view_of(report, asked),
        spans=list(_usual_spans(asked, report)),
        has_window=name not in WITHOUT_WINDOW,
        downloads={each: asked.fixed(report).link(form=each) for each in FORMATS},
        units=UNITS,
        one_by=ONE_BY,
        empty=EMPTY,
        kinds=RUNS,
    )


def _note_who_is_named(report: Report, arguments: dict[str, Any]) -> None:
    """Write down whose single runs or jobs the reader sees; sums over many do not count."""
    name = report.meta.report
    if name == "explain":
        note_owners(report)
    elif name == "reclaimed":
        note_owners_of_acts(report)
    elif arguments.get("job"):
        note_owners_of_job(arguments)


def _heading(name: str, report: Report) -> str:
    """Return the heading of a page: what it shows, and of whom or what only."""
    only = [
        f"{column_heading(key)} {', '.join(each or EMPTY for each in values)}"
        for key, values in report.meta.filters.items()
    ]
    only += [f"job {report.meta.job}"] if report.meta.job else []
    return f"{FORMS[name].title} of {'; '.join(only)}" if only else FORMS[name].title


class ReportView(NamedTuple):
    """A report as its page shows it.

    Attributes:
        page: texts of tables, tiles and charts.
        links: for each row, links by the name of the column.
        hidden: number of rows that only a download has.
        totals: links of the total, by the name of the column.
        tiles: links of tiles, by their name.
        why: why some numbers have no link; empty if there is no reason.
    """

    page: ReportPage
    links: list[dict[str, str]]
    hidden: int
    totals: dict[str, str]
    tiles: dict[str, str]
    why: str


def view_of(report: Report, asked: Asked, most: int = MOST_ROWS) -> ReportView:
    """Return what a page shows of a report, each number with a link to what it is made of."""
    shown = msgspec.structs.replace(report, rows=report.rows[:most])
    fixed = asked.fixed(report)
    totals = total_links(report, fixed)
    tiles = {name: totals[column] for name, column in _TILES.items() if column in totals}
    whole = (report.meta.runs or 0) if report.meta.report == "explain" else len(report.rows)
    return ReportView(
        report_page(shown), row_links(report, fixed, most), whole - len(shown.rows),
        totals, tiles, why_no_links(report, asked),
    )  # fmt: skip


def _usual_spans(asked: Asked, report: Report) -> Iterator[tuple[str, str]]:
    """Yield windows that people often want, with their links."""
    if report.meta.window is None:
        return
    today = dt.datetime.fromtimestamp(report.meta.made, portal().zone.rules).date()
    first = today.replace(day=1)
    last_month = first - dt.timedelta(days=1)
    filters = {key: each for key, each in asked.filters.items() if key != "month"}

    def link(begin: str, end: str = "", month: str = "") -> str:
        months: dict[str, tuple[str, ...]] = {"month": (month,)} if month else {}
        return asked.link(begin=begin, end=end, filters=filters | months)

    tomorrow = today + dt.timedelta(days=1)
    yield "this month", link("", month=f"{first:%Y-%m}")
    yield f"{last_month:%B}", link("", month=f"{last_month:%Y-%m}")
    yield "last 7 days", link((today - dt.timedelta(days=6)).isoformat(), tomorrow.isoformat())
    yield f"{today.year}", link(f"{today.year}-01-01", f"{today.year + 1}-01-01")
    yield f"{today.year - 1}", link(f"{today.year - 1}-01-01", f"{today.year}-01-01")


def _download(report: Report, form: str) -> Response:
    """Send a report as a file, as `slurmkit report --output` writes it."""
    response = Response(render_report(report, form), content_type=FORMATS[form])
    parts = [report.meta.report, *(text[:10] for text in report.meta.window or ())]
    name = _PLAIN_NAME.sub("-", "-".join(parts))
    response.headers["Content-Disposition"] = f'attachment; filename="slurmkit-{name}.{form}"'
    return response
