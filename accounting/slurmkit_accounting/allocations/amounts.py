"""Amounts of an allocation: whole thousandths of a unit-second, so that sums are exact.

The unit is a GPU (by type weights) or one of Slurm's billing units. 3,600,000 are one hour of it.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Literal

from slurmkit.errors import BadInput

Unit = Literal["gpu", "billing"]
UNITS: tuple[Unit, ...] = ("gpu", "billing")
UNIT_NAMES: dict[str, str] = {"gpu": "GPU-hours", "billing": "billing-hours"}
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
SECOND_MS = 1000
# A million GPUs for a century; sums of many of them stay far below 2^63.
_MOST_HOURS = 10**12


def parse_hours(text: str) -> int:
    """Parse hours with at most three decimals, such as `1000` or `0.5`, as thousandths of a second.

    Raises:
        BadInput: for anything else, for zero, and for an absurd amount.
    """
    try:
        hours = Decimal(text.strip().replace("_", ""))
    except InvalidOperation:
        hours = Decimal("NaN")
    if not hours.is_finite() or hours <= 0 or hours > _MOST_HOURS:
        raise BadInput(f"{text!r} is not an amount; give hours above 0, e.g. 1000 or 0.5")
    amount = hours * HOUR_MS
    if hours * 1000 != int(hours * 1000):
        raise BadInput(f"{text!r} is too exact; give hours with at most three decimals, e.g. 0.125")
    return int(amount)


def to_hours(amount_ms: int) -> float:
    """Return an amount as hours, for JSON and charts."""
    return amount_ms / HOUR_MS


def format_hours(amount_ms: int | None) -> str:
    """Write an amount in hours with two decimals, rounded towards 0; `?` for None."""
    if amount_ms is None:
        return "?"
    hundredths = abs(amount_ms) * 100 // HOUR_MS
    sign = "-" if amount_ms < 0 and hundredths else ""
    if amount_ms and not hundredths:
        return "<0.01" if amount_ms > 0 else ">-0.01"
    return f"{sign}{hundredths // 100:,}.{hundredths % 100:02}"


def plain_hours(amount_ms: int) -> str:
    """Write an amount as `parse_hours` takes it, rounded down to thousandths of an hour."""
    thousandths = amount_ms * 1000 // HOUR_MS
    return f"{Decimal(thousandths) / 1000:f}"
