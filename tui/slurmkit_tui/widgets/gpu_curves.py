"""What the GPUs of one run did: for each GPU three curves over the same time, drawn by plotext."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

from rich.style import Style
from rich.text import Text
from textual.message import Message
from textual.widget import Widget

from slurmkit.formats.display import format_number, printable, spark_signs
from slurmkit.formats.memory import format_memory_use
from slurmkit.state.gpu_use import CurvePoint, GpuUseOfGpu, GpuUseOfRun
from slurmkit_tui.themes import has_plain_signs
from slurmkit_tui.widgets.plots import load_plotter
from slurmkit_tui.widgets.table import fit_text

_LEAST_ROWS, _MOST_ROWS = 4, 10  # of a plot
HEAD_LINES = 2  # lines above it
_LABEL = 4  # cells of a number at the axis
_LEAST = 12  # cells of a plot
_NAME, _MOST_SIGNS, _CAPTION = 14, 60, 17  # cells of a line: name, curve in signs, and numbers
_BESIDE = 60  # cells for the words around such a curve
_GIB = 1024  # MiB
_KWH = 3_600_000  # joules
_WATTS = 50  # the top of the curves of power is a multiple


class CurveFrame(NamedTuple):
    """What the curves of all GPUs of a run have in common.

    Attributes:
        begin: epoch seconds at the left end.
        end: epoch seconds at the right end.
        top_watts: power at the top.
        gpu_type: type of all GPUs; empty if unknown.
        rows: lines of a plot; 0 for one line of text instead.
    """

    begin: float
    end: float
    top_watts: float
    gpu_type: str = ""
    rows: int = _LEAST_ROWS


def frame_of(run: GpuUseOfRun, gpu_type: str = "") -> CurveFrame:
    """Return the frame of a run; while the run goes on, it ends with the last sample."""
    if run.end is not None:
        end = float(run.end)
    else:
        lasts = [gpu.last for gpu in run.gpus if gpu.last is not None]
        end = max([*lasts, run.start + 1.0])
    watts = (p.watts for gpu in run.gpus for p in gpu.points if p.watts is not None)
    top = math.ceil(max(watts, default=0.0) / _WATTS) * _WATTS
    return CurveFrame(run.start, end, max(top, _WATTS), gpu_type)


class Measure(NamedTuple):
    """What one of the three curves shows.

    Attributes:
        value: returns the value of a point.
        join: joins the values of several points that share a column.
        caption: returns the numbers of the whole run, in words.
        colour: component class.
    """

    value: Callable[[CurvePoint], float | None]
    join: Callable[[Sequence[float]], float]
    caption: Callable[[GpuUseOfGpu], str]
    colour: str


def _gib(mebibytes: int | None) -> float | None:
    return None if mebibytes is None else mebibytes / _GIB


def _use_caption(gpu: GpuUseOfGpu) -> str:
    if gpu.utilization is None:
        return "use ?"
    high = "" if gpu.percentile_95 is None else f", p95 {gpu.percentile_95}%"
    return f"use {gpu.utilization:.0f}%{high}"


def _memory_caption(gpu: GpuUseOfGpu) -> str:
    return f"memory {format_memory_use(gpu.memory_mib, gpu.memory_total_mib)}"


def _power_caption(gpu: GpuUseOfGpu) -> str:
    watts = [point.watts for point in gpu.points if point.watts is not None]
    power = f"{sum(watts) / len(watts):.0f} W" if watts else "?"
    about = "~" if gpu.energy_by == "power" else ""
    energy = "" if gpu.joules is None else f", {about}{format_number(gpu.joules / _KWH)} kWh"
    return f"power {power}{energy}"


MEASURES = (
    Measure(lambda point: point.utilization, fmean, _use_caption, "curve--use"),
    Measure(lambda point: _gib(point.memory_mib), max, _memory_caption, "curve--memory"),
    Measure(lambda point: point.watts, fmean, _power_caption, "curve--power"),
)


def gpu_name(gpu: GpuUseOfGpu) -> str:
    """Return node and Slurm's index: `c2 GPU 1`; without an index, what else names the GPU."""
    index = printable(gpu.gpu) if gpu.index is None else str(gpu.index)
    return f"{printable(gpu.node)} GPU {index}"


def gpu_notes(gpu: GpuUseOfGpu) -> Iterator[tuple[str, str]]:
    """Yield what is to be said about a GPU, with component classes; first whether it is idle."""
    if gpu.idle:
        yield "IDLE: it did nothing", "curve--warn"
    elif gpu.idle_share:
        yield f"idle for {gpu.idle_share:.0%} of the time", "curve--warn"
    if gpu.utilization is None:
        yield "use unknown", "curve--warn"
    if gpu.shared:
        yield "shared with other jobs", "curve--quiet"
    if not gpu.is_covered:
        yield f"covered only {gpu.covered:.0%}", "curve--warn"
    else:
        yield f"covered {gpu.covered:.0%}", "curve--quiet"
    if not gpu.points:
        yield "no curve is stored", "curve--quiet"


# The page has them, once for all its GPUs: Textual styles those of each widget again with a focus.
CURVE_CLASSES = {
    "curve--use", "curve--memory", "curve--power", "curve--axis", "curve--unknown",
    "curve--name", "curve--warn", "curve--quiet",
}  # fmt: skip


class GpuCurves(Widget):
    """One GPU: its name, what is to be said about it, and its three curves.

    Its curves take 10 ms. So it asks the page to have them drawn, one GPU after another.
    """

    class Unplotted(Message):
        """The curves on the screen are not drawn yet, or are older ones."""

        def __init__(self, curves: GpuCurves) -> None:
            super().__init__()
            self.curves = curves

    def __init__(self, gpu: GpuUseOfGpu, frame: CurveFrame, page: Widget) -> None:
        super().__init__()
        self._gpu, self._frame, self._page = gpu, frame, page
        self._plotted: _Plots | None = None

    def show(self, gpu: GpuUseOfGpu, frame: CurveFrame) -> None:
        """Show other values; the same ones are not drawn again."""
        if (gpu, frame) != (self._gpu, self._frame):
            self._gpu, self._frame = gpu, frame
            self.refresh(layout=True)

    def get_content_height(self, *_: Any) -> int:
        """Return the lines of the curves; without a curve it is two lines, or one."""
        if not self._frame.rows:
            return 1
        return HEAD_LINES + (self._frame.rows if self._gpu.points else 0)

    def render(self) -> Text:
        """Draw the lines of text, and the plots side by side below them."""
        gpu = self._gpu
        if not self._frame.rows:
            return self._line()
        wide = plot_widths(self.size.width)
        text = Text(no_wrap=True, overflow="ellipsis", end="")
        text.append(gpu_name(gpu), self._style("curve--name"))
        text.append(f"  {printable(self._frame.gpu_type)}{' MIG' if gpu.mig else ''}".rstrip())
        self._append_notes(text)
        captions = (each.caption(gpu) for each in MEASURES)
        cells = (fit_text(words, width) for words, width in zip(captions, wide, strict=True))
        text.append("\n" + " ".join(cells))
        if gpu.points:
            if self.is_unplotted:
                self.post_message(self.Unplotted(self))
            plotted = self._plotted
            fits = plotted is not None and plotted.of.size == self._wanted_plots().size
            for row in plotted.rows if plotted and fits else [Text()] * self._frame.rows:
                text.append("\n")
                text.append_text(row)
        return text

    def _line(self) -> Text:
        """Return the line of text: its name, a curve of its use in signs, and its notes."""
        gpu = self._gpu
        count = max(_LEAST, min(self.size.width - _BESIDE, _MOST_SIGNS))
        columns = curve_columns(gpu, self._frame, MEASURES[0], count)
        text = Text(no_wrap=True, overflow="ellipsis", end="")
        text.append("▸" if self.has_class("-marked") else " ")
        text.append(fit_text(gpu_name(gpu), _NAME), self._style("curve--name"))
        text.append(" " + spark_signs(columns, plain=has_plain_signs()), self._style("curve--use"))
        text.append("  " + fit_text(_use_caption(gpu), _CAPTION))
        self._append_notes(text)
        return text

    def _append_notes(self, text: Text) -> None:
        for words, name in gpu_notes(self._gpu):
            text.append("  ")
            text.append(words, self._style(name))

    @property
    def is_unplotted(self) -> bool:
        """Whether it has curves, and those that are drawn are not the ones to show."""
        drawn = self._plotted is not None and self._plotted.of == self._wanted_plots()
        return bool(self._gpu.points and self._frame.rows) and not drawn

    def plot(self) -> None:
        """Draw the curves, if those that are drawn are not the ones to show."""
        if not self.is_unplotted:
            return
        wanted = self._wanted_plots()
        widths = plot_widths(self.size.width)
        plots = [
            self._plot(each, width).split("\n")
            for each, width in zip(MEASURES, widths, strict=True)
        ]
        rows = [Text(" ").join(map(Text.from_ansi, row)) for row in zip(*plots, strict=True)]
        self._plotted = _Plots(wanted, rows)
        self.refresh()

    def _wanted_plots(self) -> _PlotsOf:
        colours = tuple(self._rgb(name) for name in sorted(CURVE_CLASSES))
        size = self.size.width, self._frame.rows
        return _PlotsOf(size, self._gpu, self._frame, colours, has_plain_signs())

    def _style(self, name: str) -> Style:
        return self._page.get_component_rich_style(name, partial=True)

    def _plot(self, measure: Measure, width: int) -> str:
        count = 2 * (width - _LABEL - 1)
        columns = curve_columns(self._gpu, self._frame, measure, count)
        top = self._top(measure)
        plotter = load_plotter()
        plotter.clear_figure()
        plotter.limit_size(width=False, height=False)
        plotter.plotsize(width, self._frame.rows)
        plotter.theme("clear")
        plotter.frame(frame=False)
        plotter.xaxes(lower=False, upper=False)
        plotter.yaxes(left=True, right=False)
        plotter.ticks_color(self._rgb("curve--axis"))
        plotter.xlim(0, len(columns) - 1)
        plain = has_plain_signs()
        # The number at half of the lowest line, so that half of the top fills half of the plot.
        least = top / (self._frame.rows if plain else 2 * self._frame.rows)
        plotter.ylim(least, top)
        plotter.xticks([])
        plotter.yticks([least, top], ["0".rjust(_LABEL), f"{top:.0f}".rjust(_LABEL)])
        colours = self._rgb(measure.colour), self._rgb("curve--unknown")
        signs = _AreaSigns("#", "_", ".") if plain else _AreaSigns("hd", "▁", "·")
        _draw_columns(plotter, columns, (least, top), signs, colours)
        return str(plotter.build()).rstrip("\n")

    def _top(self, measure: Measure) -> float:
        """Return the number at the top: 100 %, the memory of the GPU, or the run's most power."""
        if measure is not MEASURES[1]:
            return 100.0 if measure is MEASURES[0] else self._frame.top_watts
        return max(_gib(self._gpu.memory_total_mib) or _gib(self._gpu.memory_mib) or 0.0, 1.0)

    def _rgb(self, name: str) -> tuple[int, int, int]:
        return self._page.get_component_styles(name).color.rgb


class _PlotsOf(NamedTuple):
    """What the curves of a GPU depend on: width and rows, the values, colours and signs."""

    size: tuple[int, int]
    gpu: GpuUseOfGpu
    frame: CurveFrame
    colours: tuple[tuple[int, int, int], ...]
    plain: bool


class _Plots(NamedTuple):
    """The drawn curves of a GPU, by row."""

    of: _PlotsOf
    rows: list[Text]


class _AreaSigns(NamedTuple):
    """Signs of an area, of values near 0, and of what is unknown."""

    area: str
    zero: str
    unknown: str


def _draw_columns(
    plotter: Any,
    columns: Sequence[float | None],
    limits: tuple[float, float],
    signs: _AreaSigns,
    colours: tuple[tuple[int, int, int], tuple[int, int, int]],
) -> None:
    """Draw known values as an area, those near 0 as a line at the bottom, and unknown as dots."""
    least, top = limits
    # plotext would fill a cell for 0, too.
    kinds = [
        signs.unknown if value is None else signs.zero if value < least / 2 else signs.area
        for value in columns
    ]
    for sign, run in groupby(range(len(columns)), key=kinds.__getitem__):
        at = list(run)
        if sign == signs.area:
            heights = [min(columns[each] or 0.0, top) for each in at]
            plotter.plot(at, heights, fillx=True, marker=sign, color=colours[0])
        else:
            colour = colours[1] if sign == signs.unknown else colours[0]
            plotter.scatter(at, [least] * len(at), marker=sign, color=colour)


def plot_rows(lines: int, gpus: int) -> int:
    """Return the rows of a plot, so that all GPUs fit into these lines where that is possible."""
    return min(max(lines // max(gpus, 1) - HEAD_LINES - 1, _LEAST_ROWS), _MOST_ROWS)


def plot_widths(width: int) -> list[int]:
    """Return the widths of the three plots for a line of `width` cells, with a cell between."""
    each = max(_LEAST, (width - len(MEASURES) + 1) // len(MEASURES))
    return [each] * len(MEASURES)


def curve_columns(
    gpu: GpuUseOfGpu, frame: CurveFrame, measure: Measure, count: int
) -> list[float | None]:
    """Return the curve of a GPU in equal columns of the frame's time; None is unknown.

    Args:
        gpu: with points.
        frame: its begin and end are those of the columns.
        measure: what is shown.
        count: number of columns.
    """
    step, first = max(gpu.step, 1), gpu.points[0].at if gpu.points else 0
    length = max(frame.end - frame.begin, 1.0) / count
    columns: list[float | None] = []
    for column in range(count):
        begin = (frame.begin + column * length - first) / step
        end = begin + length / step
        places = slice(max(math.floor(begin), 0), max(math.ceil(end), 0))
        values = map(measure.value, gpu.points[places])
        known = [value for value in values if value is not None]
        columns.append(measure.join(known) if known else None)
    return columns


def time_axis(frame: CurveFrame, width: int) -> str:
    """Return the time below each of the three columns of plots: begin, middle and end."""
    several_days = frame.end - frame.begin > 20 * 3600
    times = [
        datetime.fromtimestamp(at, UTC).astimezone().strftime("%d %b" if several_days else "%H:%M")
        for at in (frame.begin, (frame.begin + frame.end) / 2, frame.end)
    ]
    axes = []
    for each in plot_widths(width):
        room = each - _LABEL - 1
        shown = times if sum(map(len, times)) + 2 <= room else [times[0], times[2]]
        gap = max((room - sum(map(len, shown))) // (len(shown) - 1), 1)
        axes.append(" " * (_LABEL + 1) + (" " * gap).join(shown)[:room].ljust(room))
    return " ".join(axes)
