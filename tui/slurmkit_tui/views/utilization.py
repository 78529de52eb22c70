"""View of utilization: a curve of GPUs over time, and bars by type, partition or account."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from slurmkit.formats.display import format_number
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.feed.composed import SPANS, CurrentUse, Utilization
from slurmkit_tui.feed.history import GpuCurve, make_curve
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.views.base import SummaryPart, TableViewWithNotes
from slurmkit_tui.widgets.listing import (
    ArrangedRows,
    Listing,
    RowContext,
    TableColumn,
    longest_text,
)
from slurmkit_tui.widgets.plots import GpuPlot, load_plotter, share_bar

DIMENSIONS = ("gpu-type", "partition", "account")
_BAR = 40  # cells of a whole bar


class UtilizationRow(msgspec.Struct, frozen=True):
    """One row: a GPU type, a partition, or an account.

    Attributes:
        hours: GPU-hours; None is unknown.
        lost: GPU-hours of jobs that did not complete; None is unknown.
        share: share of what today's GPUs of the type can give in that time, or of all GPU-hours;
            None is unknown.
    """

    name: str
    jobs: int
    hours: float | None
    lost: float | None
    share: float | None


def utilization_rows(report: Utilization) -> list[UtilizationRow]:
    """Return the report's rows with shares, the largest first."""
    total = sum(row.get("gpu_hours") or 0.0 for row in report.rows)
    rows = [
        UtilizationRow(
            name=str(row.get(report.by) or "-"),
            jobs=row.get("jobs") or 0,
            hours=row.get("gpu_hours"),
            lost=row.get("gpu_hours_lost"),
            share=_share(row.get("gpu_hours"), report, str(row.get(report.by) or ""), total),
        )
        for row in report.rows
    ]
    return sorted(rows, key=lambda row: -(row.hours or 0.0))


def _share(hours: float | None, report: Utilization, name: str, total: float) -> float | None:
    if hours is None:
        return None
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
        narrow=24,
        style=lambda _r, _c: "cell--gpus",
    ),
)
UTILIZATION_ROWS = Listing("line", COLUMNS, key=attrgetter("name"), haystack=attrgetter("name"))


class _PreparedUse(NamedTuple):
    """An answer prepared for the screen: the curve, and the rows of the table."""

    curve: GpuCurve
    rows: ArrangedRows


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
        self._counted = 0.0  # when the answer was taken that was last added to the history

    def compose(self) -> ComposeResult:
        """Put the curve, its legend and the number under its cursor above the table."""
        yield GpuPlot(with_cursor=True)
        yield Static(id="curve-legend", markup=False)
        yield Static(id="curve-words", markup=False)
        yield from super().compose()

    @property
    def ask(self) -> FeedQuestion:
        """See `View.ask`."""
        return FeedQuestion("utilization", (self._by, self._span))

    @property
    def _plot(self) -> GpuPlot:
        return self.query_one(GpuPlot)

    def focus_main(self) -> None:
        """See `View.focus_main`."""
        self._plot.focus()

    def action_by(self) -> None:
        """Sum by the next dimension."""
        self._by = _next(DIMENSIONS, self._by)
        self._ask_the_ledger()

    def action_span(self) -> None:
        """Show another length of time."""
        self._span = _next(tuple(SPANS), self._span)
        self._plot.mark(None)
        self._ask_the_ledger()

    def _ask_the_ledger(self) -> None:
        self.say(f"asking the ledger by {self._by}, last {SPANS[self._span].words}…")
        self.post_message(self.Asks())

    def make(self, answer: FeedAnswer, session: ClusterSession) -> Any:
        """See `View.make`."""
        load_plotter()
        report: Utilization = answer.value
        if report.taken != self._counted:
            self._counted = report.taken
            session.history.add_nodes(report.taken, report.now.gpus, report.now.gpus_held)
            session.history.add_wanted(report.taken, report.now.gpus_wanted)
        span = SPANS[self._span]
        seen = session.history.hours(span.begin(report.taken), report.taken + 1)
        curve = make_curve(report.curve, seen, now=report.taken, hours=span.hours, step=span.step)
        return _PreparedUse(curve, super().make(answer, session))

    def take(self, prepared: Any) -> None:
        """See `View.take`."""
        super().take(prepared.rows)
        self._plot.show(prepared.curve)
        self.query_one("#curve-legend", Static).update(self._plot.legend())
        self._tell()

    @on(GpuPlot.Marked)
    def _tell(self) -> None:
        """Say in words what is under the cursor."""
        self.query_one("#curve-words", Static).update(Content(self._plot.words_at_cursor()))

    def rows_of(self, answer: FeedAnswer) -> Sequence[UtilizationRow]:
        """See `TableView.rows_of`."""
        return utilization_rows(answer.value)

    def notes(self, answer: FeedAnswer, session: ClusterSession) -> Sequence[str]:
        """See `TableViewWithNotes.notes`."""
        del session
        report = answer.value
        base = "what its GPUs give in this time" if report.by == "gpu-type" else "all GPU-hours"
        history = "; ".join(filter(None, [report.source, f"SHARE: part of {base}"]))
        if report.without_history:
            history = f"no history: {report.without_history}"
        return [_now_in_words(report.now), history]

    def tally(self, rows: Sequence[UtilizationRow], context: RowContext) -> Iterable[SummaryPart]:
        """See `TableView.tally`."""
        del context
        yield f"last {SPANS[self._span].words}"
        yield f"by {self._by}"
        yield f"{format_number(sum(row.hours or 0.0 for row in rows))} GPU-hours"


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
    gpus = f"now: {held} of {total} GPUs held ({types}), pending jobs request {wanted} more"
    return f"{gpus}; {now.cpus_held:,} of {now.cpus:,} CPUs held"
