from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from operator import sub

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from slurmkit_accounting.ledger.schema.usage import DAY, HELD, HOUR, SUMS, USAGE_COLUMNS
from slurmkit_accounting.usage.bins import (
    NO_GPU,
    Eras,
    UsageKey,
    UsageRun,
    ever_held_resources,
    held_per_second,
    parse_alloc_tres,
    parse_mebibytes,
    usage_in_window,
)
from slurmkit_accounting.usage.bins_numpy import UsageSums

T = 1_700_000_000
MONTH_END = 1_701_388_800  # the next after T
TRES = (
    "cpu=4,mem=8G,gres/gpu:a100=2,gres/gpu=2",
    "cpu=4,mem=62.50G,gres/gpu:a100=2,gres/gpu:h100=1",
    "cpu=4,gres/gpu=3,gres/gpu:a100=1",
    "cpu=4,gres/gpu:a100_1g.5gb=1,gres/gpu=1",
    "cpu=4,gres/shard=3",
    "cpu=4,mem=1024K",
    "",
)
few = st.integers(0, 5)
maybe = st.none() | st.integers(0, 10**6)
used = maybe | st.sampled_from((10**15, 2**36, 2**59, 2**60 - 1, 2**60, 2**63 - 1))


@st.composite
def runs(draw: st.DrawFn) -> UsageRun:
    start = T + draw(st.integers(0, 3 * DAY) | st.integers(0, 15 * DAY))
    tres = draw(st.sampled_from(TRES))
    length = draw(
        st.sampled_from((0, 1, 59, HOUR, HOUR + 1, DAY, MONTH_END - start))
        | st.integers(0, 5 * DAY)
        | st.integers(0, 99 * DAY)
    )
    return UsageRun(
        cluster_id=1,
        user=draw(st.sampled_from(("alice", "bob"))),
        uid=draw(st.none() | st.just(7)),
        account="vision",
        partition="gpu",
        qos="normal",
        state=draw(st.sampled_from(("COMPLETED", "FAILED"))),
        redone=draw(st.booleans()),
        submit=start - draw(st.integers(-10, 10_000)),
        start=draw(st.just(start) | st.none()),
        end=start + length,
        nodes=draw(few),
        cpus=draw(few | st.just(10**8)),
        gpus=sum(count for _, count in parse_alloc_tres(tres).gpus),
        alloc_tres=tres,
        cpu_used_ms=draw(used),
        mem_peak_mib=draw(used),
        gpu_used_permille=draw(st.none() | st.integers(0, 1000)),
        gpu_energy_joules=draw(maybe | st.sampled_from((2**44, 2**45, 2**60))),
        energy_joules=draw(maybe | st.integers(0, 2**63 - 1)),
        era=draw(st.sampled_from((0, T))),
    )


def contributions(run, width):
    """Yield what an ended run adds to each bin of `width` seconds: key, begin of the bin, sums."""
    if not ever_held_resources(run) or run.start is None or run.end is None:
        return
    last = max(run.end - 1, run.start) // width
    for place in range(run.start // width, last + 1):
        for key, sums in usage_in_window(run, place * width, (place + 1) * width):
            yield key, place * width, sums


@given(runs(), st.sampled_from((HOUR, DAY)))
def test_the_parts_of_a_run_add_up_to_the_run(run, width):
    total = dict.fromkeys(SUMS, 0)
    for _, _, sums in contributions(run, width):
        for name, value in zip(SUMS, sums, strict=True):
            total[name] += value
    if not ever_held_resources(run):
        assert not any(total.values())
        return
    length, tres = run.end - run.start, parse_alloc_tres(run.alloc_tres)
    assert total["gpu_seconds"] == length * sum(count for _, count in tres.gpus)
    assert total["cpu_seconds"] == length * run.cpus
    assert total["node_seconds"] == length * run.nodes
    assert total["wall_seconds"] == length
    assert total["mem_mib_seconds"] == length * tres.mem_mib
    assert total["started"] == 1
    assert total["waited_seconds"] == max(run.start - run.submit, 0)
    bins = max(run.end - 1, run.start) // width - run.start // width + 1
    assert total["runs"] == bins
    joules = run.energy_joules or 0
    nodes = max(run.nodes, 1)
    believed = length > 0 and joules < 2**45 and joules * 1000 // length < nodes * 20_000_000
    assert total["energy_millijoules"] == (joules * 1000 if believed else 0)
    assert total["metered_node_seconds"] == (length * run.nodes if believed and joules else 0)
    assert total["nodeless_seconds"] == (0 if run.nodes else length)
    sane = max(run.cpu_used_ms or 0, length * run.cpus * 1000) < 2**55
    sane &= (run.cpu_used_ms or 0) <= nodes * 2**14 * length * 1000
    if run.cpu_used_ms is not None and length and run.cpus and sane:
        assert total["cpu_used_ms"] == run.cpu_used_ms
        assert total["cpu_measured_ms"] == run.cpus * length * 1000
    else:
        assert total["cpu_used_ms"] == total["cpu_measured_ms"] == 0
    if run.gpu_used_permille is not None and run.gpus:
        assert total["gpu_used_ms"] == run.gpu_used_permille * run.gpus * length
        assert total["gpu_measured_ms"] == run.gpus * length * 1000
    # Slurm's own measurement of a run has the energy of its GPUs in it.
    of_gpus = run.gpu_energy_joules or 0
    assert total["gpu_joules"] == (of_gpus if of_gpus < 2**45 and not joules else 0)


@given(runs(), st.lists(st.integers(T - DAY, T + 9 * DAY), min_size=3, max_size=9))
def test_any_windows_that_touch_add_up(run, edges):
    edges = sorted(edges)
    where = [name for name in SUMS if name != "runs"]

    def total(begin: int, end: int) -> dict:
        found: dict = defaultdict(int)
        for key, sums in usage_in_window(run, begin, end):
            for name, value in zip(SUMS, sums, strict=True):
                if name in where and value:
                    found[key, name] += value
        return found

    parts: dict = defaultdict(int)
    for begin, end in pairwise(edges):
        for what, value in total(begin, end).items():
            parts[what] += value
    assert parts == total(edges[0], edges[-1])


def month_of(time: int) -> tuple[int, int]:
    """Begin and end of a UTC month."""
    first = datetime.fromtimestamp(time, UTC).replace(day=1, hour=0, minute=0, second=0)
    following = (first + timedelta(days=31)).replace(day=1)
    return int(first.timestamp()), int(following.timestamp())


def held(run: UsageRun, begin: int, end: int) -> dict:
    """By key: `HELD` of a window, and `COUNTED`."""
    found = dict(usage_in_window(run, begin, end))
    return {key: (sums[: len(HELD)], sums[len(HELD) + 1 :]) for key, sums in found.items()}


def rows_of(run: UsageRun, width: int | None) -> Iterator[tuple[UsageKey, int, list[int]]]:
    """Yield the rows of a run as the tables are defined; `width` None is for months."""
    if not ever_held_resources(run) or run.start is None or run.end is None:
        return
    none = ((0,) * len(HELD), (0,) * (len(SUMS) - len(HELD) - 1))
    at = run.start - run.start % DAY
    while at <= run.end:
        begin, end = month_of(at) if width is None else (at, at + width)
        month = month_of(begin)[1]
        for key, rates in held_per_second(run):

            def beyond(time: int, *, key=key, rates=rates, month=month) -> list[int]:
                """What is held from a time to the end of the month, less what was held then."""
                whole = held(run, time, month).get(key, none)[0] if time < month else none[0]
                going_on = run.start < time < run.end
                return [
                    a - b * going_on * (month - time) for a, b in zip(whole, rates, strict=True)
                ]

            def going(time: int, *, rates=rates) -> list[int]:
                return [rate * (run.start < time < run.end) for rate in rates]

            amounts, counted = held(run, begin, end).get(key, none)
            if width is None:
                yield key, begin, [*amounts, *counted, *going(begin)]
            else:
                amounts = map(sub, beyond(begin), beyond(end))
                yield key, begin, [*amounts, *counted, *map(sub, going(end), going(begin))]
        at = end


@given(st.lists(runs(), max_size=6), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_the_rows_of_many_runs_are_those_of_each_of_them(many, data):
    signs = [data.draw(st.sampled_from((1, -1))) for _ in many]
    added = UsageSums()
    for sign in (1, -1):
        some = [run for run, each in zip(many, signs, strict=True) if each == sign]
        added.add(list(zip(*some, strict=True)), sign)
    keys = added.keys()
    for table, width in zip(together(added, keys), (HOUR, DAY, None), strict=True):
        expected: dict = defaultdict(lambda: [0] * len(USAGE_COLUMNS))
        for run, sign in zip(many, signs, strict=True):
            for key, begin, row in rows_of(run, width):
                there = expected[key, begin]
                there[:] = [a + sign * b for a, b in zip(there, row, strict=True)]
        found = {(keys[key], begin): sums for begin, key, *sums in table.tolist()}
        assert len(found) == len(table)
        assert found == {what: sums for what, sums in expected.items() if any(sums)}


def together(added: UsageSums, keys: list[UsageKey]) -> list:
    """The rows of each table."""
    parts = list(added.rows(range(len(keys))))
    empty = np.zeros((0, 2 + len(USAGE_COLUMNS)), np.int64)
    return [np.concatenate([empty, *(part[at] for part in parts)]) for at in range(3)]


@given(st.lists(runs(), min_size=1, max_size=4))
def test_a_run_of_any_length_is_two_rows_and_one_for_each_of_its_months(many):
    for run in many:
        added = UsageSums()
        added.add([[value] for value in run], 1)
        kinds = max(len(parse_alloc_tres(run.alloc_tres).gpus), 1)
        hours, days, months = together(added, added.keys())
        assert len(hours) <= 2 * kinds
        assert len(days) <= 2 * kinds
        assert len(months) <= (2 + (run.end - (run.start or run.end)) // (28 * DAY)) * kinds


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_rows_are_the_same_in_parts(monkeypatch, at_once):
    run = UsageRun(1, "a", 1, "v", "p", "q", "COMPLETED", T, T, T + 9 * DAY, 1, 4, 2, TRES[0], 9)
    many = [run._replace(user=user, start=T + n * HOUR) for n, user in enumerate("bacabbc")]
    whole, parts = UsageSums(), UsageSums()
    whole.add(list(zip(*many, strict=True)), 1)
    parts.add(list(zip(*many, strict=True)), 1)
    expected = together(whole, whole.keys())
    monkeypatch.setattr("slurmkit_accounting.usage.bins_numpy._AT_ONCE", at_once)
    for one, other in zip(expected, together(parts, parts.keys()), strict=True):
        assert sorted(one.tolist()) == sorted(other.tolist())
        assert len({tuple(row[:2]) for row in other.tolist()}) == len(other)


@given(st.lists(st.tuples(runs(), runs()), min_size=1, max_size=6))
def test_what_runs_used_can_be_counted_later(pairs):
    facts = ("cpu_used_ms", "mem_peak_mib", "gpu_used_permille", "gpu_energy_joules")
    old = [run for run, _ in pairs]
    before = [[getattr(run, name) for run in old] for name in facts]
    new = [run._replace(**{f: getattr(other, f) for f in facts}) for run, other in pairs]
    whole, apart = UsageSums(), UsageSums()
    whole.add(list(zip(*new, strict=True)), 1)
    apart.add(list(zip(*old, strict=True)), 1)
    apart.replace_measured_use(list(zip(*new, strict=True)), before)
    keys = whole.keys()
    assert keys == apart.keys()
    for one, other in zip(together(whole, keys), together(apart, keys), strict=True):
        assert (one == other).all()


def test_a_run_over_an_edge_is_split_to_the_second():
    midnight = T // DAY * DAY + DAY
    run = UsageRun(
        1, "a", 1, "v", "p", "q", "COMPLETED", T, midnight - 10, midnight + 5, 1, 4, 2, TRES[0],
        energy_joules=100, cpu_used_ms=50_000,
    )  # fmt: skip
    (first, one), (second, two) = [
        (begin, dict(zip(SUMS, sums, strict=True))) for _, begin, sums in contributions(run, DAY)
    ]
    assert second - first == DAY
    assert (one["gpu_seconds"], two["gpu_seconds"]) == (20, 10)
    assert (one["started"], two["started"]) == (1, 0)
    # 100 J in 15 s are 6,666 mW; the rest is at the end.
    assert (one["energy_millijoules"], two["energy_millijoules"]) == (66_660, 33_340)
    assert (one["cpu_used_ms"], two["cpu_used_ms"]) == (0, 50_000)
    assert two["cpu_measured_ms"] == 60_000


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gres/gpu=3,gres/gpu:a100=1", (("", 2), ("a100", 1))),
        ("gres/gpu:h100=1,gres/gpu:a100=2", (("a100", 2), ("h100", 1))),
        ("gres/shard=3,gres/shard:a100=3", (("shard:a100", 3),)),
        ("gres/mps=50", (("mps", 50),)),
        ("gres/gpu=0,gres/shard=3", (("shard", 3),)),
        ("gres/gpu=1,gres/shard=3", (("", 1),)),
        ("gres/gpumem=80G,gres/gpuutil=97,cpu=1", ()),
    ],
)
def test_gpus_of_an_allocation(text, gpus):
    assert parse_alloc_tres(text).gpus == gpus


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("62.50G", 64000), ("1024K", 1), ("512K", 0), ("4096", 4096), ("1.5T", 1572864),
        ("", None), ("?", None), ("1.2.3G", None), ("18446744073709551614M", None), ("5X", None),
    ],
)  # fmt: skip
def test_memory_in_slurms_words(text, mib):
    assert parse_mebibytes(text) == mib


def test_an_era_begins_with_its_time():
    eras = Eras([T, T + 5])
    assert [eras.of(at) for at in (5, T - 1, T, T + 4, T + 5)] == [0, 0, T, T, T + 5]
    assert parse_alloc_tres("").gpus == ()
    assert NO_GPU == "-"
