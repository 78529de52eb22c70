"""The view of utilization: its curve, the words under its cursor, its bars, and its ledger."""

from __future__ import annotations

import gzip
import struct
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fake_queue import NOW, expect_text, text, until
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_tui.feed import FeedQuestion, composed
from slurmkit_tui.feed.composed import SPANS, CurrentUse, Utilization, read_utilization
from slurmkit_tui.feed.history import GpuCurve, HeldGpus, HourlyGpus, make_curve, memory_path
from slurmkit_tui.feed.recording import RecordedAnswer, RecordingHeader, ReplayFeed
from slurmkit_tui.views.utilization import utilization_rows
from slurmkit_tui.widgets.plots import (
    SIGNS,
    BarPart,
    GpuPlot,
    curve_top,
    merge_small_types,
    parts_bar,
    share_bar,
    stretch_in_words,
    time_ticks,
)
from stub_feed import StubFeed
from usage_oracle import Job
from usage_values import VALUES

from slurmkit.cluster.cluster import Cluster
from slurmkit.testing import FakeSlurm

HOUR = 3600
LAST = int(NOW) // HOUR * HOUR  # begin of the present hour
USE = CurrentUse({"a100": 8, "": 2}, {"a100": 5, "": 0}, 3, 64, 10)


def utilization(by: str = "gpu-type", *rows: dict, missing: str = "", **other: Any) -> Utilization:
    return Utilization(USE, rows, by, 1.0, missing, NOW, **other)


async def test_the_curve_its_legend_and_the_number_under_the_cursor() -> None:
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(pilot, "─ all  • wanted  █ a100  ▓ h100")
        shown = text(app)
        assert "22:00: 7 of 10 GPUs held, 12 wanted; held: 5 a100, 2 h100" in shown
        assert "last 24 hours  ·  by gpu-type  ·  158.75 GPU-hours" in shown
        assert "5 of 8 a100, 2 of 2 h100), pending jobs request 12 more" in shown
        assert "ledger of the site; ingested 60 s before" in shown
        await pilot.press("left", "left")
        await expect_text(pilot, "20:00: 8.5 GPUs held, unknown wanted; held: 8 a100, 0.5 h100")
        await pilot.press("home")
        await expect_text(
            pilot, "Mon 13 Nov 23:00: 2 GPUs held, unknown wanted; held: 1.5 a100, 0.5 h100"
        )
        await pilot.press("end", "right")
        await expect_text(pilot, "22:00: 7 of 10")
        plot = app.view.query_one(GpuPlot)
        await pilot.hover(plot, offset=(plot.size.width // 2, 2))
        await until(pilot, lambda: plot.cursor in (11, 12))


async def test_keys_change_the_time_and_the_bars() -> None:
    feed = StubFeed(**VALUES)
    app = feed.app("utilization")
    async with app.run_test(size=(140, 30)) as pilot:
        await expect_text(pilot, "by gpu-type  ·  158.75")
        line = next(line for line in text(app).splitlines() if "61.1%" in line)
        assert line.count("█") == 24
        feed.values["utilization"] = utilization("partition", {"partition": "gpu", "gpu_hours": 2})
        await pilot.press("b")
        await expect_text(pilot, "by partition  ·  2 GPU-hours", "100.0%")
        feed.values["utilization"] = utilization("account", {"account": "ml", "gpu_hours": 3})
        await pilot.press("h", "b")
        await expect_text(pilot, "last 7 days  ·  by account  ·  3 GPU-hours")
        assert app.view.ask == FeedQuestion("utilization", ("account", "7d"))
        await pilot.press("h", "h", "b")
        await until(pilot, lambda: app.view.ask == app.view.ASK)


async def test_without_a_ledger_the_present_is_there() -> None:
    app = StubFeed(utilization=utilization(missing="there is no ledger")).app("utilization")
    async with app.run_test(size=(140, 30)) as pilot:
        await expect_text(pilot, "no history: there is no ledger", "· unknown")
        assert "5 of 10 GPUs held (5 of 8 a100, 0 of 2 untyped)" in text(app)
        assert "22:00: 5 of 10 GPUs held, 3 wanted; held: 5 a100" in text(app)


async def test_wanted_gpus_beyond_the_picture_are_told_in_its_legend() -> None:
    now = msgspec.structs.replace(USE, gpus_wanted=500)
    report = msgspec.structs.replace(utilization(), now=now)
    app = StubFeed(utilization=report).app("utilization")
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(pilot, "• wanted, up to 500", "20┤")


async def test_measured_use_is_drawn_where_there_is_a_record() -> None:
    curve = (HeldGpus(LAST - HOUR, HOUR, {"a100": 6.0}, {"a100": 1.5}),)
    app = StubFeed(utilization=utilization(curve=curve)).app("utilization")
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(pilot, "× used")
        await pilot.press("left")
        await expect_text(pilot, "21:00: 6 GPUs held, 1.5 used, unknown wanted; held: 6 a100")


async def test_two_answers_are_not_counted_twice_in_the_history() -> None:
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(pilot, "22:00: 7 of 10")
        await pilot.press("1", "5")
        await expect_text(pilot, "22:00: 7 of 10")
        (hour,) = app.session.history.hours(0, NOW)
        assert (hour.nodes, hour.queues) == (1, 1)


@pytest.mark.parametrize("size", [(80, 24), (20, 10), (60, 12), (300, 80)])
async def test_any_size_is_drawn(size: tuple[int, int]) -> None:
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.session.last_answer(app.view.ask).prepared is not None)
        await pilot.pause()
        assert text(app)


def test_an_older_recording_shows_its_bars(tmp_path: Path) -> None:
    """Before the curve, the question named no length of time."""
    path = tmp_path / "old.rec"
    value = {"now": USE, "rows": ({"gpu-type": "a100", "gpu_hours": 2.0},), "by": "gpu-type",
             "days": 30.0, "without_history": "", "taken": NOW}  # fmt: skip
    records = [
        RecordingHeader("slurmkit-tui-recording 1", "lab", "alice"),
        RecordedAnswer(FeedQuestion("utilization", ("gpu-type",)), NOW,
                       msgspec.Raw(msgspec.msgpack.encode(value)), "ledger", NOW),
    ]  # fmt: skip
    with gzip.open(path, "wb") as file:
        for record in records:
            data = msgspec.msgpack.encode(record)
            file.write(struct.pack(">I", len(data)) + data)
    found = ReplayFeed(path).fetch(FeedQuestion("utilization", ("gpu-type", "7d"))).value
    assert [row.name for row in utilization_rows(found)] == ["a100"]
    assert found.curve == ()


# The ledger


class ReadBooks:
    """Reads utilization from a ledger of its own, at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, *runs: Job, now: int, read_to: int, about: tuple[str, str]) -> Utilization:
        with open_for_writing() as ledger:
            write_books(ledger, list(runs), read_to=read_to)
            usage = partial(read.usage, now=now)
            there = SimpleNamespace(ledger=lambda: nullcontext(ledger), usage=usage)
            self._monkeypatch.setattr(composed, "_import_ledger", lambda: there)
            self._monkeypatch.setattr(composed, "_current_use", lambda _: USE)
            self._monkeypatch.setattr(composed, "time", SimpleNamespace(time=lambda: float(now)))
            return read_utilization(Cluster(FakeSlurm({})), *about)


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadBooks:
    monkeypatch.setattr("slurmkit.config.files.config_paths", lambda: [tmp_path / "none.toml"])
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("SLURMKIT_DB", raising=False)
    return ReadBooks(monkeypatch)


def test_the_ledger_gives_mean_numbers_of_gpus_by_type_and_hour(books: ReadBooks) -> None:
    now = BEGIN + 2 * DAY + 1800
    runs = [
        run("alice", now - 1800 - 90 * 60, now - 1800, gpus={"a100": 4}),
        run("bob", now - 1800, None, gpus={"h100": 2}),
    ]
    found = books(*runs, now=now, read_to=now - 60, about=("gpu-type", "24h"))
    assert len(found.curve) == 24
    held = {use.begin - now + 1800: use.held for use in found.curve}
    assert held[-2 * HOUR] == {"a100": 2.0}
    assert held[-HOUR] == {"a100": 4.0}
    assert held[0] == {"h100": 2.0}  # half an hour of it has passed
    assert held[-5 * HOUR] == {}  # none was held: the ledger has read that hour
    assert {row["gpu-type"]: row["gpu_hours"] for row in found.rows} == {"a100": 6.0, "h100": 1.0}
    assert "ingested 60 s before" in found.source


def test_hours_that_no_ingest_has_read_are_unknown(books: ReadBooks) -> None:
    now = BEGIN + 2 * DAY + 1800
    found = books(run("alice", now - 9 * HOUR, None, gpus={"a100": 4}), now=now,
                  read_to=now - 3 * HOUR, about=("partition", "24h"))  # fmt: skip
    assert max(use.begin for use in found.curve) == now - 1800 - 4 * HOUR
    curve = make_curve(found.curve, (), now=now, hours=24)
    assert curve.held["a100"][-4:] == (None, None, None, None)
    assert curve.held["a100"][-5] == 4.0


def test_thirty_days_are_drawn_by_day(books: ReadBooks) -> None:
    now = BEGIN + 35 * DAY + 6 * HOUR
    found = books(run("alice", now - 2 * DAY - 6 * HOUR, now - DAY - 6 * HOUR, gpus={"a100": 4}),
                  now=now, read_to=now, about=("account", "30d"))  # fmt: skip
    assert len(found.curve) == 30
    assert [use.held for use in found.curve[-3:]] == [{"a100": 4.0}, {}, {}]
    assert found.curve[0].begin == BEGIN + 6 * DAY


# Numbers by hour, and how they are drawn


def test_the_ledger_goes_before_the_screens_own_answers() -> None:
    history = HourlyGpus()
    for at, held in ((LAST - HOUR, 1), (LAST, 2), (LAST + 60, 4)):
        history.add_nodes(at, {"a100": 8}, {"a100": held})
        history.add_wanted(at, held)
        history.add_wanted(at, None)  # unknown: counts nothing
    ledger = [HeldGpus(LAST - HOUR, HOUR, {"a100": 7.5})]
    curve = make_curve(ledger, history.hours(0, NOW), now=NOW, hours=3)
    assert curve.begins == (LAST - 2 * HOUR, LAST - HOUR, LAST)
    assert curve.held == {"a100": (None, 7.5, 3.0)}
    assert curve.there == (None, 8.0, 8.0)
    assert curve.wanted == (None, 1.0, 3.0)
    assert curve.used == (None, None, None)


def test_a_type_that_comes_later_was_zero_before() -> None:
    history = HourlyGpus()
    history.add_nodes(LAST, {"a100": 4}, {"a100": 4})
    history.add_nodes(LAST + 1, {"a100": 4, "h100": 4}, {"a100": 4, "h100": 4})
    curve = make_curve((), history.hours(0, NOW), now=NOW, hours=1)
    assert curve.held == {"a100": (4.0,), "h100": (2.0,)}
    assert curve.held_at(0) == 6.0


def test_the_history_is_kept_for_each_cluster_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for cluster, wanted in (("lab", 3), ("big", 9)):
        history = HourlyGpus(keep=True)
        history.open(cluster)
        history.add_wanted(LAST, wanted)
        history.look(NOW)
    assert memory_path().stat().st_mode & 0o777 == 0o600
    again = HourlyGpus(keep=True)
    again.add_wanted(LAST - HOUR, 1)  # before the name of the cluster was known
    again.open("lab")
    assert [hour.wanted for hour in again.hours(0, NOW)] == [1.0, 3.0]
    assert again.since == NOW
    other = HourlyGpus()
    other.open("lab")
    assert other.hours(0, NOW) == ()
    other.add_wanted(LAST, 5)
    other.save()
    assert b"5" not in memory_path().read_bytes().replace(str(int(NOW)).encode(), b"")


def test_a_broken_file_or_a_full_disk_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    memory_path().parent.mkdir(parents=True)
    memory_path().write_text("[oops")
    history = HourlyGpus(keep=True)
    history.open("lab")
    history.add_wanted(LAST, 3)
    history.save()
    assert b"lab" in memory_path().read_bytes()
    memory_path().unlink()
    memory_path().mkdir()
    history.save()
    assert memory_path().is_dir()


def test_a_file_that_cannot_be_read_is_not_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history = HourlyGpus(keep=True)
    history.open("lab")
    history.add_wanted(LAST, 3)
    history.save()
    kept = memory_path().read_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", lambda _: (_ for _ in ()).throw(OSError(116, "stale")))
        other = HourlyGpus(keep=True)
        other.open("big")
        other.add_wanted(LAST, 5)
        other.save()
    assert memory_path().read_bytes() == kept
    memory_path().write_bytes(b'{"lab": {"hours": "\xff"}}')
    history.save()
    assert b"lab" in memory_path().read_bytes()


def test_of_two_apps_the_later_look_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    early, late = HourlyGpus(keep=True), HourlyGpus(keep=True)
    early.open("lab")
    late.open("lab")
    early.look(NOW - 100)
    late.look(NOW)
    early.save()
    again = HourlyGpus(keep=True)
    again.open("lab")
    assert again.since == NOW


def test_thirty_days_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history = HourlyGpus(keep=True)
    history.open("lab")
    for hour in range(31 * 24):
        history.add_wanted(LAST - hour * HOUR, hour)
    history.save()
    again = HourlyGpus(keep=True)
    again.open("lab")
    assert len(again.hours(0, NOW)) == 30 * 24
    assert memory_path().stat().st_size < 100_000


def curve(*, held: dict[str, tuple], wanted: tuple = (None,), there: tuple = (None,)) -> GpuCurve:
    count = len(next(iter(held.values())))
    begins = tuple(LAST - (count - 1 - at) * HOUR for at in range(count))
    return GpuCurve(begins, HOUR, held, (None,) * count, there * (count // len(there)),
                    wanted * (count // len(wanted)))  # fmt: skip


def test_more_types_than_signs_are_one_for_the_smallest() -> None:
    many = curve(held={name: (float(9 - at), None) for at, name in enumerate("abcdef")})
    merged = merge_small_types(many)
    assert list(merged.held) == ["a", "b", "c", "3 other types"]
    assert merged.held["3 other types"] == (6.0 + 5.0 + 4.0, None)
    assert len(merged.held) == len(SIGNS)


@pytest.mark.parametrize(
    ("wanted", "there", "top"),
    [(0.0, 10.0, 10.0), (15.0, 10.0, 15.0), (900.0, 10.0, 20.0), (None, None, 4.0)],
)
def test_wanted_gpus_leave_room_for_the_others(
    wanted: float | None, there: float | None, top: float
) -> None:
    assert curve_top(curve(held={"a": (4.0,)}, wanted=(wanted,), there=(there,))) == top


def test_unknown_numbers_are_said_to_be_unknown() -> None:
    words = stretch_in_words(curve(held={"a100": (None,)}), 0)
    assert words == "Tue 14 Nov 22:00: GPUs held unknown, unknown wanted"


def test_times_below_a_plot_leave_room() -> None:
    day = curve(held={"a": (1.0,) * 24})
    assert len(time_ticks(day, 40)) == 4
    assert time_ticks(day, 200)[0] == (0, "23:00")
    week = curve(held={"a": (1.0,) * 168})
    assert [words for _, words in time_ticks(week, 200)][:2] == ["07 Nov", "08 Nov"]


@pytest.mark.parametrize("width", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("numbers", [(1, 0, 0), (1, 1000, 1), (5, 3, 2), (0, 0, 7)])
def test_a_bar_fills_its_width_and_shows_every_part(numbers: tuple[int, ...], width: int) -> None:
    parts = [BarPart(number, sign, "") for number, sign in zip(numbers, "ab×", strict=True)]
    bar = parts_bar(parts, width).plain
    shown = [sign for number, sign in zip(numbers, "ab×", strict=True) if number]
    assert len(bar) == max(width, len(shown))
    assert all(sign in bar for sign in shown)
    assert sorted(bar, key="ab×".index) == list(bar)


def test_a_bar_of_nothing_is_empty() -> None:
    assert parts_bar([BarPart(0, "a", "")], 10).plain == ""


def test_a_share_beyond_all_there_is_is_marked() -> None:
    assert share_bar(1.5, 40) == "█" * 40 + "+"
    assert share_bar(None, 40) == "?"
    assert share_bar(0.0, 40) == ""


def test_every_length_of_time_has_whole_stretches() -> None:
    for span in SPANS.values():
        assert span.hours * HOUR % span.step == 0
        assert span.begin(NOW) + span.hours * HOUR - span.step <= NOW
