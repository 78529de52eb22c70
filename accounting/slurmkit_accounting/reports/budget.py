"""`report budget`: what PIs have used of their GPU-hours, and when these run out."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.pi import People
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.budgets import Budget, budgets_path, load_budgets
from slurmkit_accounting.reports.counted import Counted, Question
from slurmkit_accounting.reports.model import Column, Meta, Panel, Report, Series
from slurmkit_accounting.reports.panels import unit_of
from slurmkit_accounting.reports.periods import day_of
from slurmkit_accounting.reports.scope import Scope
from slurmkit_accounting.schema import DAY

COLUMNS = (
    Column("pi"),
    Column("from"),
    Column("to"),
    Column("gpu_hours_budget", "hours"),
    Column("gpu_hours_used", "hours"),
    Column("gpu_hours_left", "hours"),
    Column("used", "share"),
    Column("gpu_hours_per_day", "hours"),
    Column("runs_out"),
    Column("notice"),
)
RATE_DAYS = 30
NOTICES = (1.0, 0.8)
_FEW = 4  # charts


class Spent(msgspec.Struct, frozen=True):
    """A budget, and what was used of it.

    Attributes:
        used: GPU-hours so far.
        per_day: GPU-hours a day, of the last 30 days or since the budget began.
        left: at the end of each day, week or month so far.
        labels: of those.
        evenly: what would be left then, were it used evenly.
    """

    budget: Budget
    used: Fraction
    per_day: Fraction
    labels: tuple[str, ...]
    left: tuple[float, ...]
    evenly: tuple[float, ...]


def budget_report(ledger: Ledger, question: Question) -> Report:
    """What is used of every budget in force at `question.now`; its window says nothing.

    Raises:
        BadConfig: for budgets or prices that cannot be read.
        LedgerError: when the ledger cannot be read.
    """
    budgets = load_budgets()
    with ledger.transaction() as connection:
        shown = _shown(connection, budgets, question)
        spent = [_spent(connection, budget, question) for budget in shown]
        meta = Meta(
            report="budget",
            by=("pi",),
            timezone=question.zone.name,
            suspended=question.suspended,
            running_until=question.zone.show(question.now),
            notes=tuple(_notes(len(budgets), len(spent), question.scope)),
            **provenance.of_books(ledger, connection, question.now, question.scope),
        )
    rows = tuple(_row(each, question) for each in sorted(spent, key=_fullest))
    return Report(meta, COLUMNS, rows, tuple(map(_burn_down, spent)))


def burn_downs(connection: Connection, question: Question) -> tuple[Panel, ...]:
    """What is left of the budgets of the PIs that a report is about, if they are a few."""
    asked = question.filters.get("pi")
    now = min(question.now, question.window[1] - 1)
    whole = replace(question, filters={}, job=None, now=now)
    budgets = [one for one in load_budgets() if asked is None or one.pi in asked]
    shown = _shown(connection, budgets, whole)
    few = shown if len(shown) <= _FEW else []
    return tuple(_burn_down(_spent(connection, budget, whole)) for budget in few)


def _burn_down(spent: Spent) -> Panel:
    """What is left at the end of each day, week or month."""
    left = tuple(max(each, 0.0) for each in spent.left)
    title = f"Budget of {spent.budget.pi}, {spent.budget.begin} to {spent.budget.end}"
    series = (Series("left", left), Series("left if used evenly", spent.evenly))
    return Panel("lines", title, "GPU-hours left", spent.labels, series)


def _shown(connection: Connection, budgets: Iterable[Budget], question: Question) -> list[Budget]:
    """Budgets in force of PIs whose whole groups the reader may see."""
    now = question.now
    found = [one for one in budgets if _begin(one, question) <= now < _end(one, question)]
    if not found or question.scope.is_everything:
        return found
    people = People.load(connection)
    shows = question.scope.shows_group
    return [one for one in found if shows(people.person(one.pi, None, now))]


def _spent(connection: Connection, budget: Budget, question: Question) -> Spent:
    begin, now = _begin(budget, question), question.now
    unit = unit_of((begin, _end(budget, question)))
    asked = replace(
        question,
        window=(begin, max(now, begin + 1)),
        units=frozenset((unit,)),
        filters={"pi": (budget.pi,)},
    )
    counted = Counted(connection, asked)
    hours = {
        labels[0]: tally.gpu_hours(counted.rates) for labels, tally in counted.rows((unit,)).items()
    }
    ends = {part.labels[unit]: part.end for part in counted.parts}
    length = _end(budget, question) - begin
    evenly = [budget.gpu_hours * (1 - (end - begin) / length) for end in ends.values()]
    left, used = [], Fraction(0)
    for label in ends:
        used += hours.get(label, Fraction(0))
        left.append(float(Fraction(budget.gpu_hours) - used))
    since = max(begin, now - RATE_DAYS * DAY)
    recent = Counted(connection, replace(asked, window=(since, max(now, since + 1))))
    per_day = recent.total().gpu_hours(recent.rates) * DAY / max(now - since, DAY)
    return Spent(budget, used, per_day, tuple(ends), tuple(left), tuple(evenly))


def _row(spent: Spent, question: Question) -> dict[str, Any]:
    budget, used = spent.budget, float(spent.used)
    share = used / budget.gpu_hours
    notice = next((limit for limit in NOTICES if share >= limit), None)
    return {
        "pi": budget.pi,
        "from": budget.begin.isoformat(),
        "to": budget.end.isoformat(),
        "gpu_hours_budget": budget.gpu_hours,
        "gpu_hours_used": used,
        "gpu_hours_left": budget.gpu_hours - used,
        "used": share,
        "gpu_hours_per_day": float(spent.per_day),
        "runs_out": _runs_out(spent, question),
        "notice": "" if notice is None else f"{notice:.0%} used",
    }


def _runs_out(spent: Spent, question: Question) -> str:
    """The day at the present rate; empty where that is after the budget's end."""
    left = Fraction(spent.budget.gpu_hours) - spent.used
    if left <= 0:
        return "used up"
    if not spent.per_day:
        return ""
    at = question.now + int(left / spent.per_day * DAY)
    inside = at < _end(spent.budget, question)
    return day_of(at, question.zone).isoformat() if inside else ""


def _fullest(spent: Spent) -> tuple[float, str]:
    return (-float(spent.used) / spent.budget.gpu_hours, spent.budget.pi)


def _begin(budget: Budget, question: Question) -> int:
    return question.zone.epoch(budget.begin.isoformat())


def _end(budget: Budget, question: Question) -> int:
    return question.zone.epoch(budget.end.isoformat())


def _notes(budgets: int, shown: int, scope: Scope) -> Iterable[str]:
    path = budgets_path()
    if not budgets:
        yield "there are no budgets: write [[budget]] pi, gpu_hours, from and to in budgets.toml"
        return
    of_all = f" of {budgets}" if scope.is_everything else ""
    yield f"budgets: {shown}{of_all} in {path} are in force and yours to see"
    yield (
        f"rate: of the last {RATE_DAYS} days; a day on which a budget runs out is shown where it"
        " comes before the budget's end"
    )
