"""`report benchmark`: which devices are slow, their trends, and what a price buys."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pandas as pd
import pytest
from benchmark_books import NOVEMBER, measured, store, write_measurements
from report_books import BEGIN, DAY, write_books
from slurmkit_accounting import read
from slurmkit_accounting.cli.report import report_group
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.reports.benchmark import Bounds

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import BadInput

PRICES = """
[gpu.h100]
aliases = ["H100-SXM"]
prices = [
    { since = 2026-01-01, currency = "EUR", on_premises = 2, cloud = 4 },
    { since = 2026-11-10, currency = "EUR", on_premises = 2.5, cloud = 4 },
]
[gpu.a100]
prices = [{ since = 2026-01-01, currency = "EUR", on_premises = 0.5 }]
"""


def rows(ledger: Ledger, *columns: str, **more: Any) -> list[tuple[Any, ...]]:
    found = read.benchmark(ledger, **NOVEMBER | more).rows
    return [tuple(row[name] for name in columns) for row in found]


# --- the window ---------------------------------------------------------------------------------


def test_until_now_includes_this_second_and_clocks_that_are_ahead(ledger: Ledger) -> None:
    now = BEGIN + 3 * DAY
    write_measurements(
        ledger,
        measured("c1", 700, gpu="A", day=3),
        measured("c2", 700, gpu="B", day=3.9),
    )
    asked = {"timezone": "UTC", "now": now}
    for by, count in (("gpu", 2), ("node", 2), ("gpu_type", 1)):
        assert len(read.benchmark(ledger, by=by, **asked).rows) == count
    assert [row["node"] for row in read.benchmark(ledger, **asked).rows] == ["lab/c1", "lab/c2"]
    # An end that somebody names is not part of the window.
    day = dt.datetime.fromtimestamp(now, dt.UTC).date().isoformat()
    assert BEGIN % DAY == 0
    assert read.benchmark(ledger, None, day, **asked).rows == ()


# --- which are slow -------------------------------------------------------------------------------


def test_the_slow_one_of_eight_is_marked_and_comes_first(ledger: Ledger) -> None:
    values = [700, 702, 698, 701, 699, 640, 703, 697]
    write_measurements(
        ledger, *(measured(f"c{n}", value, gpu=f"GPU-{n}") for n, value in enumerate(values))
    )
    found = rows(ledger, "node", "verdict", "of_median", "median")
    assert found[0] == ("lab/c5", "slow", pytest.approx(640 / 699.5), 699.5)
    assert {verdict for _, verdict, _, _ in found[1:]} == {"ok"}


def test_a_wide_type_has_no_slow_one_and_a_narrow_one_needs_five_percent(ledger: Ledger) -> None:
    wide = [500, 600, 700, 800, 900, 450]
    narrow = [700.0, 700.1, 700.2, 700.3, 700.4, 680.0]
    write_measurements(
        ledger,
        *(measured(f"c{n}", value, gpu=f"W-{n}") for n, value in enumerate(wide)),
        *(
            measured(f"c{n}", value, gpu=f"N-{n}", gpu_type="a100")
            for n, value in enumerate(narrow)
        ),
    )
    assert set(rows(ledger, "verdict")) == {("ok",)}
    # 680 is 2.9 % below, and many deviations.
    assert rows(ledger, "gpu", "verdict", below=2)[0] == ("N-5", "slow")
    assert rows(ledger, "gpu", "verdict", mads=1)[0] == ("W-5", "slow")


def is_slow_by_pandas(value: float, values: Sequence[float], percent: float, mads: float) -> bool:
    """The rule in the words of the guide, with the medians of pandas."""
    series = pd.Series(values)
    middle = series.median()
    mad = (series - middle).abs().median()
    percent_below = 100 * (middle - value) / middle
    return bool(percent_below > percent and middle - value > mads * mad)


@pytest.mark.parametrize("seed", range(40))
def test_the_rule_beside_another_implementation(file_ledger: Ledger, seed: int) -> None:
    """Random types, devices, pasts and bounds."""
    dice = random.Random(seed)
    percent, mads = dice.choice([1, 5, 10]), dice.choice([0, 1, 3])
    history: dict[tuple[str, str], list[float | None]] = {}
    for kind in ("a100", "h100", "l40s"):
        speed, spread = dice.choice([90, 300, 700]), dice.choice([0.001, 0.02, 0.2])
        for number in range(dice.randint(1, 9)):
            own = speed * (dice.choice([1, 1, 1, 0.9, 0.5]))
            times = dice.randint(1, 7)
            values: list[float | None] = [
                round(own * dice.gauss(1, spread), 2) for _ in range(times)
            ]
            if dice.random() < 0.2:
                values[dice.randrange(times)] = None
            if dice.random() < 0.3 and values[-1] is not None:
                values[-1] = round(values[-1] * 0.8, 2)
            history[kind, f"{kind}-{number}"] = values
    write_measurements(
        file_ledger,
        *(
            measured(
                f"c{gpu}", value, gpu=gpu, gpu_type=kind, day=day, trouble="" if value else "x"
            )
            for (kind, gpu), values in history.items()
            for day, value in enumerate(values)
        ),
    )
    expected = {}
    for (kind, gpu), values in history.items():
        known = [value for value in values if value is not None]
        lasts = [
            [value for value in other if value is not None][-1]
            for (its_kind, _), other in history.items()
            if its_kind == kind and any(value is not None for value in other)
        ]
        if values[-1] is None:
            expected[gpu] = "failed"
        elif len(lasts) >= 5 and is_slow_by_pandas(known[-1], lasts, percent, mads):
            expected[gpu] = "slow"
        elif len(known) >= 4 and is_slow_by_pandas(known[-1], known[:-1], percent, mads):
            expected[gpu] = "slower"
        else:
            expected[gpu] = "ok" if len(lasts) >= 5 else "few"
    found = dict(rows(file_ledger, "gpu", "verdict", below=percent, mads=mads))
    assert found == expected


def test_few_devices_are_said_and_not_judged(ledger: Ledger) -> None:
    write_measurements(ledger, measured("c1", 700, gpu="A"), measured("c2", 70, gpu="B"))
    report = read.benchmark(ledger, **NOVEMBER)
    assert [(row["gpu"], row["verdict"]) for row in report.rows] == [("B", "few"), ("A", "few")]
    assert report.meta.notes == (
        "too few to say what is slow: fewer than 5 devices of h100 were measured in the same way",
    )


def test_a_gpu_beside_its_own_past_also_on_another_node(ledger: Ledger) -> None:
    """The UUID is the same wherever the GPU is."""
    past = [measured("c1", 700 + n, gpu="GPU-1", day=n) for n in range(3)]
    write_measurements(ledger, *past, measured("c2", 600, gpu="GPU-1", day=5))
    assert rows(ledger, "node", "verdict", "change", "measured") == [
        ("lab/c2", "slower", pytest.approx(600 / 701 - 1), 4)
    ]


def test_an_index_is_another_gpu_on_another_node(ledger: Ledger) -> None:
    write_measurements(
        ledger, measured("c1", 70, gpu="index 0"), measured("c2", 90, gpu="index 0", day=1)
    )
    assert rows(ledger, "node", "measured") == [("lab/c1", 1), ("lab/c2", 1)]


def test_a_past_of_other_methods_does_not_count(ledger: Ledger) -> None:
    old = [measured("c1", 900, gpu="G", day=n, method="4096 x 4096") for n in range(4)]
    write_measurements(ledger, *old, measured("c1", 600, gpu="G", day=5))
    assert set(rows(ledger, "method", "verdict", "change")) == {
        ("8192 x 8192", "few", None),
        ("4096 x 4096", "few", 0.0),
    }


def test_what_failed_is_unknown_and_first(ledger: Ledger) -> None:
    write_measurements(
        ledger,
        *(measured(f"c{n}", 700 + n, gpu=f"GPU-{n}") for n in range(5)),
        measured("c1", None, gpu="GPU-1", day=1, method="", trouble="CUDA error"),
        measured("c9", None, gpu="GPU-9", day=1, method="", trouble="no PyTorch"),
    )
    found = rows(ledger, "gpu", "verdict", "value", "of_median", "trouble", "measured")
    assert found[:2] == [
        ("GPU-1", "failed", None, None, "CUDA error", 1),
        ("GPU-9", "failed", None, None, "no PyTorch", 0),
    ]
    [by_type] = rows(ledger, "devices", "failed", "measured", by="gpu_type")
    assert by_type == (6, 2, 5)


# --- by node, type and time -----------------------------------------------------------------------


def test_a_node_is_as_slow_as_its_worst_gpu(ledger: Ledger) -> None:
    write_measurements(
        ledger,
        *(
            measured(f"c{n}", 500 if (n, g) == (2, 1) else 700, gpu=f"GPU-{n}{g}")
            for n in range(3)
            for g in range(2)
        ),
    )
    assert rows(ledger, "node", "gpus", "lowest", "verdict", "slow", by="node") == [
        ("lab/c2", 2, 500, "slow", 1),
        ("lab/c0", 2, 700, "ok", 0),
        ("lab/c1", 2, 700, "ok", 0),
    ]


@pytest.mark.sql
def test_types_by_throughput_and_by_price(ledger: Ledger, configure: Any) -> None:
    configure(PRICES)
    write_measurements(
        ledger,
        measured("c1", 700, gpu="A", day=1),
        measured("c1", 720, gpu="B", day=12, gpu_type="h100-sxm"),  # an alias
        measured("c2", 250, gpu="C", day=1, gpu_type="a100"),
        measured("c3", 300, gpu="D", day=1, gpu_type="l40s"),
        measured("c3", 900, day=1, benchmark="disk_read", gpu_type="h100"),
    )
    columns = ("gpu_type", "devices", "median", "price", "per_price", "per_cloud_price", "price_of")
    chosen = {"by": "gpu_type", "benchmarks": ["matmul_bf16"]}
    assert rows(ledger, *columns, **chosen) == [
        ("h100", 2, 710, 2.5, 284, 177.5, "2026-11-13"),  # the price of that day
        ("l40s", 1, 300, None, None, None, ""),
        ("a100", 1, 250, 0.5, 500, None, "2026-11-02"),
    ]
    report = read.benchmark(ledger, **NOVEMBER, by="gpu-type")
    assert report.meta.currency == "EUR"
    disk = next(row for row in report.rows if row["benchmark"] == "disk_read")
    assert (disk["price"], disk["per_price"]) == (None, None)  # a price is of GPUs
    money = next(panel for panel in report.panels if panel.title == "matmul_bf16 for the money")
    assert (money.labels, money.series[0].values) == (("a100", "h100"), (500, 284))
    assert money.unit == "TFLOP/s per EUR"


@pytest.mark.sql
def test_without_prices_nothing_is_said_about_money(ledger: Ledger) -> None:
    write_measurements(ledger, measured("c1", 700, gpu="A"))
    report = read.benchmark(ledger, **NOVEMBER, by="gpu_type")
    assert (report.meta.currency, report.rows[0]["per_price"]) == (None, None)
    assert "none in the configuration" in str(report.meta.prices)


def test_medians_over_time_in_the_readers_zone(ledger: Ledger) -> None:
    write_measurements(
        ledger,
        measured("c1", 700, gpu="A", day=1.99),
        measured("c1", 710, gpu="B", day=1.995),
        measured("c1", 600, gpu="A", day=2.1),
    )
    columns = ("day", "devices", "median", "lowest")
    assert rows(ledger, *columns, by="day") == [
        ("2026-11-02", 2, 705, 700),
        ("2026-11-03", 1, 600, 600),
    ]
    assert rows(ledger, *columns, by="day", timezone="Asia/Tokyo") == [("2026-11-03", 2, 700, 600)]
    assert rows(ledger, "month", "measured", by="month") == [("2026-11", 3)]
    [trend] = [
        panel for panel in read.benchmark(ledger, **NOVEMBER).panels if panel.kind == "lines"
    ]
    assert (trend.labels, trend.series[0].values) == (("2026-11-02", "2026-11-03"), (705, 600))


def test_the_window_and_the_filters(ledger: Ledger) -> None:
    write_measurements(
        ledger,
        measured("c1", 1, gpu="before", day=-0.001),
        measured("c1", 2, gpu="first", day=0),
        measured("c1", 3, gpu="a", day=3, gpu_type="a100"),
        measured("c1", 4, day=3, benchmark="disk_read"),
        measured("c1", 5, gpu="after", day=30),
    )
    store(ledger, "big", "benchmark-2", measured("c1", 6, gpu="big"))
    assert {value for (value,) in rows(ledger, "value")} == {2, 3, 4, 6}
    for filters, expected in (({"cluster": ["lab"]}, {2, 3, 4}), ({"gpu_type": ["A100"]}, set())):
        assert {value for (value,) in rows(ledger, "value", filters=filters)} == expected
    assert rows(ledger, "value", filters={"gpu_type": ["a100"]}) == [(3,)]
    assert rows(ledger, "value", benchmarks=["disk_read"]) == [(4,)]
    dates = {"begin": "2026-10-01", "end": "2026-12-31"}
    by_month = rows(ledger, "value", filters={"month": ["2026-10", "2026-12"]}, **dates)
    assert sorted(by_month) == [(1,), (5,)]


def test_without_dates_it_is_of_twelve_months(ledger: Ledger) -> None:
    write_measurements(
        ledger,
        measured("c1", 1, gpu="old", day=-337),
        measured("c1", 2, gpu="in", day=-330),
    )
    found = read.benchmark(ledger, timezone="UTC", now=BEGIN + 20 * DAY)
    assert [row["gpu"] for row in found.rows] == ["in"]
    first = dt.datetime(2025, 12, 1, tzinfo=dt.UTC)
    assert str(found.meta.window).startswith(f"('{first:%Y-%m-%d}")


def test_a_ledger_without_results_says_what_to_do(ledger: Ledger) -> None:
    write_books(ledger, [])
    report = read.benchmark(ledger, **NOVEMBER)
    assert (report.rows, report.panels) == ((), ())
    assert "slurmkit benchmark run" in report.meta.notes[0]


@pytest.mark.parametrize(
    "wrong", [{"by": "user"}, {"below": 100}, {"below": -1}, {"mads": -1}, {"mads": float("nan")}]
)
def test_what_is_no_question(file_ledger: Ledger, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        read.benchmark(file_ledger, **NOVEMBER, **wrong)


def test_bounds_are_strict() -> None:
    """A value at the bound is not slow."""
    values = [100, 100, 100, 100, 95]
    assert not Bounds(5, 0).is_below(95, values)
    assert Bounds(4.9, 0).is_below(95, values)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def some(file_ledger: Ledger) -> Ledger:
    write_measurements(
        file_ledger,
        *(measured(f"c{n}", 700 - n, gpu=f"GPU-{n}", gpu_serial=f"132{n}") for n in range(6)),
        measured("c7", 300, gpu="GPU-7", day=1, torch="2.6", driver="570.1"),
        measured("c8", None, gpu="GPU-8", day=1, trouble="=HYPERLINK('x')<script>"),
    )
    return file_ledger


@pytest.mark.parametrize("by", ["gpu", "node", "gpu-type", "day", "month"])
def test_the_command_in_all_formats(
    some: Ledger, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path, by: str
) -> None:
    window = ["benchmark", "--from", "2026-11-01", "--to", "2026-12-01", "--by", by]
    assert run_to_exit_code(report_group, window) == 0
    shown = capsysbinary.readouterr()
    assert b"matmul_bf16" in shown.out
    assert run_to_exit_code(report_group, [*window, "--json"]) == 0
    answer = json.loads(capsysbinary.readouterr().out)
    assert answer["schema"] == "slurmkit.report.benchmark/1"
    assert run_to_exit_code(report_group, [*window, "--format", "csv"]) == 0
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert len(lines) == len(answer["rows"]) + 1
    if by == "gpu":
        assert "'=HYPERLINK" in "\n".join(lines)  # no formula
    page = tmp_path / "page.html"
    assert run_to_exit_code(report_group, [*window, "--output", str(page)]) == 0
    text = page.read_text("utf-8")
    assert ("<svg" in text) == (by != "month")  # one month is no trend
    assert "<script>" not in text.replace("<script>\n", "")
    book = tmp_path / "book.xlsx"
    assert run_to_exit_code(report_group, [*window, "--output", str(book)]) == 0
    sheet = openpyxl.load_workbook(io.BytesIO(book.read_bytes())).worksheets[0]
    assert sheet.max_row >= len(answer["rows"])


def test_the_slow_one_of_the_command(
    some: Ledger, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    window = ["benchmark", "--from", "2026-11-01", "--to", "2026-12-01"]
    assert run_to_exit_code(report_group, [*window, "--columns", "gpu,value,verdict"]) == 0
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert lines[1].split()[-3:] == ["GPU-8", "?", "failed"]
    assert lines[2].split()[-3:] == ["GPU-7", "300.00", "slow"]
    assert lines[3].split()[-1] == "ok"
