"""Pictures of numbers: bars of parts, and a curve of GPUs over time, drawn by plotext.

Parts differ in their signs, too, so that they are distinct without colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib import import_module
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import msgspec
from rich.color import Color
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from slurmkit.formats.display import format_number, printable
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.feed.history import HOUR, GpuCurve
from slurmkit_tui.themes import has_plain_signs

SIGNS = "█▓▒▌▄"  # of the types of GPUs; each has a colour of its own, too
# Sign and style; on the map of GPUs, too, a dot is a free GPU, and a cross is one of a closed node.
FREE, STRANDED, CLOSED = ("·", "$success"), ("-", "$warning"), ("×", "$error")
IDLE = "░"  # of held GPUs, in the colour of their type, where some were measured
_THERE, _WANTED, _UNKNOWN, _CURSOR = "─•?│"
_UNKNOWN_WORD = "unknown"  # where there is room for it
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEAST_ROWS = 4  # of a plot; below that nothing can be read from it
_ROUND_HOURS = (1, 2, 3, 6, 12, 24)  # between two ticks
_ALL = 0.95  # a share above that is as good as all


class BarPart(NamedTuple):
    """A part of a bar: its number, the sign that fills it, and its style."""

    number: float
    sign: str
    style: str


def share_bar(share: float | None, width: int) -> str:
    """Return a bar of block characters; a share over 100 % is cut and marked with `+`."""
    if share is None:
        return "?"
    eighths = round(min(share, 1.0) * width * 8)
    text = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return text + ("+" if share > 1 else "")


def parts_bar(parts: Sequence[BarPart], width: int) -> Content:
    """Return one bar of several parts; each that is more than 0 has at least one cell.

    Args:
        parts: from left to right.
        width: cells of the whole bar.
    """
    total = sum(part.number for part in parts)
    if total <= 0 or width <= 0:
        return Content("")
    cells = [max(1, int(width * part.number / total)) if part.number else 0 for part in parts]
    while sum(cells) != width:
        step = 1 if sum(cells) < width else -1
        wrong = [
            width * part.number / total - have for part, have in zip(parts, cells, strict=True)
        ]
        movable = [at for at, have in enumerate(cells) if have + step >= 1 and parts[at].number]
        if not movable:
            break
        at = max(movable, key=lambda at: step * wrong[at])
        cells[at] += step
    return Content.assemble(
        *((part.sign * have, part.style) for part, have in zip(parts, cells, strict=True) if have)
    )


def progress_bar(done: float, left: float, width: int, style: str) -> Content:
    """Return a bar of what is done and what is left; in ASCII where heavy lines are missing."""
    full, rest = "=_" if has_plain_signs() else "━╌"
    return parts_bar([BarPart(done, full, style), BarPart(left, rest, "$quiet")], width)


def signs_of_types(names: Sequence[str]) -> list[int]:
    """Return the place in `SIGNS` of each type; the smallest share the last if there are many."""
    several = len(names) > len(SIGNS)
    last = len(SIGNS) - 1
    return [last if several and at >= last else at for at in range(len(names))]


def part_of_type(at: int) -> tuple[str, str]:
    """Return the sign and the style of a type by its place in `SIGNS`."""
    return SIGNS[at], f"$holder-{at}"


@lru_cache(maxsize=1)
def load_plotter() -> Any:
    """Import plotext, which takes 50 ms: in a thread, before the first curve is drawn."""
    return import_module("plotext")


class GpuPlot(Widget):
    """A curve of GPUs over time: held ones stacked by type, all there are, and wanted ones.

    Attributes:
        cursor: index of the marked stretch of time; None for none.
    """

    BINDINGS: ClassVar[list[BindingType]] = key_bindings("plot")

    class Marked(Message):
        """The cursor was moved."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "plot--axis", "plot--there", "plot--wanted", "plot--unknown", "plot--cursor",
        *(f"holder--{number}" for number in range(len(SIGNS))),
    }  # fmt: skip

    def __init__(self, *, with_cursor: bool = False) -> None:
        super().__init__()
        self.can_focus = with_cursor
        self._curve: GpuCurve | None = None
        self._drawn: GpuCurve | None = None  # the curve with at most as many types as signs
        self._words = ""
        self.cursor: int | None = None

    def show(self, curve: GpuCurve | None, words: str = "") -> None:
        """Show a curve, or a text while there is none."""
        cursor = self.cursor
        if self.can_focus and curve is not None:
            last = len(curve.begins) - 1
            was_last = self._curve is not None and cursor == len(self._curve.begins) - 1
            self.cursor = last if cursor is None or was_last else min(cursor, last)
        if (curve, words, cursor) == (self._curve, self._words, self.cursor):
            return
        self._curve, self._words = curve, words
        self._drawn = None if curve is None else merge_small_types(curve)
        self.refresh()

    def mark(self, at: int | None) -> None:
        """Move the cursor; None puts it to the end with the next curve."""
        if at != self.cursor:
            self.cursor = at
            self.refresh()
            self.post_message(self.Marked())

    def words_at_cursor(self) -> str:
        """Return the numbers under the cursor in words."""
        if self._curve is None or self.cursor is None or not self._curve.is_known:
            return ""
        return stretch_in_words(self._curve, self.cursor)

    def action_step(self, by: int) -> None:
        """Move the cursor by a number of stretches."""
        if self._curve is not None and self.cursor is not None:
            self.mark(max(0, min(len(self._curve.begins) - 1, self.cursor + by)))

    def action_edge(self, end: int) -> None:
        """Move the cursor to the begin or to the end."""
        if self._curve is not None:
            self.mark(end * (len(self._curve.begins) - 1))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the cursor to the stretch under the mouse."""
        offset = event.get_content_offset(self)
        if not self.can_focus or self._drawn is None or offset is None:
            return
        count, (width, height) = len(self._drawn.begins), self.size
        margin = _margin(y_ticks(curve_top(self._drawn), height - 2))
        column, last = offset.x - margin, max(1, width - margin - 1)
        if column >= 0:
            self.mark(min(count - 1, column * count // last))

    def legend(self, *, with_types: bool = True) -> Content:
        """Return the meaning of each sign; without the types where others explain them."""
        curve = self._drawn
        if curve is None or not curve.is_known:
            return Content("")
        parts = []
        if any(value is not None for value in curve.there):
            parts.append((f"{_THERE} all  ", "$foreground"))
        wanted = max((value for value in curve.wanted if value is not None), default=None)
        if wanted is not None:
            most = f", up to {wanted:,.0f}" if wanted > curve_top(curve) else ""
            parts.append((f"{_WANTED} wanted{most}  ", "$warning"))
        parts += [
            (f"{SIGNS[at]} {printable(name) or 'untyped'}  ", f"$holder-{at}")
            for at, (name, values) in enumerate(curve.held.items())
            if with_types and any(values)
        ]
        if _is_measured(curve):
            words = "held, no use measured" if with_types else "held"  # Home has little room
            parts.append((f"{IDLE} {words}  ", "$foreground"))
        if not all(_has_room(run, curve, self.size.width) for run in _unknown_runs(curve)):
            parts.append((f"{_UNKNOWN} unknown", "$quiet"))
        return Content.assemble(*parts)

    def _colour(self, name: str) -> tuple[int, int, int]:
        return self.get_component_styles(name).color.rgb

    def render(self) -> Text:
        """Draw the curve."""
        width, height = self.size
        curve = self._drawn
        if curve is None or not curve.is_known or height < _LEAST_ROWS or width < 2 * _LEAST_ROWS:
            return Text(self._words or "no number is known yet", style="italic")
        drawn = Text.from_ansi(self._draw(curve, width, height).rstrip("\n"))
        lines = drawn.split("\n")
        # plotext has no tick below its lowest line of cells, which is where 0 is.
        zero = _margin(y_ticks(curve_top(curve), height - 2)) - 1
        axis = Style(color=Color.from_rgb(*self._colour("plot--axis")))
        lines[height - 2] = Text("0".rjust(zero), axis) + lines[height - 2][zero:]
        return Text("\n").join(lines)

    def _draw(self, curve: GpuCurve, width: int, height: int) -> str:
        plotter = load_plotter()
        count, top = len(curve.begins), curve_top(curve)
        plotter.clear_figure()
        plotter.limit_size(width=False, height=False)
        plotter.plotsize(width, height)
        plotter.theme("clear")
        plotter.frame(frame=False)
        plotter.xaxes(lower=True, upper=False)
        plotter.yaxes(left=True, right=False)
        plotter.ticks_color(self._colour("plot--axis"))
        rows = height - 2
        plotter.ylim(top / rows / 2, top)
        plotter.xlim(0, count)
        marks = y_ticks(top, rows)
        plotter.yticks(list(marks), list(marks.values()))
        ticks = time_ticks(curve, width)
        plotter.xticks([at for at, _ in ticks], [words for _, words in ticks])
        columns = [at * count / (width * 2) for at in range(width * 2)]
        self._draw_held(plotter, curve, columns, top / rows / 2)
        for values, sign, name in (
            (curve.there, _THERE, "plot--there"),
            (curve.wanted, _WANTED, "plot--wanted"),
        ):
            known = [(x, value) for x in columns if (value := values[int(x)]) is not None]
            if known:
                xs, ys = zip(*known, strict=True)
                shown = [min(max(y, top / rows), top) for y in ys]
                plotter.scatter(list(xs), shown, marker=sign, color=self._colour(name))
        for run in _unknown_runs(curve):
            self._draw_unknown(plotter, run, curve, top / rows)
        if self.cursor is not None:  # plotext's own lines lie below the signals
            heights = [top * row / rows for row in range(1, rows + 1)]
            plotter.scatter([self.cursor + 0.5] * rows, heights, marker=_CURSOR,
                            color=self._colour("plot--cursor"))  # fmt: skip
        return str(plotter.build())

    def _draw_unknown(self, plotter: Any, run: range, curve: GpuCurve, height: float) -> None:
        """Say at the bottom that nobody knows how many GPUs were held.

        Args:
            plotter: plotext.
            run: stretches of time next to each other.
            curve: the numbers.
            height: where the lowest line of cells is.
        """
        colour, width = self._colour("plot--unknown"), self.size.width
        if _has_room(run, curve, width):
            middle = (run.start + run.stop) / 2
            plotter.text(_UNKNOWN_WORD, middle, height, alignment="center", color=colour)
            return
        cells = max(1, round(len(run) * width / len(curve.begins)))
        xs = [run.start + (cell + 0.5) * len(run) / cells for cell in range(cells)]
        plotter.scatter(xs, [height] * cells, marker=_UNKNOWN, color=colour)

    def _draw_held(
        self, plotter: Any, curve: GpuCurve, columns: Sequence[float], least: float
    ) -> None:
        """Draw each type on top of the ones before, from the highest sum to the lowest.

        Where use was measured, the used GPUs of a type are the full lower part of its area. What
        was not measured looks like what was not used.

        Args:
            plotter: plotext.
            curve: the numbers.
            columns: where to draw, in stretches from the begin.
            least: the smallest sum that is drawn; plotext would fill a cell for 0, too.
        """
        names = list(curve.held)
        for at in range(len(names) - 1, -1, -1):
            colour = self._colour(f"holder--{at}")
            below = [curve.held[name] for name in names[:at]]
            base = [sum(values[int(x)] or 0.0 for values in below) for x in columns]
            own = [curve.held[names[at]][int(x)] or 0.0 for x in columns]
            held = [low + more for low, more in zip(base, own, strict=True)]
            if not _is_measured(curve):
                _fill(plotter, columns, held, least, SIGNS[at], colour)
                continue
            work = [curve.used_by_type[names[at]][int(x)] for x in columns]
            used = [
                low + min(some, more) if some else 0.0
                for low, more, some in zip(base, own, work, strict=True)
            ]
            _fill(plotter, columns, held, least, IDLE, colour)
            _fill(plotter, columns, used, least, SIGNS[at], colour)


def _fill(
    plotter: Any,
    columns: Sequence[float],
    levels: Sequence[float],
    least: float,
    sign: str,
    colour: tuple[int, int, int],
) -> None:
    """Fill a plot up to the level of each column; levels below `least` are not drawn."""
    points = zip(columns, levels, strict=True)
    for is_drawn, run in groupby(points, key=lambda point: point[1] >= least):
        if is_drawn:
            xs, ys = zip(*_ends_of_levels(list(run)), strict=True)
            plotter.plot(list(xs), list(ys), fillx=True, marker=sign, color=colour)


def _is_measured(curve: GpuCurve) -> bool:
    """Return whether the use of any GPU was measured."""
    return any(value is not None for value in curve.used)


def _ends_of_levels(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the first and the last point of each level part; plotext draws the line between.

    It would fill below each point by itself, and compares each with all others.
    """
    last = len(points) - 1
    return [
        point
        for at, point in enumerate(points)
        if at in (0, last) or not points[at - 1][1] == point[1] == points[at + 1][1]
    ]


def _unknown_runs(curve: GpuCurve) -> list[range]:
    """Return the stretches next to each other of which nobody knows how many GPUs were held."""
    runs = groupby(range(len(curve.begins)), key=lambda at: curve.held_at(at) is None)
    found = [list(run) for is_unknown, run in runs if is_unknown]
    return [range(run[0], run[-1] + 1) for run in found]


def _has_room(run: range, curve: GpuCurve, width: int) -> bool:
    """Return whether a plot of so many cells has room for a word below these stretches."""
    return len(run) * width / len(curve.begins) > 2 * len(_UNKNOWN_WORD)


def merge_small_types(curve: GpuCurve) -> GpuCurve:
    """Return a curve whose smallest types are one, so that each has a sign of its own."""
    names = list(curve.held)
    if len(names) <= len(SIGNS):
        return curve
    largest, rest = names[: len(SIGNS) - 1], names[len(SIGNS) - 1 :]
    others = tuple(
        None if curve.held_at(at) is None else sum(curve.held[name][at] or 0.0 for name in rest)
        for at in range(len(curve.begins))
    )
    name, used = f"{len(rest)} other types", curve.used_by_type
    others_used = tuple(map(sum, zip(*(used[each] for each in rest), strict=True))) if used else ()
    return msgspec.structs.replace(
        curve,
        held={each: curve.held[each] for each in largest} | {name: others},
        used_by_type=used | {name: others_used},
    )


def curve_top(curve: GpuCurve) -> float:
    """Return the number at the top of a plot: all GPUs, or twice these where more are wanted."""
    there = max((value for value in curve.there if value is not None), default=0.0)
    held = max((value for at in range(len(curve.begins))
                if (value := curve.held_at(at)) is not None), default=0.0)  # fmt: skip
    wanted = max((value for value in curve.wanted if value is not None), default=0.0)
    base = max(there, held) or wanted
    return max(1.0, base, min(wanted, 2 * base))


def y_ticks(top: float, rows: int) -> dict[float, str]:
    """Return the round numbers with a tick, and their texts.

    There is at most one tick for every two lines, and three in all. plotext puts a tick on the line
    up to which it draws that number.
    """
    most = max(1, min(3, rows // 2))
    steps = (base * 10.0**power for power in range(-1, 10) for base in (1, 2, 5))
    step = next(step for step in steps if top / step < most + 1)
    numbers = (step * at for at in range(1, most + 1))
    return {at: f"{at:.1f}".removesuffix(".0") for at in numbers if at <= top}


def _margin(ticks: Mapping[float, str]) -> int:
    """Return the cells to the left of a plot: the longest tick, and the axis."""
    return max(map(len, ticks.values())) + 1


def stretch_in_words(curve: GpuCurve, at: int) -> str:
    """Return one stretch in words: `Sat 21 Nov 14:00: 21 of 32 GPUs held, 73 wanted; 16 a100 …`."""
    begin = datetime.fromtimestamp(curve.begins[at], UTC).astimezone()
    when = begin.strftime("%a %d %b %H:%M" if curve.seconds < 24 * HOUR else "%a %d %b")
    held, there = curve.held_at(at), curve.there[at]
    parts = [
        f"{_amount(value)} {printable(name) or 'untyped'}"
        for name, values in curve.held.items()
        if (value := values[at])
    ]
    words = [
        "GPUs held unknown"
        if held is None
        else f"{_amount(held)}{'' if there is None else f' of {_amount(there)}'} GPUs held",
        *_used_in_words(curve, at),
        f"{_amount(curve.wanted[at])} wanted",
    ]
    types = f"; held: {', '.join(parts)}" if parts else ""
    return f"{when}: {', '.join(words)}{types}"


def _used_in_words(curve: GpuCurve, at: int) -> list[str]:
    """Return how many of the held GPUs worked, and how many of them were measured if not all."""
    used, measured = curve.used[at], curve.measured[at]
    if used is None:
        return []
    part = "" if measured is None or measured > _ALL else f" ({measured:.0%} of them measured)"
    return [f"{_amount(used)} used{part}"]


def use_in_words(curve: GpuCurve, *, short: bool = False) -> str:
    """Return which part of the measured GPU time of a curve was used; empty if none was measured.

    If not all of the held GPU time was measured, the words say how much, unless they are short.
    """
    used = held = measured = 0.0
    for at in range(len(curve.begins)):
        held_then = curve.held_at(at) or 0.0
        held += held_then
        used += curve.used[at] or 0.0
        measured += (curve.measured[at] or 0.0) * held_then
    if not measured:
        return ""
    share = min(1.0, used / measured)
    if short:
        return f"{share:.0%} used"
    if measured > _ALL * held:
        return f"{share:.0%} of held GPU time used"
    return f"{share:.0%} used of the {measured / held:.0%} measured"


def _amount(value: float | None) -> str:
    return "unknown" if value is None else format_number(round(value, 1))


def time_ticks(curve: GpuCurve, width: int) -> list[tuple[int, str]]:
    """Return positions and texts of times below a plot: hours within a day, else days."""
    times = [datetime.fromtimestamp(begin, UTC).astimezone() for begin in curve.begins]
    most = max(2, width // 10)
    if curve.seconds * len(times) <= 26 * HOUR:
        step = next(step for step in _ROUND_HOURS if step * most >= len(times))
        return [(at, f"{time:%H:%M}") for at, time in enumerate(times) if time.hour % step == 0]
    words = [f"{time:%d %b}" for time in times]
    first_of_day = [at for at in range(len(words)) if at == 0 or words[at] != words[at - 1]]
    return [(at, words[at]) for at in first_of_day[:: -(-len(first_of_day) // most)]]
