"""Balances in words: when something ends or runs out, and what to know about the amounts."""

from __future__ import annotations

from collections.abc import Iterator

from slurmkit_accounting.allocations.amounts import format_hours
from slurmkit_accounting.allocations.balance import Balance
from slurmkit_accounting.calendar import Zone, day_of


def day_words(epoch: int | None, zone: Zone, none: str = "open") -> str:
    """Write the day of a time; `none` for None."""
    return none if epoch is None else day_of(epoch, zone).isoformat()


def range_words(one: Balance, zone: Zone) -> str:
    """Write when a balance runs out: `2026-12-01 to 2027-02-10, middle 2026-12-20`."""
    if one.left_ms <= 0:
        return "used up"
    if one.pace is None:
        return "? (less than four weeks of use)"
    ends = [day_words(at, zone, "never") for at in (one.pace.earliest, one.pace.latest)]
    return f"{ends[0]} to {ends[1]}, middle {day_words(one.pace.middle, zone, 'never')}"


def share_words(one: Balance) -> str:
    """Write what is left of a balance in percent, rounded down; `?` if nothing is granted."""
    return f"{one.left_ms * 100 // one.granted_ms}%" if one.granted_ms > 0 else "?"


def remarks(one: Balance, zone: Zone) -> Iterator[str]:
    """Yield what a reader must know about a balance, each with its holder."""
    yield from (f"{one.holder}: {note}" for note in one.notes)
    if one.outside_ms:
        yield (
            f"{one.holder}: {format_hours(one.outside_ms)} hours were used while no allocation"
            " was in force, and are charged to none"
        )
    if one.pace:
        per_day = format_hours(one.pace.per_day_ms)
        yield f"{one.holder}: {per_day} hours a day in the last {one.pace.days} days"
    if one.finish and one.pace and (one.pace.earliest or one.finish + 1) > one.finish:
        yield f"{one.holder}: something will probably be left on {day_words(one.finish, zone)}"
