"""View of usage: GPU-hours of this month and the last one, from the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from slurmkit.formats.display import format_number
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.views.base import SummaryPart, TableViewWithNotes
from slurmkit_tui.widgets.listing import Listing, RowContext, TableColumn, Value

Row = Mapping[str, Any]


def _value(name: str) -> Callable[[Row], Value]:
    return lambda row: row.get(name)


def _text(name: str) -> Callable[[Row, RowContext], str]:
    return lambda row, _context: str(row.get(name) or "")


def _widest(name: str) -> Callable[[Sequence[Row]], int]:
    return lambda rows: max((len(str(row.get(name) or "")) for row in rows), default=0)


def _hours(name: str, title: str, *, shown: bool = True, wide: bool = False) -> TableColumn:
    def text(row: Row, _context: RowContext) -> str:
        return _amount(row.get(name))

    return TableColumn(
        name, title, text, _value(name), 12, limit=14, right=True, shown=shown, wide=wide
    )


COLUMNS = (
    TableColumn("month", "MONTH", _text("month"), _value("month"), 7),
    TableColumn("pi", "PI", _text("pi"), _value("pi"), _widest("pi"), limit=20, narrow=10),
    TableColumn("user", "USER", _text("user"), _value("user"), _widest("user"), limit=20, narrow=10,
           style=lambda r, c: "cell--mine" if r.get("user") == c.me else ""),
    TableColumn("jobs", "JOBS", _text("jobs"), _value("jobs"), 7, right=True),
    _hours("gpu_hours", "GPU-HOURS"),
    _hours("gpu_hours_completed", "COMPLETED"),
    _hours("gpu_hours_lost", "LOST"),
    _hours("gpu_hours_failed", "FAILED", shown=False),
    _hours("gpu_hours_timeout", "TIMEOUT", shown=False),
    _hours("gpu_hours_cancelled", "CANCELLED", shown=False),
    _hours("gpu_hours_out_of_memory", "OUT OF MEMORY", shown=False),
    _hours("gpu_hours_node_fail", "NODE FAILURE", shown=False),
    _hours("gpu_hours_preempted", "PREEMPTED", shown=False),
    _hours("gpu_hours_running", "RUNNING", wide=True),
    _hours("cpu_hours", "CPU-HOURS", wide=True),
    _hours("cost", "COST", wide=True),
)  # fmt: skip
USAGE = Listing(
    "line",
    COLUMNS,
    key=lambda row: f"{row.get('month')} {row.get('pi')} {row.get('user')}",
    haystack=lambda row: f"{row.get('month')}\n{row.get('pi')}\n{row.get('user')}",
    mine=lambda row, context: row.get("user") == context.me,
    empty="the ledger shows you no usage in this month or the last one",
)


class UsageView(TableViewWithNotes):
    """GPU-hours of mine and of my groups; budgets below."""

    NAME = "usage"
    ASK = FeedQuestion("usage")
    EVERY = 30.0  # the ledger changes only with an ingest
    LISTING: ClassVar[Listing] = USAGE

    def notes(self, answer: FeedAnswer, session: ClusterSession) -> Sequence[str]:
        del session
        return [*map(_budget, answer.value.budgets), *answer.value.notes]

    def tally(self, rows: Sequence[Row], context: RowContext) -> Iterable[SummaryPart]:
        month = max((str(row.get("month")) for row in rows), default="")
        these = [row for row in rows if row.get("month") == month]
        if not these:
            return
        yield f"{month}: {_sum(these)} GPU-hours"
        own = [row for row in these if row.get("user") == context.me]
        if own:
            yield (f"mine {_sum(own)}", "$accent bold")


def _sum(rows: Iterable[Row]) -> str:
    hours = [row.get("gpu_hours") for row in rows]
    known = [each for each in hours if each is not None]
    return f"{format_number(sum(known))}{'' if len(known) == len(hours) else ' and some unknown'}"


def _budget(row: Row) -> str:
    used, of, left = (_amount(row.get(f"gpu_hours_{name}")) for name in ("used", "budget", "left"))
    ends = f"; runs out {row['runs_out']} at this rate" if row.get("runs_out") else ""
    span = f"{row.get('from')} to {row.get('to')}"
    whose, unit = row.get("holder") or row.get("pi"), row.get("unit") or "GPU-hours"
    mine = f" ({_amount(row['mine'])} by you)" if "mine" in row else ""
    return f"budget of {whose}, {span}: {used} of {of} {unit} used{mine}, {left} left{ends}"


def _amount(hours: float | None) -> str:
    return "?" if hours is None else format_number(hours)
