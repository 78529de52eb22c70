from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slurmkit_accounting.ledger.schema.usage import DAY, HOUR, SUMS
from slurmkit_accounting.usage.bins import (
    NO_GPU,
    Eras,
    UsageRun,
    ever_held_resources,
    parse_alloc_tres,
    parse_mebibytes,
    usage_in_window,
)
from slurmkit_accounting.usage.bins_numpy import UsageSums

T = 1_700_000_000
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
    start = T + draw(st.integers(0, 3 * DAY))
    tres = draw(st.sampled_from(TRES))
    length = draw(st.sampled_from((0, 1, 59, HOUR, HOUR + 1, DAY)) | st.integers(0, 5 * DAY))
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
    believed = length > 0 and (run.energy_joules or 0) < 2**60
    assert total["energy_joules"] == (run.energy_joules or 0 if believed else 0)
    sane = max(run.cpu_used_ms or 0, length * run.cpus * 1000) < 2**60
    if run.cpu_used_ms is not None and length and run.cpus and sane:
        assert total["cpu_used_ms"] == run.cpu_used_ms
        assert total["cpu_measured_ms"] == run.cpus * length * 1000
    else:
        assert total["cpu_used_ms"] == total["cpu_measured_ms"] == 0
    if run.gpu_used_permille is not None and run.gpus:
        assert total["gpu_used_ms"] == run.gpu_used_permille * run.gpus * length
        assert total["gpu_measured_ms"] == run.gpus * length * 1000


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


@given(st.lists(runs(), max_size=8), st.data(), st.sampled_from((HOUR, DAY)))
@settings(max_examples=300)
def test_many_at_once_are_each_of_them_added(many, data, width):
    signs = [data.draw(st.sampled_from((1, -1))) for _ in many]
    expected: dict = defaultdict(lambda: [0] * len(SUMS))
    for run, sign in zip(many, signs, strict=True):
        for key, begin, sums in contributions(run, width):
            row = expected[key, begin]
            row[:] = [a + sign * b for a, b in zip(row, sums, strict=True)]
    added = UsageSums()
    for sign in (1, -1):
        some = [run for run, each in zip(many, signs, strict=True) if each == sign]
        added.add(list(zip(*some, strict=True)), sign)
    keys = added.keys()
    rows = added.by_bin(range(len(keys)), width)
    found = {(keys[key], begin): sums for begin, key, *sums in rows.tolist()}
    assert len(found) == len(rows)
    assert found == {what: sums for what, sums in expected.items() if any(sums)}


@given(st.lists(st.tuples(runs(), runs()), min_size=1, max_size=6), st.sampled_from((HOUR, DAY)))
def test_what_runs_used_can_be_counted_later(pairs, width):
    facts = ("cpu_used_ms", "mem_peak_mib", "gpu_used_permille")
    old = [run for run, _ in pairs]
    before = [[getattr(run, name) for run in old] for name in facts]
    new = [run._replace(**{f: getattr(other, f) for f in facts}) for run, other in pairs]
    whole, apart = UsageSums(), UsageSums()
    whole.add(list(zip(*new, strict=True)), 1)
    apart.add(list(zip(*old, strict=True)), 1)
    apart.replace_measured_use(list(zip(*new, strict=True)), before)
    assert whole.keys() == apart.keys()
    keys = range(len(whole.keys()))
    assert (whole.by_bin(keys, width) == apart.by_bin(keys, width)).all()


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
    assert (one["energy_joules"], two["energy_joules"]) == (66, 34)
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
