"""How much a group will use, and when an allocation is used up: ranges from the group's own past.

Whole weeks of the last 13 are drawn again and again, weekday for weekday, and quantiles of what
these futures add up to are the range. Two more steps are there because ranges without them held
less often than they say in the back-test (tests/unit/accounting/allocations/
test_allocation_pace.py): the quantiles are stretched around the middle, because 13 weeks have not
shown all that may come; and weeks that clearly rise or fall are drawn relative to a straight line
through them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import sqrt
from statistics import median

import msgspec

from slurmkit_accounting.ledger.schema.usage import DAY

HISTORY_DAYS = 91
_WEEK = 7  # days
_LEAST_WEEKS = 4  # of history, before anything is predicted
_FUTURES = 200
_LINES = 40  # drawn where weeks rise or fall; each future has one of them
_MOST_DAYS = 371  # what lasts longer is `never`
_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_DRAWN_PAST = 0.6  # of the weeks of the past, from which one future is drawn
_STRETCH = (1.2, 1.15, 1, 1.15, 1.2)  # of `_SHARES` around the middle; from the back-test
_CLEAR_TREND = 2.6  # standard errors of Mann and Kendall's test: wrong in 1 of 100 even groups
_CHECKED_DAYS = 14  # that past forecasts were about
_LEAST_CHECKED = 4

Quantiles = tuple[float, float, float, float, float]


class PastForecasts(msgspec.Struct, frozen=True):
    """How often forecasts of the use of the next 14 days held, made each week in the past.

    Attributes:
        cases: number of forecasts.
        half: how many ranges of 50 % held.
        most: how many ranges of 90 % held.
    """

    cases: int
    half: int
    most: int


class Pace(msgspec.Struct, frozen=True):
    """What a group uses per day, and when it has used up what is left.

    Times are epoch seconds, of which 5, 25, 50, 75 and 95 of 100 futures are not later; None is
    more than a year from now.

    Attributes:
        days: length of the history that it is from.
        per_day_ms: its mean, in thousandths of a unit-second.
        until: epoch seconds of the end of the month, of which `left_then_ms` is.
        left_then_ms: what is left then, of which 5, 25, 50, 75 and 95 of 100 futures have not more.
        past: how forecasts of the past held (`check_past`).
    """

    days: int
    per_day_ms: int
    earliest: int | None
    early: int | None
    middle: int | None
    late: int | None
    latest: int | None
    until: int | None = None
    left_then_ms: tuple[int, int, int, int, int] | None = None
    past: PastForecasts | None = None


def find_pace(
    daily_ms: Sequence[int], left_ms: int, now: int, until: int | None = None
) -> Pace | None:
    """Return the pace of a group; None if it has used anything for less than four weeks.

    The same history and the same rest always give the same answer.

    Args:
        daily_ms: what was used on each day up to now, oldest first.
        left_ms: what is left.
        now: epoch seconds.
        until: epoch seconds after now, for which to say what is left.
    """
    first = next((day for day, used in enumerate(daily_ms) if used), len(daily_ms))
    history = list(daily_ms[first:])
    if len(history) < _LEAST_WEEKS * _WEEK:
        return None
    days_to_end = 0 if until is None else max(0, until - now) / DAY
    futures = _Futures(history)
    crossed: list[float | None] = [None] * len(_SHARES)
    left_then = None
    before: Quantiles = (0, 0, 0, 0, 0)
    for day, used in enumerate(futures.days()):
        for place, share in enumerate(used):
            if crossed[place] is None and share >= left_ms:
                grown = share - before[place]
                part = (left_ms - before[place]) / grown if grown else 0
                crossed[place] = day + max(0, part)
        if left_then is None and day + 1 >= days_to_end:
            part = days_to_end - day
            then = (old + (new - old) * part for old, new in zip(before, used, strict=True))
            left_then = [left_ms - round(amount) for amount in then]
        if left_then and None not in crossed:
            break
        before = used
    # The most use is the earliest end, and leaves least.
    earliest, early, middle, late, latest = (
        None if at is None else now + int(at * DAY) for at in reversed(crossed)
    )
    a, b, c, d, e = reversed(left_then or [])
    return Pace(
        len(history), sum(history) // len(history), earliest, early, middle, late, latest,
        until=until,
        left_then_ms=None if until is None else (a, b, c, d, e),
    )  # fmt: skip


def check_past(daily_ms: Sequence[int]) -> PastForecasts | None:
    """Forecast 14 days each week, from the days before, and compare with what was used then.

    Args:
        daily_ms: what was used on each day up to now, oldest first.

    Returns:
        How often the ranges held; None if there were fewer than 4 such forecasts.
    """
    first = next((day for day, used in enumerate(daily_ms) if used), len(daily_ms))
    history = daily_ms[first:]
    last = len(history) - _CHECKED_DAYS
    cases = half = most = 0
    for today in range(last, _LEAST_WEEKS * _WEEK - 1, -_WEEK):
        ranges = list(_Futures(history[:today]).days(_CHECKED_DAYS))[-1]
        used = sum(history[today : today + _CHECKED_DAYS])
        cases += 1
        half += round(ranges[1]) <= used <= round(ranges[3])
        most += round(ranges[0]) <= used <= round(ranges[4])
    return PastForecasts(cases, half, most) if cases >= _LEAST_CHECKED else None


class _Futures:
    """Drawn futures of a group, from the whole weeks of its past."""

    def __init__(self, history: Sequence[int]) -> None:
        whole = history[len(history) % _WEEK :]
        weeks = [list(whole[day : day + _WEEK]) for day in range(0, len(whole), _WEEK)]
        sums = [sum(week) for week in weeks]
        self._levels: list[float] = [1.0] * len(weeks)
        self._has_trend = _has_clear_trend(sums)
        if self._has_trend:
            begin, slope = _line_through(sums)
            least = max(sums) / 50
            self._levels = [max(least, begin + slope * week) for week in range(len(weeks))]
        self._weeks = [
            [used / level for used in week] for week, level in zip(weeks, self._levels, strict=True)
        ]
        self._dice = random.Random(f"{list(history)}")  # noqa: S311 - no secret
        # Where the line is, is not known exactly either.
        count = _LINES if self._has_trend else 0
        self._lines = [self._draw_line() for _ in range(count)] or [(1.0, 0.0)]

    def days(self, most: int = _MOST_DAYS) -> Iterator[Quantiles]:
        """Yield the range of what was used in all, at the end of each day from now."""
        futures = [self._draw() for _ in range(_FUTURES)]
        sums = [0.0] * _FUTURES
        floor: Quantiles = (0, 0, 0, 0, 0)
        for _ in range(most):
            sums = [used + next(future) for used, future in zip(sums, futures, strict=True)]
            floor = _stretched(sorted(sums), floor)
            yield floor

    def _draw_line(self) -> tuple[float, float]:
        """Return the line through weeks that are drawn from the past."""
        again = self._dice.choices(self._weeks, k=len(self._weeks))
        return _line_through(
            [sum(week) * level for week, level in zip(again, self._levels, strict=True)]
        )

    def _draw(self) -> Iterator[float]:
        """Yield the use of each day of one future."""
        dice, count = self._dice, len(self._weeks)
        begin, slope = dice.choice(self._lines)
        past = dice.choices(self._weeks, k=max(2, round(count * _DRAWN_PAST)))
        number = count
        while True:
            level = max(0.0, begin + slope * number)
            for used in dice.choice(past):
                yield used * level
            number += 1


def _stretched(ordered: Sequence[float], floor: Quantiles) -> Quantiles:
    """Return the quantiles, further from the middle; none below `floor`, as use only grows."""
    found = [ordered[round(share * (len(ordered) - 1))] for share in _SHARES]
    wide = (
        found[2] + (one - found[2]) * factor for one, factor in zip(found, _STRETCH, strict=True)
    )
    a, b, c, d, e = (max(one, low) for one, low in zip(wide, floor, strict=True))
    return (a, b, c, d, e)


def _has_clear_trend(sums: Sequence[int]) -> bool:
    """Return whether weeks rise or fall more than chance would explain (Mann-Kendall)."""
    count = len(sums)
    rises = sum((late > early) - (late < early) for early, late in combinations(sums, 2))
    error = sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return abs(rises) > _CLEAR_TREND * error


def _line_through(sums: Sequence[float]) -> tuple[float, float]:
    """Return begin and slope per week: medians of all slopes and of all begins (Theil-Sen)."""
    slope = median(
        (late - early) / (second - first)
        for (first, early), (second, late) in combinations(enumerate(sums), 2)
    )
    return median(used - slope * week for week, used in enumerate(sums)), slope
