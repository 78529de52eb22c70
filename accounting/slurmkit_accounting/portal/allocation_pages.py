"""What is left of the allocations that the reader may see, and who used the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from flask import Blueprint, g, render_template

from slurmkit.errors import BadConfig
from slurmkit_accounting.allocations.amounts import UNIT_NAMES, format_hours
from slurmkit_accounting.allocations.balance import Balance, Balances
from slurmkit_accounting.allocations.balance_words import (
    day_words,
    range_words,
    remarks,
    share_words,
)
from slurmkit_accounting.portal.asked import Asked, ask_report, zone_name
from slurmkit_accounting.portal.context import lines_about, portal, reader

pages = Blueprint("allocations", __name__)
_MOST_USERS = 50  # users of a holder that are shown
_MOST_HOLDERS = 50  # with more of them, no users are shown


class UserRow(NamedTuple):
    """What a user used of a balance, as text; with a link to what that is made of, if any."""

    user: str
    used: str
    share: str
    link: str = ""


class BalanceRow(NamedTuple):
    """A balance as text.

    Attributes:
        link: to the usage that `used` is made of; empty if the reader cannot see all of it.
        share: what is left, in percent.
        mine: what the reader used of it.
        my_link: to the usage that `mine` is made of.
        users: who used how much, as far as the reader may see; most first.
        hidden: number of further users.
    """

    holder: str
    unit: str
    granted: str
    used: str
    link: str
    running: str
    left: str
    share: str
    mine: str
    my_link: str
    ends: str
    runs_out: str
    users: list[UserRow]
    hidden: int


@pages.get("/allocations")
def page() -> str:
    """Show the balances that the reader may see."""
    who, zone = reader(), portal().zone
    sees_all = who.permission.scope.is_everything
    found: Balances = who.ask(g.ledger, "balances", everything=sees_all)
    notes = [line for one in found.rows for line in remarks(one, zone)]
    return render_template(
        "allocations.html",
        title="Allocations",
        rows=[_row(one) for one in found.rows],
        with_users=len(found.rows) <= _MOST_HOLDERS,
        notes=list(dict.fromkeys(notes)),
        sees_all=sees_all,
        budgets=_budgets_link(),
        about=lines_about(
            "window: the allocations that are in force now; running jobs count up to now",
            "amounts are hours, rounded down; their links show all GPU-hours since the allocations"
            " begin, also those that no allocation pays for",
        ),
    )


def _budgets_link() -> str:
    """Return the link to the budgets of budgets.toml; empty if there are none that can be read."""
    with suppress(BadConfig):
        budget = ask_report("budget", timezone=zone_name() or None, now=portal().now)
        return Asked("budget").link() if budget.rows else ""
    return ""


def _row(one: Balance) -> BalanceRow:
    zone, me = portal().zone, reader().account.user
    shown = one.users[:_MOST_USERS]
    all_are_seen = sum(each.used_ms for each in one.users) == one.used_ms
    return BalanceRow(
        holder=str(one.holder),
        unit=UNIT_NAMES[one.unit],
        granted=format_hours(one.granted_ms),
        used=format_hours(one.used_ms),
        link=_usage_link(one) if all_are_seen else "",
        running=format_hours(one.running_ms),
        left=format_hours(one.left_ms),
        share=share_words(one),
        mine=format_hours(one.mine_ms),
        my_link=_usage_link(one, me) if one.mine_ms else "",
        ends=day_words(one.finish, zone),
        runs_out=range_words(one, zone),
        users=list(_users(one)),
        hidden=len(one.users) - len(shown),
    )


def _users(one: Balance) -> Iterator[UserRow]:
    """Yield who used how much; those whom the reader may not see are one row."""
    for each in one.users[:_MOST_USERS]:
        share = _share(each.used_ms, one.used_ms)
        yield UserRow(each.user, format_hours(each.used_ms), share, _usage_link(one, each.user))
    unseen = one.used_ms - sum(each.used_ms for each in one.users)
    if one.users and unseen > 0:
        yield UserRow("others, not shown to you", format_hours(unseen), _share(unseen, one.used_ms))


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole > 0 else "?"


def _usage_link(one: Balance, user: str = "") -> str:
    """Return the link to the GPU-hours since the allocations in force begin.

    Projects are no filter of `usage`, and billing-hours no column.
    """
    begins = [each.begin for each in one.allocations if each.state == "in force"]
    if one.unit != "gpu" or one.holder.kind == "project" or not begins:
        return ""
    zone = portal().zone
    begin, end = (zone.show(at).replace(" ", "T") for at in (min(begins), portal().now))
    filters: dict[str, tuple[str, ...]] = {one.holder.kind: (one.holder.name,)}
    if user:
        filters["user"] = (user,)
    return Asked("usage", begin, end, zone_name(), ("user",), filters).link()
