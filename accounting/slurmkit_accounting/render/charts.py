"""Charts as shapes on a plane, which a template draws; nothing here is markup."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence

import msgspec

from slurmkit_accounting.render.words import brief
from slurmkit_accounting.reports.model import Panel, Series

# By the room there is on the page; text must not be scaled much.
WIDTHS = {"wide": 1180, "middle": 720, "narrow": 340}
_HALF = 570  # a chart that shares a wide page with another
_COLOURS = 8  # of the template's palette; what is more comes together
_HEIGHT = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 12, 28
_ROW = 26
_PER_LABEL = 62  # of the x axis
_LETTER = 6.6


class Shape(msgspec.Struct, frozen=True):
    """A rectangle, or with `points` a line.

    Attributes:
        colour: place in the palette.
        title: what it shows, for who points at it.
    """

    x: float
    y: float
    width: float
    height: float
    colour: int
    title: str
    points: str = ""


class Text(msgspec.Struct, frozen=True):
    """Words at a place; `anchor` is start, middle or end."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    strong: bool = False


class Chart(msgspec.Struct, frozen=True):
    """What to draw."""

    width: float
    height: float
    shapes: tuple[Shape, ...]
    texts: tuple[Text, ...]
    grid: tuple[float, ...] = ()
    left: float = _LEFT


def draw(panel: Panel) -> dict[str, Chart]:
    """Lay a panel out for each of `WIDTHS`."""
    if panel.kind == "bars":
        rooms = {
            name: min(width, _HALF) if name == "wide" else width for name, width in WIDTHS.items()
        }
        return {name: _sideways(panel, room) for name, room in rooms.items()}
    lay_out = _stacked if panel.kind == "stacked" else _lines
    return {name: lay_out(panel, width) for name, width in WIDTHS.items()}


def legend(panel: Panel) -> list[str]:
    """Names of the series in the order of their colours."""
    return [one.name for one in few(panel.series)]


def few(series: Sequence[Series]) -> tuple[Series, ...]:
    """As many series as there are colours."""
    if len(series) <= _COLOURS:
        return tuple(series)
    kept, rest = series[: _COLOURS - 1], series[_COLOURS - 1 :]
    columns = zip(*(one.values for one in rest), strict=True)
    together = tuple(sum(value or 0 for value in values) for values in columns)
    return (*kept, Series(f"{len(rest)} others", together))


def ticks(top: float, most: int = 6) -> list[float]:
    """Round numbers from 0 to at least `top`."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= raw * (1 - 1e-9))
    return [step * n for n in range(math.ceil(top / step - 1e-9) + 1)]


def short(label: str) -> str:
    """A day, week or month in few letters; anything else as it is."""
    try:
        if len(label) == 7 and "W" not in label:
            return f"{dt.date.fromisoformat(f'{label}-01'):%b %Y}"
        if len(label) == 10:
            day = dt.date.fromisoformat(label)
            return f"{day.day} {day:%b}"
    except ValueError:
        return label
    return label


def _stacked(panel: Panel, width: float) -> Chart:
    series = few(panel.series)
    totals = [
        sum(filter(None, values)) for values in zip(*(one.values for one in series), strict=True)
    ]
    axis = ticks(max(totals, default=0))
    step = _step(panel, width)
    gap = min(step * 0.2, 4)
    shapes = []
    for place, label in enumerate(panel.labels):
        base = 0.0
        for colour, one in enumerate(series):
            value = one.values[place] or 0
            if value:
                top = _y(base + value, axis)
                title = f"{label}, {one.name}: {brief(value)} {panel.unit}"
                left = _LEFT + place * step + gap / 2
                height = _y(base, axis) - top
                shapes.append(Shape(left, top, max(step - gap, 1), height, colour, title))
                base += value
    return _on_axes(panel, width, axis, shapes)


def _lines(panel: Panel, width: float) -> Chart:
    series = few(panel.series)
    values = [value for one in series for value in one.values if value is not None]
    axis = ticks(max(values, default=0))
    step = _step(panel, width)
    shapes = []
    for colour, one in enumerate(series):
        points = " ".join(
            f"{_LEFT + (place + 0.5) * step:.1f},{_y(value, axis):.1f}"
            for place, value in enumerate(one.values)
            if value is not None
        )
        shapes.append(Shape(0, 0, 0, 0, colour, one.name, points))
    return _on_axes(panel, width, axis, shapes)


def _on_axes(panel: Panel, width: float, axis: list[float], shapes: list[Shape]) -> Chart:
    step = _step(panel, width)
    texts = [Text(_LEFT - 8, _y(value, axis) + 4, _round(value), "end") for value in axis]
    for place in _labelled(len(panel.labels), width):
        middle = _LEFT + (place + 0.5) * step
        texts.append(Text(middle, _HEIGHT - 8, short(panel.labels[place]), "middle"))
    grid = tuple(_y(value, axis) for value in axis)
    return Chart(width, _HEIGHT, tuple(shapes), tuple(texts), grid)


def _sideways(panel: Panel, width: float) -> Chart:
    """A bar a row: its name before it, or above it where there is no room."""
    values = [value or 0.0 for value in panel.series[0].values] if panel.series else []
    above = width < 500
    left = 0.0 if above else min(max((len(x) for x in panel.labels), default=0) * _LETTER + 12, 200)
    numbers = [brief(value) for value in values]
    right = max((len(number) for number in numbers), default=0) * _LETTER + 12
    room, row = width - left - right, _ROW + (16 if above else 0)
    largest = max(values, default=0) or 1
    shapes, texts = [], []
    for place, (label, value) in enumerate(zip(panel.labels, values, strict=True)):
        top = place * row + (18 if above else 4)
        length = max(room * value / largest, 1)
        title = f"{label}: {numbers[place]} {panel.unit}"
        shapes.append(Shape(left, top, length, _ROW - 8, 0, title))
        name = Text(0, top - 4, label) if above else Text(left - 8, top + 13, label, "end")
        texts += [name, Text(left + length + 6, top + 13, numbers[place], strong=True)]
    return Chart(width, max(len(values) * row, 1) + 4, tuple(shapes), tuple(texts), left=left)


def _step(panel: Panel, width: float) -> float:
    return (width - _LEFT - _RIGHT) / max(len(panel.labels), 1)


def _labelled(count: int, width: float) -> Iterator[int]:
    """Places of an axis that have room for a label."""
    room = max(int((width - _LEFT - _RIGHT) / _PER_LABEL), 1)
    yield from range(0, count, -(-count // room) or 1)


def _y(value: float, axis: list[float]) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / axis[-1]


def _round(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,g}k"
    return f"{value:,g}"
