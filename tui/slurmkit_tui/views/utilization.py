"""Utilization: how much of the GPUs was held, by day or hour, and what is held and wanted now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import ClassVar

import msgspec
from textual.binding import BindingType

from slurmkit.facts import rounded
from slurmkit_tui.actions import bindings
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.feed.pictures import Now, Utilization
from slurmkit_tui.listing import Column, Context, Listing, longest
from slurmkit_tui.notedview import NotedView
from slurmkit_tui.session import Session
from slurmkit_tui.view import Part

BYS = ("day", "gpu-type", "partition", "account")
_HOURS = {"hour": 1.0, "day": 24.0}  # of a row
_BAR = 40  # cells of a whole bar
_EIGHTHS = " ▏▎▍▌▋▊▉"


class Line(msgspec.Struct, frozen=True):
    """A day, an hour, or a type, a partition, an account.

    Attributes:
        hours: GPU-hours; None is unknown.
        share: of what the GPUs of now can give in that time, or of all hours; None is unknown.
    """

    name: str
    jobs: int
    hours: float | None
    lost: float | None
    share: float | None


def lines(found: Utilization) -> list[Line]:
    """The rows of the report with their shares; in order of time, or the largest first."""
    total = sum(row.get("gpu_hours") or 0.0 for row in found.rows)
    made = [
        Line(
            name=str(row.get(found.by) or "-"),
            jobs=row.get("jobs") or 0,
            hours=row.get("gpu_hours"),
            lost=row.get("gpu_hours_lost"),
            share=_share(row.get("gpu_hours"), found, str(row.get(found.by) or ""), total),
        )
        for row in found.rows
    ]
    return made if found.by in _HOURS else sorted(made, key=lambda line: -(line.hours or 0.0))


def _share(hours: float | None, found: Utilization, name: str, total: float) -> float | None:
    if hours is None:
        return None
    if found.by in _HOURS:
        most = sum(found.now.gpus.values()) * _HOURS[found.by]
    elif found.by == "gpu-type":
        most = found.now.gpus.get(name, 0) * found.days * 24.0
    else:
        most = total
    return hours / most if most else None


def bar(share: float | None) -> str:
    """A bar of blocks; more than all there is now is cut, with a mark."""
    if share is None:
        return "?"
    eighths = round(min(share, 1.0) * _BAR * 8)
    text = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return text + ("+" if share > 1 else "")


COLUMNS = (
    Column("name", "", lambda r, _: r.name, attrgetter("name"), longest("name"), limit=24,
           aliases=("day", "hour", "type", "partition", "account")),
    Column("jobs", "JOBS", lambda r, _: str(r.jobs), attrgetter("jobs"), 7, right=True),
    Column("gpu_hours", "GPU-HOURS", lambda r, _: "?" if r.hours is None else rounded(r.hours),
           attrgetter("hours"), 12, right=True),
    Column("lost", "LOST", lambda r, _: "?" if r.lost is None else rounded(r.lost),
           attrgetter("lost"), 10, right=True, style=lambda _r, _c: "cell--muted"),
    Column("share", "SHARE", lambda r, _: "?" if r.share is None else f"{r.share:.1%}",
           attrgetter("share"), 7, right=True),
    Column("bar", "", lambda r, _: bar(r.share), attrgetter("share"), _BAR + 1, limit=_BAR + 1,
           narrow=24, style=lambda _r, _c: "cell--gpus"),
)  # fmt: skip
LINES = Listing("line", COLUMNS, key=attrgetter("name"), haystack=attrgetter("name"))


class UtilizationView(NotedView):
    """GPU-hours by day or hour, or by type, partition, account."""

    NAME = "utilization"
    ASK = Ask("utilization", ("day",))
    EVERY = 30.0  # the books change with every ingest
    LISTING: ClassVar[Listing] = LINES
    BINDINGS: ClassVar[list[BindingType]] = bindings("utilization")

    def __init__(self, *, mine: bool = False) -> None:
        super().__init__(mine=mine)
        self._by = "day"

    @property
    def ask(self) -> Ask:
        """See `View.ask`."""
        return Ask("utilization", (self._by,))

    def action_by(self) -> None:
        """Sum by the next dimension."""
        at = BYS.index(self._by) if self._by in BYS else 0
        self._show_by(BYS[(at + 1) % len(BYS)])

    def action_hours(self) -> None:
        """Sum by hour, or by day again."""
        self._show_by("day" if self._by == "hour" else "hour")

    def _show_by(self, name: str) -> None:
        self._by = name
        self.say(f"asking the ledger by {self._by}…")
        self.post_message(self.Asks())

    def rows_of(self, answer: Answer) -> Sequence[Line]:
        """See `ListView.rows_of`."""
        return lines(answer.value)

    def notes(self, answer: Answer, session: Session) -> Sequence[str]:
        """See `NotedView.notes`."""
        del session
        found = answer.value
        of = {
            "day": "what the GPUs of now can give in a day",
            "hour": "what the GPUs of now can give in an hour",
            "gpu-type": "what the GPUs of the type can give in this time",
        }.get(found.by, "all GPU-hours of this time")
        said = f"by {found.by}, the last {found.days:.0f} days in UTC; the share is of {of}"
        missing = [f"no history: {found.without_history}"] if found.without_history else []
        return [*_now_in_words(found.now), *(missing or [said])]

    def tally(self, rows: Sequence[Line], context: Context) -> Iterable[Part]:
        """See `ListView.tally`."""
        del context
        yield f"by {self._by}"
        yield f"{rounded(sum(row.hours or 0.0 for row in rows))} GPU-hours"


def _now_in_words(now: Now) -> list[str]:
    held, total = sum(now.gpus_held.values()), sum(now.gpus.values())
    wanted = "an unknown number" if now.gpus_wanted is None else f"{now.gpus_wanted:,}"
    types = ", ".join(
        f"{now.gpus_held.get(name, 0)} of {count} {name or 'untyped'}"
        for name, count in now.gpus.items()
    )
    gpus = f"now: {held} of {total} GPUs held ({types}), {wanted} more wanted by jobs that wait"
    return [f"{gpus}; {now.cpus_held:,} of {now.cpus:,} CPUs held"]
