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


DAY = 86400 // INTERVAL
BURST_EVERY = 50 * 60 // INTERVAL


def test_short_bursts_of_a_long_run_are_work() -> None:
    """90 % for half a minute each 50 min: after 80 h a point is 32 min, and its mean below 2 %."""
    policy = ReclaimPolicy(action="cancel", minutes=60, below=5.0)
    percents: list[int | None] = [0] * (9 * DAY)
    percents[::BURST_EVERY] = [90] * len(percents[::BURST_EVERY])
    history = constant(percents)
    assert check(history, policy) == []
    curves = make_curves(history.uses(history.end), policy)
    assert curves[0].step > 1800
    for at in range(history.end - 86400, history.end, 600):
        assert judge_job(curves, history.job, policy, at - 3600, at).state != "idle"


def test_work_after_the_warning_is_seen_in_a_coarse_point() -> None:
    """The point that the mail falls into begins before it."""
    policy = ReclaimPolicy(action="cancel", minutes=60, warn_minutes=60)
    mailed = START + 3 * 86400 + 90
    percents: list[int | None] = [0] * (4 * DAY)
    percents[(mailed - START) // INTERVAL + 10] = 90
    history = constant(percents)
    at = mailed + 3 * 3600
    curves = make_curves(history.uses(at), policy)
    assert curves[0].step == 960
    assert (mailed - START) // 960 == (mailed + 10 * INTERVAL - START) // 960
    past = [PastAct("mail", mailed)]
    found = next_step(curves, history.job, policy, past, at=at, zone=UTC)
    assert found is not None
    assert found[0] == "mail"


@pytest.mark.parametrize("seed", range(40))
def test_a_coarse_curve_takes_nothing_that_its_samples_would_not(seed: int) -> None:
    """Random bursts over days: what the curve calls idle, each sample calls idle."""
    dice = random.Random(seed)
    length, every = dice.randint(400, 6 * DAY), dice.choice((20, 100, 300, 1500))
    percents: list[int | None] = [0] * length
    place = 0
    while (place := place + dice.randint(1, 2 * every)) < length:
        percents[place] = dice.choice((8, 30, 60, 90, 100))
    stretch = dice.randrange(length)
    percents[stretch : stretch + dice.choice((0, 300, 2000))] = []
    history = constant([*percents, *([0] * (length - len(percents)))])
    policy = ReclaimPolicy(
        action="cancel", minutes=dice.choice((10, 30, 60)), skip_minutes=0,
        below=dice.choice((1.0, 5.0)), warn_minutes=dice.choice((10, 60)),
    )  # fmt: skip
    curves, idle = make_curves(history.uses(history.end), policy), 0
    values = [value or 0 for value in history.samples[0]]
    assert curves[0].step > INTERVAL
    window = 60 * policy.minutes
    for _ in range(200):
        at = history.end - dice.randint(0, (history.end - START) // 2)
        if judge_job(curves, history.job, policy, at - window, at).state == "idle":
            idle += 1
            first = max(at - window - START, 0) // INTERVAL
            assert max(values[first : (at - START) // INTERVAL]) < policy.below
    taken = [at for step, at in check(history, policy) if step == "take"]
    for at in taken:
        first = (at - START) // INTERVAL - (policy.warn_minutes + policy.minutes) * 60 // INTERVAL
        assert max(values[max(first, 0) : (at - START) // INTERVAL]) < policy.below
