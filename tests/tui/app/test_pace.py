"""When squeue is asked next."""

from __future__ import annotations

import pytest
from slurmkit_tui.session import (
    LONGEST_AFTER_FAILURE,
    LONGEST_AFTER_SLOW,
    WAITING_SHARE,
    PollSchedule,
)


@pytest.mark.parametrize("took", [0.0, 0.1, 2.0, 6.0])
def test_squeue_gets_at_most_its_share_of_the_time(took: float) -> None:
    pace = PollSchedule(10)
    pace.answered(took)
    assert pace.delay >= 10
    assert took / (took + pace.delay) <= WAITING_SHARE + 1e-9


def test_one_slow_answer_does_not_stop_the_clock_and_a_quick_one_ends_it() -> None:
    pace = PollSchedule(10)
    pace.answered(27.0)
    assert pace.delay == LONGEST_AFTER_SLOW == 60
    pace.answered(0.1)
    assert pace.delay == 10


def test_failures_double_the_wait_up_to_a_limit_and_an_answer_ends_that() -> None:
    pace, waits = PollSchedule(10), []
    for _ in range(8):
        pace.failed(0.1)
        waits.append(pace.delay)
    assert waits == [20, 40, 80, *[LONGEST_AFTER_FAILURE] * 5]
    pace.answered(0.1)
    assert pace.delay == 10


def test_a_longer_interval_than_the_limit_is_kept() -> None:
    pace = PollSchedule(1000)
    pace.failed(1)
    assert pace.delay == 1000
