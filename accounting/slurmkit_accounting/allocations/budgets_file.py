"""Import of `budgets.toml`, the file of budgets of PIs that allocations replace."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import msgspec

from slurmkit.errors import BadConfig, BadInput
from slurmkit_accounting.allocations.amounts import HOUR_MS, format_hours, plain_hours
from slurmkit_accounting.allocations.changes import Posted, Posting, grant_once
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.remote.served import AnyLedger
from slurmkit_accounting.reports.budget import Budget, budgets_path, load_budgets, read_budgets


class ImportedBudget(msgspec.Struct, frozen=True):
    """What became of one budget.

    Attributes:
        posted: its grant, made now or before; None if it cannot be granted.
        problem: why not, or how the file differs from what was granted; empty without a difference.
        lacks: whether less was granted than the file says.
    """

    budget: Budget
    posted: Posted | None
    problem: str = ""
    lacks: bool = False


def import_budgets(
    ledger: AnyLedger, file: Path | None = None, *, known: bool = False
) -> list[ImportedBudget]:
    """Grant each budget of a file once, as an allocation of its PI from day to day.

    Each budget is a change of its own: one that cannot be granted stops no other one.

    Args:
        ledger: a ledger open for writing, or behind the service.
        file: None for the file that the configuration names.
        known: whether to refuse PIs whom the ledger does not know.

    Raises:
        BadConfig: when there is no such file, or it cannot be read.
        LedgerError: when the ledger cannot be written.
    """
    path = file or budgets_path()
    if path is None:
        raise BadConfig("there is no file of budgets; name one: slurmkit allocation import FILE")
    budgets = load_budgets() if file is None else read_budgets(path)
    return [_import(ledger, budget, path.name, known=known) for budget in budgets]


def _import(ledger: AnyLedger, budget: Budget, name: str, *, known: bool) -> ImportedBudget:
    zone = find_zone()
    begin, finish = (zone.epoch(day.isoformat()) for day in (budget.begin, budget.end))
    amount = int(Decimal(str(budget.gpu_hours)) * HOUR_MS)
    posting = Posting(
        why=f"imported from {name}",
        identity=f"budget {budget.pi} {budget.begin} {budget.end}",
        known=known,
    )
    whose = f"the budget of {budget.pi} from {budget.begin} to {budget.end}"
    try:
        posted = grant_once(ledger, "pi", budget.pi, amount, begin, posting, finish=finish)
    except BadInput as error:
        return ImportedBudget(budget, None, f"{whose} was not granted: {error}", lacks=True)
    (granted,) = posted.allocations
    before = sum(entry.amount_ms for entry in granted.entries if entry.kind in ("grant", "top-up"))
    if abs(amount - before) < HOUR_MS // 1000:  # entries have three decimals of an hour
        return ImportedBudget(budget, posted)
    words = (
        f"{whose} was imported as allocation {granted.id}, which was granted"
        f" {format_hours(before)} GPU-hours with its top-ups; the file says {format_hours(amount)}"
    )
    if before > amount:
        words += ". No grant is taken back: correct the file, or end the allocation"
        return ImportedBudget(budget, posted, words)
    step = f"slurmkit allocation top-up {granted.id} {plain_hours(amount - before)} --why TEXT"
    return ImportedBudget(budget, posted, f"{words}. To enter the difference: {step}", lacks=True)
