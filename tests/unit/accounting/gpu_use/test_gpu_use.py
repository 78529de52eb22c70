"""Summaries and curves of one GPU over one run: from samples as they come, and from none."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import tracemalloc
from pathlib import Path

import pytest
from gpu_lab import GPU, gpu_page, line, steady, use_of
from hypothesis import given
from hypothesis import strategies as st
from slurmkit_accounting.gpu_use.samples import GpuName, GpuReading, PageError, parse_page
from slurmkit_accounting.gpu_use.series import MOST_POINTS, Curve
from slurmkit_accounting.gpu_use.summaries import unpack_bins

WEEK = 7 * 86400
RECORDED = Path(__file__).parents[3] / "recorded" / "gpu_exporter"


def test_a_recorded_node_whose_indices_are_not_the_drivers():
    found = parse_page((RECORDED / "node-c2.prom").read_text(), 5.0).readings
    values = {
        (r.job, r.gpu.index): (r.reading.utilization, r.reading.memory_mib, r.reading.watts)
        for r in found
    }
    assert values == {
        (41, 3): (0, 512, 75), (41, 2): (80, 20480, 310), (42, 5): (99, 71680, 400),
    }  # fmt: skip
    assert all(r.reading.joules and not r.shared for r in found)


def test_a_recorded_node_with_mig():
    found = parse_page((RECORDED / "node-c5.prom").read_text(), 5.0).readings
    values = {(r.job, r.gpu.index, r.reading.utilization) for r in found}
    assert values == {(51, 0, 80), (52, 3, 0)}
    assert {r.gpu.key[:4] for r in found} == {"MIG-"}
    assert all(r.reading.joules is None for r in found)  # the driver counts only whole GPUs


def test_a_recorded_node_with_a_shared_gpu():
    found = parse_page((RECORDED / "node-c6.prom").read_text(), 5.0).readings
    assert {(r.job, r.shared, r.reading.utilization, r.reading.memory_mib) for r in found} == {
        (61, True, 50, 8192), (62, True, 25, 4096),
    }  # fmt: skip


def test_forged_pages_leave_nothing_in_memory():
    """Each has labels of its own, as long as they may be."""
    parse_page(gpu_page(7), 5.0)
    tracemalloc.start()
    try:
        for number in range(20):
            names = (f'x="{"y" * 900}",uuid="GPU-{number}-{at}"' for at in range(500))
            parse_page("".join(f"slurmkit_gpu_job{{{name}}} 1\n" for name in names), 5.0)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_page_gives_a_reading_for_each_job_on_a_gpu():
    text = gpu_page(7) + gpu_page(gpu=GpuName("GPU-2", "", 1))
    (found,) = parse_page(text, 5.0).readings
    assert (found.job, found.gpu, found.shared) == (7, GPU, False)
    assert found.reading == GpuReading(
        at=5.0, utilization=80, memory_mib=10240, memory_total_mib=81920, watts=300, joules=1000
    )


@pytest.mark.parametrize(
    ("value", "known"),
    [
        ("0.8", 80),
        ("0.29", 29),
        ("0", 0),
        ("1", 100),
        ("2.5", None),
        ("-0.1", None),
        ("NaN", None),
        ("+Inf", None),
    ],
)
def test_what_no_gpu_does_is_unknown(value, known):
    (found,) = parse_page(gpu_page(7, busy=value), 5.0).readings
    assert found.reading.utilization == known
    assert found.reading.watts == 300


@pytest.mark.parametrize("value", ["-1", "1e30", "NaN", "x"])
def test_power_energy_and_memory_that_cannot_be_are_unknown(value):
    page = gpu_page(7, watts=value, joules=value, memory=value)
    (found,) = parse_page(page, 5.0).readings
    assert (found.reading.watts, found.reading.joules, found.reading.memory_mib) == (None,) * 3


def test_a_shared_gpu_is_measured_by_process_or_is_unknown():
    page = gpu_page(7, 8) + line("job_utilization_ratio", 0.25, job=7)
    page += line("job_memory_used_bytes", 2**30, job=7)
    seven, eight = parse_page(page, 5.0).readings
    assert seven.shared
    assert eight.shared
    assert (seven.reading.utilization, seven.reading.memory_mib) == (25, 1024)
    assert (eight.reading.utilization, eight.reading.memory_mib) == (None, None)
    assert seven.reading.joules is seven.reading.watts is eight.reading.joules is None


def test_labels_are_unescaped_and_jobs_are_numbers():
    gpu = GpuName("GPU-1", "", None, "MIG-1")
    page = gpu_page(7, gpu=gpu) + line("job", 1, gpu, job="12_3") + line("job", 0, gpu, job=9)
    page += r'slurmkit_gpu_job{uuid="a\"b",job="11"} 1' + "\n"
    first, second = parse_page(page, 5.0).readings
    assert (first.job, first.gpu) == (7, gpu)
    assert (second.job, second.gpu.key) == (11, 'a"b')


def test_a_gpu_without_a_job_is_read_too_if_its_index_is_certain():
    two, three = GpuName("GPU-2", "", 1), GpuName("GPU-3", "", 2)
    page = gpu_page(7) + gpu_page(gpu=two, busy=0, watts=60)
    page += gpu_page(gpu=three) + line("job", 1, three, job="12_3")  # a job that nobody knows
    page += gpu_page(gpu=GpuName("GPU-4", "", None))  # one with MIG instances, for example
    page += gpu_page(gpu=GpuName("GPU-5", "", 4)) + gpu_page(gpu=GpuName("GPU-6", "", 4))
    page += gpu_page(gpu=GpuName("GPU-7", "", 5)) + line("job", 0, GpuName("GPU-7", "", 5), job=9)
    page += gpu_page(gpu=GpuName("GPU-8", "", 0))  # the index of the GPU of job 7
    ((gpu, reading),) = parse_page(page, 5.0).without_job
    assert gpu == two
    assert reading == GpuReading(
        at=5.0, utilization=0, memory_mib=10240, memory_total_mib=81920, watts=60, joules=1000
    )


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html>",
        "node_cpu_seconds_total 1\n",
        "".join(gpu_page(gpu=GpuName(f"G{n}")) for n in range(1100)),
    ],
)
def test_what_is_no_page_of_a_node(page):
    with pytest.raises(PageError):
        parse_page(page, 5.0)


@given(st.text(alphabet='slurmkit_gpujob{}="\\ \n.10NaN,x'))
def test_no_page_breaks_the_parser(text):
    with contextlib.suppress(PageError):
        parse_page(f"slurmkit_gpu_\n{text}", 1.0)


def test_half_an_hour_at_80_percent():
    use = use_of(*steady(1000, 1800), start=1000)
    assert use.mean == pytest.approx(80)
    assert (use.percentile_95, use.idle_share, use.samples) == (80, 0, 60)
    assert use.covered_share(2800) == 1
    assert (use.memory_mib, use.memory_total_mib) == (10240, 81920)
    # By the counter from the first sample to the last, by the power before and after.
    assert use.counted_joules == pytest.approx(300 * 1770)
    assert use.joules == pytest.approx(300 * 1800)
    assert (use.energy_by, use.energy_seconds) == ("counter", 1800)
    use.finish(2810)
    assert use.joules == pytest.approx(300 * 1810)


def test_what_lies_more_than_an_interval_before_or_after_the_samples_has_no_energy():
    use = use_of(*steady(1000, 600)[10:], start=1000)
    use.finish(9000)
    assert use.energy_seconds == 30 + 270
    assert use.joules == pytest.approx(300 * 300)


@given(st.lists(st.floats(0, 100) | st.floats(0, 2), min_size=1, max_size=300))
def test_a_percentile_is_exact_to_one_percent(busy):
    use = use_of(*(GpuReading(at=n + 1, utilization=each) for n, each in enumerate(busy)))
    exact = sorted(busy)[math.ceil(0.95 * len(busy)) - 1]
    assert abs(use.percentile_95 - exact) <= 0.5 + 1e-9
    assert use.mean == pytest.approx(statistics.fmean(busy))
    assert use.idle_share == sum(each < 1 for each in busy) / len(busy)
    assert use.is_idle == (max(busy) < 1)


def test_a_gap_is_not_covered_and_not_invented():
    readings = steady(0, 3600)
    use = use_of(*readings[:40], *readings[80:])
    assert use.samples == 80
    assert use.covered_share(3600) == pytest.approx(80 / 120)
    assert use.mean == pytest.approx(80)
    # The counter went on in the gap.
    assert use.joules == pytest.approx(300 * 3600)


def test_a_sample_that_is_not_newer_does_not_count_twice():
    readings = steady(0, 300)
    once, twice = use_of(*readings), use_of(*readings, *readings, readings[-1])
    assert once.samples == twice.samples == 10
    assert once.joules == twice.joules


def test_without_a_counter_energy_is_power_times_time_and_says_so():
    readings = [GpuReading(at=r.at, watts=200.0) for r in steady(0, 600)]
    use = use_of(*readings)
    assert (use.joules, use.energy_by) == (200 * 600, "power")
    use.finish(610)
    assert (use.joules, use.energy_seconds) == (200 * 610, 610)
    assert (use.mean, use.percentile_95, use.idle_share) == (None, None, None)
    assert use.covered_share(600) == 0


@pytest.mark.parametrize("new", [0.0, 10.0, 10.0**12])
def test_a_counter_that_is_reset_or_wraps_or_jumps_says_nothing_about_that_time(new):
    readings = [
        GpuReading(at=30.0, joules=1000), GpuReading(at=60.0, joules=4000),
        GpuReading(at=90.0, joules=new), GpuReading(at=120.0, joules=new + 3000),
    ]  # fmt: skip
    use = use_of(*readings)
    assert (use.joules, use.energy_seconds) == (6000, 60)


def test_a_gpu_that_was_shared_for_a_while_has_no_energy_of_that_time():
    use = use_of(*steady(0, 60))
    use.add(GpuReading(at=90.0, utilization=10), shared=True)
    for reading in steady(0, 150)[3:]:
        use.add(reading)
    assert use.shared
    assert use.energy_seconds == 90  # 0 to 60, and 120 to 150


def test_a_run_shorter_than_the_interval():
    use = use_of(GpuReading(at=1010.0, utilization=50), start=1000)
    assert use.covered_share(1020) == 0.5
    none = use_of(start=1000)
    assert (none.mean, none.joules, none.samples, none.covered_share(1020)) == (None, None, 0, 0)


def test_clocks_that_differ():
    # Slurm's clock is ahead: samples from before the start cover nothing, and are in no curve.
    use = use_of(*steady(900, 300), start=1000)
    assert use.covered_share(1200) == 1
    assert use.covered == 200
    assert next(use.curve.points()).samples == 1
    assert use.covered_share(900) == 0  # and an end before the start is no length


def test_a_week_of_one_gpu_is_less_than_2_kb():
    chance = random.Random(1)
    readings = (
        GpuReading(
            at=at, utilization=chance.uniform(0, 100), memory_mib=chance.randrange(81920),
            watts=chance.uniform(60, 700),
        )
        for at in range(30, WEEK, 30)
    )  # fmt: skip
    use = use_of(*readings)
    points = list(use.curve.points())
    assert len(points) <= MOST_POINTS
    assert sum(point.samples for point in points) == use.samples
    assert len(use.curve.pack(9)) + len(use.pack_bins()) < 2048


@pytest.mark.parametrize("seconds", [30, 9000, 9030, WEEK, 400 * 86400])
def test_a_curve_is_bounded_and_says_what_the_samples_say(seconds):
    every = max(30, seconds // 5000 // 30 * 30)
    use = use_of(*steady(0, seconds, every=every))
    points = list(use.curve.points())
    assert len(points) <= MOST_POINTS
    assert {round(point.utilization, 6) for point in points if point.samples} == {80}
    assert {point.memory_mib for point in points if point.samples} == {10240}
    assert {point.watts for point in points if point.samples} == {300}


@pytest.mark.parametrize("number", [2, 3, 4, 7, 8, 32, 300])
@pytest.mark.parametrize("percent", [1, 5])
def test_no_point_hides_a_sample_of_work(number, percent):
    """However coarse the points are, and also after the curve was stored."""
    curve = Curve(0, 30 * number)
    for at in range(number):
        curve.add(GpuReading(at=30.0 * at, utilization=percent if at == number // 2 else 0))
    stored = Curve.unpack(0, 30 * number, curve.pack())
    for (point,) in (curve.points(), stored.points()):
        assert point.may_be_busy(percent)
    idle = Curve(0, 30 * number)
    for at in range(number):
        idle.add(GpuReading(at=30.0 * at, utilization=0))
    assert not next(idle.points()).may_be_busy(1)


def test_a_curve_has_gaps():
    use = use_of(GpuReading(at=30.0, utilization=50), GpuReading(at=150.0, utilization=50))
    known = [(point.samples, point.utilization) for point in use.curve.points()]
    assert known == [(0, None), (1, 50), (0, None), (0, None), (0, None), (1, 50)]


def test_a_curve_survives_its_packing():
    use = use_of(*steady(0, 20_000), GpuReading(at=21_000.0))
    again = Curve.unpack(0, use.curve.step, use.curve.pack())
    for before, after in zip(use.curve.points(), again.points(), strict=True):
        assert after == before
    for reading in steady(21_000, 30_000):
        use.curve.add(reading)
        again.add(reading)
    for before, after in zip(use.curve.points(), again.points(), strict=True):
        assert after.samples == before.samples
        assert after.utilization == pytest.approx(before.utilization, abs=0.2)
    assert unpack_bins(use.pack_bins()) == use.bins


@pytest.mark.parametrize(
    "packed", [b"", b"\x02x", b"\x01", b"\x01garbage", Curve(0, 1).pack()[:-3]]
)
def test_a_damaged_curve_is_an_error(packed):
    with pytest.raises(ValueError, match="not a packed curve"):
        Curve.unpack(0, 30, packed)
