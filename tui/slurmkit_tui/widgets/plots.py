"""Pictures of numbers: bars of parts, and a curve of GPUs over time, drawn by plotext.

Parts differ in their signs, too, so that they can be told apart without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib import import_module
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import msgspec
from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from slurmkit.formats.display import format_number, printable
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.feed.history import HOUR, GpuCurve

SIGNS = "█▓▒░"  # of the types of GPUs in a curve
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEAST_ROWS = 4  # of a plot; below that nothing can be read from it


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
        "plot--axis", "plot--there", "plot--wanted", "plot--used", "plot--unknown", "plot--cursor",
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
        if curve == self._curve and words == self._words:
            return
        self._curve, self._words = curve, words
        self._drawn = None if curve is None else merge_small_types(curve)
        if self.can_focus and curve is not None:
            last = len(curve.begins) - 1
            self.cursor = last if self.cursor is None else min(self.cursor, last)
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
        if not self.can_focus or self._curve is None:
            return
        count, margin = len(self._curve.begins), len(_tick(curve_top(self._curve))) + 1
        at = (event.x - margin) * count // max(1, self.size.width - margin)
        if 0 <= at < count:
            self.mark(at)

    def legend(self) -> Content:
        """Return the meaning of each sign."""
        curve = self._drawn
        if curve is None or not curve.is_known:
            return Content("")
        parts = []
        if any(value is not None for value in curve.there):
            parts.append(("─ all  ", "$foreground"))
        wanted = max((value for value in curve.wanted if value is not None), default=None)
        if wanted is not None:
            most = f", up to {wanted:,.0f}" if wanted > curve_top(curve) else ""
            parts.append((f"• wanted{most}  ", "$warning"))
        if any(value is not None for value in curve.used):
            parts.append(("× used  ", "$error"))
        parts += [
            (f"{SIGNS[at]} {printable(name) or 'untyped'}  ", f"$holder-{at}")
            for at, name in enumerate(curve.held)
        ]
        if any(curve.held_at(at) is None for at in range(len(curve.begins))):
            parts.append(("· unknown", "$quiet"))
        return Content.assemble(*parts)

    def _colour(self, name: str) -> tuple[int, int, int]:
        return self.get_component_styles(name).color.rgb

    def render(self) -> Text:
        """Draw the curve; see `render_curve`."""
        width, height = self.size
        curve = self._drawn
        if curve is None or not curve.is_known or height < _LEAST_ROWS or width < 2 * _LEAST_ROWS:
            return Text(self._words or "no number is known yet", style="italic")
        return Text.from_ansi(self._draw(curve, width, height).rstrip("\n"))

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
        plotter.yticks([top / rows, top / 2, top], ["0", _tick(top / 2), _tick(top)])
        ticks = time_ticks(curve, width)
        plotter.xticks([at for at, _ in ticks], [words for _, words in ticks])
        columns = [at * count / (width * 2) for at in range(width * 2)]
        self._draw_held(plotter, curve, columns, top / rows / 2)
        for values, sign, name in (
            (curve.there, "─", "plot--there"),
            (curve.used, "×", "plot--used"),
            (curve.wanted, "•", "plot--wanted"),
        ):
            known = [(x, value) for x in columns if (value := values[int(x)]) is not None]
            if known:
                xs, ys = zip(*known, strict=True)
                shown = [min(max(y, top / rows), top) for y in ys]
                plotter.scatter(list(xs), shown, marker=sign, color=self._colour(name))
        unknown = [x for x in columns if curve.held_at(int(x)) is None]
        if unknown:
            plotter.scatter(unknown, [top / rows] * len(unknown), marker="·",
                            color=self._colour("plot--unknown"))  # fmt: skip
        if self.cursor is not None:  # plotext's own lines lie below the signals
            heights = [top * row / rows for row in range(1, rows + 1)]
            plotter.scatter([self.cursor + 0.5] * rows, heights, marker="│",
                            color=self._colour("plot--cursor"))  # fmt: skip
        return str(plotter.build())

    def _draw_held(
        self, plotter: Any, curve: GpuCurve, columns: Sequence[float], least: float
    ) -> None:
        """Draw each type on top of the ones before, from the highest sum to the lowest.

        Args:
            plotter: plotext.
            curve: the numbers.
            columns: where to draw, in stretches from the begin.
            least: the smallest sum that is drawn; plotext would fill a cell for 0, too.
        """
        names = list(curve.held)
        for at in range(len(names) - 1, -1, -1):
            below = [curve.held[name] for name in names[: at + 1]]
            points = [(x, sum(values[int(x)] or 0.0 for values in below)) for x in columns]
            for is_drawn, run in groupby(points, key=lambda point: point[1] >= least):
                if is_drawn:
                    xs, sums = zip(*run, strict=True)
                    plotter.plot(list(xs), list(sums), fillx=True, marker=SIGNS[at],
                                 color=self._colour(f"holder--{at}"))  # fmt: skip


def merge_small_types(curve: GpuCurve) -> GpuCurve:
    """Return a curve whose smallest types are one, so that each has a sign of its own."""
    names = list(curve.held)
    if len(names) <= len(SIGNS):
        return curve
    kept, rest = names[: len(SIGNS) - 1], names[len(SIGNS) - 1 :]
    others = tuple(
        None if curve.held_at(at) is None else sum(curve.held[name][at] or 0.0 for name in rest)
        for at in range(len(curve.begins))
    )
    held = {name: curve.held[name] for name in kept} | {f"{len(rest)} other types": others}
    return msgspec.structs.replace(curve, held=held)


def curve_top(curve: GpuCurve) -> float:
    """Return the number at the top of a plot: all GPUs, or twice these where more are wanted."""
    there = max((value for value in curve.there if value is not None), default=0.0)
    held = max((value for at in range(len(curve.begins))
                if (value := curve.held_at(at)) is not None), default=0.0)  # fmt: skip
    wanted = max((value for value in curve.wanted if value is not None), default=0.0)
    base = max(there, held) or wanted
    return max(1.0, base, min(wanted, 2 * base))


def stretch_in_words(curve: GpuCurve, at: int) -> str:
    """Return one stretch in words: `Sat 21 Nov 14:00: 21 of 32 GPUs held, 73 wanted; 16 a100 …`."""
    begin = datetime.fromtimestamp(curve.begins[at], UTC).astimezone()
    when = begin.strftime("%a %d %b %H:%M" if curve.seconds < 24 * HOUR else "%a %d %b")
    held, there, used = curve.held_at(at), curve.there[at], curve.used[at]
    parts = [
        f"{_amount(value)} {printable(name) or 'untyped'}"
        for name, values in curve.held.items()
        if (value := values[at])
    ]
    words = [
        "GPUs held unknown"
        if held is None
        else f"{_amount(held)}{'' if there is None else f' of {_amount(there)}'} GPUs held",
        *([] if used is None else [f"{_amount(used)} used"]),
        f"{_amount(curve.wanted[at])} wanted",
    ]
    types = f"; held: {', '.join(parts)}" if parts else ""
    return f"{when}: {', '.join(words)}{types}"


def _amount(value: float | None) -> str:
    return "unknown" if value is None else format_number(round(value, 1))


def _tick(number: float) -> str:
    return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def time_ticks(curve: GpuCurve, width: int) -> list[tuple[int, str]]:
    """Return positions and texts of times below a plot: hours within a day, else days."""
    several_days = curve.seconds * len(curve.begins) > 26 * HOUR
    words = [
        datetime.fromtimestamp(begin, UTC)
        .astimezone()
        .strftime("%d %b" if several_days else "%H:%M")
        for begin in curve.begins
    ]
    first_of_day = [at for at in range(len(words)) if at == 0 or words[at] != words[at - 1]]
    most = max(2, width // 10)
    step = -(-len(first_of_day) // most)
    return [(at, words[at]) for at in first_of_day[::step]]
