"""What GPUs did lately, beside a reader that goes through the samples of each GPU one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from slurmkit_accounting.gpu_use.latest import MOST_RECENT, UseLately, load_latest
from slurmkit_accounting.gpu_use.recent import RecentSample, store_samples
from slurmkit_accounting.gpu_use.samples import GpuReading
from slurmkit_accounting.ledger.schema.runs import clusters
from sqlalchemy import insert

NOW = 1_793_491_200
NODES, GPUS, ROUNDS = 5, 4, 70
Stored = dict[tuple[int, str, int], list[RecentSample]]


def random_samples(chance: random.Random) -> Stored:
    """By cluster, node and round: late pages, rounds without a page, GPUs without a value."""
    stored: Stored = {}
    for round_ in range(ROUNDS):
        taken = NOW - 30 * (ROUNDS - round_)
        for cluster in (1, 2):
            for node in range(NODES):
                if chance.random() < 0.15 or (node == 3 and 20 < round_ < 40):
                    continue
                at = taken + chance.choice((0.0, 0.3, chance.uniform(0, 29)))
                stored[cluster, f"c{node}", taken] = [
                    RecentSample(
                        use_id(cluster, node, gpu), chance.random() < 0.2, reading(at, chance)
                    )
                    for gpu in range(GPUS)
                    if chance.random() < 0.95
                ]
    return stored


USES = (0.0, 0.5, 0.99, 1.0, 100.0)


def reading(at: float, chance: random.Random) -> GpuReading:
    unknown = chance.random() < 0.1
    return GpuReading(
        at=at,
        utilization=None if unknown else chance.choice((*USES, chance.uniform(0, 100))),
        memory_mib=None if unknown else chance.randrange(80_000),
        watts=chance.choice((None, chance.uniform(50, 700))),
    )


def use_id(cluster: int, node: int, gpu: int) -> int:
    return 7 + 1000 * cluster + 10 * node + gpu


def one_by_one(
    stored: Stored, number: int, interval: int, begin: float, step: int
) -> UseLately | None:
    """Go through the samples of one GPU in the order in which they came."""
    found = [
        each
        for _, some in sorted(stored.items(), key=lambda item: item[0][2])
        for each in some
        if each.use_id == number and each.reading.at >= begin
    ]
    if not found:
        return None
    known = [(each.reading.at, each.reading.utilization)
             for each in found if each.reading.utilization is not None]  # fmt: skip
    since = idle_since = before = None
    for at, percent in known:
        if before is None or at - before > 3 * interval:
            since, idle_since = at, None
        if percent >= 1:
            idle_since = None
        elif idle_since is None:
            idle_since = at
        before = at
    busiest = max((percent for _, percent in known), default=None)
    last = found[-1].reading.at
    if found[-1].reading.utilization is None:
        idle_since = None
    recent = in_steps(known, last, step, min(interval, step))
    return UseLately(found[-1], since, busiest, idle_since, recent)


def in_steps(
    known: Sequence[tuple[float, float]], last: float, step: int, covered: int
) -> tuple[int | None, ...]:
    if not known:
        return ()
    count = min(int((last - known[0][0]) // step) + 1, MOST_RECENT)
    values: list[int | None] = []
    for back in range(count - 1, -1, -1):
        inside = [percent for at, percent in known if (last - at) // step == back]
        covering = [percent for at, percent in known if (last - at + covered) // step == back]
        if inside:
            values.append(round(sum(inside) / len(inside)))
        else:
            values.append(round(covering[-1]) if covering else None)
    return tuple(values)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("seconds", "step"), [(1800, 30), (3600, 60), (100, 30)])
def test_all_at_once_is_the_same_as_one_by_one(ledger, seed, seconds, step):
    chance = random.Random(seed)
    stored = random_samples(chance)
    intervals = {
        use_id(cluster, node, gpu): chance.choice((30, 60, 15))
        for cluster in (1, 2) for node in range(NODES + 1) for gpu in range(GPUS - 1)
    }  # fmt: skip
    begin = NOW - seconds
    with ledger.transaction() as connection:
        connection.execute(insert(clusters), [{"name": "one"}, {"name": "two"}])
        for (cluster, node, taken), some in stored.items():
            store_samples(connection, cluster, taken, {node: some})
        nodes = {f"c{node}" for node in range(NODES + 1)}
        found = load_latest(connection, begin, intervals, nodes, {1, 2}, step)
        some = load_latest(connection, begin, intervals, {"c1"}, {2}, step)
    expected = {
        number: lately
        for number, interval in intervals.items()
        for lately in [one_by_one(stored, number, interval, begin, step)]
        if lately is not None
    }
    assert len(expected) > 2 * GPUS
    assert found == expected
    of_c1 = {number for gpu in range(GPUS - 1) for number in [use_id(2, 1, gpu)]}
    assert some == {number: each for number, each in expected.items() if number in of_c1}


def test_nothing_is_asked_or_nothing_was_sampled(ledger):
    with ledger.transaction() as connection:
        assert load_latest(connection, NOW, {}, set(), set(), 30) == {}
        assert load_latest(connection, NOW, {4: 30}, {"c1"}, {1}, 30) == {}


def test_gpus_whose_use_is_unknown_have_a_last_sample(ledger):
    sample = RecentSample(4, False, GpuReading(at=NOW + 1.0, watts=300.0))
    with ledger.transaction() as connection:
        connection.execute(insert(clusters), [{"name": "one"}])
        store_samples(connection, 1, NOW, {"c1": [sample]})
        found = load_latest(connection, NOW, {4: 30}, {"c1"}, {1}, 30)
    assert found == {4: UseLately(sample, None, None, None, ())}
