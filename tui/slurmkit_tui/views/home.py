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
from slurmkit_tui.themes import has_plain_signs
from slurmkit_tui.views.base import FurtherQuestion, SummaryPart, View
from slurmkit_tui.widgets.plots import (
    CLOSED,
    FREE,
    STRANDED,
    BarPart,
    GpuPlot,
    load_plotter,
    part_of_type,
    parts_bar,
    progress_bar,
    signs_of_types,
    use_in_words,
)

if TYPE_CHECKING:
    from slurmkit.state.gpumap_model import GpuCounts
    from slurmkit_tui.jobform.my_jobs import MyJobRow
    from slurmkit_tui.views.overview import Overview, Source

_OLD = 60.0  # seconds; older data names its time
_AGES_EVERY = 10.0  # seconds
_NARROW, _LOW = 100, 25  # columns and lines of the view; smaller ones have fewer boxes
_TOP = 8  # lines of the first row of boxes, at least
_TOP_SHARE = 0.36  # of the lines, also for the first row
_TIGHT = 0.8  # share of a budget; more of it used is marked
_NAME = 14  # cells of a job's name
_LEAST = 3  # lines of a box: its border, and one line
_MANY = 200  # lines: as many as a box wants


class HomeBox(Widget, can_focus=True):
    """A box of Home: a border with a title, and lines of text.

    Attributes:
        VIEW: name of the view that it opens.
    """

    VIEW: ClassVar[str]
    BINDINGS: ClassVar[list[BindingType]] = key_bindings("box")

    class Stepped(Message):
        """The next box in a direction is wanted: columns to the right, and lines down."""

        def __init__(self, right: int, down: int) -> None:
            super().__init__()
            self.right, self.down = right, down

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

    def note(self, overview: Overview) -> str:
        """Return a remark for the lower border."""
        del overview
        return ""

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """Return at most `height` lines for `width` cells."""
        raise NotImplementedError

    # Shown

    def show(self, overview: Overview) -> None:
        """Show other data."""
        self.overview = overview
        self.show_age(overview.now)
        self._redraw()

    def show_age(self, now: float) -> None:
        """Show the title, and below the box from when its data is if that is long ago."""
        if self.overview is None:
            return
        source = self.source(self.overview)
        old = source.taken is not None and (source.problem or now - source.taken > _OLD)
        at = f"{source.name} at {format_time(source.taken)[11:16]}" if old else ""
        problem = printable(source.problem or self.note(self.overview))
        titles = (
            Content(self.title(self.overview)),
            Content(" · ".join(filter(None, [at, problem]))),
        )
        if titles != self._titles:  # drawing the border takes time
            self._titles = titles
            self.border_title, self.border_subtitle = titles

    def wanted_lines(self, width: int) -> int:
        """Return how many lines all of its data takes, with its border."""
        if self.overview is None or self.source(self.overview).missing:
            return _LEAST
        return len(self.lines(self.overview, width, _MANY)) + 2

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

    def action_go_to_box(self, right: int, down: int) -> None:
        """Go to the next box in a direction."""
        self.post_message(self.Stepped(right, down))

    def on_click(self, event: events.Click) -> None:
        """Open the view that the box is taken from."""
        event.stop()
        self.action_open_box()


class GpusBox(HomeBox):
    """GPUs by type as bars."""

    VIEW = "gpus"

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        held, total = (sum(getattr(e, name) for e in overview.gpus) for name in ("held", "total"))
        return f"GPUs  {held:,} of {total:,} held" if overview.gpus else "GPUs"

    def source(self, overview: Overview) -> Source:
        """See `HomeBox.source`."""
        return overview.sources["nodes"]

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """See `HomeBox.lines`; with room for them, each type has its numbers in words, too."""
        if not overview.gpus:
            return [Content.styled("this cluster has no GPUs", "$quiet")]
        last = [_gpu_legend(overview, width)] if height > 2 else []
        bars = _gpu_bars(overview.gpus, width)
        in_words = [_gpu_words(each, width) for each in overview.gpus]
        gap, bare = Content(""), _gpu_bars(overview.gpus, width, bare=True)
        both = list(zip(bars, in_words, bare, strict=True))
        ways = (
            [line for bar, words, more in both for line in (bar, more, words, gap)],
            [line for bar, words, _ in both for line in (bar, words, gap)],
            [*(line for bar, words, _ in both for line in (bar, words)), gap],
            [line for bar, words, _ in both for line in (bar, words)],
        )
        for lines in ways:
            if height != _MANY and len(lines) + len(last) <= height:
                return [*lines, *last]
        return [*_cut(bars, height - len(last), "type"), *last]


def _gpu_bars(types: Sequence[GpuCounts], width: int, *, bare: bool = False) -> list[Content]:
    """Return a bar for each type: held GPUs in the sign of the type, which the curve has, too.

    Args:
        types: what to count.
        width: cells of a line.
        bare: whether the name and the number are left out, to make a bar thicker.
    """
    names = [each.type or "untyped" for each in types]
    signs = signs_of_types([each.type or "" for each in types])
    room = min(14, max(map(cell_len, names)))
    counts = [f"{each.free:,} free" for each in types]
    right = max(map(len, counts))
    return [
        Content.assemble(
            (_cell("" if bare else name, room), "bold"),
            " ",
            parts_bar(
                [
                    BarPart(each.held, *part_of_type(at)),
                    BarPart(each.free, *FREE),
                    BarPart(each.stranded, *STRANDED),
                    BarPart(each.closed, *CLOSED),
                ],
                width - room - right - 2,
            ),
            " ",
            ("" if bare else count.rjust(right), "$success" if each.free else "$quiet"),
        )
        for name, count, at, each in zip(names, counts, signs, types, strict=True)
    ]


def _gpu_words(of: GpuCounts, width: int) -> Content:
    words = [f"{of.held:,} of {of.total:,} held"]
    if of.largest:
        words.append(f"up to {of.largest:,} free on one node: {of.node}")
    if of.stranded:
        words.append(f"{of.stranded:,} blocked")
    if of.closed:
        words.append(f"{of.closed:,} down")
    return _quiet(f"  {', '.join(words)}", width)


def _gpu_legend(overview: Overview, width: int) -> Content:
    """Return what the signs mean; those that no bar has are left out."""
    wanted = "?" if overview.wanted is None else f"{overview.wanted:,}"
    signs = signs_of_types([each.type or "" for each in overview.gpus])
    held = [part_of_type(at) for at in dict.fromkeys(signs)]
    marks = (
        ("free", FREE, "free"), ("stranded", STRANDED, "blocked"), ("closed", CLOSED, "down")
    )  # fmt: skip
    parts: list[list[tuple[str, str]]] = [[*held, (" held", "$quiet")]]
    for name, mark, words in marks:
        if count := sum(getattr(each, name) for each in overview.gpus):
            counted = words if name == "free" else f"{count:,} {words}"
            parts.append([mark, (f" {counted}", "$quiet")])
    parts.append([(f"{wanted} wanted", "$warning")])
    wide, close = (
        Content(gap).join(Content.assemble(*part) for part in parts) for gap in ("  ", " ")
    )
    return wide if wide.cell_length <= width else close


class CurveBox(HomeBox):
    """GPUs held and wanted in the last 24 hours."""

    VIEW = "utilization"

    def compose(self) -> ComposeResult:
        """Put the plot above its legend."""
        yield GpuPlot()
        yield Static(id="home-legend", markup=False)

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        name, room = "Last 24 hours", self.size.width - 4
        words = (use_in_words(overview.curve), use_in_words(overview.curve, short=True), "")
        titles = (f"{name}  {each}".rstrip() for each in words)
        return next((title for title in titles if len(title) <= room), name)

    def source(self, overview: Overview) -> Source:
        """See `HomeBox.source`."""
        return overview.sources["utilization"]

    def note(self, overview: Overview) -> str:
        """See `HomeBox.note`: why the ledger's part is missing, beside what is known."""
        return overview.curve_note if overview.curve.is_known else ""

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
        """Show the legend; the bars of the other box have the signs of the types."""
        if self.overview is not None:
            with_types = not self.overview.gpus
            self._update_lines(self.query_one(GpuPlot).legend(with_types=with_types))


class RunningBox(HomeBox):
    """My running jobs with the time left."""

    VIEW = "mine"

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        return f"My running jobs  {_count(overview, len(overview.running))}"

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """See `HomeBox.lines`."""
        if not overview.running:
            return [Content.styled("none of your jobs is running", "$quiet")]
        jobs = overview.running[:height]
        ids, gpus = _width((job.job_id for job in jobs), 14), _width((job.gpus for job in jobs), 12)
        left = _width(map(_left, jobs), 16)
        uses = [_use(job) for job in jobs]
        use = _width((words for words, _ in uses), 5)
        curve = max(len(signs) for _, signs in uses)
        room = width - ids - gpus - left - 3 - (use + 1 if use else 0)
        # Where there is little room, the name goes before the curve, and this before the bar.
        curve = curve if room - curve - 1 >= _NAME else 0
        room -= curve + 1 if curve else 0
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
                Content.assemble((words.rjust(use), "$success"), " ") if use else "",
                Content.assemble((signs.rjust(curve), "$success"), " ") if curve else "",
                Content.assemble(_time_bar(job, bar), " ") if bar else "",
                (_left(job).rjust(left), "$warning bold" if job.ends_soon else "$success"),
            )
            for job, (words, signs) in zip(jobs, uses, strict=True)
        ]
        return _cut(rows, height, "job", len(overview.running))


def _count(overview: Overview, count: int, source: str = "mine") -> str:
    return f"{count:,}" if overview.is_known(source) else "?"


def _use(job: MyJobRow) -> tuple[str, str]:
    """Return what the GPUs of a running job do, and a curve of the last hour; empty if unknown.

    `~` stands before a number that is old, or not of all its GPUs; Mine has the details.
    """
    use = job.use
    if use is None or use.percent is None:
        return "", ""
    short = f"{use.percent:.0f}%"
    return short if use.words == short else f"~{short}", use.sparkline(plain=has_plain_signs())


def _left(job: MyJobRow) -> str:
    return "no limit" if job.left is None else f"{format_duration(job.left)} left"


def _time_bar(job: MyJobRow, width: int) -> Content:
    """Return a bar of the time that a job has used of its limit; blank without a limit."""
    elapsed = parse_elapsed(job.elapsed)
    if job.left is None or elapsed is None:
        return Content(" " * width)
    return progress_bar(elapsed, job.left, width, "$warning" if job.ends_soon else "$primary")


class WaitingBox(HomeBox):
    """My pending jobs, and why each waits."""

    VIEW = "mine"

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        return f"My waiting jobs  {_count(overview, len(overview.waiting))}"

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """See `HomeBox.lines`."""
        if not overview.waiting:
            return [Content.styled("none of your jobs is waiting", "$quiet")]
        waiting = overview.waiting[:height]
        jobs = [each.job for each in waiting]
        ids = _width((job.job_id for job in jobs), 16)
        gpus = _width((job.gpus for job in jobs), 12)
        name = min(_width((job.name for job in jobs), 20), width // 4)
        room = max(4, width - ids - gpus - name - 3)
        reasons = [printable(each.reason) for each in waiting]
        # A line of its own for each reason, if the box is high enough and they are long.
        below = 2 * len(overview.waiting) <= height and any(
            cell_len(reason) > room for reason in reasons
        )
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
        return rows if below else _cut(rows, height, "job", len(overview.waiting))


class FailedBox(HomeBox):
    """My jobs that failed since the person last saw Home."""

    VIEW = "mine"

    def title(self, overview: Overview) -> str:
        """See `HomeBox.title`."""
        return f"Failed {_since(overview)}  {_count(overview, len(overview.failed), 'ended')}"

    def source(self, overview: Overview) -> Source:
        """See `HomeBox.source`."""
        return overview.sources["ended"]

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """See `HomeBox.lines`."""
        if not overview.failed:
            return [Content.styled("nothing failed", "$quiet")]
        jobs = overview.failed[:height]
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
        return _cut(rows, height, "job", len(overview.failed))


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
    style = "$warning" if share is not None and share >= _TIGHT else "$primary"
    room = max(4, min(24, width - cell_len(words) - 12))
    drawn = Content("?") if share is None else progress_bar(share, 1 - share, room, style)
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
        more = ", more unknown" if _unknown(overview) else ""
        return f"Needs attention  {len(overview.attention)}{more}"

    def source(self, overview: Overview) -> Source:
        """See `HomeBox.source`: of several, and the other boxes say how old they are."""
        return overview.sources["mine"]._replace(taken=overview.now, problem="")

    def show(self, overview: Overview) -> None:
        """See `HomeBox.show`; a border of another colour says that there is something."""
        self.set_class(bool(overview.attention), "-alert")
        super().show(overview)

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """See `HomeBox.lines`."""
        rows = [
            Content.assemble(("! ", "$warning bold"), _cell(each.words, width - 2).rstrip())
            for each in overview.attention
        ]
        if unknown := _unknown(overview):
            rows.append(_quiet(f"? unknown: {', '.join(unknown)}", width))
        elif not rows:
            nothing = ("nothing needs attention", "$quiet")
            rows.append(Content.assemble(("✓ ", "$success"), nothing))
        return _cut(rows, height, "point")

    def action_open_box(self) -> None:
        """Open the view of the most urgent point."""
        found = self.overview.attention if self.overview else ()
        self.post_message(View.Opened(found[0].view if found else self.VIEW))


def _unknown(overview: Overview) -> list[str]:
    """Return what nobody has answered yet, so that it may need attention, too."""
    names = {"mine": "my jobs in the queue", "ended": "my jobs that ended", "nodes": "nodes"}
    return [words for name, words in names.items() if not overview.is_known(name)]


def _cut(
    rows: Sequence[Content], height: int, noun: str, count: int | None = None
) -> list[Content]:
    """Return as many rows as there is room for; the last line counts the others.

    Args:
        rows: the first rows, at least `height` if there are so many.
        height: lines.
        noun: what a row is about.
        count: of all rows; those that are given if None.
    """
    total = len(rows) if count is None else count
    if total <= height:
        return list(rows)
    kept = max(0, height - 1)
    more = total - kept
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
    ASK = FeedQuestion("mine", ("queue",))
    HAS_ROWS = False
    SHOWS_PARTS = True
    # What the boxes are taken from, no more often than these views ask, most of it less often.
    also = (
        FurtherQuestion(FeedQuestion("nodes"), 3.0),
        FurtherQuestion(FeedQuestion("queue"), 3.0),
        FurtherQuestion(FeedQuestion("mine", ("ended",)), 6.0),
        FurtherQuestion(FeedQuestion("utilization", ("gpu-type", "24h")), 30.0),
        FurtherQuestion(FeedQuestion("usage"), 30.0),
        FurtherQuestion(FeedQuestion("gpus-now"), 3.0),
    )

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._overview: Overview | None = None
        self._session: ClusterSession | None = None
        self._lines: list[int] = []  # of each row of boxes

    def compose(self) -> ComposeResult:
        """Put the boxes into the grid; the stylesheet places them."""
        yield GpusBox()
        yield CurveBox()
        yield RunningBox()
        yield WaitingBox()
        yield FailedBox()
        yield BudgetBox()
        yield AttentionBox()

    def on_mount(self) -> None:
        """Keep the ages of the boxes up to date, also while nothing answers."""
        self.set_interval(_AGES_EVERY, self._show_ages)

    def _show_ages(self) -> None:
        if self._session is not None and self.display:
            for box in self.query(HomeBox):
                box.show_age(self._session.clock())

    def on_resize(self, event: events.Resize) -> None:
        """Show fewer boxes on a small screen."""
        self.set_class(event.size.width < _NARROW, "-narrow")
        self.set_class(event.size.height < _LOW, "-low")
        self._place()

    def make(self, answer: FeedAnswer | None, session: ClusterSession) -> Overview:
        """See `View.make`."""
        from slurmkit_tui.views.overview import HomeQuestions, make_overview  # noqa: PLC0415 - after the first paint

        load_plotter()
        self._session = session
        nodes, queue, ended, utilization, usage, gpus_now = (each.ask for each in self.also)
        asks = HomeQuestions(self.ASK, ended, nodes, queue, utilization, usage, gpus_now)
        return make_overview(answer, session, asks)

    def take(self, prepared: Overview) -> None:
        """See `View.take`."""
        self._overview = prepared
        for box in self.query(HomeBox):
            box.show(prepared)
        self._place()
        self.post_message(self.Changed())

    def _place(self) -> None:
        """Give each row of boxes the lines that it needs, and what is left to the curve."""
        overview, height = self._overview, self.size.height
        if overview is None or not height:
            return
        without_budget = overview.is_known("usage") and not overview.budgets
        self.set_class(without_budget, "-no-budget")
        boxes = {type(box): box for box in self.query(HomeBox)}
        rows: list[tuple[type[HomeBox], ...]] = [(RunningBox, WaitingBox), (AttentionBox,)]
        if self.has_class("-narrow"):
            rows[:1] = [(RunningBox,), (WaitingBox,)]
        if not self.has_class("-low"):
            rows.insert(-1, (FailedBox,) if without_budget else (FailedBox, BudgetBox))
        wants = [
            max(boxes[kind].wanted_lines(self.size.width // len(row) - 4) for kind in row)
            for row in rows
        ]
        lines = share_lines(height, wants)
        if lines != self._lines:  # each change lays all boxes out again
            self._lines = lines
            self.styles.grid_rows = " ".join(map(str, lines))

    def say(self, words: str) -> None:
        """See `View.say`."""
        for box in self.query(HomeBox):
            box.say(words)

    def summary(self) -> Iterable[SummaryPart]:
        """See `View.summary`."""
        overview = self._overview
        if overview is None:
            return
        free = sum(each.free for each in overview.gpus)
        yield (f"{_count(overview, free, 'nodes')} GPUs free", "$success")
        yield f"{_count(overview, len(overview.running))} of my jobs running"
        yield (f"{_count(overview, len(overview.waiting))} waiting", "$warning")

    def focus_main(self) -> None:
        """See `View.focus_main`."""
        self.query(HomeBox).first().focus()

    def on_home_box_stepped(self, message: HomeBox.Stepped) -> None:
        """Go to the nearest box in a direction, if there is one."""
        message.stop()
        boxes = [box for box in self.query(HomeBox) if box.display]
        here = next((box.region for box in boxes if box.has_focus), None)
        if here is None:
            return
        found = [
            (abs(box.region.y - here.y), abs(box.region.x - here.x), at)
            for at, box in enumerate(boxes)
            if message.right * (box.region.x - here.x) + message.down * (box.region.y - here.y) > 0
            and (message.down or box.region.y == here.y)
        ]
        if found:
            boxes[min(found)[-1]].focus()


def share_lines(height: int, wants: Sequence[int]) -> list[int]:
    """Return the lines of each row of boxes: of the first row, then of the others.

    Every row has some lines. Of the rest, the last row, which says what needs attention, gets what
    it wants, then the others from the top; what is left goes to the first row.

    Args:
        height: lines of all rows together.
        wants: lines that all data of the rows below the first one takes.
    """
    first = max(_TOP, int(height * _TOP_SHARE))
    lines = [_LEAST] * len(wants)
    left = height - first - sum(lines)
    for at in (len(wants) - 1, *range(len(wants) - 1)):
        more = min(max(0, left), max(0, wants[at] - lines[at]))
        lines[at] += more
        left -= more
    return [max(_LEAST, first + left), *lines]
