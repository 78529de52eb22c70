"""Lay out charts as rectangles, lines and texts; a template turns them into SVG."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from slurmkit_accounting.render.format import format_brief
from slurmkit_accounting.reports.model import Panel, Series

# A layout for each width of a page, so that text is hardly scaled.
WIDTHS = {"wide": 1180, "middle": 720, "narrow": 340}
_HALF_WIDTH = 570  # width of one of two charts next to each other on a wide page
_COLOURS = 8  # in the template's palette; all further series share the last one
_HEIGHT = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 12, 28
_ROW_HEIGHT = 26
_PER_LABEL = 62  # least distance of labels of the x axis
_LETTER_WIDTH = 6.6  # width of a letter


class ChartShape(msgspec.Struct, frozen=True):
    """A rectangle, or a line if it has `points`.

    Attributes:
        colour: index in the palette.
        title: text of the tooltip.
        points: points of a polyline, as in SVG.
        look: see `Series.look`.
    """

    x: float
    y: float
    width: float
    height: float
    colour: int
    title: str
    points: str = ""
    look: str = ""


class ChartText(msgspec.Struct, frozen=True):
    """A text at a position; `anchor` is start, middle or end, as in SVG."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    strong: bool = False


class Chart(msgspec.Struct, frozen=True):
    """The layout of a chart."""

    width: float
    height: float
    shapes: tuple[ChartShape, ...]
    texts: tuple[ChartText, ...]
    grid: tuple[float, ...] = ()
    left: float = _LEFT


def chart_layouts(panel: Panel) -> dict[str, Chart]:
    """Lay a panel out for each of `WIDTHS`."""
    if panel.kind == "bars":
        return {
            name: _bar_chart(panel, min(width, _HALF_WIDTH if name == "wide" else width))
            for name, width in WIDTHS.items()
        }
    lay_out = _stacked_chart if panel.kind == "stacked" else _line_chart
    return {name: lay_out(panel, width) for name, width in WIDTHS.items()}


class SeriesLabel(NamedTuple):
    """A series in the legend of a chart: its colour, its look (see `Series.look`), its name."""

    colour: int
    look: str
    name: str


def legend(panel: Panel) -> list[SeriesLabel]:
    """Return the legend of a panel; empty where there is one series, which the title names."""
    if panel.kind == "bars" and len(panel.series) < 2:
        return []
    series = limit_series(panel.series)
    return [SeriesLabel(at if not s.look else 0, s.look, s.name) for at, s in enumerate(series)]


def describe_bars(panel: Panel) -> str:
    """Return all values of a chart of bars in words, for readers who do not see it."""
    return "; ".join(
        f"{label}: " + ", ".join(f"{format_brief(value)} {name}" for name, value in parts)
        for label, parts in zip(panel.labels, _bar_parts(panel), strict=True)
    )


def _bar_parts(panel: Panel) -> list[list[tuple[str, float]]]:
    """Return for each bar the names and values of its parts; those of nothing are left out."""
    by_bar = zip(*(one.values for one in panel.series), strict=True)
    names = [one.name for one in panel.series]
    return [
        [(name, value) for name, value in zip(names, values, strict=True) if value]
        for values in by_bar
    ]


def limit_series(series: Sequence[Series]) -> tuple[Series, ...]:
    """Return at most as many series as there are colours; the rest is summed into one."""
    if len(series) <= _COLOURS:
        return tuple(series)
    first, rest = series[: _COLOURS - 1], series[_COLOURS - 1 :]
    columns = zip(*(one.values for one in rest), strict=True)
    sums = tuple(sum(value or 0 for value in values) for values in columns)
    return (*first, Series(f"{len(rest)} others", sums))


def axis_ticks(top: float, most: int = 6) -> list[float]:
    """Return round numbers for an axis from 0 to at least `top`."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= raw * (1 - 1e-9))
    return [step * n for n in range(math.ceil(top / step - 1e-9) + 1)]


def short_label(label: str) -> str:
    """Shorten the label of a day or month; return any other label unchanged."""
    try:
        if len(label) == 7 and "W" not in label:
            return f"{dt.date.fromisoformat(f'{label}-01'):%b %Y}"
        if len(label) == 10:
            day = dt.date.fromisoformat(label)
            return f"{day.day} {day:%b}"
    except ValueError:
        return label
    return label


def _stacked_chart(panel: Panel, width: float) -> Chart:
    series = limit_series(panel.series)
    totals = [
        sum(filter(None, values)) for values in zip(*(one.values for one in series), strict=True)
    ]
    axis = axis_ticks(max(totals, default=0))
    step = _step(panel, width)
    gap = min(step * 0.2, 4)
    shapes = []
    for place, label in enumerate(panel.labels):
        base = 0.0
        for colour, one in enumerate(series):
            value = one.values[place] or 0
            if value:
                top = _y(base + value, axis)
                title = f"{label}, {one.name}: {format_brief(value)} {panel.unit}"
                left = _LEFT + place * step + gap / 2
                height = _y(base, axis) - top
                shapes.append(ChartShape(left, top, max(step - gap, 1), height, colour, title))
                base += value
    return _chart_with_axes(panel, width, axis, shapes)


def _line_chart(panel: Panel, width: float) -> Chart:
    series = limit_series(panel.series)
    values = [value for one in series for value in one.values if value is not None]
    axis = axis_ticks(max(values, default=0))
    step = _step(panel, width)
    shapes = []
    for colour, one in enumerate(series):
        points = " ".join(
            f"{_LEFT + (place + 0.5) * step:.1f},{_y(value, axis):.1f}"
            for place, value in enumerate(one.values)
            if value is not None
        )
        shapes.append(ChartShape(0, 0, 0, 0, colour, one.name, points))
    return _chart_with_axes(panel, width, axis, shapes)


def _chart_with_axes(
    panel: Panel, width: float, axis: list[float], shapes: list[ChartShape]
) -> Chart:
    step = _step(panel, width)
    texts = [ChartText(_LEFT - 8, _y(value, axis) + 4, _axis_label(value), "end") for value in axis]
    for place in _labelled_places(len(panel.labels), width):
        middle = _LEFT + (place + 0.5) * step
        texts.append(ChartText(middle, _HEIGHT - 8, short_label(panel.labels[place]), "middle"))
    grid = tuple(_y(value, axis) for value in axis)
    return Chart(width, _HEIGHT, tuple(shapes), tuple(texts), grid)


def _bar_chart(panel: Panel, width: float) -> Chart:
    """Lay out horizontal bars; names are left of the bars, or above them on a narrow page."""
    values = [sum(value or 0.0 for value in of_bar) for of_bar in _by_bar(panel)]
    above = width < 500
    left = (
        0.0
        if above
        else min(max((len(x) for x in panel.labels), default=0) * _LETTER_WIDTH + 18, 200)
    )
    numbers = [_bar_number(panel, of_bar) for of_bar in _by_bar(panel)]
    right = max((len(number) for number in numbers), default=0) * _LETTER_WIDTH + 12
    if parted := len(panel.series) > 1 and above:  # its numbers are longer: above the bar too
        right = 0.0
    room, row = width - left - right, _ROW_HEIGHT + (16 if above else 0)
    largest = max(values, default=0) or 1
    shapes: list[ChartShape] = []
    texts: list[ChartText] = []
    for place, (label, value) in enumerate(zip(panel.labels, values, strict=True)):
        top = place * row + (18 if above else 4)
        length = max(room * value / largest, 1)
        shapes += _bar_shapes(panel, place, (left, top), length / value if value else 0)
        name = (
            ChartText(0, top - 4, label) if above else ChartText(left - 8, top + 13, label, "end")
        )
        right_of_bar = ChartText(left + length + 6, top + 13, numbers[place], strong=True)
        over = ChartText(width, top - 4, numbers[place], "end", strong=True)
        texts += [name, over if parted else right_of_bar]
    return Chart(width, max(len(values) * row, 1) + 4, tuple(shapes), tuple(texts), left=left)


def _by_bar(panel: Panel) -> list[tuple[float | None, ...]]:
    return list(zip(*(one.values for one in panel.series), strict=True))


def _bar_shapes(
    panel: Panel, place: int, at: tuple[float, float], scale: float
) -> Iterator[ChartShape]:
    """Yield the parts of a bar, one after the other; at least one pixel for all of it."""
    label, (left, top), height = panel.labels[place], at, _ROW_HEIGHT - 8
    if len(panel.series) == 1:
        value = panel.series[0].values[place] or 0.0
        title = f"{label}: {format_brief(value)} {panel.unit}"
        yield ChartShape(left, top, max(value * scale, 1), height, 0, title)
        return
    for colour, one in enumerate(panel.series):
        if value := one.values[place] or 0.0:
            title = f"{label}, {one.name}: {format_brief(value)} {panel.unit}"
            shown = colour if not one.look else 0
            yield ChartShape(left, top, value * scale, height, shown, title, look=one.look)
            left += value * scale


def _bar_number(panel: Panel, values: Sequence[float | None]) -> str:
    """Return what is written next to a bar: its value, and of parts the share of the first one.

    The share is of what is known; it is not written where less than half is.
    """
    total = sum(value or 0.0 for value in values)
    if len(values) < 2 or not total:
        return format_brief(total)
    parts = [value or 0.0 for value in values]
    unknown = sum(
        value for value, one in zip(parts, panel.series, strict=True) if one.look == "hatched"
    )
    known = total - unknown
    if not known:
        return f"{format_brief(total)}, not measured"
    if known < total / 2:
        return f"{format_brief(total)}, mostly not measured"
    return f"{format_brief(total)}, {parts[0] / known:.0%} {panel.series[0].name}"


def _step(panel: Panel, width: float) -> float:
    """Return the distance of two values on the x axis."""
    return (width - _LEFT - _RIGHT) / max(len(panel.labels), 1)


def _labelled_places(count: int, width: float) -> Iterator[int]:
    """Yield the indices of the labels that fit on the x axis."""
    room = max(int((width - _LEFT - _RIGHT) / _PER_LABEL), 1)
    yield from range(0, count, -(-count // room) or 1)


def _y(value: float, axis: list[float]) -> float:
    """Return the y coordinate of a value."""
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / axis[-1]


def _axis_label(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,g}k"
    return f"{value:,g}"
