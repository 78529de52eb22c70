"""The decay of usage, against the formula of slurm.conf(5) worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.state.fairshare import (
    FairshareForecast,
    FairshareRow,
    describe_forecast,
    forecast_fairshare,
)

WEEK = 7 * 86400
PARENT = FairshareRow(depth=1, account="vision", raw_usage=1000)


def mine(**changes: object) -> FairshareRow:
    given = {"depth": 2, "account": "vision", "user": "alice", "raw_usage": 800, "shares": 0.25,
             "level": 0.3125, "factor": 0.5, **changes}  # fmt: skip
    return FairshareRow(**given)


def test_by_hand() -> None:
    found = forecast_fairshare(mine(), PARENT, "7-00:00:00")
    assert found == FairshareForecast(WEEK, 800.0, 200.0, 0.25)
    assert found.level_after(0) == pytest.approx(0.3125)  # 0.25 / (800 / 1000), as sshare says
    assert found.usage_after(2 * WEEK) == pytest.approx(200)
    assert found.level_after(2 * WEEK) == pytest.approx(0.5)
    # 0.25 (m + 200) = m: m = 66.67, which is 800 x 0.5^3.585
    assert found.seconds_to(1.0) == pytest.approx(WEEK * math.log2(12))


@given(st.floats(1, 1e12), st.floats(1, 1e12), st.floats(0.01, 0.99))
def test_what_is_reached_is_reached_then(usage: float, others: float, shares: float) -> None:
    of = FairshareForecast(WEEK, usage, others, shares)
    when = of.seconds_to(1.0)
    assert when is not None
    assert of.level_after(when) >= 1.0 - 1e-6
    if when > 0:
        assert of.level_after(when * 0.99) < 1.0


@pytest.mark.parametrize(
    ("row", "parent", "half_life"),
    [
        (mine(), PARENT, "00:00:00"),  # usage never fades
        (mine(), PARENT, ""),
        (mine(raw_usage=None), PARENT, "7-00:00:00"),
        (mine(level=None), PARENT, "7-00:00:00"),  # no Fair Tree
        (mine(raw_usage=2000), PARENT, "7-00:00:00"),  # sshare was asked while it was worked out
    ],
)
def test_what_slurm_does_not_say_is_unknown(
    row: FairshareRow, parent: FairshareRow, half_life: str
) -> None:
    assert forecast_fairshare(row, parent, half_life) is None


def test_in_words() -> None:
    now, until, reset = describe_forecast(FairshareForecast(WEEK, 800.0, 200.0, 0.25), "MONTHLY")
    assert now.startswith("if I stop now: 800 TRES-seconds, LevelFS 0.312; in 7.0 days 400,")
    assert "is reached in 25.1 days" in until
    assert "0.5^(t/half-life)" in until
    assert "set to zero monthly" in reset
    assert (
        "is already reached"
        in describe_forecast(FairshareForecast(WEEK, 10.0, 990.0, 0.25), "NONE")[1]
    )
    assert (
        "not reached while nobody else"
        in describe_forecast(FairshareForecast(WEEK, 10.0, 0.0, 0.25), "NONE")[1]
    )
    assert describe_forecast(FairshareForecast(WEEK, 0.0, 990.0, 0.25), "NONE") == [
        "you have no usage that counts now, so nothing decays"
    ]
