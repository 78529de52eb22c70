"""Home: the cluster and my jobs in one look. Each box opens the view it is taken from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from slurmkit.formats.display import format_number, format_time, printable
from slurmkit.formats.durations import format_duration, parse_elapsed
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.views.base import FurtherQuestion, SummaryPart, View
from slurmkit_tui.widgets.plots import BarPart, GpuPlot, load_plotter, parts_bar

if TYPE_CHECKING:
    from slurmkit_tui.jobform.my_jobs import MyJobRow
    from slurmkit_tui.views.overview import Overview, OverviewMaker, Source

_OLD = 60.0  # seconds; older data names its time
_NARROW, _LOW = 100, 25  # columns and lines of the view; smaller ones have fewer boxes
_SOON = 600  # seconds; less time left is marked


class HomeBox(Widget, can_focus=True):
    """A box of Home: a border with a title, and lines of text.

    Attributes:
        VIEW: name of the view that it opens.
    """

    VIEW: ClassVar[str]
    BINDINGS: ClassVar[list[BindingType]] = key_bindings("box")

    class Stepped(Message):
        """The next box is wanted, or the one before."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self) -> None:
        super().__init__(id=f"box-{type(self).__name__.removesuffix('Box').lower()}")
        self.overview: Overview | None = None
        self._shown = Content("asking squeue…")
        self._titles = (Content(""), Content(""))

    def render(self) -> Content:
        """Draw the lines."""
        return self._shown

    # For subclasses

    def title(self, overview: Overview) -> str:
        """Return the title with the most important number."""
        raise NotImplementedError

    def source(self, overview: Overview) -> Source:
        """Return where the data is from."""
        return overview.sources["mine"]

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """Return at most `height` lines for `width` cells."""
        raise NotImplementedError

    # Shown

    def show(self, overview: Overview) -> None:
        """Show other data."""
        self.overview = overview
        source = self.source(overview)
        title = Content(self.title(overview))
        old = source.taken is not None and (source.problem or overview.now - source.taken > _OLD)
        at = f"{source.name} at {format_time(source.taken)[11:16]}" if old else ""
        problem = printable(source.problem) if old else ""
        age = Content(" · ".join(filter(None, [at, problem])))
        if (title, age) != self._titles:  # drawing the border takes time
            self._titles = (title, age)
            self.border_title, self.border_subtitle = title, age
        self._redraw()

    def say(self, words: str) -> None:
        """Show a text while there is no data."""
        if self.overview is None:
            self._update_lines(Content(words))

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._redraw()

    def _redraw(self) -> None:
        width, height = self.content_size
        if self.overview is None or not width or not height:
            return
        missing = self.source(self.overview).missing
        lines = (
            [Content.styled(printable(missing), "$quiet")]
            if missing
            else self.lines(self.overview, width, height)
        )
        self._update_lines(Content("\n").join(lines))

    def _update_lines(self, lines: Content) -> None:
        """Show other lines; the same ones are not drawn again."""
        if not lines.is_same(self._shown):  # `==` would compare the text alone
            self._shown = lines
            self.refresh()

    def action_open_box(self) -> None:
        """Open the view that the box is taken from."""
        self.post_message(View.Opened(self.VIEW))

    def action_next_box(self, step: int) -> None:
        """Go to another box."""
        self.post_message(self.Stepped(step))

    def on_click(self, event: events.Click) -> None:
        """Open the view that the box is taken from."""
        event.stop()
        self.action_open_box()


class GpusBox(HomeBox):
    """GPUs by type as bars."""

    VIEW = "gpus"

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        total, held = (sum(getattr(e, name) for e in overview.gpus) for name in ("total", "held"))
        return f"GPUs  {held} of {total} held" if overview.gpus else "GPUs"

    def source(self, overview: Overview) -> Source:
        """See `HomeBox.source`."""
        return overview.sources["nodes"]

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """See `HomeBox.lines`."""
        if not overview.gpus:
            return [Content.styled("this cluster has no GPUs", "$quiet")]
        last = [_gpu_legend(overview)] if height > 2 else []
        names = [each.name or "untyped" for each in overview.gpus]
        room = min(14, max(map(cell_len, names)))
        counts = [f"{each.free} free" for each in overview.gpus]
        right = max(map(len, counts))
        rows = [
            Content.assemble(
                (set_cell_size(printable(name), room), "bold"),
                " ",
                parts_bar(
                    [
                        BarPart(each.held, "█", "$secondary"),
                        BarPart(each.free, "░", "$success"),
                        BarPart(each.down, "×", "$error"),
                    ],
                    width - room - right - 2,
                ),
                " ",
                (count.rjust(right), "$success" if each.free else "$quiet"),
            )
            for name, count, each in zip(names, counts, overview.gpus, strict=True)
        ]
        return [*_cut(rows, height - len(last), "type"), *last]


def _gpu_legend(overview: Overview) -> Content:
    down = sum(each.down for each in overview.gpus)
    wanted = "?" if overview.wanted is None else f"{overview.wanted:,}"
    return Content.assemble(
        ("█", "$secondary"), (" held  ", "$quiet"),
        ("░", "$success"), (" free  ", "$quiet"),
        *([("×", "$error"), (f" {down} down  ", "$quiet")] if down else []),
        (f"{wanted} wanted", "$warning"),
    )  # fmt: skip


class CurveBox(HomeBox):
    """GPUs held and wanted in the last 24 hours."""

    VIEW = "utilization"

    def compose(self) -> ComposeResult:
        """Put the plot above its legend."""
        yield GpuPlot()
        yield Static(id="home-legend", markup=False)

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        del overview
        return "Last 24 hours"

    def source(self, overview: Overview) -> Source:
        """See `HomeBox.source`."""
        return overview.sources["utilization"]

    def show(self, overview: Overview) -> None:
        """See `HomeBox.show`."""
        note = overview.curve_note or self.source(overview).missing
        self.query_one(GpuPlot).show(overview.curve, f"no curve: {printable(note)}" if note else "")
        super().show(overview)

    def render(self) -> Content:
        """Draw nothing but the plot and its legend."""
        return Content("")

    def _update_lines(self, lines: Content) -> None:
        """Show another legend."""
        self.query_one("#home-legend", Static).update(lines, layout=False)

    def _redraw(self) -> None:
        """Show the legend; without the ledger also why."""
        if self.overview is None:
            return
        note = self.overview.curve_note
        legend = self.query_one(GpuPlot).legend()
        if note and self.overview.curve.is_known:
            legend = legend + Content.styled(f"  {printable(note)}", "$quiet")
        self._update_lines(legend)


class RunningBox(HomeBox):
    """My running jobs with the time left."""

    VIEW = "mine"

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        return f"My running jobs  {len(overview.running)}"

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """See `HomeBox.lines`."""
        if not overview.running:
            return [Content.styled("none of your jobs is running", "$quiet")]
        jobs = overview.running
        ids, gpus = _width((job.job_id for job in jobs), 14), _width((job.gpus for job in jobs), 12)
        left = _width(map(_left, jobs), 16)
        room = width - ids - gpus - left - 3
        bar = min(20, room // 3) if room >= 24 else 0
        name = max(4, room - bar - (1 if bar else 0))
        rows = [
            Content.assemble(
                (_cell(job.job_id, ids), "$quiet"),
                " ",
                _cell(job.name, name),
                " ",
                (_cell(job.gpus, gpus), "$secondary"),
                " ",
                Content.assemble(_time_bar(job, bar), " ") if bar else "",
                (_left(job).rjust(left), "$warning bold" if _ends_soon(job) else "$success"),
            )
            for job in jobs
        ]
        return _cut(rows, height, "job")


def _left(job: MyJobRow) -> str:
    return "no limit" if job.left is None else f"{format_duration(job.left)} left"


def _ends_soon(job: MyJobRow) -> bool:
    return job.left is not None and job.left < _SOON


def _time_bar(job: MyJobRow, width: int) -> Content:
    """Return a bar of the time that a job has used of its limit; blank without a limit."""
    elapsed = parse_elapsed(job.elapsed)
    if job.left is None or elapsed is None:
        return Content(" " * width)
    parts = [BarPart(elapsed, "█", "$primary"), BarPart(job.left, "░", "$quiet")]
    return parts_bar(parts, width)


class WaitingBox(HomeBox):
    """My pending jobs, and why each waits."""

    VIEW = "mine"

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        return f"My waiting jobs  {len(overview.waiting)}"

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """See `HomeBox.lines`."""
        from slurmkit_tui.views.overview import waiting_reason  # noqa: PLC0415 - after the first paint

        if not overview.waiting:
            return [Content.styled("none of your jobs is waiting", "$quiet")]
        jobs = overview.waiting
        ids = _width((job.job_id for job in jobs), 16)
        gpus = _width((job.gpus for job in jobs), 12)
        name = min(_width((job.name for job in jobs), 20), width // 4)
        room = max(4, width - ids - gpus - name - 3)
        reasons = [printable(waiting_reason(job)) for job in jobs]
        # A line of its own for each reason, if the box is high enough and they are long.
        below = 2 * len(jobs) <= height and any(cell_len(reason) > room for reason in reasons)
        rows: list[Content] = []
        for job, reason in zip(jobs, reasons, strict=True):
            head: list[str | tuple[str, str]] = [
                (_cell(job.job_id, ids), "$quiet"),
                " ",
                _cell(job.name, width - ids - gpus - 2 if below else name),
                " ",
                (_cell(job.gpus, gpus), "$secondary"),
            ]
            if below:
                why = _cell(reason, width - ids - 1).rstrip()
                rows += [
                    Content.assemble(*head),
                    Content.assemble(" " * (ids + 1), (why, "$warning")),
                ]
            else:
                why = _cell(reason, room).rstrip()
                rows.append(Content.assemble(*head, " ", (why, "$warning")))
        return _cut(rows, height, "job")


class FailedBox(HomeBox):
    """My jobs that failed since the person last saw Home."""

    VIEW = "mine"

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        return f"Failed {_since(overview)}  {len(overview.failed)}"

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """See `HomeBox.lines`."""
        if overview.without_history:
            return [_quiet(f"unknown: {overview.without_history}", width)]
        if not overview.failed:
            return [Content.styled("nothing failed", "$quiet")]
        jobs = overview.failed
        ids, state = _width((job.job_id for job in jobs), 14), _width((j.state for j in jobs), 14)
        rows = [
            Content.assemble(
                (_cell(job.job_id, ids), "$quiet"),
                " ",
                (_cell(job.state, state), "$error bold"),
                " ",
                format_time(job.ended)[11:16],
                " ",
                _cell(job.name, max(4, width - ids - state - 8)),
            )
            for job in jobs
        ]
        return _cut(rows, height, "job")


def _since(overview: Overview) -> str:
    if overview.since is None or overview.now - overview.since > 2 * 86400:
        return "in the last two days"
    today = format_time(overview.now)[:10] == format_time(overview.since)[:10]
    return f"since {format_time(overview.since)[11 if today else 5 : 16]}"


class BudgetBox(HomeBox):
    """What is left of the budgets that the person may see."""

    VIEW = "usage"

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        del overview
        return "Budget left"

    def source(self, overview: Overview) -> Source:
        """See `HomeBox.source`."""
        return overview.sources["usage"]

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """See `HomeBox.lines`."""
        if not overview.budgets:
            return [Content.styled("no budget is set", "$quiet")]
        rows = [line for row in overview.budgets for line in _budget_lines(row, width)]
        return _cut(rows, height, "line")


def _budget_lines(row: Mapping[str, Any], width: int) -> list[Content]:
    """Return the line of a budget, and one that says when it runs out, if that is known."""
    used, of = row.get("gpu_hours_used"), row.get("gpu_hours_budget")
    left = row.get("gpu_hours_left")
    words = "?" if left is None else f"{format_number(left)} of {format_number(of or 0)} GPU-hours"
    name = _cell(str(row.get("pi")), 10)
    share = None if used is None or not of else min(1.0, max(0.0, used / of))
    bar = [
        BarPart(share or 0.0, "█", "$warning"), BarPart(1 - (share or 0.0), "░", "$success")
    ]  # fmt: skip
    room = max(4, min(24, width - cell_len(words) - 12))
    drawn = Content("?") if share is None else parts_bar(bar, room)
    line = Content.assemble((name, "bold"), " ", drawn, f" {words}")
    if not row.get("runs_out"):
        return [line]
    ends = f"{' ' * 11}runs out {row['runs_out']} at this rate"
    return [line, Content.styled(ends, "$warning")]


class AttentionBox(HomeBox):
    """What needs attention, the most urgent first."""

    VIEW = "health"

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        return f"Needs attention  {len(overview.attention)}"

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """See `HomeBox.lines`."""
        rows = [
            Content.assemble(("! ", "$warning bold"), _cell(each.words, width - 2).rstrip())
            for each in overview.attention
        ] or [Content.assemble(("✓ ", "$success"), ("nothing needs attention", "$quiet"))]
        return _cut(rows, height, "point")

    def action_open_box(self) -> None:
        """Open the view of the most urgent point."""
        found = self.overview.attention if self.overview else ()
        self.post_message(View.Opened(found[0].view if found else self.VIEW))


def _cut(rows: Sequence[Content], height: int, noun: str) -> list[Content]:
    """Return as many rows as there is room for; the last line counts the others."""
    if len(rows) <= height:
        return list(rows)
    kept = max(0, height - 1)
    more = len(rows) - kept
    word = noun if more == 1 else f"{noun}s"
    if not kept:
        return [rows[0]] if height else []
    return [*rows[:kept], Content.styled(f"… {more} more {word}; Enter shows all", "$quiet")]


def _width(texts: Iterable[str], most: int) -> int:
    return min(most, max((cell_len(printable(text)) for text in texts), default=0))


def _cell(text: str, width: int) -> str:
    """Return a text in exactly `width` cells; one that is cut ends with `…`."""
    text = printable(text)
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - 1)) + "…"


def _quiet(text: str, width: int) -> Content:
    return Content.styled(_cell(text, width).rstrip(), "$quiet")


class HomeView(View):
    """The cluster and my jobs in boxes; see the module."""

    NAME = "home"
    ASK = FeedQuestion("mine")
    HAS_ROWS = False
    # What the boxes are taken from, no more often than these views ask, most of it less often.
    also = (
        FurtherQuestion(FeedQuestion("nodes"), 3.0),
        FurtherQuestion(FeedQuestion("queue"), 3.0),
        FurtherQuestion(FeedQuestion("utilization", ("gpu-type", "24h")), 30.0),
        FurtherQuestion(FeedQuestion("usage"), 30.0),
    )

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._maker: OverviewMaker | None = None
        self._overview: Overview | None = None

    def compose(self) -> ComposeResult:
        """Put the boxes into the grid; the stylesheet places them."""
        yield GpusBox()
        yield CurveBox()
        yield RunningBox()
        yield WaitingBox()
        yield FailedBox()
        yield BudgetBox()
        yield AttentionBox()

    def on_resize(self, event: events.Resize) -> None:
        """Show fewer boxes on a small screen."""
        self.set_class(event.size.width < _NARROW, "-narrow")
        self.set_class(event.size.height < _LOW, "-low")

    def make(self, answer: FeedAnswer, session: ClusterSession) -> Overview:
        """See `View.make`."""
        from slurmkit_tui.views.overview import OverviewMaker  # noqa: PLC0415 - after the first paint

        load_plotter()
        self._maker = self._maker or OverviewMaker()
        also = [poll.ask for poll in self.also]
        return self._maker.make(answer.value, session, also, answer.taken)

    def take(self, prepared: Overview) -> None:
        """See `View.take`."""
        self._overview = prepared
        for box in self.query(HomeBox):
            box.show(prepared)
        self.post_message(self.Changed())

    def say(self, words: str) -> None:
        """See `View.say`."""
        for box in self.query(HomeBox):
            box.say(words)

    def summary(self) -> Iterable[SummaryPart]:
        """See `View.summary`."""
        if self._overview is None:
            return
        free = sum(each.free for each in self._overview.gpus)
        yield (f"{free:,} GPUs free", "$success")
        yield f"{len(self._overview.running):,} of my jobs running"
        yield (f"{len(self._overview.waiting):,} waiting", "$warning")

    def focus_main(self) -> None:
        """See `View.focus_main`."""
        self.query(HomeBox).first().focus()

    def on_home_box_stepped(self, message: HomeBox.Stepped) -> None:
        """Go to the next visible box, or the one before."""
        message.stop()
        boxes = [box for box in self.query(HomeBox) if box.display]
        at = next((at for at, box in enumerate(boxes) if box.has_focus), 0)
        boxes[(at + message.step) % len(boxes)].focus()
