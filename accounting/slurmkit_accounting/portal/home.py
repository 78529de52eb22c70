"""Home: the month of a researcher, a PI's group, or the site, and what is worth a question."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from flask import Blueprint, g, render_template, request, url_for
from msgspec.structs import replace

from slurmkit.errors import BadInput
from slurmkit_accounting.allocations.amounts import UNIT_NAMES, to_hours
from slurmkit_accounting.allocations.balance import Balance, Balances
from slurmkit_accounting.calendar import Zone, day_of, month_of, month_span, months_back
from slurmkit_accounting.portal.asked import Asked, ask_report, zone_name
from slurmkit_accounting.portal.context import Reader, portal, reader
from slurmkit_accounting.portal.report_pages import ReportView, view_of
from slurmkit_accounting.portal.run_pages import describe_outcome, note_owners, note_owners_of_acts
from slurmkit_accounting.portal.whose import OPERATOR, RESEARCHER, Role, Whose, chosen, whose_hours
from slurmkit_accounting.render.format import format_amount, format_brief, format_count
from slurmkit_accounting.render.html import Tile, figures_of, report_page
from slurmkit_accounting.reports.explain import WAITING
from slurmkit_accounting.reports.model import Panel, Report, Series

pages = Blueprint("home", __name__)
_MONTHS = 6  # months in the chart of the months before
_MOST_QUESTIONS, _MOST_RUNS, _MOST_TILES = 3, 8, 3
_FAILED = ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE")
_LEAST_HOURS, _LEAST_SHARE = 1.0, 0.1  # GPU-hours and share of a user's that make a question
# Columns of `usage` that are worth a question, and the words for them.
_LOSSES = (
    ("gpu_hours_timeout", "TIMEOUT", "reached their time limit"),
    ("gpu_hours_failed", "FAILED", "failed"),
    ("gpu_hours_out_of_memory", "OUT_OF_MEMORY", "ran out of memory"),
    ("gpu_hours_node_fail", "NODE_FAIL", "were lost with a node"),
)


class OpenQuestion(NamedTuple):
    """Something worth asking about: in words, the GPU-hours it is about, and a link to the runs."""

    words: str
    hours: float
    link: str


@pages.get("/")
def page() -> str:
    """Show Home."""
    who, zone = reader(), portal().zone
    now = portal().now
    month = month_of(now, zone)
    first, _ = month_span(month, zone)
    # Not empty in the first second of a month; links mean this window later, too.
    begin, end = (zone.show(edge).replace(" ", "T") for edge in (first, max(now, first + 1)))
    site = Asked("usage", begin, end, zone_name())
    choices = whose_hours(who, lambda: _usage(site, by=("pi", "user")), first)
    whose = chosen(choices, request.args.get("of", ""))
    role = whose.role
    asked = replace(site, filters=whose.filters)
    this_month = _usage(asked, by=(role.by,), panels=True)
    by_user = this_month if role.by == "user" else _usage(asked, by=("user",))
    is_site = role is OPERATOR
    failed = None if is_site else _runs(asked, state=_FAILED)
    running = None if is_site else _runs(asked, state=("RUNNING",))
    waiting = None if is_site else _runs(asked, more={"runs": WAITING})
    for runs in (failed, running, waiting):
        if runs is not None:
            note_owners(runs)
    budget = _budget(whose, now)
    balances = [] if is_site else [*balance_tiles(who.ask(g.ledger, "balances"), zone)]
    efficiency = _report(replace(asked, name="efficiency", by=("user",)))
    links = {
        "running": _runs_link(asked, state=("RUNNING",)),
        "waiting": _runs_link(asked, more={"runs": WAITING}),
        "budget left": Asked("budget").link(),
        **{tile.name: url_for("allocations.page") for tile in balances},
    }
    view = view_of(_without_own_name(this_month, role), replace(asked, by=(role.by,)), 12)
    return render_template(
        "home.html",
        title="Home",
        role=role,
        whose=whose,
        choices=choices,
        heading=whose.heading,
        month=f"{dt.date.fromisoformat(f'{month}-01'):%B %Y}",
        tiles=[
            *report_page(this_month).tiles,
            *_tiles_of_now(role, running, waiting, balances, budget),
        ],
        tile_links=view.tiles | links,
        view=view,
        more=asked.link(by=(role.by,)),
        before=figures_of([_months_panel(asked)]),
        questions=questions(by_user, efficiency, asked, who.account.user),
        budget=view_of(budget, Asked("budget")) if budget.rows else None,
        failed=failed,
        running=running,
        waiting=waiting,
        most=_MOST_RUNS,
        failed_link=_runs_link(asked, state=_FAILED),
        running_link=links["running"],
        waiting_link=links["waiting"],
        fits=_request_that_fits(efficiency, who),
        describe=describe_outcome,
        amount=format_amount,
        site=list(_site(asked)) if is_site else [],
        least_hours=_LEAST_HOURS,
        least_share=_LEAST_SHARE,
        efficiency_link=asked.link("efficiency", by=("user",)),
    )


def _usage(asked: Asked, *, by: tuple[str, ...], panels: bool = False) -> Report:
    return _report(replace(asked, by=by), panels=panels)


def _report(asked: Asked, **more: Any) -> Report:
    return ask_report(asked.name, **asked.arguments(zone_name()), **more)


def _budget(whose: Whose, now: int) -> Report:
    """Return the budgets of whom Home is about."""
    budget = ask_report("budget", timezone=zone_name() or None, now=now)
    if whose.pi:
        return replace(budget, rows=tuple(row for row in budget.rows if row["pi"] == whose.pi))
    return budget


def _site(asked: Asked) -> Iterator[tuple[str, ReportView, str]]:
    """Yield what an operator sees of the site this month: a heading, numbers, and their page."""
    for name, by, heading in (
        ("capacity", (), "Capacity"),
        ("wait", ("partition", "gpu_type"), "Wait"),
        ("nodes", ("node",), "Nodes out of use"),
        ("reclaimed", (), "Idle GPUs given back"),
    ):
        one = replace(asked, name=name, by=by)
        found = _report(one)
        if name == "reclaimed":
            note_owners_of_acts(replace(found, rows=found.rows[:_MOST_RUNS]))
        yield heading, view_of(found, one, _MOST_RUNS), one.link()


def _runs(asked: Asked, state: Sequence[str] = (), **changes: Any) -> Report | None:
    """Return the first of some runs; None if there are too many for a page."""
    try:
        return _report(_asked_runs(asked, state, **changes), most=_MOST_RUNS)
    except BadInput:
        return None


def _asked_runs(asked: Asked, state: Sequence[str] = (), **changes: Any) -> Asked:
    states = {"state": tuple(state)} if state else {}
    return replace(asked, name="explain", filters=asked.filters | states, **changes)


def _runs_link(asked: Asked, state: Sequence[str] = (), **changes: Any) -> str:
    return _asked_runs(asked, state, **changes).link()


def _without_own_name(report: Report, role: Role) -> Report:
    """Return a report without the chart by person, where there is only one."""
    if role is not RESEARCHER:
        return report
    return replace(
        report, panels=tuple(one for one in report.panels if not one.title.endswith("by person"))
    )


def _tiles_of_now(
    role: Role,
    running: Report | None,
    waiting: Report | None,
    balances: Sequence[Tile],
    budget: Report,
) -> Iterator[Tile]:
    """Yield what runs and waits, as of the last ingest, and what is left.

    What is left is that of allocations, or without any of the only budget.
    """
    if running is not None and running.rows:
        yield Tile("running", _gpus(running), f"in {_number(running)}")
    if waiting is not None and waiting.rows:
        yield Tile("waiting", _number(waiting), f"for {_gpus(waiting)}")
    yield from balances
    if len(budget.rows) == 1 and not balances and role is not OPERATOR:
        row = budget.rows[0]
        ends = str(row["runs_out"])
        note = ends if ends == "used up" else f"runs out on {ends}" if ends else "lasts to its end"
        yield Tile("budget left", format_brief(row["gpu_hours_left"]), note)


def _number(runs: Report) -> str:
    """Return how many runs there are, of which a page may show a few."""
    return format_count(runs.meta.runs or 0, "run")


def _gpus(runs: Report) -> str:
    """Return the GPUs of all runs in words."""
    return format_count(int(runs.meta.total.get("gpus") or 0), "GPU")


def _months_panel(asked: Asked) -> Panel:
    """Return the chart of the GPU-hours of the last months, this one included."""
    zone, now = portal().zone, portal().now
    begin = months_back(now, _MONTHS - 1, zone)
    first = month_of(begin, zone)
    found = _usage(replace(asked, begin=f"{first}-01"), by=("month", "gpu_type"))
    months = [month_of(months_back(now, back, zone), zone) for back in reversed(range(_MONTHS))]
    hours: dict[str, dict[str, float]] = {}
    for row in found.rows:
        of_type = hours.setdefault(str(row["gpu_type"]), {})
        of_type[row["month"]] = of_type.get(row["month"], 0.0) + (row["gpu_hours"] or 0.0)
    series = [
        Series(name, tuple(each.get(month, 0.0) for month in months))
        for name, each in sorted(hours.items(), key=lambda pair: -sum(pair[1].values()))
        if any(each.values())
    ]
    title = f"GPU-hours of the last {_MONTHS} months"
    labels = tuple(months) if series else ()
    return Panel("stacked", title, "GPU-hours", labels, tuple(series))


def questions(by_user: Report, efficiency: Report, asked: Asked, me: str) -> list[OpenQuestion]:
    """Return what is most worth asking about: GPU-hours that were lost or did nothing, by user."""
    found = [*_losses(by_user, asked, me), *_idle(efficiency, asked, me)]
    return sorted(found, key=lambda one: -one.hours)[:_MOST_QUESTIONS]


def _losses(by_user: Report, asked: Asked, me: str) -> Iterator[OpenQuestion]:
    for row in by_user.rows:
        for column, state, words in _LOSSES:
            hours, all_hours = row[column] or 0.0, row["gpu_hours"] or 0.0
            if hours < _LEAST_HOURS or hours < _LEAST_SHARE * all_hours:
                continue
            only = {"user": (str(row["user"]),), "state": (state,)}
            whose = "your" if row["user"] == me else f"{row['user']}'s"
            yield OpenQuestion(
                f"{hours / all_hours:.0%} of {whose} GPU-hours {words}:"
                f" {format_amount(hours)} of {format_amount(all_hours)}",
                hours,
                asked.link("explain", filters=asked.filters | only),
            )


def _idle(efficiency: Report, asked: Asked, me: str) -> Iterator[OpenQuestion]:
    for row in efficiency.rows:
        hours = row["gpu_hours_idle"] or 0.0
        if hours >= max(_LEAST_HOURS, _LEAST_SHARE * (row["gpu_hours"] or 0.0)):
            only = {"user": (str(row["user"]),)}
            whose = "Your" if row["user"] == me else f"{row['user']}'s"
            yield OpenQuestion(
                f"{whose} GPUs did nothing for {format_amount(hours)} GPU-hours",
                hours,
                asked.link("efficiency", filters=asked.filters | only, by=("user", "partition")),
            )


def _request_that_fits(efficiency: Report, who: Reader) -> dict[str, Any] | None:
    """Return the row of the reader's own runs, if less would have been enough for them."""
    for row in efficiency.rows:
        if row["user"] == who.account.user and row["would_have_fitted"]:
            return row
    return None


def balance_tiles(found: Balances, zone: Zone) -> Iterator[Tile]:
    """Yield a tile for each balance that concerns the reader, those with the least left first."""
    for one in islice(sorted(found.rows, key=_share_left), _MOST_TILES):
        left = format_brief(to_hours(one.left_ms))
        yield Tile(f"{one.holder} left", left, _balance_note(one, zone))


def _share_left(one: Balance) -> float:
    return one.left_ms / max(one.granted_ms, 1)


def _balance_note(one: Balance, zone: Zone) -> str:
    whole = format_brief(to_hours(one.granted_ms))
    mine, used = (format_brief(to_hours(amount)) for amount in (one.mine_ms, one.used_ms))
    note = f"of {whole} {UNIT_NAMES[one.unit]}; used {used}, {mine} by you"
    if one.left_ms <= 0:
        return f"{note}; used up"
    middle = None if one.pace is None else one.pace.middle
    if middle is not None and (one.finish is None or middle < one.finish):
        return f"{note}; runs out about {day_of(middle, zone).isoformat()}"
    if one.finish is None:
        return note
    return f"{note}; ends {day_of(one.finish, zone).isoformat()}"
