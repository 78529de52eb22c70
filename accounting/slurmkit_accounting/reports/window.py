"""Which window a report is about, from what was given."""

from __future__ import annotations

from collections.abc import Mapping

from slurmkit_accounting.reports.periods import month, month_of
from slurmkit_accounting.zones import Zone


def window_of(
    begin: str | None,
    end: str | None,
    zone: Zone,
    filters: Mapping[str, tuple[str, ...]],
    now: int,
) -> tuple[int, int]:
    """Begin and end: as given; else those of the months asked for; else this month up to now.

    Raises:
        BadInput: for what is no date or month.
    """
    spans = [month(each, zone) for each in filters.get("month", ())]
    first = min((span[0] for span in spans), default=month(month_of(now, zone), zone)[0])
    last = max((span[1] for span in spans), default=now)
    return (
        first if begin is None else zone.epoch(begin),
        last if end is None else zone.epoch(end),
    )
