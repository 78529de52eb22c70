"""The tab of a job's screen that shows what its GPUs do, or did: one run at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.jobform.gpu_use import GpuOfJob, GpusOfJob, RunOfJob
from slurmkit_tui.widgets.gpu_curves import (
    CURVE_CLASSES,
    CurveFrame,
    GpuCurves,
    frame_of,
    gpu_name,
    plot_rows,
    time_axis,
)

_MOST = 64  # GPUs with curves; the ledger gives no more
_AT_ONCE = 2  # GPUs that are added in one frame
_NAMED = 4  # idle GPUs by name


class GpuPage(VerticalScroll):
    """What the GPUs of a job do: words about a run, curves of each GPU, and one time axis."""

    BINDINGS: ClassVar[list[BindingType]] = key_bindings("gpu-page")
    COMPONENT_CLASSES: ClassVar[set[str]] = CURVE_CLASSES

    def __init__(self) -> None:
        super().__init__(id="gpus", can_focus=True)
        self._runs: Sequence[RunOfJob] = ()
        self._back = 0  # runs before the last one
        self._taken = 0.0
        self._tres = ""
        self._waiting: Sequence[tuple[int, GpuOfJob, CurveFrame]] = ()  # not there yet
        self._unplotted: list[GpuCurves] = []

    def compose(self) -> ComposeResult:
        """Keep the words at the top and the time axis at the bottom, whatever is scrolled."""
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

    def name_types(self, tres: str) -> None:
        """Show the types of the job's GPUs, from its TRES; known only if all are of one type."""
        if tres != self._tres:
            self._tres = tres
            self._update()

    def action_run(self, by: int) -> None:
        """Show a later run, or one before."""
        self._back = max(0, min(len(self._runs) - 1, self._back - by))
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
        words = [self._title(run, frame), *run_in_words(run, self._taken)]
        lines = [Content.styled(words[0], "bold"), *map(Content, words[1:])]
        self.query_one("#gpus-words", Static).update(Content("\n").join(lines))
        shown = run.gpus[:_MOST]
        room = self.size.height - len(words) - 1
        frame = frame._replace(rows=plot_rows(room, len(shown)))
        for widget in list(self.query(GpuCurves))[len(shown) :]:
            widget.display = False
        self._waiting = [(at, gpu, frame) for at, gpu in enumerate(shown)]
        self._show_some()
        axis.update(time_axis(frame, self.content_size.width) if shown else "")

    def _show_some(self) -> None:
        """Show two more GPUs in this frame."""
        widgets = list(self.query(GpuCurves))
        for at, gpu, frame in self._waiting[:_AT_ONCE]:
            if at < len(widgets):
                widgets[at].display = True
                widgets[at].show(gpu, frame)
            else:
                self.mount(GpuCurves(gpu, frame, self))
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

    def _title(self, run: RunOfJob, frame: CurveFrame) -> str:
        until = "now" if run.end is None else format_time(run.end)[5:16]
        length = format_duration(int(frame.end - frame.begin))
        gpus = f"{run.held} GPU{'s' * (run.held != 1)}"
        number = len(self._runs) - self._back
        several = f"  ·  run {number} of {len(self._runs)} ([ ])" if len(self._runs) > 1 else ""
        return (
            f"Job {printable(run.job_id)}: {format_time(run.start)[5:16]} to {until}, {length},"
            f" {gpus}{several}"
        )


def run_in_words(run: RunOfJob, now: float) -> Iterator[str]:
    """Yield what is to be said about the GPUs of a run, the most important first.

    Args:
        run: one run of a job.
        now: epoch seconds.
    """
    idle = [gpu for gpu in run.gpus if gpu.idle]
    if idle:
        names = ", ".join(gpu_name(gpu) for gpu in idle[:_NAMED])
        more = f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
        verb = "does" if run.end is None else "did"
        yield f"! {len(idle)} of {run.held} GPUs {verb} nothing: {names}{more}"
    missing = run.held - len(run.gpus)
    if missing > 0:
        yield f"what {missing} of {run.held} GPUs did is unknown: nobody measured them"
    if missing < 0 < run.held:
        yield f"samples of {len(run.gpus)} GPUs, but the job held {run.held}: some are not its own"
    lasts = [gpu.last for gpu in run.gpus if gpu.last is not None]
    if run.end is None and lasts and now - max(lasts) > 90:
        yield f"the last sample is {format_duration(int(now - max(lasts)))} old"
    if len(run.gpus) > _MOST:
        more = f"slurmkit job {printable(run.job_id)} --gpus"
        yield f"the first {_MOST} of {len(run.gpus)} GPUs; for the others run {more}"
