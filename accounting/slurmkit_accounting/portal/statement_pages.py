"""Statements: the reports of closed months, as `slurmkit report mail` mails them to PIs."""

from __future__ import annotations

from typing import NamedTuple

from flask import Blueprint, Response, abort, g, render_template

from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.notify.monthly_mail import (
    PastMonth,
    ReportedPi,
    month_notice,
    pis_of_month,
)
from slurmkit_accounting.portal.asked import Asked
from slurmkit_accounting.portal.context import lines_about, portal, reader
from slurmkit_accounting.usage.closed_months import load_closed_months

pages = Blueprint("statements", __name__)
_FORMS = {"html": "text/html; charset=utf-8", "txt": "text/plain; charset=utf-8"}


class ClosedMonthOfSite(NamedTuple):
    """A month that was closed, of all clusters.

    Attributes:
        month: YYYY-MM.
        timezone: IANA name.
        at: when its last cluster was closed, epoch seconds.
        clusters: names.
    """

    month: str
    timezone: str
    at: int
    clusters: tuple[str, ...]


@pages.get("/statements")
def page() -> str:
    """List the closed months."""
    return render_template(
        "statements.html",
        title="Statements",
        months=list(reversed(_closed_months())),
        about=lines_about(),
    )


@pages.get("/statements/<month>")
def of_month(month: str) -> str:
    """List the PIs whose statement of a month the reader may see."""
    closed = _find(month)
    past = _past(closed)
    window = Asked("usage", timezone=closed.timezone, by=("user",))
    return render_template(
        "statements_of_month.html",
        title=f"Statements of {closed.month}",
        closed=closed,
        pis=[
            (pi, window.link(filters={"month": (closed.month,), "pi": (pi.name,)}))
            for pi in _shown_pis(past)
        ],
        about=lines_about(f"month: {closed.month}, {closed.timezone}"),
    )


@pages.get("/statements/<month>/<int:person>.<form>")
def statement(month: str, person: int, form: str) -> Response:
    """Send a PI's statement of a month, as it is mailed."""
    if form not in _FORMS:
        abort(404)
    past = _past(_find(month))
    found = [pi for pi in _shown_pis(past) if pi.person_id == person]
    if not found:
        abort(404, "There is no such statement that you may see.")
    notice = month_notice(g.ledger, past, found[0])
    response = Response(notice.html if form == "html" else notice.text, content_type=_FORMS[form])
    safe = (char if char.isalnum() or char in "._-" else "_" for char in found[0].name)
    name = "".join(char if char.isascii() else "_" for char in safe)
    attached = f'attachment; filename="slurmkit-statement-{past.name}-{name}.{form}"'
    response.headers["Content-Disposition"] = attached
    return response


def _closed_months() -> list[ClosedMonthOfSite]:
    """Return the closed months, the oldest first."""
    by_month: dict[str, ClosedMonthOfSite] = {}
    with g.ledger.transaction() as connection:
        for one in load_closed_months(connection):
            known = by_month.get(one.month, ClosedMonthOfSite(one.month, one.timezone, one.at, ()))
            by_month[one.month] = known._replace(
                at=max(known.at, one.at), clusters=(*known.clusters, one.cluster)
            )
    return list(by_month.values())


def _find(month: str) -> ClosedMonthOfSite:
    found = [one for one in _closed_months() if one.month == month]
    if not found:
        abort(404, "This month is not closed, so it has no statements.")
    return found[0]


def _past(closed: ClosedMonthOfSite) -> PastMonth:
    return PastMonth(closed.month, find_zone(closed.timezone), portal().now)


def _shown_pis(month: PastMonth) -> list[ReportedPi]:
    """Return the PIs with usage in a month of whom the reader may see everything."""
    scope = reader().permission.scope
    return [pi for pi in pis_of_month(g.ledger, month) if scope.shows_group(pi.person_id)]
