"""What is left of the allocations that concern a person, else of the budgets in budgets.toml."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from slurmkit.errors import BadInput

_HOUR_MS = 3_600_000
_UNITS = {"gpu": "GPU-hours", "billing": "billing-hours"}


def read_budgets(read: ModuleType, ledger: Any) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    """Read the balances of a person's accounts, and budgets of PIs who have no allocation.

    Args:
        read: `slurmkit_accounting.read`.
        ledger: an open ledger.

    Returns:
        Rows with the columns of `report budget`, those of a balance also with `holder`, `unit` and
        `mine`; and remarks.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    try:
        balances = read.balances(ledger).rows
    except BadInput:  # an older service does not know allocations
        balances = ()
    pis = {one.holder.name for one in balances if one.holder.kind == "pi"}
    budgets = [row for row in read.budget(ledger).rows if row["pi"] not in pis]
    rows = (*map(balance_row, balances), *budgets)
    return rows, [read.BUDGETS_LAST_RELEASE] if budgets else []


def balance_row(one: Any) -> dict[str, Any]:
    """Return a balance as a row like those of `report budget`."""
    begin = min((each.begin for each in one.allocations if each.state == "in force"), default=None)
    return {
        "pi": one.holder.name,
        "holder": str(one.holder),
        "unit": _UNITS.get(one.unit, one.unit),
        "from": _day(begin),
        "to": _day(one.finish),
        "gpu_hours_budget": one.granted_ms / _HOUR_MS,
        "gpu_hours_used": one.used_ms / _HOUR_MS,
        "gpu_hours_left": one.left_ms / _HOUR_MS,
        "mine": one.mine_ms / _HOUR_MS,
        "runs_out": _runs_out(one),
    }


def _runs_out(one: Any) -> str:
    """Return the day on which nothing is left in half of the cases; empty if after the end."""
    if one.left_ms <= 0:
        return "used up"
    middle = one.pace and one.pace.middle
    if middle is None or (one.finish is not None and middle >= one.finish):
        return ""
    return _day(middle)


def _day(epoch: int | None) -> str:
    return "open" if epoch is None else time.strftime("%Y-%m-%d", time.localtime(epoch))
