"""Time zones, and windows split into hours, days, weeks and months at their local edges.

A zone has an IANA name, or is the host's own. Some zones begin their hours and days at a quarter
of an hour of UTC, and a day may have 23 or 25 hours.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec

from slurmkit.errors import BadInput

UNITS = ("hour", "day", "week", "month")
MOST_PARTS = 4000  # parts, about the days of ten years; each part is a query of its own
MOST_DAYS_BY_HOUR = 31
_QUARTER = 900  # seconds; in every zone, hours begin at a multiple of it
_ONE_DAY = dt.timedelta(days=1)
_UTC_NAMES = frozenset(("UTC", "Etc/UTC", "UTC0", "Z"))
_LOCALTIME = Path("/etc/localtime")


class WindowPart(NamedTuple):
    """A part of a window that lies within one unit of time.

    Attributes:
        begin: epoch seconds.
        end: epoch seconds, not included.
        day: the day on which the part begins.
        labels: names by unit: day 2026-10-05, week 2026-W41, month 2026-10; also hour
            2026-10-05 13:00 if the window was split by hours.
    """

    begin: int
    end: int
    day: dt.date
    labels: dict[str, str]


def split_window(
    window: tuple[int, int],
    zone: Zone,
    units: Collection[str],
    dates: Iterable[dt.date] = (),
    others: Iterable[int] = (),
) -> list[WindowPart]:
    """Split a window into parts.

    Args:
        window: [begin, end), epoch seconds.
        zone: time zone of the units and dates.
        units: split where an hour, day, week or month begins (`UNITS`).
        dates: also split at the begin of these days.
        others: also split at these epoch seconds.

    Raises:
        BadInput: for more than `MOST_PARTS` parts, or for hours of more than
            `MOST_DAYS_BY_HOUR` days.
    """
    first, last = day_of(window[0], zone), day_of(window[1], zone)
    hours = list(_hour_edges(window, zone)) if "hour" in units else []
    days = {day for day in dates if first < day <= last}
    later_days = range(1, (last - first).days + 1) if units else ()
    for day in (first + dt.timedelta(days=number) for number in later_days):
        if any(_part_begins(unit, day) for unit in units):
            days.add(day)
        if len(days) > MOST_PARTS:
            names = " or ".join(f"{unit}s" for unit in UNITS if unit in units)
            raise BadInput(
                f"{first} to {last} has more than {MOST_PARTS} {names};"
                " choose a shorter window, or a longer unit of time"
            )
    edges = {*window, *others, *hours, *(zone.epoch(day.isoformat()) for day in days)}
    within = sorted(edge for edge in edges if window[0] <= edge <= window[1])
    by_hour = "hour" in units
    return [_make_part(begin, end, zone, by_hour=by_hour) for begin, end in pairwise(within)]


def month_span(text: str, zone: Zone) -> tuple[int, int]:
    """Return begin and end of a month `YYYY-MM`, epoch seconds.

    Raises:
        BadInput: for any other text.
    """
    try:
        first = dt.date.fromisoformat(f"{text}-01")
        after = (first + 31 * _ONE_DAY).replace(day=1)
    except (ValueError, OverflowError) as error:
        raise BadInput(f"{text!r} is not a month: write YYYY-MM") from error
    return zone.epoch(first.isoformat()), zone.epoch(after.isoformat())


def months_back(epoch: int, months: int, zone: Zone) -> int:
    """Return the begin of the month that lies so many months before that of a time."""
    year, month = map(int, month_of(epoch, zone).split("-"))
    first = year * 12 + month - 1 - months
    return month_span(f"{first // 12:04}-{first % 12 + 1:02}", zone)[0]


def month_of(epoch: int, zone: Zone) -> str:
    """Return the month of a time, `YYYY-MM`."""
    return f"{day_of(epoch, zone):%Y-%m}"


def _hour_edges(window: tuple[int, int], zone: Zone) -> Iterator[int]:
    """Yield when local hours begin; in some zones this is not a full hour of UTC."""
    begin, end = window
    if (day_of(end, zone) - day_of(begin, zone)).days > MOST_DAYS_BY_HOUR:
        raise BadInput(
            f"{day_of(begin, zone)} to {day_of(end, zone)} is longer than {MOST_DAYS_BY_HOUR} days,"
            " the most for a split by hour; choose a shorter window, or split by day"
        )
    first = begin - begin % _QUARTER + _QUARTER
    for at in range(first, end, _QUARTER):
        if dt.datetime.fromtimestamp(at, zone.rules).minute == 0:
            yield at


def _hour_label(epoch: int, zone: Zone) -> str:
    """Return the label of the hour of a time.

    When clocks go back, an hour comes twice; the second one is marked "again".
    """
    local = dt.datetime.fromtimestamp(epoch, zone.rules)
    return f"{local:%Y-%m-%d %H}:00{' again' if local.fold else ''}"


def _make_part(begin: int, end: int, zone: Zone, *, by_hour: bool) -> WindowPart:
    day = day_of(begin, zone)
    year, week, _ = day.isocalendar()
    labels = {"day": day.isoformat(), "week": f"{year}-W{week:02}", "month": f"{day:%Y-%m}"}
    if by_hour:
        labels["hour"] = _hour_label(begin, zone)
    return WindowPart(begin, end, day, labels)


def _part_begins(unit: str, day: dt.date) -> bool:
    """Return whether a part begins on a day; no part crosses the begin of a month."""
    return unit == "day" or (unit == "week" and day.weekday() == 0) or day.day == 1


def day_of(epoch: int, zone: Zone) -> dt.date:
    """Return the day of a time."""
    return dt.datetime.fromtimestamp(epoch, zone.rules).date()


class Zone(msgspec.Struct, frozen=True):
    """A time zone and its name."""

    name: str
    rules: tzinfo

    def epoch(self, text: str) -> int:
        """Convert a date (its midnight) or date-time to epoch seconds; an offset in it wins.

        A local time that summer time skips or repeats means its first occurrence.

        Raises:
            BadInput: for any other text.
        """
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError as error:
            raise BadInput(
                f"{text!r} is not a date: write YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS"
            ) from error
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=self.rules)
        epoch = int(zoned.timestamp())
        try:
            self.show(epoch)
        except (ValueError, OverflowError) as error:
            raise BadInput(f"{text!r} is outside the years 1 to 9999 in {self.name}") from error
        return epoch

    def show(self, epoch: int) -> str:
        """Format epoch seconds as local date and time with the offset."""
        return datetime.fromtimestamp(epoch, self.rules).isoformat(sep=" ")

    def tell(self, epoch: int) -> str:
        """Format epoch seconds for people: `2026-11-01 08:15:00 CET`."""
        return datetime.fromtimestamp(epoch, self.rules).strftime("%Y-%m-%d %H:%M:%S %Z")


_UTC = Zone("UTC", UTC)


def find_zone(name: str | None = None) -> Zone:
    """Find a zone by its IANA name; without one the host's.

    Raises:
        BadInput: for an unknown name, with the nearest known one.
    """
    return _host_zone() if name is None else _named(name)


def find_stored_zone(name: str) -> Zone:
    """Find a zone by the name of a stored `Zone`, which may be the path of a file.

    Raises:
        BadInput: when it does not exist any more.
    """
    return _of_file(Path(name)) if name.startswith("/") else _named(name)


def host_zone_or_utc() -> Zone:
    """Return the host's zone; UTC if it has no name, such as TZ=EST5EDT,M3.2.0,M11.1.0."""
    try:
        return _host_zone()
    except BadInput:
        return _UTC


def _host_zone() -> Zone:
    from_environment = os.environ.get("TZ", "").removeprefix(":")
    if from_environment.startswith("/"):
        return _of_file(Path(from_environment))
    if from_environment:
        return _of_environment(from_environment)
    return _of_file(_LOCALTIME) if _LOCALTIME.exists() else _UTC


def _of_environment(name: str) -> Zone:
    try:
        return _named(name, source="TZ ")
    except BadInput as error:  # POSIX allows rules in TZ in place of a name
        raise BadInput(f"{error}; or give one with --timezone") from error


def _of_file(path: Path) -> Zone:
    target = str(path.resolve())
    if "/zoneinfo/" in target:
        with suppress(BadInput):
            return _named(target.rpartition("/zoneinfo/")[2])
    try:
        with path.open("rb") as file:  # a copy of a zone file, without its name
            return Zone(str(path), ZoneInfo.from_file(file))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is not a time zone file; name a zone with --timezone") from error


def _named(name: str, *, source: str = "time zone ") -> Zone:
    if name in _UTC_NAMES:
        return _UTC
    try:
        return Zone(name, ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        known = available_timezones()
        if not known:
            raise BadInput(
                f"{source}{name!r}: this machine has no time zone database; install tzdata, or"
                " use --timezone UTC"
            ) from error
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "write a name such as Europe/Berlin"
        raise BadInput(f"{source}{name!r} is not in the time zone database; {hint}") from error
