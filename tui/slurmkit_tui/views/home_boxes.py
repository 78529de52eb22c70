"""The boxes of Home: what each shows of an overview, and the view that it opens."""

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
from slurmkit_tui.themes import has_plain_signs
from slurmkit_tui.views.base import View
from slurmkit_tui.widgets.plots import (
    CLOSED,
    FREE,
    IDLE,
    STRANDED,
    BarPart,
    GpuPlot,
    part_of_type,
    parts_bar,
    progress_bar,
    signs_of_types,
    use_in_words,
)

if TYPE_CHECKING:
    from slurmkit.state.gpumap_model import GpuCounts
    from slurmkit_tui.jobform.gpu_use import UsedGpus
    from slurmkit_tui.jobform.my_jobs import MyJobRow
    from slurmkit_tui.views.overview import Overview, Source

_OLD = 60.0  # seconds; older data names its time
_TIGHT = 0.8  # share of a budget; more of it used is marked
_NAME = 14  # cells of a job's name
LEAST_LINES = 3  # lines of a box: its border, and one line
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

    def note(self, overview: Overview, now: float) -> str:
        """Return a remark for the lower border."""
        del overview, now
        return ""

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """Return at most `height` lines for `width` cells."""
        raise NotImplementedError

    def count_lines(self, overview: Overview, width: int) -> int:
        """Return how many lines all of its data takes, or `_MANY`."""
        return len(self.lines(overview, width, _MANY))

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
        problem = printable(source.problem or self.note(self.overview, now))
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
            return LEAST_LINES
        return self.count_lines(self.overview, width) + 2

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
        held, total = (sum(getattr(e, name) for e in overview.gpus) for name in ("held", "total"))
        return f"GPUs  {held:,} of {total:,} held" if overview.gpus else "GPUs"

    def source(self, overview: Overview) -> Source:
        return overview.sources["nodes"]

    def note(self, overview: Overview, now: float) -> str:
        """Return how many of the held GPUs work, and the age of that number."""
        if not overview.is_known("nodes") or not any(each.held for each in overview.gpus):
            return ""
        uses = [use for use in overview.used.values() if use.is_recent(now)]
        if not uses:
            return "used: unknown"
        age = format_duration(int(now - min(use.oldest for use in uses)))
        measured = sum(use.measured for use in uses)
        held = sum(each.held for each in overview.gpus)
        some = f" of {measured:,} measured" if measured < held else ""
        return f"{_amount(sum(use.used for use in uses))} used{some}, {age} ago"

    def show_age(self, now: float) -> None:
        """Show the ages in the box and on its border, also while nothing answers."""
        super().show_age(now)
        if self.overview is not None and now > self.overview.now:
            self.overview = self.overview._replace(now=now)
            self._redraw()

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        """Return a bar for each type; with enough lines, also its numbers in words."""
        if not overview.gpus:
            return [Content.styled("this cluster has no GPUs", "$quiet")]
        last = [_gpu_legend(overview, width)] if height > 2 else []
        bars = _gpu_bars(overview, width)
        in_words = [_gpu_words(each, _used(overview, each), width) for each in overview.gpus]
        gap, bare = Content(""), _gpu_bars(overview, width, bare=True)
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


def _used(overview: Overview, of: GpuCounts) -> UsedGpus | None:
    """Return how many held GPUs of a type work; None is unknown."""
    use = overview.used.get(of.type)
    return use if use and of.held and use.is_recent(overview.now) else None


def _is_measured(overview: Overview) -> bool:
    """Return whether the use of any held GPU is known."""
    return any(_used(overview, each) for each in overview.gpus)


def _amount(gpus: float) -> str:
    return format_number(round(gpus, 1))


def _gpu_bars(overview: Overview, width: int, *, bare: bool = False) -> list[Content]:
    """Return a bar for each type, with the signs of the curve.

    Where any use is known, only the held GPUs that work have the sign of their type.

    Args:
        overview: has the counts.
        width: cells of a line.
        bare: whether the name and the number are left out, to make a bar thicker.
    """
    types = overview.gpus
    names = [each.type or "untyped" for each in types]
    used = [min(use.used, each.held) if (use := _used(overview, each)) else 0 for each in types]
    if not _is_measured(overview):
        used = [each.held for each in types]
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
                    BarPart(work, *part_of_type(at)),
                    BarPart(each.held - work, IDLE, part_of_type(at)[1]),
                    BarPart(each.free, *FREE),
                    BarPart(each.stranded, *STRANDED),
                    BarPart(each.closed, *CLOSED),
                ],
                width - room - right - 2,
            ),
            " ",
            ("" if bare else count.rjust(right), "$success" if each.free else "$quiet"),
        )
        for name, count, at, each, work in zip(names, counts, signs, types, used, strict=True)
    ]


def _gpu_words(of: GpuCounts, use: UsedGpus | None, width: int) -> Content:
    words = [f"{of.held:,} of {of.total:,} held"]
    if use:
        some = f" of {use.measured:,} measured" if use.measured < of.held else ""
        words.append(f"{_amount(use.used)} used{some}")
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
    if _is_measured(overview):
        parts[0][-1] = (" used", "$quiet")
        parts.append([(IDLE, "$foreground"), (" held", "$quiet")])
    for name, mark, words in marks:
        if count := sum(getattr(each, name) for each in overview.gpus):
            counted = words if name == "free" else f"{count:,} {words}"
            parts.append([mark, (f" {counted}", "$quiet")])
    parts.append([(f"{wanted} wanted{_wanted_age(overview)}", "$warning")])
    tight = [[mark, *((words.lstrip(), style) for words, style in rest)] for mark, *rest in parts]
    tight[0] = [held[0], *tight[0][-1:]]  # one sign for all types
    bare = [*tight[:-1], [(f"{wanted} wanted", "$warning")]]
    ways = [
        Content(gap).join(Content.assemble(*part) for part in each)
        for gap, each in (("  ", parts), (" ", parts), (" ", tight), (" ", bare))
    ]
    return next((way for way in ways if way.cell_length <= width), ways[-1])


def _wanted_age(overview: Overview) -> str:
    """Return the age of the number of wanted GPUs if it is old."""
    taken = overview.wanted_taken
    if taken is None or overview.now - taken <= _OLD:
        return ""
    return f" {format_duration(int(overview.now - taken))} ago"


class CurveBox(HomeBox):
    """GPUs held and wanted in the last 24 hours."""

    VIEW = "utilization"

    def compose(self) -> ComposeResult:
        """Put the plot above its legend."""
        yield GpuPlot()
        yield Static(id="home-legend", markup=False)

    def title(self, overview: Overview) -> str:
        name, room = f"Last {len(overview.curve.begins)} hours", self.size.width - 4
        words = (use_in_words(overview.curve), use_in_words(overview.curve, short=True), "")
        titles = (f"{name}  {each}".rstrip() for each in words)
        return next((title for title in titles if len(title) <= room), name)

    def source(self, overview: Overview) -> Source:
        return overview.sources["utilization"]

    def note(self, overview: Overview, now: float) -> str:
        """Return why the ledger's part of the curve is missing."""
        del now
        return overview.curve_note if overview.curve.is_known else ""

    def show(self, overview: Overview) -> None:
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
        return f"My running jobs  {count_text(overview, len(overview.running))}"

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        if not overview.running:
            return [Content.styled("none of your jobs is running", "$quiet")]
        jobs = overview.running[:height]
        ids, gpus = _width((job.job_id for job in jobs), 14), _width((job.gpus for job in jobs), 12)
        left = _width(map(_left, jobs), 16)
        uses = [_use(job) for job in jobs]
        use = _width((words for words, _, _ in uses), 5)
        curve = max(len(signs) for _, signs, _ in uses)
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
                Content.assemble((words.rjust(use), colour), " ") if use else "",
                Content.assemble((signs.rjust(curve), colour), " ") if curve else "",
                Content.assemble(_time_bar(job, bar), " ") if bar else "",
                (_left(job).rjust(left), "$warning bold" if job.ends_soon else "$success"),
            )
            for job, (words, signs, colour) in zip(jobs, uses, strict=True)
        ]
        return _cut(rows, height, "job", len(overview.running))

    def count_lines(self, overview: Overview, width: int) -> int:
        """Count a line for each job, without drawing them."""
        del width
        return min(max(1, len(overview.running)), _MANY)


def count_text(overview: Overview, count: int, source: str = "mine") -> str:
    """Return a number; `?` while the source that it comes from is unknown."""
    return f"{count:,}" if overview.is_known(source) else "?"


def _use(job: MyJobRow) -> tuple[str, str, str]:
    """Return what the GPUs of a running job do, a curve of the last hour, and their colour.

    The texts are empty if nobody knows. `~` stands before a number that is old, or not of all its
    GPUs; Mine has the details.
    """
    use = job.use
    if use is None or use.percent is None:
        return "", "", "$quiet"
    colour = "$warning" if use.is_low else "$secondary"
    short = f"{use.percent:.0f}%"
    words = short if use.words == short else f"~{short}"
    return words, use.sparkline(plain=has_plain_signs()), colour


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
        return f"My waiting jobs  {count_text(overview, len(overview.waiting))}"

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        from slurmkit_tui.views.overview import waiting_reason  # noqa: PLC0415 - after the first paint

        if not overview.waiting:
            return [Content.styled("none of your jobs is waiting", "$quiet")]
        jobs = overview.waiting[:height]
        ids = _width((job.job_id for job in jobs), 16)
        gpus = _width((job.gpus for job in jobs), 12)
        name = min(_width((job.name for job in jobs), 20), width // 4)
        room = max(4, width - ids - gpus - name - 3)
        reasons = [printable(waiting_reason(job)) for job in jobs]
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

    def count_lines(self, overview: Overview, width: int) -> int:
        """Count a line for each job where there are many."""
        count = len(overview.waiting)
        return min(count, _MANY) if 2 * count > _MANY else super().count_lines(overview, width)


class FailedBox(HomeBox):
    """My jobs that failed since the person last saw Home."""

    VIEW = "mine"

    def title(self, overview: Overview) -> str:
        return f"Failed {_since(overview)}  {count_text(overview, len(overview.failed), 'ended')}"

    def source(self, overview: Overview) -> Source:
        return overview.sources["ended"]

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
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

    def count_lines(self, overview: Overview, width: int) -> int:
        """Count a line for each job, without drawing them."""
        del width
        return min(max(1, len(overview.failed)), _MANY)


def _since(overview: Overview) -> str:
    if overview.since is None or overview.now - overview.since > 2 * 86400:
        return "in the last two days"
    today = format_time(overview.now)[:10] == format_time(overview.since)[:10]
    return f"since {format_time(overview.since)[11 if today else 5 : 16]}"


class BudgetBox(HomeBox):
    """What is left of the budgets that the person may see."""

    VIEW = "usage"

    def title(self, overview: Overview) -> str:
        del overview
        return "Budget left"

    def source(self, overview: Overview) -> Source:
        return overview.sources["usage"]

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
        if not overview.budgets:
            return [Content.styled("no budget is set", "$quiet")]
        rows = [line for row in overview.budgets for line in _budget_lines(row, width)]
        return _cut(rows, height, "line")


def _budget_lines(row: Mapping[str, Any], width: int) -> list[Content]:
    """Return the line of a budget; then what I used of it and when it runs out, if known."""
    used, of = row.get("gpu_hours_used"), row.get("gpu_hours_budget")
    left = row.get("gpu_hours_left")
    unit = row.get("unit") or "GPU-hours"
    words = "?" if left is None else f"{format_number(left)} of {format_number(of or 0)} {unit}"
    name = _cell(str(row.get("pi")), 10)
    share = None if used is None or not of else min(1.0, max(0.0, used / of))
    style = "$warning" if share is not None and share >= _TIGHT else "$primary"
    room = max(4, min(24, width - cell_len(words) - 12))
    drawn = Content("?") if share is None else progress_bar(share, 1 - share, room, style)
    line = Content.assemble((name, "bold"), " ", drawn, f" {words}")
    lines = [line]
    if row.get("mine"):
        used_by_me = f"{' ' * 11}used by you: {format_number(row['mine'])}"
        lines.append(Content.styled(used_by_me, "$quiet"))
    if row.get("runs_out") == "used up":
        lines.append(Content.styled(f"{' ' * 11}used up", "$warning"))
    elif row.get("runs_out"):
        ends = f"{' ' * 11}runs out {row['runs_out']} at this rate"
        lines.append(Content.styled(ends, "$warning"))
    return lines


class AttentionBox(HomeBox):
    """What needs attention, the most urgent first."""

    VIEW = "health"

    def title(self, overview: Overview) -> str:
        more = ", more unknown" if _unknown(overview) else ""
        return f"Needs attention  {len(overview.attention)}{more}"

    def source(self, overview: Overview) -> Source:
        """Return the source without its age: the other boxes name the age of theirs."""
        return overview.sources["mine"]._replace(taken=overview.now, problem="")

    def show(self, overview: Overview) -> None:
        """Give the box a border of another colour if something needs attention."""
        self.set_class(bool(overview.attention), "-alert")
        super().show(overview)

    def lines(self, overview: Overview, width: int, height: int) -> Sequence[Content]:
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
    shown = max(0, height - 1)
    more = total - shown
    word = noun if more == 1 else f"{noun}s"
    if not shown:
        return [rows[0]] if height else []
    return [*rows[:shown], Content.styled(f"… {more} more {word}; Enter shows all", "$quiet")]


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
