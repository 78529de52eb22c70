"""View of utilization: a curve of GPUs over time, and bars by type, partition or account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.css.scalar import Scalar
from textual.widgets import Static

from slurmkit.formats.display import format_number
from slurmkit.state.gpu_use import SPANS
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.feed.composed import CurrentUse, Utilization
from slurmkit_tui.feed.history import GpuCurve, make_curve, span_of_days
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.views.base import SummaryPart, TableViewWithNotes
from slurmkit_tui.widgets.listing import (
    ArrangedRows,
    Listing,
    RowContext,
    TableColumn,
    longest_text,
)
from slurmkit_tui.widgets.plots import GpuPlot, load_plotter, share_bar, use_in_words

DIMENSIONS = {"gpu-type": "GPU type", "partition": "partition", "account": "account"}
_BAR = 24  # cells of a whole bar
_NARROW = 100  # columns; with fewer, the words under the curve have two lines
_LEAST_LINES = 3  # of the table


class UtilizationRow(msgspec.Struct, frozen=True):
    """One row: a GPU type, a partition, or an account.

    Attributes:
        hours: GPU-hours; None is unknown.
        used: share of the measured GPU time of a type in which its GPUs worked, as the curve has
            it; None is unknown.
        lost: GPU-hours of jobs that did not complete; None is unknown.
        share: share of what today's GPUs of the type can give in that time, or of all GPU-hours;
            None is unknown.
    """

    name: str
    jobs: int
    hours: float | None
    used: float | None
    lost: float | None
    share: float | None


def utilization_rows(report: Utilization) -> list[UtilizationRow]:
    """Return the report's rows with shares, the largest first."""
    total = sum(row.get("gpu_hours") or 0.0 for row in report.rows)
    rows = [
        UtilizationRow(
            name=_name(row, report.by),
            jobs=row.get("jobs") or 0,
            hours=row.get("gpu_hours"),
            used=_used_share(report, str(row.get(report.by) or "")),
            lost=row.get("gpu_hours_lost"),
            share=_share(row.get("gpu_hours"), report, str(row.get(report.by) or ""), total),
        )
        for row in report.rows
    ]
    return sorted(rows, key=lambda row: -(row.hours or 0.0))


def _name(row: Mapping[str, Any], by: str) -> str:
    name = str(row.get(by) or "-")
    return "no GPU" if by == "gpu-type" and name == "none" else name


def _used_share(report: Utilization, name: str) -> float | None:
    """Return which share of the measured time of a GPU type was used; other rows have none."""
    if report.by != "gpu-type":
        return None
    used = sum((each.used or {}).get(name, 0.0) for each in report.curve)
    measured = sum((each.measured or {}).get(name, 0.0) for each in report.curve)
    return min(1.0, used / measured) if measured else None


def _share(hours: float | None, report: Utilization, name: str, total: float) -> float | None:
    if not hours:
        return hours
    most = report.now.gpus.get(name, 0) * report.days * 24.0 if report.by == "gpu-type" else total
    return hours / most if most else None


COLUMNS = (
    TableColumn(
        "name",
        "",
        lambda r, _: r.name,
        attrgetter("name"),
        longest_text("name"),
        limit=24,
        aliases=("type", "partition", "account"),
    ),
    TableColumn("jobs", "JOBS", lambda r, _: str(r.jobs), attrgetter("jobs"), 7, right=True),
    TableColumn(
        "gpu_hours",
        "GPU-HOURS",
        lambda r, _: "?" if r.hours is None else format_number(r.hours),
        attrgetter("hours"),
        12,
        right=True,
    ),
    TableColumn(
        "used",
        "USED",
        lambda r, _: "?" if r.used is None else f"{r.used:.0%}",
        attrgetter("used"),
        5,
        right=True,
    ),
    TableColumn(
        "lost",
        "LOST",
        lambda r, _: "?" if r.lost is None else format_number(r.lost),
        attrgetter("lost"),
        10,
        right=True,
        style=lambda _r, _c: "cell--muted",
    ),
    TableColumn(
        "share",
        "SHARE",
        lambda r, _: "?" if r.share is None else f"{r.share:.1%}",
        attrgetter("share"),
        7,
        right=True,
    ),
    TableColumn(
        "bar",
        "",
        lambda r, _: share_bar(r.share, _BAR),
        attrgetter("share"),
        _BAR + 1,
        limit=_BAR + 1,
        narrow=_BAR + 1,
        style=lambda _r, _c: "cell--gpus",
    ),
)
_WITHOUT_USED = [each for each in COLUMNS if each.name != "used"]
UTILIZATION_ROWS = Listing("row", COLUMNS, key=attrgetter("name"), haystack=attrgetter("name"))


class _PreparedUse(NamedTuple):
    """An answer prepared for the screen: the curve, the rows of the table, and what they are of."""

    curve: GpuCurve
    rows: ArrangedRows
    words: tuple[str, ...]


class UtilizationView(TableViewWithNotes):
    """GPUs that are there, held, used and wanted over time; below it GPU-hours in bars."""

    NAME = "utilization"
    ASK = FeedQuestion("utilization", ("gpu-type", "24h"))
    EVERY = 30.0  # the ledger changes only with an ingest
    LISTING: ClassVar[Listing] = UTILIZATION_ROWS
    BINDINGS: ClassVar[list[BindingType]] = key_bindings("utilization")

    def __init__(self, *, mine: bool = False) -> None:
        super().__init__(mine=mine)
        self._by, self._span = self.ASK.about
        self._words: tuple[str, ...] = ()  # what the rows shown are of

    def compose(self) -> ComposeResult:
        """Put the curve, its legend and the number under its cursor above the table."""
        yield GpuPlot(with_cursor=True)
        yield Static(id="curve-legend", markup=False)
        yield Static(id="curve-words", markup=False)
        yield from super().compose()

    @property
    def ask(self) -> FeedQuestion:
        return FeedQuestion("utilization", (self._by, self._span))

    @property
    def _plot(self) -> GpuPlot:
        return self.query_one(GpuPlot)

    def focus_main(self) -> None:
        self._plot.focus()

    def action_by(self) -> None:
        """Sum by the next dimension."""
        self._by = _next(tuple(DIMENSIONS), self._by)
        self._ask_the_ledger()

    def action_span(self) -> None:
        """Show another length of time."""
        self._span = _next(tuple(SPANS), self._span)
        self._plot.mark(None)
        self._ask_the_ledger()

    def _ask_the_ledger(self) -> None:
        about = f"by {DIMENSIONS[self._by]}, last {SPANS[self._span].words}"
        self.say(f"asking the ledger {about}…")
        self.post_message(self.Asks())

    def make(self, answer: FeedAnswer, session: ClusterSession) -> Any:
        load_plotter()
        report: Utilization = answer.value
        span = span_of_days(report.days)  # keys may have changed the view's own meanwhile
        seen = session.history.hours(span.begins(report.taken)[0], report.taken + 1)
        curve = make_curve(report.curve, seen, span, now=report.taken, types=report.now.gpus)
        by = f"by {DIMENSIONS.get(report.by, report.by)}"
        words = tuple(filter(None, [use_in_words(curve), f"last {span.words}", by]))
        return _PreparedUse(curve, super().make(answer, session), words)

    def take(self, prepared: Any) -> None:
        self._words = prepared.words
        if self.table.columns in (_WITHOUT_USED, list(COLUMNS)):  # not chosen by the person
            measured = any(row.used is not None for row in prepared.rows.sheet.rows)
            self.table.columns = list(COLUMNS) if measured else _WITHOUT_USED
        super().take(prepared.rows)
        self._plot.show(prepared.curve)
        self.query_one("#curve-legend", Static).update(self._plot.legend())
        self._tell()
        self._share_lines()

    def on_resize(self) -> None:
        """Wrap the words on a narrow screen, and give the table the lines it needs."""
        self.set_class(self.size.width < _NARROW, "-narrow")
        self._share_lines()

    def _share_lines(self) -> None:
        """Give the table the lines of its rows, two fifths at most, and the rest to the curve."""
        rows = len(self._sheet.rows) if self._sheet else 0
        height = max(_LEAST_LINES, min(rows + 1, self.size.height * 2 // 5))
        if self.table.styles.height != Scalar.from_number(height):
            self.table.styles.height = height

    @on(GpuPlot.Marked)
    def _tell(self) -> None:
        """Say in words what is under the cursor."""
        self.query_one("#curve-words", Static).update(Content(self._plot.words_at_cursor()))

    def rows_of(self, answer: FeedAnswer) -> Sequence[UtilizationRow]:
        return utilization_rows(answer.value)

    def notes(self, answer: FeedAnswer, session: ClusterSession) -> Sequence[str]:
        del session
        report = answer.value
        base = "what its GPUs give in this time" if report.by == "gpu-type" else "all GPU-hours"
        only = "" if report.everybody else "the rows are of the jobs that you may see"
        of_measured = any(row.used is not None for row in utilization_rows(report))
        used = "USED: part of the measured time" if of_measured else ""
        age = report.source.rpartition("; ")[2]  # the line below names the ledger
        history = "; ".join(filter(None, [age, used, f"SHARE: part of {base}", only]))
        if report.without_history:
            history = f"no history: {report.without_history}"
        return [_now_in_words(report.now), history]

    def tally(self, rows: Sequence[UtilizationRow], context: RowContext) -> Iterable[SummaryPart]:
        del context
        yield f"{format_number(sum(row.hours or 0.0 for row in rows))} GPU-hours"

    def aside(self) -> Iterable[SummaryPart]:
        """Return the time and the dimension of the rows shown."""
        return self._words

    def summary(self) -> Iterable[SummaryPart]:
        """Leave out the number of rows, unless the view is filtered."""
        parts = list(super().summary())
        return parts if self.filters else parts[1:]


def _next(names: Sequence[str], name: str) -> str:
    return names[(names.index(name) + 1) % len(names)]


def _now_in_words(now: CurrentUse) -> str:
    """Return the GPUs and CPUs in use now as one line."""
    held, total = sum(now.gpus_held.values()), sum(now.gpus.values())
    wanted = "an unknown number" if now.gpus_wanted is None else f"{now.gpus_wanted:,}"
    types = ", ".join(
        f"{now.gpus_held.get(name, 0)} of {count} {name or 'untyped'}"
        for name, count in now.gpus.items()
    )
    gpus = f"now: {held} of {total} GPUs held ({types}), {wanted} more wanted"
    return f"{gpus}; {now.cpus_held:,} of {now.cpus:,} CPUs held"
