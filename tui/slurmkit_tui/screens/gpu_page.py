"""The tab of a job's screen that shows what its GPUs do, or did: one run at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from slurmkit.formats.display import format_time, printable
from slurmkit.formats.durations import format_duration
from slurmkit.formats.tres import gpu_types
from slurmkit.state.gpu_use import GpuUseOfGpu, GpuUseOfRun
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.jobform.gpu_use import GpusOfJob
from slurmkit_tui.widgets.gpu_curves import (
    CURVE_CLASSES,
    HEAD_LINES,
    CurveFrame,
    GpuCurves,
    frame_of,
    gpu_name,
    plot_rows,
    time_axis,
)

_MOST = 64  # GPUs with curves; the ledger gives no more
_MOST_PLOTTED = 4  # GPUs; more have one line each
_AT_ONCE = 2  # GPUs that are added in one frame
_NAMED = 4  # idle GPUs by name


class GpuPage(VerticalScroll):
    """What the GPUs of a job do: words about a run, curves of each GPU, and one time axis."""

    BINDINGS: ClassVar[list[BindingType]] = key_bindings("gpu-page")
    COMPONENT_CLASSES: ClassVar[set[str]] = CURVE_CLASSES

    def __init__(self) -> None:
        super().__init__(id="gpus", can_focus=True)
        self._runs: Sequence[GpuUseOfRun] = ()
        self._back = 0  # runs before the last one
        self._taken = 0.0
        self._tres = ""
        self._waiting: Sequence[tuple[int, GpuUseOfGpu, CurveFrame]] = ()  # not there yet
        self._unplotted: list[GpuCurves] = []
        self._held: Mapping[str, Sequence[int]] = {}
        self._cursor = 0  # the GPU whose curves Enter shows
        self._opened: set[int] = set()

    def compose(self) -> ComposeResult:
        """Keep the words at the top, and the time axis below the curves, or below the page."""
        yield Static("asking the ledger…", id="gpus-words", markup=False)
        yield Static(id="gpus-axis", markup=False)

    def say(self, words: str) -> None:
        """Show a text instead of curves; curves that are there stay below it."""
        self.query_one("#gpus-words", Static).update(Content(printable(words)))

    def show(self, answer: GpusOfJob, cluster: str | None) -> None:
        """Show an answer; of several clusters only what ran on this one."""
        last = self._runs[-1].start if self._runs else None
        self._runs = [run for run in answer.runs if cluster in (None, run.cluster)]
        self._taken = answer.taken
        if self._runs and last is not None and self._runs[-1].start != last:
            self._back = 0  # it was requeued
        self._update()

    def name_gpus(self, tres: str, held: Mapping[str, Sequence[int]]) -> None:
        """Show the type of the job's GPUs, and which of them are not measured.

        Args:
            tres: of the job; the type is known only if all are of one type.
            held: indices by node while it runs; empty if unknown.
        """
        if (tres, held) != (self._tres, self._held):
            self._tres, self._held = tres, held
            self._update()

    def action_go(self, by: int) -> None:
        """Go to the next GPU where each has a line; else scroll."""
        widgets = [widget for widget in self.query(GpuCurves) if widget.display]
        if not self._is_list or not widgets:
            self.scroll_relative(y=by)
            return
        self._cursor = max(0, min(len(widgets) - 1, self._cursor + by))
        for at, widget in enumerate(widgets):
            widget.set_class(at == self._cursor, "-marked")
        self.scroll_to_widget(widgets[self._cursor])

    def action_open_gpu(self) -> None:
        """Show the curves of the GPU under the cursor, or its line again."""
        if self._is_list:
            self._opened ^= {self._cursor}
            self._update()

    @property
    def _is_list(self) -> bool:
        """Whether each GPU has a line, as the run has many."""
        return bool(self._runs) and len(self._runs[-1 - self._back].gpus) > _MOST_PLOTTED

    def action_run(self, by: int) -> None:
        """Show a later run, or one before."""
        self._back = max(0, min(len(self._runs) - 1, self._back - by))
        self._cursor, self._opened = 0, set()
        self._update()

    def _update(self) -> None:
        axis = self.query_one("#gpus-axis", Static)
        if not self._runs:
            if self._taken:
                self.say("the ledger has no run of this job that held GPUs")
            axis.update("")
            return
        run = self._runs[-1 - self._back]
        types = [name for name in gpu_types(self._tres) if name] if self._tres else []
        frame = frame_of(run, types[0] if len(types) == 1 else "")
        held = self._held if run.end is None else {}
        words = [self._title(run, frame), *run_in_words(run, self._taken, held)]
        lines = [Content.styled(words[0], "bold"), *map(Content, words[1:])]
        self.query_one("#gpus-words", Static).update(Content("\n").join(lines))
        shown = run.gpus[:_MOST]
        room = self.size.height - len(words) - 1
        is_list = self._is_list
        frame = frame._replace(rows=plot_rows(room, 2 if is_list else len(shown)))
        line = frame._replace(rows=0)
        lines_of_plots = len(shown) * (frame.rows + HEAD_LINES + 1) - 1
        axis.set_class(not is_list and lines_of_plots <= room, "-below")
        for widget in list(self.query(GpuCurves))[len(shown) :]:
            widget.display = False
        self._waiting = [
            (at, gpu, line if is_list and at not in self._opened else frame)
            for at, gpu in enumerate(shown)
        ]
        self._show_some()
        has_plots = bool(self._opened) if is_list else bool(shown)
        axis.update(time_axis(frame, self.content_size.width) if has_plots else "")

    def _show_some(self) -> None:
        """Show two more GPUs in this frame."""
        widgets = list(self.query(GpuCurves))
        last = self._waiting[-1][0] if self._waiting else 0
        for at, gpu, frame in self._waiting[:_AT_ONCE]:
            if at < len(widgets):
                widget = widgets[at]
                widget.display = True
                widget.show(gpu, frame)
            else:
                widget = GpuCurves(gpu, frame, self)
                self.mount(widget, before="#gpus-axis")
            widget.set_class(not frame.rows or at == last, "-close")
            widget.set_class(self._is_list and at == self._cursor, "-marked")
        self._waiting = self._waiting[_AT_ONCE:]
        if self._waiting:
            self.call_after_refresh(self._show_some)

    @on(GpuCurves.Unplotted)
    def _plot_later(self, message: GpuCurves.Unplotted) -> None:
        message.stop()
        if message.curves not in self._unplotted:
            self._unplotted.append(message.curves)
            if len(self._unplotted) == 1:
                self.call_next(self._plot_next)

    def _plot_next(self) -> None:
        """Draw the curves of one GPU, of one that is on the screen if there is one."""
        on_screen = (each for each in self._unplotted if self.region.overlaps(each.region))
        curves = next(on_screen, self._unplotted[0])
        curves.plot()
        self._unplotted.remove(curves)
        if self._unplotted:
            self.call_after_refresh(self._plot_next)

    def on_resize(self) -> None:
        """Fit the time axis to the new width."""
        if self._runs:
            self._update()

    def _title(self, run: GpuUseOfRun, frame: CurveFrame) -> str:
        until = "now" if run.end is None else format_time(run.end)[5:16]
        length = format_duration(int(frame.end - frame.begin))
        gpus = f"{run.held} GPU{'s' * (run.held != 1)}"
        number = len(self._runs) - self._back
        several = f"  ·  run {number} of {len(self._runs)} ([ ])" if len(self._runs) > 1 else ""
        return (
            f"Job {printable(run.job_id)}: {format_time(run.start)[5:16]} to {until}, {length},"
            f" {gpus}{several}"
        )


def run_in_words(
    run: GpuUseOfRun, now: float, held: Mapping[str, Sequence[int]] | None = None
) -> Iterator[str]:
    """Yield what is to be said about the GPUs of a run, the most important first.

    Args:
        run: one run of a job.
        now: epoch seconds.
        held: indices of the GPUs that it holds, by node; empty if unknown.
    """
    idle = [gpu for gpu in run.gpus if gpu.idle]
    if idle:
        names = ", ".join(gpu_name(gpu) for gpu in idle[:_NAMED])
        more = f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
        verb = "does" if run.end is None else "did"
        yield f"! {len(idle)} of {run.held} GPUs {verb} nothing: {names}{more}"
    missing = run.held - len(run.gpus)
    if missing > 0:
        measured = {(gpu.node, gpu.index) for gpu in run.gpus}
        every = [(node, index) for node, of_node in (held or {}).items() for index in of_node]
        left = [each for each in every if each not in measured]
        names = ", ".join(f"{printable(node)} GPU {index}" for node, index in left[:_NAMED])
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        whom = f"{names}{more}" if len(left) == missing else "them"
        yield f"what {missing} of {run.held} GPUs did is unknown: nobody measured {whom}"
    if missing < 0 < run.held:
        yield f"samples of {len(run.gpus)} GPUs, but the job held {run.held}: some are not its own"
    lasts = [gpu.last for gpu in run.gpus if gpu.last is not None]
    if run.end is None and lasts and now - max(lasts) > 90:
        yield f"the last sample is {format_duration(int(now - max(lasts)))} old"
    if len(run.gpus) > _MOST:
        more = f"slurmkit job {printable(run.job_id)} --gpus"
        yield f"the first {_MOST} of {len(run.gpus)} GPUs; for the others run {more}"
