"""What a link asks of a report, and the links to reports."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
from flask import g, url_for

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadConfig, BadInput
from slurmkit_accounting.calendar import find_zone, month_of, month_span
from slurmkit_accounting.portal.context import portal, reader
from slurmkit_accounting.render.html import column_heading
from slurmkit_accounting.reports.dimensions import ALL_DIMENSIONS, KEY_DIMENSIONS, dimension_name
from slurmkit_accounting.reports.model import Report

FORMATS = {
    "csv": "text/csv; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "json": "application/json",
    "html": "text/html; charset=utf-8",
}
EMPTY = '""'  # in a link: the empty name; a field of a form that is left empty asks nothing
_WINDOW = frozenset(("from", "to", "month", "timezone"))
_OPTION = re.compile(r"--([a-z][a-z-]*)")
_FIELDS = {"from": "From", "to": "To", "timezone": "Time zone"}


class ReportForm(NamedTuple):
    """What a report can be asked.

    Attributes:
        title: heading of its page.
        about: one sentence about it.
        by: names that rows can be made by.
        usual: what they are made by if nothing is chosen.
        filters: dimensions that can be filtered by.
        more: further arguments.
    """

    title: str
    about: str
    by: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    more: frozenset[str] = frozenset()


_JOB = frozenset(("job",))
FORMS = {
    "usage": ReportForm(
        "GPU-hours",
        "GPU-hours that runs held within the window, whatever became of them.",
        ALL_DIMENSIONS, ("pi",), ALL_DIMENSIONS, _JOB | {"suspended"},
    ),
    "efficiency": ReportForm(
        "Efficiency",
        "What runs held and did not use, and the request that would have fitted.",
        KEY_DIMENSIONS, ("user", "partition"), KEY_DIMENSIONS, _JOB,
    ),
    "wait": ReportForm(
        "Wait", "How long runs waited from submission to start.",
        KEY_DIMENSIONS, ("partition", "gpu_type"), KEY_DIMENSIONS,
    ),
    "budget": ReportForm("Budgets", "How much of each budget is used, and when it runs out."),
    "capacity": ReportForm(
        "Capacity", "GPUs that were there, held, used and waited for, by month.",
        filters=ALL_DIMENSIONS,
    ),
    "nodes": ReportForm(
        "Nodes", "Nodes that were out of use, and why.",
        ("node", "gpu", "check"), ("node",), ("cluster",),
    ),
    "reclaimed": ReportForm(
        "Idle GPUs", "What was done about idle GPUs, and what was won back.",
        filters=ALL_DIMENSIONS, more=_JOB,
    ),
    "explain": ReportForm(
        "Runs", "The runs behind a number, largest first.", filters=ALL_DIMENSIONS,
        more=_JOB | {"runs"},
    ),
    "benchmark": ReportForm(
        "Benchmarks", "What slurmkit benchmark measured: how fast nodes and GPUs are.",
        ("gpu", "node", "gpu_type", "day", "month"), ("gpu",), ("cluster", "gpu_type"),
    ),
}  # fmt: skip
WITHOUT_WINDOW = frozenset(("budget",))
ONE_BY = frozenset(("nodes", "benchmark"))  # their rows are made by one name


class Asked(msgspec.Struct, frozen=True):
    """What a link asks of a report.

    Attributes:
        name: of the report.
        begin: as written; empty if it is left out, like the others.
        end: as written; not included.
        timezone: IANA name.
        by: chosen dimensions.
        filters: values by dimension; months are filters too.
        more: `job`, `suspended` and `runs`.
    """

    name: str
    begin: str = ""
    end: str = ""
    timezone: str = ""
    by: tuple[str, ...] = ()
    filters: dict[str, tuple[str, ...]] = {}
    more: dict[str, str] = {}

    def arguments(self, zone: str) -> dict[str, Any]:
        """Return the arguments of the read API; `zone` is that of the pages, empty if unknown."""
        given: dict[str, Any] = {"timezone": self.timezone or zone or None, **self.more}
        given["now"] = portal().now
        if self.name in WITHOUT_WINDOW:
            return given
        given |= {"begin": self.begin or None, "end": self.end or self._first_end()}
        if self.filters:
            given["filters"] = {name: list(values) for name, values in self.filters.items()}
        if FORMS[self.name].by:
            chosen = self.by or FORMS[self.name].usual
            given["by"] = chosen[0] if self.name in ONE_BY else list(chosen)
        return given

    def _first_end(self) -> str | None:
        """Return an end for a window that begins with this month, while its first second lasts."""
        if self.begin or self.filters.get("month"):
            return None
        now, zone = portal().now, find_zone(self.timezone) if self.timezone else portal().zone
        first, _ = month_span(month_of(now, zone), zone)
        return zone.show(first + 1) if now == first else None

    def fixed(self, report: Report) -> Asked:
        """Return the question with begin and end: a link must not mean another window later."""
        if self.filters.get("month") or report.meta.window is None:
            return self
        begin, end = (_exact(text) for text in report.meta.window)
        zone = self.timezone or zone_name()
        return msgspec.structs.replace(
            self, begin=self.begin or begin, end=self.end or end, timezone=zone
        )

    def link(self, name: str = "", **changes: Any) -> str:
        """Return the link to a report with the same window and filters.

        Args:
            name: another report; only the filters that it takes stay in the link.
            **changes: fields to change; `form` for a download.
        """
        form = changes.pop("form", None)
        to = msgspec.structs.replace(self, **({"name": name} if name else {}), **changes)
        taken = FORMS[to.name]
        values: dict[str, Any] = {}
        if to.name not in WITHOUT_WINDOW:
            values = {"from": to.begin or None, "to": to.end or None}
            accepted = {*taken.filters, "month"}
            values |= {
                key: [text or EMPTY for text in each]
                for key, each in to.filters.items()
                if key in accepted
            }
            if to.by and set(to.by) <= set(taken.by):
                values["by"] = ",".join(to.by)
        values |= {key: each for key, each in to.more.items() if key in taken.more}
        values |= {"timezone": to.timezone or None, "format": form}
        return url_for("reports.page", name=to.name, **values)


def _exact(text: str) -> str:
    """Return a time of a report as it stands in a link: a day, or a time with its offset."""
    whole_day = text[11:19] == "00:00:00" and zone_name()
    return text[:10] if whole_day else text.replace(" ", "T")


def zone_name() -> str:
    """Return the IANA name of the pages' time zone; empty if the host does not name its own."""
    name = portal().zone.name
    return "" if name.startswith("/") else name


def parse_asked(name: str, given: Any) -> Asked:
    """Parse the query of a link.

    Raises:
        BadInput: for a name that the report does not take, or two values where it takes one.
    """
    form = FORMS[name]
    window = frozenset() if name in WITHOUT_WINDOW else _WINDOW
    known = {*window, "timezone", "by", "format", *form.filters, *form.more}
    filters: dict[str, tuple[str, ...]] = {}
    single: dict[str, str] = {}
    by: tuple[str, ...] = ()
    for key in given:
        field, values = dimension_name(key), [text for text in given.getlist(key) if text]
        if field not in known:
            raise BadInput(
                f"this page does not take {key!r}; {did_you_mean(field, sorted(known), 'names')}"
            )
        if not values:  # a field of the form that was left empty
            continue
        if field == "by":
            by = tuple(dict.fromkeys(map(dimension_name, ",".join(values).split(","))))
        elif field in {*form.filters, "month"}:
            filters[field] = tuple(dict.fromkeys("" if one == EMPTY else one for one in values))
        elif len(values) > 1:
            raise BadInput(f"give {key} once")
        else:
            single[field] = values[0]
    for each in by:
        if each not in form.by:
            raise BadInput(
                f"this report has no dimension {each!r}; choose from {', '.join(form.by)}"
            )
    if single.get("format", "csv") not in FORMATS:
        raise BadInput(f"format must be {', '.join(FORMATS)}")
    more = {key: single[key] for key in form.more if key in single}
    return Asked(
        name, single.get("from", ""), single.get("to", ""), single.get("timezone", ""),
        by, filters, more,
    )  # fmt: skip


def ask_report(name: str, **arguments: Any) -> Report:
    """Ask the read API for a report, with the rights of the reader.

    Raises:
        BadInput: for an argument that is not valid, in the words of the pages.
    """
    try:
        report: Report = reader().ask(g.ledger, name, **arguments)
    except BadConfig:
        raise
    except BadInput as error:
        raise BadInput(in_words_of_pages(str(error))) from error
    return report


def in_words_of_pages(text: str) -> str:
    """Name the fields of a page in place of options of the command line."""

    def field(option: re.Match[str]) -> str:
        name = option[1]
        return f"\u201c{_FIELDS.get(name) or column_heading(dimension_name(name))}\u201d"

    return _OPTION.sub(field, text)
