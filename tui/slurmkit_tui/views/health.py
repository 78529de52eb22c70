"""View of cluster health: the doctor's findings and nodes' outages, worst first, then activity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import ClassVar

from slurmkit.doctor.case import Diagnosis, Severity
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.views.base import SummaryPart, TableView
from slurmkit_tui.widgets.listing import Listing, RowContext, TableColumn, longest_text

_ORDER: tuple[Severity, ...] = ("error", "warning", "unknown", "note", "ok")
# Checks of current activity, in the order shown; all other checks are about settings.
_NOW = (
    "slurmctld", "slurmdbd", "slurmdbd-backlog", "scheduler", "backfill", "requests",
    "reservations", "nodes-out", "jobs-waiting", "jobs-completing", "jobs-without-node",
)  # fmt: skip
_STYLES = {"error": "cell--bad", "warning": "cell--warn", "ok": "state--running"}


def _about(finding: Diagnosis) -> str:
    if finding.check == "node-history":
        return "history"
    return "now" if finding.check in _NOW else "settings"


def _rank(finding: Diagnosis) -> tuple[int, int]:
    place = _NOW.index(finding.check) if finding.check in _NOW else len(_NOW)
    return _ORDER.index(finding.severity), place


COLUMNS = (
    TableColumn("severity", "SEVERITY", lambda d, _: d.severity, lambda d: _ORDER.index(d.severity),
           longest_text("severity"), match=attrgetter("severity"), short="SEV",
           style=lambda d, _: _STYLES.get(d.severity, "cell--muted")),
    TableColumn("about", "ABOUT", lambda d, _: _about(d), _about, 8, wide=True,
           style=lambda _d, _c: "cell--muted"),
    TableColumn("check", "CHECK", lambda d, _: d.check, attrgetter("check"), longest_text("check"),
           limit=22, narrow=12),
    TableColumn("message", "FINDING", lambda d, _: d.message, attrgetter("message"),
           longest_text("message"), limit=120, narrow=110),
)  # fmt: skip
FINDINGS = Listing(
    "finding",
    COLUMNS,
    key=lambda d: f"{d.check} {d.message}",
    haystack=lambda d: f"{d.severity}\n{d.check}\n{d.message}\n{d.meaning}\n{_about(d)}",
)


class HealthView(TableView):
    """All checks of the doctor: daemons, settings, nodes, people."""

    NAME = "health"
    ASK = FeedQuestion("health")
    EVERY = 30.0  # two dozen Slurm commands
    LISTING: ClassVar[Listing] = FINDINGS

    def rows_of(self, answer: FeedAnswer) -> Sequence[Diagnosis]:
        return sorted(answer.value.rows, key=_rank)

    def tally(self, rows: Sequence[Diagnosis], context: RowContext) -> Iterable[SummaryPart]:
        del context
        counts = Counter(row.severity for row in rows)
        for severity in _ORDER:
            if counts[severity]:
                style = {"error": "$error bold", "warning": "$warning"}.get(severity)
                many = counts[severity] > 1 and severity in ("error", "warning", "note")
                words = f"{counts[severity]} {severity}{'s' if many else ''}"
                yield (words, style) if style else words
