"""`report budget`: how much of each budget is used, and when it runs out.

The budgets are in a file of their own, which `[ledger] budgets` names.
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from slurmkit.config.files import config_paths, further_site_folder, load_section
from slurmkit.errors import BadConfig
from slurmkit_accounting.calendar import day_of
from slurmkit_accounting.config import LedgerSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.usage import DAY
from slurmkit_accounting.people.pi import People
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import CountedUsage, Question
from slurmkit_accounting.reports.model import (
    Column,
    Meta,
    Panel,
    Report,
    Series,
    Value,
    sum_columns,
)
from slurmkit_accounting.reports.panels import chart_unit
from slurmkit_accounting.reports.question import Scope

COLUMNS = (
    Column("pi"),
    Column("from"),
    Column("to"),
    Column("gpu_hours_budget", "hours", adds_up=True),
    Column("gpu_hours_used", "hours", adds_up=True),
    Column("gpu_hours_left", "hours", adds_up=True),
    Column("used", "share"),
    Column("gpu_hours_per_day", "hours", adds_up=True),
    Column("runs_out"),
    Column("notice"),
)
RATE_DAYS = 30
NOTICES = (1.0, 0.8)
_DEFINITIONS = (
    f"gpu_hours_per_day: mean of the last {RATE_DAYS} days",
    "runs_out: the day on which the budget is used up at this rate, if before the budget's end",
)
_MOST_CHARTS = 4  # the most burn-down charts in a usage report
BUDGETS_FILE = "budgets.toml"


class BudgetUse(msgspec.Struct, frozen=True):
    """A budget and its use so far.

    Attributes:
        used: GPU-hours so far.
        per_day: GPU-hours per day, over the last 30 days or since the budget began.
        labels: each day, week or month so far.
        left: GPU-hours left at the end of each of them.
        evenly: GPU-hours that would be left then if the budget were used evenly.
    """

    budget: Budget
    used: Fraction
    per_day: Fraction
    labels: tuple[str, ...]
    left: tuple[float, ...]
    evenly: tuple[float, ...]


def budget_report(ledger: Ledger, question: Question) -> Report:
    """Report the use of every budget in force at `question.now`; the window is ignored.

    Raises:
        BadConfig: for budgets or prices that cannot be read.
        LedgerError: when the ledger cannot be read.
    """
    budgets = load_budgets()
    with ledger.transaction() as connection:
        shown = _budgets_in_force(connection, budgets, question)
        spent = sorted(
            (_count_use(connection, budget, question) for budget in shown),
            key=lambda one: (-float(one.used) / one.budget.gpu_hours, one.budget.pi),
        )
        rows = tuple(_row(one, question) for one in spent)
        notes = tuple(_notes(len(budgets), len(spent), question.scope))
        # Who may not see everything must not learn from this whether others have budgets.
        most = len(budgets) if question.scope.is_everything else len(spent)
        has_all = 0 < len(spent) == most
        meta = Meta(
            report="budget",
            by=("pi",),
            timezone=question.zone.name,
            suspended=question.suspended,
            running_until=question.zone.show(question.now),
            total=_total(rows),
            definitions=(*_DEFINITIONS, *(notes if has_all else ())),
            notes=() if has_all else notes,
            **provenance.ledger_fields(ledger, connection, question.now, question.scope),
        )
    return Report(meta, COLUMNS, rows, tuple(map(_burn_down_panel, spent)))


def burn_down_panels(connection: Connection, question: Question) -> tuple[Panel, ...]:
    """Return the burn-down charts of the PIs of a report.

    A report with more than `_MOST_CHARTS` budgets has none.
    """
    pis = question.filters.get("pi")
    now = min(question.now, question.window[1] - 1)
    whole = replace(question, filters={}, job=None, now=now)
    budgets = [budget for budget in load_budgets() if pis is None or budget.pi in pis]
    shown = _budgets_in_force(connection, budgets, whole)
    if len(shown) > _MOST_CHARTS:
        return ()
    return tuple(_burn_down_panel(_count_use(connection, budget, whole)) for budget in shown)


def _burn_down_panel(spent: BudgetUse) -> Panel:
    """Return a chart of the GPU-hours left at the end of each day, week or month."""
    left = tuple(max(hours, 0.0) for hours in spent.left)
    title = f"Budget of {spent.budget.pi}, {spent.budget.begin} to {spent.budget.end}"
    series = (Series("left", left), Series("left if used evenly", spent.evenly))
    return Panel("lines", title, "GPU-hours left", spent.labels, series)


def _budgets_in_force(
    connection: Connection, budgets: Iterable[Budget], question: Question
) -> list[Budget]:
    """Return the budgets in force, of PIs whose whole groups the reader may see."""
    now = question.now
    in_force = [one for one in budgets if _begin(one, question) <= now < _end(one, question)]
    if not in_force or question.scope.is_everything:
        return in_force
    people = People.load(connection)
    shows = question.scope.shows_group
    return [one for one in in_force if shows(people.person(one.pi, None, now))]


def _count_use(connection: Connection, budget: Budget, question: Question) -> BudgetUse:
    """Return the use of a budget up to `question.now`."""
    begin, now = _begin(budget, question), question.now
    unit = chart_unit((begin, _end(budget, question)))
    so_far = replace(
        question,
        window=(begin, max(now, begin + 1)),
        units=frozenset((unit,)),
        filters={"pi": (budget.pi,)},
    )
    counted = CountedUsage(connection, so_far)
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
    recent = CountedUsage(connection, replace(so_far, window=(since, max(now, since + 1))))
    per_day = recent.total().gpu_hours(recent.rates) * DAY / max(now - since, DAY)
    return BudgetUse(budget, used, per_day, tuple(ends), tuple(left), tuple(evenly))


def _total(rows: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
    """Return the sums; none if two budgets of a PI count the same GPU-hours."""
    pis = [row["pi"] for row in rows]
    return sum_columns(COLUMNS, rows) if len(set(pis)) == len(pis) else {}


def _row(spent: BudgetUse, question: Question) -> dict[str, Any]:
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
        "notice": "" if notice is None else f"{notice:.0%} reached",
    }


def _runs_out(spent: BudgetUse, question: Question) -> str:
    """Return the day on which a budget runs out at the present rate; empty if after its end."""
    left = Fraction(spent.budget.gpu_hours) - spent.used
    if left <= 0:
        return "used up"
    if not spent.per_day:
        return ""
    at = question.now + int(left / spent.per_day * DAY)
    inside = at < _end(spent.budget, question)
    return day_of(at, question.zone).isoformat() if inside else ""


def _begin(budget: Budget, question: Question) -> int:
    return question.zone.epoch(budget.begin.isoformat())


def _end(budget: Budget, question: Question) -> int:
    return question.zone.epoch(budget.end.isoformat())


def _notes(budgets: int, shown: int, scope: Scope) -> Iterable[str]:
    path = budgets_path()
    if not budgets:
        yield (
            "there are no budgets; to set one, write [[budget]] with pi, gpu_hours, from and to"
            " in budgets.toml"
        )
        return
    of_all = f" of {budgets}" if scope.is_everything else ""
    yield (
        f"budgets: {shown}{of_all} in {path} are in force and visible to you; this release is the"
        " last one that reads them: slurmkit allocation import grants them as allocations"
    )


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The GPU-hours of a PI from day `begin` until before day `end`."""

    pi: str
    gpu_hours: Annotated[float, msgspec.Meta(gt=0)]
    begin: dt.date = msgspec.field(name="from")
    end: dt.date = msgspec.field(name="to")

    def __post_init__(self) -> None:
        if self.begin >= self.end:
            raise ValueError(
                f"the budget of {self.pi} ends before it begins; write `to` after `from`"
            )


class _BudgetsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    budget: tuple[Budget, ...] = ()


def load_budgets() -> tuple[Budget, ...]:
    """Load all budgets from the file of `[ledger] budgets`, else next to the configuration.

    Raises:
        BadConfig: when the file cannot be read or is not a file of budgets.
    """
    path = budgets_path()
    return () if path is None else read_budgets(path)


def read_budgets(path: Path) -> tuple[Budget, ...]:
    """Read a file of budgets.

    Raises:
        BadConfig: when it cannot be read or is not a file of budgets.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), _BudgetsFile).budget
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfig(f"cannot read the budgets in {path}: {error}") from error
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: {error}; a [[budget]] has pi, gpu_hours, from and to") from error


def budgets_path() -> Path | None:
    """Return the path of the file of budgets; None if there is no file."""
    configured = load_section("ledger", LedgerSection).budgets
    if configured:
        return Path(configured)
    folders = dict.fromkeys(path.parent for path in config_paths())
    folders.pop(further_site_folder(), None)  # each *.toml there is a configuration file
    candidates = [folder / BUDGETS_FILE for folder in folders]
    return next((path for path in reversed(candidates) if path.exists()), None)
