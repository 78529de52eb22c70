"""The page of one's own account: deputies, who looked at one's runs; for operators: see as."""

from __future__ import annotations

import datetime as dt
from http import HTTPStatus

from flask import Blueprint, abort, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from slurmkit.errors import BadConfig, BadInput
from slurmkit_accounting.people.deputies import (
    LONGEST_SECONDS,
    deputies_of,
    end_deputy,
    name_deputy,
)
from slurmkit_accounting.portal.context import lines_about, portal, reader
from slurmkit_accounting.portal.identity import LoginRefused, account_of_name
from slurmkit_accounting.portal.view_log import PortalView, subject_of, views_of

pages = Blueprint("account", __name__)
_PAGES = {
    "runs": "lists of runs",
    "job": "a job",
    "evidence": "a run in full",
    "idle GPUs": "what was done about idle GPUs",
    "see as": "the pages as you see them",
}


@pages.get("/account")
def page() -> str:
    """Show what the reader may see, and who may and did look at their runs."""
    return _page()


def _page(wrong: str = "", user: str = "", until: str = "") -> str:
    """Return the page; after a deputy that cannot be named with what is wrong, and the form."""
    who, today = reader(), _today()
    with g.ledger.transaction() as connection:
        person = who.account.person_id
        deputies = () if person is None else deputies_of(connection, person, portal().now)
        views = views_of(connection, who.account)
    return render_template(
        "account.html",
        title="Your account",
        deputies=deputies,
        views=views,
        pages=_PAGES,
        day=lambda epoch: dt.datetime.fromtimestamp(epoch, portal().zone.rules).date(),
        tomorrow=today + dt.timedelta(days=1),
        last=today + dt.timedelta(seconds=LONGEST_SECONDS, days=-1),
        wrong=wrong,
        given={"user": user, "until": until},
        about=lines_about("window: all deputies and views that the ledger still has"),
    )


@pages.post("/account/deputies")
def add_deputy() -> AnyResponse | tuple[str, int]:
    """Name a deputy until the end of a day; show the form again if that is not possible."""
    person, account = _own_person(), reader().account
    user, until = (request.form.get(name, "").strip() for name in ("user", "until"))
    try:
        end = _end_of_day(until)
        with portal().open_to_change() as ledger, ledger.transaction() as connection:
            name_deputy(connection, person, user, end, named_by=account.user, now=portal().now)
    except BadConfig:
        raise
    except BadInput as error:
        return _page(str(error), user, until), HTTPStatus.BAD_REQUEST.value
    portal().log("deputy named", user=account.user, deputy=user, until=until)
    return redirect(url_for("account.page"), 303)


def _end_of_day(text: str) -> int:
    """Return the end of a day in epoch seconds."""
    try:
        after = dt.date.fromisoformat(text) + dt.timedelta(days=1)
    except (OverflowError, ValueError) as error:
        raise BadInput("the last day must be a day, as YYYY-MM-DD") from error
    return portal().zone.epoch(after.isoformat())


@pages.post("/account/deputies/<int:number>/end")
def remove_deputy(number: int) -> AnyResponse:
    """End a deputy now."""
    person, account = _own_person(), reader().account
    with portal().open_to_change() as ledger, ledger.transaction() as connection:
        deputy = end_deputy(connection, person, number, ended_by=account.user, now=portal().now)
    portal().log("deputy ended", user=account.user, deputy=deputy)
    return redirect(url_for("account.page"), 303)


@pages.post("/see-as")
def see_as() -> AnyResponse:
    """Let an operator see what somebody sees; that person can read that they did."""
    who = reader()
    if not who.is_operator:
        abort(403)
    try:
        with g.ledger.transaction() as connection:
            account = account_of_name(connection, request.form.get("user", "").strip())
    except LoginRefused as error:
        raise BadInput(f"nobody can be seen as: {error}") from error
    own = who.session.account
    portal().log("see as", user=own.user, seen_as=account.user)
    subjects = (subject_of(account),)
    portal().views.add(PortalView(own, account.user, "see as", subjects, portal().now))
    portal().sessions.see_as(who.session.token, account.uid, account.user)
    return redirect(url_for("home.page"), 303)


@pages.post("/see-as/stop")
def see_as_oneself() -> AnyResponse:
    """Let an operator see as themselves again."""
    who = reader()
    portal().log("see as ended", user=who.session.account.user, seen_as=who.seen_as or None)
    portal().sessions.see_as(who.session.token, None, "")
    return redirect(url_for("home.page"), 303)


def _own_person() -> int:
    """Return the reader as a person of the directory; an operator changes nothing for others."""
    who = reader()
    if who.seen_as:
        abort(403, "You see as somebody else. Only they can name their deputies.")
    if who.account.person_id is None:
        raise BadInput("the directory does not know you, so you are the PI of no runs")
    return who.account.person_id


def _today() -> dt.date:
    return dt.datetime.fromtimestamp(portal().now, portal().zone.rules).date()
