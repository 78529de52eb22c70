"""Which jobs are idle, and what is done about them: against a second implementation."""

from __future__ import annotations

import random

import pytest
from idle_lab import INTERVAL, START, History, brute_force, make_job, random_history, random_policy
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.gpu_use.series import Curve
from slurmkit_accounting.reclaim.idleness import (
    PastAct,
    judge_job,
    make_curves,
    next_step,
    replay,
)
from slurmkit_accounting.reclaim.policy import ReclaimPolicy

UTC = find_zone("UTC")
HISTORIES = 200


def check(history: History, policy: ReclaimPolicy) -> list[tuple[str, int]]:
    """What `reclaim check` finds: on the curves as they are stored."""
    uses = history.uses(history.end)
    for use in uses:
        if use.curve is not None:
            use.curve = Curve.unpack(use.curve.begin, use.curve.step, use.curve.pack())
    curves = make_curves(uses, policy)
    found = replay(curves, history.job, policy, until=history.end, zone=UTC)
    return [(step, int(what.at)) for step, what in found]


def forward(history: History, policy: ReclaimPolicy) -> list[tuple[str, int]]:
    """What the running policy does: judged round by round, on what was known then."""
    done: list[tuple[str, int]] = []
    uses = history.uses(START)
    for at in range(START + INTERVAL, history.end + 1, INTERVAL):
        curves = make_curves(history.grow(uses, at - INTERVAL, at), policy)
        past = [PastAct(step, when) for step, when in done]
        found = next_step(curves, history.job, policy, past, at=at, zone=UTC)
        if found is not None:
            done.append((found[0], at))
            if found[0] == "take":
                break
    return done


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_history_is_judged_as_by_brute_force(seed: int) -> None:
    dice = random.Random(seed)
    history, policy = random_history(dice, 1), random_policy(dice)
    assert check(history, policy) == brute_force(history, policy, UTC)


@pytest.mark.parametrize("seed", range(0, HISTORIES, 4))
def test_a_check_finds_what_the_running_policy_does(seed: int) -> None:
    dice = random.Random(seed)
    history, policy = random_history(dice, 1), random_policy(dice)
    assert check(history, policy) == forward(history, policy)


def test_the_histories_are_of_all_kinds() -> None:
    """Else the tests above could agree on nothing."""
    steps: list[str] = []
    quiet = 0
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        history, policy = random_history(dice, 1), random_policy(dice)
        found = brute_force(history, policy, UTC)
        steps += [step for step, _ in found]
        quiet += not found
    assert min(steps.count(name) for name in ("report", "mail", "take")) >= 10
    assert steps.count("mail") >= 30
    assert quiet > 60


def constant(percents: list[int | None], gpus: int = 1, **other: object) -> History:
    return History(make_job(gpus=gpus, **other), tuple(tuple(percents) for _ in range(gpus)))


MAIL = ReclaimPolicy(action="mail", minutes=10, skip_minutes=0)


def test_each_spell_has_one_mail() -> None:
    idle, busy = [0] * 60, [90] * 10
    history = constant(idle + busy + idle + busy + idle)
    ten_minutes = 600 // INTERVAL
    expected = [
        START + (first + ten_minutes) * INTERVAL
        for first in (0, len(idle + busy), 2 * len(idle + busy))
    ]
    assert check(history, MAIL) == [("mail", at) for at in expected]


def test_a_gap_does_not_end_a_spell() -> None:
    history = constant([0] * 60 + [None] * 30 + [0] * 60)
    assert len(check(history, MAIL)) == 1


@pytest.mark.parametrize(
    "percents", [[90] * 200, [None] * 200, [0, None] * 100, [0] * 19 + [None] * 200]
)
def test_busy_unknown_thin_and_short_ones_are_left_alone(percents: list[int | None]) -> None:
    assert check(constant(percents), MAIL) == []


def test_one_unknown_gpu_of_several_is_enough_to_leave_a_job_alone() -> None:
    job = make_job(gpus=2)
    assert check(History(job, ((0,) * 200,)), MAIL) == []
    assert check(History(job, ((0,) * 200, (None,) * 200)), MAIL) == []
    assert len(check(History(job, ((0,) * 200, (0,) * 200)), MAIL)) == 1


def test_an_old_sample_says_nothing() -> None:
    history = constant([0] * 100)
    curves = make_curves(history.uses(history.end), MAIL)
    thin = ReclaimPolicy(action="mail", minutes=60, skip_minutes=0, covered=0.5)
    assert judge_job(curves, history.job, thin, START, history.end).state == "idle"
    later = history.end + 5 * INTERVAL
    assert judge_job(curves, history.job, thin, START, later).state == "unknown"


def test_a_coarse_curve_makes_the_window_longer_never_shorter() -> None:
    """After 300 points a point is twice as long; a busy sample in it counts for all of it."""
    history = constant([90] * 400 + [0] * 500)
    at = START + 900 * INTERVAL
    curves = make_curves(history.uses(at), MAIL)
    assert curves[0].step == 4 * INTERVAL
    idle = judge_job(curves, history.job, MAIL, at - 480 * INTERVAL, at)
    assert (idle.state, idle.samples) == ("idle", 480)
    assert judge_job(curves, history.job, MAIL, at - 502 * INTERVAL, at).state == "busy"
