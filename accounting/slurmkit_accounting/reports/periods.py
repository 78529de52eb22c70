"""Hours, days, weeks and months of a time zone within a window."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from slurmkit.errors import BadInput
from slurmkit_accounting.zones import Zone

UNITS = ("hour", "day", "week", "month")
MOST = 4000  # parts: the days of ten years; each is asked for by itself
MOST_DAYS_BY_HOUR = 31
_QUARTER = 900  # seconds; zones begin their hours at a multiple of it
_ONE_DAY = dt.timedelta(days=1)


class Part(NamedTuple):
    """A part of a window that lies within one day, week or month; by hour, within one of these.

    Attributes:
        day: on which it begins.
        labels: the names of its day, week and month: 2026-10-05, 2026-W41, 2026-10; and of its
            hour where it was parted by hours: 2026-10-05 13:00.
    """

    begin: int
    end: int
    day: dt.date
    labels: dict[str, str]


def parts(
    window: tuple[int, int],
    zone: Zone,
    units: Collection[str],
    dates: Iterable[dt.date] = (),
    others: Iterable[int] = (),
) -> list[Part]:
    """Part a window at the edges of units of time, where some dates begin, and at other times.

    Raises:
        BadInput: when these are more than `MOST` parts, or hours of more than
            `MOST_DAYS_BY_HOUR` days.
    """
    first, last = day_of(window[0], zone), day_of(window[1], zone)
    hours = list(_hours(window, zone)) if "hour" in units else []
    days = {day for day in dates if first < day <= last}
    for day in _days(first, last) if units else ():
        if any(_begins(unit, day) for unit in units):
            days.add(day)
        if len(days) > MOST:
            names = " or ".join(f"{unit}s" for unit in UNITS if unit in units)
            raise BadInput(
                f"{first} to {last} has more than {MOST} {names}; ask for a shorter window, or by"
                " longer times"
            )
    edges = {*window, *others, *hours, *(zone.epoch(day.isoformat()) for day in days)}
    within = sorted(edge for edge in edges if window[0] <= edge <= window[1])
    by_hour = "hour" in units
    return [_part(begin, end, zone, by_hour=by_hour) for begin, end in pairwise(within)]


def month(text: str, zone: Zone) -> tuple[int, int]:
    """Begin and end of a month `YYYY-MM`.

    Raises:
        BadInput: for any other text.
    """
    try:
        first = dt.date.fromisoformat(f"{text}-01")
        after = (first + 31 * _ONE_DAY).replace(day=1)
    except (ValueError, OverflowError) as error:
        raise BadInput(f"{text!r} is not a month: write YYYY-MM") from error
    return zone.epoch(first.isoformat()), zone.epoch(after.isoformat())


def month_of(epoch: int, zone: Zone) -> str:
    """The month of a time."""
    return f"{day_of(epoch, zone):%Y-%m}"


def _hours(window: tuple[int, int], zone: Zone) -> Iterator[int]:
    """Where local hours begin; summer time may move them against those of UTC."""
    begin, end = window
    if (day_of(end, zone) - day_of(begin, zone)).days > MOST_DAYS_BY_HOUR:
        raise BadInput(
            f"{day_of(begin, zone)} to {day_of(end, zone)} is longer than {MOST_DAYS_BY_HOUR} days,"
            " the most by hour; ask for a shorter window, or by day"
        )
    first = begin - begin % _QUARTER + _QUARTER
    for at in range(first, end, _QUARTER):
        if dt.datetime.fromtimestamp(at, zone.rules).minute == 0:
            yield at


def _hour(epoch: int, zone: Zone) -> str:
    """The hour of a time; the second one of a name, as clocks go back, is told apart."""
    local = dt.datetime.fromtimestamp(epoch, zone.rules)
    return f"{local:%Y-%m-%d %H}:00{' again' if local.fold else ''}"


def _part(begin: int, end: int, zone: Zone, *, by_hour: bool) -> Part:
    day = day_of(begin, zone)
    year, week, _ = day.isocalendar()
    labels = {"day": day.isoformat(), "week": f"{year}-W{week:02}", "month": f"{day:%Y-%m}"}
    if by_hour:
        labels["hour"] = _hour(begin, zone)
    return Part(begin, end, day, labels)


def _days(first: dt.date, last: dt.date) -> Iterator[dt.date]:
    """Every day after the first one up to the last."""
    return (first + dt.timedelta(days=number) for number in range(1, (last - first).days + 1))


def _begins(unit: str, day: dt.date) -> bool:
    return unit == "day" or (unit == "week" and day.weekday() == 0) or day.day == 1


def day_of(epoch: int, zone: Zone) -> dt.date:
    """The day of a time."""
    return dt.datetime.fromtimestamp(epoch, zone.rules).date()
