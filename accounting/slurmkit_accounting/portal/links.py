"""The links of the numbers of a report: each opens exactly the runs that it is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from flask import url_for

from slurmkit_accounting.portal.asked import Asked
from slurmkit_accounting.reports.dimensions import ALL_DIMENSIONS
from slurmkit_accounting.reports.explain import LOST, MEASURED, STARTED
from slurmkit_accounting.reports.model import Report
from slurmkit_accounting.reports.tally import OPEN_STATES, OUTCOMES

# States of the GPU-hours in a column of `usage`. States that are no outcome by name are many.
_STATES = {f"gpu_hours_{name}": frozenset((name.upper(),)) for name in OUTCOMES[:-2]} | {
    "gpu_hours_running": OPEN_STATES
}
_WHICH = {"wait": STARTED, "efficiency": MEASURED}
_OF_RUNS = frozenset(("usage", *_WHICH))
_NO_LINKS = {
    "suspended": (
        "Time while suspended is left out here. Runs are listed with it, so these numbers open no"
        " runs."
    ),
    "asked": (
        "Rows that differ only in what was asked for open no runs: a list of runs cannot be chosen"
        " by that. The total opens all of them."
    ),
    "capacity": "A month opens its GPU-hours by type. Capacity and waits are not sums of runs.",
    "nodes": "Outages come from slurmdbd's events of nodes, not from runs, so they open none.",
    "benchmark": "Values come from slurmkit benchmark, not from runs of users, so they open none.",
}


def row_links(report: Report, asked: Asked, most: int) -> list[dict[str, str]]:
    """Return the links of the first rows, by column; `asked` has the window of the report."""
    if report.meta.report not in _OF_RUNS:
        return [dict(_links_of_other(report, row, asked)) for row in report.rows[:most]]
    dimensions = _dimensions(report)
    labels = [tuple(str(row[each]) for each in dimensions) for row in report.rows]
    times = Counter(labels)
    links = []
    for row, label in zip(report.rows[:most], labels[:most], strict=True):
        if row.get("correction") or (report.meta.report == "efficiency" and times[label] > 1):
            links.append(dict[str, str]())
            continue
        filters = asked.filters | {
            name: (value,) for name, value in zip(dimensions, label, strict=True)
        }
        links.append(dict(_links_of_runs(asked, filters, row, dimensions[:1])))
    return links


def total_links(report: Report, asked: Asked) -> dict[str, str]:
    """Return the links of the total of all rows, by column."""
    if report.meta.report not in _OF_RUNS:
        return {}
    return dict(_links_of_runs(asked, asked.filters, report.meta.total, ()))


def why_no_links(report: Report, asked: Asked) -> str:
    """Return why some numbers of a report open nothing; empty if there is no reason."""
    name = report.meta.report
    if asked.more.get("suspended") == "skip":
        return _NO_LINKS["suspended"]
    if name == "efficiency":
        dimensions = _dimensions(report)
        labels = [tuple(row[each] for each in dimensions) for row in report.rows]
        return _NO_LINKS["asked"] if len(set(labels)) < len(labels) else ""
    return _NO_LINKS.get(name, "")


def _dimensions(report: Report) -> list[str]:
    return [each for each in report.meta.by if each in ALL_DIMENSIONS]


def _links_of_runs(
    asked: Asked,
    filters: dict[str, tuple[str, ...]],
    values: Mapping[str, Any],
    keys: list[str] | tuple[str, ...],
) -> Iterator[tuple[str, str]]:
    """Yield links to the runs behind numbers, by column."""
    if asked.more.get("suspended") == "skip":  # lists of runs have the time while suspended
        return
    which = _WHICH.get(asked.name, "")
    more = {key: value for key, value in asked.more.items() if key == "job"}
    link = asked.link(
        "explain", filters=filters, by=(), more=more | ({"runs": which} if which else {})
    )
    for column in (*keys, "jobs", "gpu_hours", *(["cpu_hours"] if not which else [])):
        if column in values:
            yield column, link
    if asked.name != "usage":
        return
    if values.get("users"):
        yield "users", asked.link(filters=filters, by=("user",))
    if values.get("gpu_hours_lost"):
        lost = more | {"runs": LOST}
        yield "gpu_hours_lost", asked.link("explain", filters=filters, by=(), more=lost)
    for column, states in _STATES.items():
        chosen = states.intersection(filters.get("state", states))
        if values.get(column) and chosen:
            only = filters | {"state": tuple(sorted(chosen))}
            yield column, asked.link("explain", filters=only, by=(), more=more)


def _links_of_other(
    report: Report, row: Mapping[str, Any], asked: Asked
) -> Iterator[tuple[str, str]]:
    """Yield the links of a row of a report that is not a sum of runs, by column."""
    name = report.meta.report
    if name in {"explain", "reclaimed"}:
        yield "job", url_for("runs.job", job=row["job"], cluster=row.get("cluster"))
    if name == "explain":
        yield "row", url_for("runs.evidence", row=row["row"])
    if name == "budget":
        window = {"begin": str(row["from"]), "end": str(row["to"])}
        link = asked.link("usage", by=("user",), filters={"pi": (str(row["pi"]),)}, **window)
        yield from ((column, link) for column in ("pi", "gpu_hours_used"))
    if name == "capacity":
        month = asked.filters | {"month": (str(row["month"]),)}
        yield "month", asked.link("usage", by=("gpu_type",), filters=month)
