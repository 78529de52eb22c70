"""View of utilization: GPU-hours by day or hour, and GPUs allocated and requested now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import ClassVar

import msgspec
from textual.binding import BindingType

from slurmkit.formats.display import format_number
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.feed.composed import CurrentUse, Utilization
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.views.base import SummaryPart, TableViewWithNotes
from slurmkit_tui.widgets.listing import Listing, RowContext, TableColumn, longest_text

UTILIZATION_DIMENSIONS = ("day", "gpu-type", "partition", "account")
_HOURS = {"hour": 1.0, "day": 24.0}  # length of a row's time
_BAR = 40  # cells of a whole bar
_EIGHTHS = " ▏▎▍▌▋▊▉"


class UtilizationRow(msgspec.Struct, frozen=True):
    """One row: a day, an hour, a GPU type, a partition, or an account.

    Attributes:
        hours: GPU-hours; None is unknown.
        lost: GPU-hours of jobs that did not complete; None is unknown.
        share: share of what today's GPUs can give in that time, or of all GPU-hours; None is
            unknown.
    """

    name: str
    jobs: int
    hours: float | None
    lost: float | None
    share: float | None


def utilization_rows(report: Utilization) -> list[UtilizationRow]:
    """Return the report's rows with shares, in order of time or else the largest first."""
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
    return rows if report.by in _HOURS else sorted(rows, key=lambda row: -(row.hours or 0.0))


def _share(hours: float | None, report: Utilization, name: str, total: float) -> float | None:
    if hours is None:
        return None
    if report.by in _HOURS:
        most = sum(report.now.gpus.values()) * _HOURS[report.by]
    elif report.by == "gpu-type":
        most = report.now.gpus.get(name, 0) * report.days * 24.0
    else:
        most = total
    return hours / most if most else None


def share_bar(share: float | None) -> str:
    """Return a bar of block characters; a share over 100 % is cut and marked with `+`."""
    if share is None:
        return "?"
    eighths = round(min(share, 1.0) * _BAR * 8)
    text = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return text + ("+" if share > 1 else "")


COLUMNS = (
    TableColumn(
        "name",
        "",
        lambda r, _: r.name,
        attrgetter("name"),
        longest_text("name"),
        limit=24,
        aliases=("day", "hour", "type", "partition", "account"),
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
        lambda r, _: share_bar(r.share),
        attrgetter("share"),
        _BAR + 1,
        limit=_BAR + 1,
        narrow=24,
        style=lambda _r, _c: "cell--gpus",
    ),
)
UTILIZATION_ROWS = Listing("line", COLUMNS, key=attrgetter("name"), haystack=attrgetter("name"))


class UtilizationView(TableViewWithNotes):
    """GPU-hours by day or hour, or by type, partition, account."""

    NAME = "utilization"
    ASK = FeedQuestion("utilization", ("day",))
    EVERY = 30.0  # the ledger changes only with an ingest
    LISTING: ClassVar[Listing] = UTILIZATION_ROWS
    BINDINGS: ClassVar[list[BindingType]] = key_bindings("utilization")

    def __init__(self, *, mine: bool = False) -> None:
        super().__init__(mine=mine)
        self._by = "day"

    @property
    def ask(self) -> FeedQuestion:
        """See `View.ask`."""
        return FeedQuestion("utilization", (self._by,))

    def action_by(self) -> None:
        """Sum by the next dimension."""
        at = UTILIZATION_DIMENSIONS.index(self._by) if self._by in UTILIZATION_DIMENSIONS else 0
        self._show_by(UTILIZATION_DIMENSIONS[(at + 1) % len(UTILIZATION_DIMENSIONS)])

    def action_hours(self) -> None:
        """Sum by hour, or by day again."""
        self._show_by("day" if self._by == "hour" else "hour")

    def _show_by(self, name: str) -> None:
        self._by = name
        self.say(f"asking the ledger by {self._by}…")
        self.post_message(self.Asks())

    def rows_of(self, answer: FeedAnswer) -> Sequence[UtilizationRow]:
        """See `TableView.rows_of`."""
        return utilization_rows(answer.value)

    def notes(self, answer: FeedAnswer, session: ClusterSession) -> Sequence[str]:
        """See `TableViewWithNotes.notes`."""
        del session
        report = answer.value
        base = {
            "day": "the GPU-hours that all present GPUs give in a day",
            "hour": "the GPU-hours that all present GPUs give in an hour",
            "gpu-type": "the GPU-hours that the GPUs of the type give in this time",
        }.get(report.by, "all GPU-hours of this time")
        history = f"by {report.by}, last {report.days:.0f} days in UTC; SHARE: part of {base}"
        if report.without_history:
            history = f"no history: {report.without_history}"
        return [_now_in_words(report.now), history]

    def tally(self, rows: Sequence[UtilizationRow], context: RowContext) -> Iterable[SummaryPart]:
        """See `TableView.tally`."""
        del context
        yield f"by {self._by}"
        yield f"{format_number(sum(row.hours or 0.0 for row in rows))} GPU-hours"


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
