"""When an allocation runs out: a range that holds as often as it says, on generated loads."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from slurmkit_accounting.allocations.pace import (
    HISTORY_DAYS,
    PastForecasts,
    check_past,
    find_pace,
)

NOW, DAY = 1_793_491_200, 86400
NEVER = NOW * 9
CASES = 300  # of each load
Load = Callable[[random.Random], list[int]]


def _weekend(day: int) -> bool:
    return day % 7 >= 5


def _steady(dice: random.Random) -> list[int]:
    return [max(0, int(dice.gauss(1000, 300))) for _ in range(200)]


def _weekly_with_bursts(dice: random.Random) -> list[int]:
    begin = dice.randrange(7)
    return [
        int(0 if _weekend(begin + day) else dice.lognormvariate(6.5, 0.4))
        + (int(dice.expovariate(1 / 4000)) if dice.random() < 0.1 else 0)
        for day in range(200)
    ]


def _growing(dice: random.Random) -> list[int]:
    begin = dice.randrange(7)
    return [
        int((500 + 12 * day) * (0.3 if _weekend(begin + day) else 1) * dice.lognormvariate(0, 0.35))
        for day in range(200)
    ]


def _jobs(dice: random.Random) -> list[int]:
    """A group's jobs: fewer at weekends, 1 to 8 GPUs, from minutes to many days."""
    begin = dice.randrange(7)
    running: list[list[float]] = []
    daily = []
    for day in range(200):
        mean = 1 if _weekend(begin + day) else 3
        running += [
            [dice.choice([1, 1, 1, 2, 4, 8]), dice.lognormvariate(-1, 1.2)]
            for _ in range(min(20, int(dice.expovariate(1 / mean))))
        ]
        daily.append(int(sum(gpus * min(1, days) * 24000 for gpus, days in running)))
        running = [[gpus, days - 1] for gpus, days in running if days > 1]
    return daily


def _last(future: list[int], left: int) -> float:
    """Return after how many days nothing is left."""
    for day, used in enumerate(future):
        if used >= left:
            return day + left / used
        left -= used
    return NEVER


@pytest.mark.parametrize("load", [_steady, _weekly_with_bursts, _growing, _jobs])
def test_ranges_hold_as_often_as_they_say(load: Load) -> None:
    """Both forecasts together, from 3 days to 7 weeks ahead."""
    held: Counter[str] = Counter()
    for case in range(CASES):
        use = load(random.Random(f"{load.__name__} {case}"))
        past, future = use[:HISTORY_DAYS], use[HISTORY_DAYS:]
        days, lasting = (3, 7, 14, 28)[case % 4], (10, 25, 50)[case % 3]
        left = sum(past[-28:]) * lasting // 28
        pace = find_pace(past, left, NOW, NOW + days * DAY)
        assert pace is not None
        assert pace.left_then_ms is not None
        then = left - sum(future[:days])
        least, less, _, more, most = pace.left_then_ms
        held["left 50"] += less <= then <= more
        held["left 90"] += least <= then <= most
        at = NOW + _last(future, left) * DAY
        earliest, early, late, latest = (
            NEVER if end is None else end
            for end in (pace.earliest, pace.early, pace.late, pace.latest)
        )
        held["end 50"] += early - 1 <= at <= late + 1
        held["end 90"] += earliest - 1 <= at <= latest + 1
    share = {name: count / CASES for name, count in held.items()}
    half = (share["left 50"] + share["end 50"]) / 2
    most_held = (share["left 90"] + share["end 90"]) / 2
    if load is _jobs:  # weeks that depend on each other: a limit of this forecast, in the docs
        assert 0.35 <= half <= 0.55, share
        assert 0.75 <= most_held <= 0.95, share
        return
    assert 0.45 <= half <= 0.55, share
    assert 0.85 <= most_held <= 0.95, share


def test_past_forecasts_are_counted() -> None:
    assert check_past([10] * 91) == PastForecasts(8, 8, 8)  # always the same is easy
    assert check_past([0] * 40 + [10] * 51) is None  # two forecasts say nothing
    found = check_past([10] * 56 + [50] * 35)  # a jump that no past has shown
    assert found is not None
    assert found.most < found.cases
    assert found.half <= found.most


def test_weekdays_are_kept() -> None:
    """At the end of a Friday, the next two days use nothing."""
    week = [0, 0, 70, 70, 70, 70, 70]
    pace = find_pace(week * 13, 1000, NOW, NOW + 2 * DAY)
    assert pace is not None
    assert pace.left_then_ms == (1000,) * 5
    pace = find_pace(week * 13, 1000, NOW, NOW + 3 * DAY)
    assert pace is not None
    assert pace.left_then_ms == (930,) * 5


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(0, 100), max_size=60), st.integers(-50, 5000))
def test_a_range_is_in_order(daily: list[int], left: int) -> None:
    pace = find_pace(daily, left, NOW)
    first = next((day for day, used in enumerate(daily) if used), len(daily))
    if len(daily) - first < 28:
        assert pace is None
        return
    assert pace is not None
    assert pace == find_pace(daily, left, NOW)
    ends = [pace.earliest, pace.early, pace.middle, pace.late, pace.latest]
    known = [NEVER if end is None else end for end in ends]
    assert known == sorted(known)
    assert known[0] >= NOW
    if left <= 0:
        assert known == [NOW] * 5


def test_an_even_pace_has_one_answer() -> None:
    pace = find_pace([10] * 30, 100, NOW)
    assert pace is not None
    ends = {pace.earliest, pace.early, pace.middle, pace.late, pace.latest}
    assert ends == {NOW + 10 * DAY}
    assert (pace.days, pace.per_day_ms) == (30, 10)


def test_what_lasts_for_years_never_ends() -> None:
    pace = find_pace([1] * 30, 10**9, NOW)
    assert pace is not None
    assert (pace.earliest, pace.latest) == (None, None)


def test_an_idle_group_never_ends() -> None:
    pace = find_pace([5] + [0] * 60, 10**6, NOW)
    assert pace is not None
    assert pace.latest is None
