"""The signs, ticks and bars of plots of GPUs."""

from __future__ import annotations

import math
from itertools import combinations

import msgspec
import pytest
from gpu_curves import curve
from slurmkit_tui.themes import THEMES
from slurmkit_tui.widgets import plots
from slurmkit_tui.widgets.plots import (
    SIGNS,
    BarPart,
    curve_top,
    merge_small_types,
    part_of_type,
    parts_bar,
    share_bar,
    signs_of_types,
    stretch_in_words,
    time_ticks,
    y_ticks,
)
from textual.color import Color
from textual.theme import Theme


def test_every_sign_has_one_meaning() -> None:
    marks = [plots.FREE, plots.STRANDED, plots.CLOSED, (plots.IDLE, "")]
    lines = [plots._THERE, plots._WANTED, plots._UNKNOWN, plots._CURSOR]
    signs = [*SIGNS, *(sign for sign, _ in marks), *lines, *plots.progress_bar(1, 1, 2, "").plain]
    assert len(set(signs)) == len(signs)


@pytest.mark.parametrize(("term", "bar"), [("xterm", "━╌"), ("vt100", "=_"), ("linux", "=_")])
def test_a_console_without_heavy_lines_has_a_bar_in_ascii(
    monkeypatch: pytest.MonkeyPatch, term: str, bar: str
) -> None:
    monkeypatch.setenv("TERM", term)
    assert plots.progress_bar(1, 1, 2, "").plain == bar


@pytest.mark.parametrize(
    ("top", "rows", "ticks"),
    [
        (64.0, 3, ["50"]),
        (64.0, 4, ["50"]),
        (31.0, 11, ["10", "20", "30"]),
        (17.0, 4, ["10"]),
        (8.0, 6, ["5"]),
        (1.0, 4, ["0.5", "1"]),
        (5000.0, 10, ["2000", "4000"]),
    ],
)
def test_ticks_are_round_numbers(top: float, rows: int, ticks: list[str]) -> None:
    found = y_ticks(top, rows)
    assert list(found.values()) == ticks
    assert [float(words) for words in ticks] == list(found)


def test_the_smallest_of_many_types_share_a_sign() -> None:
    assert signs_of_types("abc") == [0, 1, 2]
    assert signs_of_types("abcde") == [0, 1, 2, 3, 4]
    assert signs_of_types("abcdefg") == [0, 1, 2, 3, 4, 4, 4]


def test_more_types_than_signs_are_one_for_the_smallest() -> None:
    five = curve(held={name: (float(9 - at), None) for at, name in enumerate("abcde")})
    assert merge_small_types(five) is five
    many = curve(held={name: (float(9 - at), None) for at, name in enumerate("abcdefg")})
    merged = merge_small_types(many)
    assert list(merged.held) == ["a", "b", "c", "d", "3 other types"]
    assert merged.held["3 other types"] == (5.0 + 4.0 + 3.0, None)
    used = dict.fromkeys("abcdefg", (1.0, 0.5))
    merged = merge_small_types(msgspec.structs.replace(many, used_by_type=used))
    assert merged.used_by_type["3 other types"] == (3.0, 1.5)
    assert len(merged.held) == len(SIGNS)


@pytest.mark.parametrize("theme", [each for pair in THEMES.values() for each in pair])
def test_five_types_have_five_colours(theme: Theme) -> None:
    styles = [part_of_type(at)[1].removeprefix("$") for at in signs_of_types("abcde")]
    colours = [Color.parse(theme.variables[name]).rgb for name in styles]
    assert all(math.dist(one, other) > 50 for one, other in combinations(colours, 2))


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
    assert [words for _, words in time_ticks(day, 40)] == ["00:00", "06:00", "12:00", "18:00"]
    assert time_ticks(day, 240)[0] == (0, "23:00")
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
