"""Reports as one self-contained HTML file: no scripts, nothing from the network."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from slurmkit.text import printable
from slurmkit_accounting.render.charts import Chart, draw, legend
from slurmkit_accounting.render.text import cells, first, seen
from slurmkit_accounting.render.words import brief, footer, moment, shown
from slurmkit_accounting.reports.model import Column, Meta, Panel, Report

if TYPE_CHECKING:
    from jinja2 import Template

TITLES = {
    "usage": "GPU usage",
    "budget": "GPU budgets",
    "wait": "Wait times",
    "efficiency": "Efficiency",
    "idle": "Idle GPUs",
    "reconcile": "The books and sreport",
}
_WORDS = {"gpu": "GPU", "cpu": "CPU", "gib": "GiB", "kwh": "kWh", "pi": "PI", "qos": "QOS"}


class Tile(NamedTuple):
    """A number that stands out: what, how much, and what to make of it."""

    name: str
    value: str
    note: str = ""


class Table(NamedTuple):
    """Some columns of the rows, as text."""

    title: str
    columns: list[Column]
    rows: list[list[str]]
    total: list[str]


class Figure(NamedTuple):
    """A panel with its charts by the name of their width."""

    panel: Panel
    charts: dict[str, Chart]
    legend: list[str]


def as_html(report: Report) -> str:
    """Make the page; everything that came from outside is escaped."""
    return _template().render(
        meta=report.meta,
        title=_title(report.meta),
        span=_span(report.meta),
        tiles=list(_tiles(report.meta)),
        figures=[_figure(panel) for panel in report.panels if panel.labels],
        tables=list(_tables(report)),
        footer=list(footer(report.meta)),
        made=moment(report.meta.made),
    )


def heading(name: str) -> str:
    """The name of a column in words; what is one does not break."""
    words = name.replace("gpu_hours", "GPU\u2011hours").replace("cpu_hours", "CPU\u2011hours")
    return " ".join(_WORDS.get(word, word) for word in words.replace("-type", " type").split("_"))


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  on use

    loader = PackageLoader("slurmkit_accounting.render", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"printable": printable, "heading": heading}
    return environment.get_template("report.html")


def _title(meta: Meta) -> str:
    title = TITLES.get(meta.report, meta.report)
    whose = [f"{name} {', '.join(values)}" for name, values in meta.filters.items()]
    return f"{title} of {'; '.join(whose)}" if whose else title


def _span(meta: Meta) -> str:
    """The window in as few words as are exact, and of which clusters it is."""
    words = [_window(*meta.window), meta.timezone] if meta.window else []
    return " · ".join(", ".join(each) for each in (words, meta.clusters) if each)


def _window(begin: str, end: str) -> str:
    """A month by its name, days as the first and the last, anything else to the second."""
    first, last = (dt.datetime.fromisoformat(text[:19]) for text in (begin, end))
    if first.time() != dt.time() or last.time() != dt.time():
        return f"{begin[:19]} to {end[:19]}"
    last -= dt.timedelta(days=1)
    if first.day == 1 and first.month == last.month and (last + dt.timedelta(days=1)).day == 1:
        return f"{first:%B %Y}"
    return f"{first:%Y-%m-%d} to {last:%Y-%m-%d}, both included"


def _tiles(meta: Meta) -> list[Tile]:
    total = meta.total
    hours, lost = total.get("gpu_hours"), total.get("gpu_hours_lost")
    if not isinstance(hours, float | int):
        return []
    jobs, users = total.get("jobs"), total.get("users")
    people = f"{jobs:,} jobs of {users:,} {'person' if users == 1 else 'people'}"
    found = [Tile("GPU-hours", brief(hours), people)]
    if isinstance(lost, float | int):
        share = f"{lost / hours:.1%} of all" if hours else ""
        found.append(Tile("lost GPU-hours", brief(lost), share))
    found += _money(meta)
    efficiency = total.get("gpu_efficiency")
    if isinstance(efficiency, float):
        found.append(Tile("GPU utilisation", f"{efficiency:.1%}", "of the runs that were measured"))
    for name, note in (
        ("energy_kwh", "measured"),
        ("energy_kwh_estimated", "GPUs under full load"),
    ):
        energy = total.get(name)
        if isinstance(energy, float):
            found.append(Tile("kWh", brief(energy), note))
            break
    return found


def _money(meta: Meta) -> list[Tile]:
    cost, cloud = meta.total.get("cost"), meta.total.get("cloud_cost")
    found = []
    if isinstance(cost, float):
        found.append(Tile(f"cost in {meta.currency}", brief(cost), "at this site's prices"))
    if isinstance(cloud, float):
        times = f"{cloud / cost:.1f} times as much" if isinstance(cost, float) and cost else ""
        found.append(Tile(f"in a cloud, {meta.currency}", brief(cloud), times))
    return found


def _tables(report: Report) -> Iterator[Table]:
    """What one looks at first, and the rest in a table of its own: both fit a printed page."""
    main = first(report)
    yield _table(report, "", main)
    if rest := [one for one in seen(report) if one not in main]:
        keys = [one for one in main if one.kind == "text"]
        yield _table(report, "In detail", [*keys, *rest])


def _table(report: Report, title: str, columns: list[Column]) -> Table:
    total = report.meta.total if len(report.rows) > 1 else {}
    words = [shown(total[one.name], one.kind) if one.name in total else "" for one in columns]
    return Table(title, columns, cells(report, columns), ["all", *words[1:]] if total else [])


def _figure(panel: Panel) -> Figure:
    return Figure(panel, draw(panel), legend(panel) if len(panel.series) > 1 else [])
