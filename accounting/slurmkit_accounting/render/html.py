"""Render reports as one self-contained HTML file: no scripts, nothing from the network."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from slurmkit.formats.display import printable
from slurmkit_accounting.render.charts import (
    Chart,
    SeriesLabel,
    chart_layouts,
    describe_bars,
    legend,
)
from slurmkit_accounting.render.format import footer_lines, format_brief, format_count, format_utc
from slurmkit_accounting.render.text import filled_columns, main_columns, text_rows, text_total
from slurmkit_accounting.reports.model import Column, Meta, Panel, Report

if TYPE_CHECKING:
    from jinja2 import Template

TITLES = {
    "usage": "GPU usage",
    "budget": "GPU budgets",
    "wait": "Wait times",
    "efficiency": "Efficiency",
    "capacity": "GPU capacity",
    "idle": "Idle GPUs",
    "reclaimed": "What was done about idle GPUs",
    "explain": "GPU-hours, explained",
    "benchmark": "Benchmarks",
    "nodes": "Nodes out of use",
    "reconcile": "Ledger and sreport",
}
_HEADINGS = {
    "wait_hours": "wait_hours, sum",
    "wait_hours_mean": "wait_hours, mean",
    "wait_hours_median": "wait_hours, median",
    "wait_hours_90": "wait_hours, 90th percentile",
    "wait_hours_longest": "wait_hours, longest",
}
_OPTIONS_COLUMNS = ("asked", "would_have_fitted")  # options of sbatch, which may be many
_HEADING_WORDS = {
    "gpu": "GPU",
    "gpus": "GPUs",
    "cpu": "CPU",
    "gib": "GiB",
    "kwh": "kWh",
    "pi": "PI",
    "qos": "QOS",
}


class Tile(NamedTuple):
    """A key number at the top of the page."""

    name: str
    value: str
    note: str = ""


class HtmlTable(NamedTuple):
    """A table of some columns, all values as text; `total` is empty or the last row."""

    title: str
    columns: list[Column]
    rows: list[list[str]]
    total: list[str]


class Figure(NamedTuple):
    """A panel with its charts by page width (`charts.WIDTHS`), and all of it in words."""

    panel: Panel
    charts: dict[str, Chart]
    legend: list[SeriesLabel]
    words: str


class ReportPage(NamedTuple):
    """What a page shows of a report, all values as text that is not escaped."""

    meta: Meta
    title: str
    span: str
    tiles: list[Tile]
    figures: list[Figure]
    hatched: bool
    tables: list[HtmlTable]
    options: tuple[str, ...]
    footer: list[str]
    made: str


def as_html(report: Report) -> str:
    """Render the page; all text from outside is escaped."""
    return _template().render(report_page(report)._asdict())


def report_page(report: Report) -> ReportPage:
    """Return what a page shows of a report; also for the pages of the portal."""
    return ReportPage(
        meta=report.meta,
        title=_title(report.meta),
        span=_window_and_clusters(report.meta),
        tiles=_tiles(report.meta),
        figures=figures_of(report.panels),
        hatched=any(one.look == "hatched" for panel in report.panels for one in panel.series),
        tables=list(_tables(report)),
        options=_OPTIONS_COLUMNS,
        footer=list(footer_lines(report.meta)),
        made=format_utc(report.meta.made),
    )


def figures_of(panels: Iterable[Panel]) -> list[Figure]:
    """Lay out the charts that have something to show."""
    return [
        Figure(panel, chart_layouts(panel), legend(panel), _describe_chart(panel))
        for panel in panels
        if panel.labels
    ]


def column_heading(name: str) -> str:
    """Return the heading of a column; `GPU-hours` has a hyphen at which lines do not break."""
    words = _HEADINGS.get(name, name)
    words = words.replace("gpu_hours", "GPU\u2011hours").replace("cpu_hours", "CPU\u2011hours")
    return " ".join(_HEADING_WORDS.get(word, word) for word in words.split("_"))


def _describe_chart(panel: Panel) -> str:
    """Return what a chart shows in words; of one over time the tables below have the numbers."""
    return f"{panel.title}. {describe_bars(panel)}" if panel.kind == "bars" else panel.title


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  on use

    loader = PackageLoader("slurmkit_accounting.render", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"printable": printable, "heading": column_heading}
    return environment.get_template("report.html")


def _title(meta: Meta) -> str:
    title = TITLES.get(meta.report, meta.report)
    filters = meta.filters.items()
    whose = [f"{column_heading(name)} {', '.join(values)}" for name, values in filters]
    return f"{title} of {'; '.join(whose)}" if whose else title


def _window_and_clusters(meta: Meta) -> str:
    """Return the window, its time zone and the clusters."""
    words = [_window(*meta.window), meta.timezone] if meta.window else []
    return " · ".join(", ".join(each) for each in (words, meta.clusters) if each)


def _window(begin: str, end: str) -> str:
    """Return a window as briefly as is exact: a month, days, or times to the second."""
    first, last = (dt.datetime.fromisoformat(text[:19]) for text in (begin, end))
    if first.time() != dt.time() or last.time() != dt.time():
        return f"{begin[:19]} to {end[:19]}"
    last -= dt.timedelta(days=1)
    if first.day == 1 and first.month == last.month and (last + dt.timedelta(days=1)).day == 1:
        return f"{first:%B %Y}"
    return f"{first:%Y-%m-%d} to {last:%Y-%m-%d}, both included"


def _tiles(meta: Meta) -> list[Tile]:
    """Return the key numbers of a usage report; other reports have none."""
    total = meta.total if meta.report == "usage" else {}
    hours, lost = total.get("gpu_hours"), total.get("gpu_hours_lost")
    jobs, users = total.get("jobs"), total.get("users")
    if not (isinstance(hours, float) and isinstance(jobs, int) and isinstance(users, int)):
        return []
    people = f"{users:,} {'person' if users == 1 else 'people'}"
    tiles = [Tile("GPU-hours", format_brief(hours), f"{format_count(jobs, 'job')} of {people}")]
    if isinstance(lost, float | int):
        share = f"{lost / hours:.1%} of all" if hours else ""
        tiles.append(Tile("lost GPU-hours", format_brief(lost), share))
    tiles += _cost_tiles(meta)
    efficiency, measured = total.get("gpu_efficiency"), total.get("gpu_hours_measured")
    if isinstance(efficiency, float):
        size = f"{format_brief(measured)} " if isinstance(measured, float) else "the "
        tiles.append(
            Tile("GPU utilization", f"{efficiency:.1%}", f"of {size}GPU-hours that were measured")
        )
    for name, note in (
        ("energy_kwh", "measured"),
        ("energy_kwh_estimated", "GPUs under full load"),
    ):
        energy, known = total.get(name), total.get("energy_measured")
        if name == "energy_kwh" and isinstance(known, float) and known < 1:
            note = f"measured, for {known:.1%} of the node-hours"  # noqa: PLW2901
        if isinstance(energy, float):
            tiles.append(Tile("kWh", format_brief(energy), note))
            break
    return tiles


def _cost_tiles(meta: Meta) -> list[Tile]:
    cost, cloud = meta.total.get("cost"), meta.total.get("cloud_cost")
    tiles = []
    if isinstance(cost, float):
        tiles.append(Tile(f"cost in {meta.currency}", format_brief(cost), "at this site's prices"))
    if isinstance(cloud, float):
        times = f"{cloud / cost:.1f} times as much" if isinstance(cost, float) and cost else ""
        tiles.append(Tile(f"in a cloud, {meta.currency}", format_brief(cloud), times))
    return tiles


def _tables(report: Report) -> Iterator[HtmlTable]:
    """Yield a table of the main columns and one of the rest, so that both fit a printed page."""
    main = main_columns(report)
    yield _table(report, "", main)
    if rest := [one for one in filled_columns(report) if one not in main]:
        keys = [one for one in main if one.kind == "text"]
        yield _table(report, "In detail", [*keys, *rest])


def _table(report: Report, title: str, columns: list[Column]) -> HtmlTable:
    return HtmlTable(title, columns, text_rows(report, columns), text_total(report, columns))
