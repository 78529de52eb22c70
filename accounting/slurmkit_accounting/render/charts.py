"""Lay out charts as rectangles, lines and texts; a template turns them into SVG."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence

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
    """

    x: float
    y: float
    width: float
    height: float
    colour: int
    title: str
    points: str = ""


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


def legend_names(panel: Panel) -> list[str]:
    """Return the names of the series in the order of their colours."""
    return [one.name for one in limit_series(panel.series)]


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
    values = [value or 0.0 for value in panel.series[0].values] if panel.series else []
    above = width < 500
    left = (
        0.0
        if above
        else min(max((len(x) for x in panel.labels), default=0) * _LETTER_WIDTH + 12, 200)
    )
    numbers = [format_brief(value) for value in values]
    right = max((len(number) for number in numbers), default=0) * _LETTER_WIDTH + 12
    room, row = width - left - right, _ROW_HEIGHT + (16 if above else 0)
    largest = max(values, default=0) or 1
    shapes, texts = [], []
    for place, (label, value) in enumerate(zip(panel.labels, values, strict=True)):
        top = place * row + (18 if above else 4)
        length = max(room * value / largest, 1)
        title = f"{label}: {numbers[place]} {panel.unit}"
        shapes.append(ChartShape(left, top, length, _ROW_HEIGHT - 8, 0, title))
        name = (
            ChartText(0, top - 4, label) if above else ChartText(left - 8, top + 13, label, "end")
        )
        texts += [name, ChartText(left + length + 6, top + 13, numbers[place], strong=True)]
    return Chart(width, max(len(values) * row, 1) + 4, tuple(shapes), tuple(texts), left=left)


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
