"""Cluster health: all that doctor finds, the worst first; of the same weight what goes on now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import ClassVar

from slurmkit.doctor.model import Diagnosis, Severity
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.listing import Column, Context, Listing, longest
from slurmkit_tui.listview import ListView
from slurmkit_tui.view import Part

_ORDER: tuple[Severity, ...] = ("error", "warning", "unknown", "note", "ok")
# What passes, in the order in which it is shown; all else that doctor looks at are settings.
_NOW = (
    "slurmctld", "slurmdbd", "slurmdbd-backlog", "scheduler", "backfill", "requests",
    "reservations", "nodes-out", "jobs-waiting", "jobs-completing", "jobs-without-node",
)  # fmt: skip
_STYLES = {"error": "cell--bad", "warning": "cell--warn", "ok": "state--running"}


def _about(found: Diagnosis) -> str:
    return "now" if found.check in _NOW else "settings"


def _rank(found: Diagnosis) -> tuple[int, int]:
    place = _NOW.index(found.check) if found.check in _NOW else len(_NOW)
    return _ORDER.index(found.severity), place


COLUMNS = (
    Column("severity", "SEVERITY", lambda d, _: d.severity, lambda d: _ORDER.index(d.severity),
           longest("severity"), match=attrgetter("severity"), short="SEV",
           style=lambda d, _: _STYLES.get(d.severity, "cell--muted")),
    Column("about", "ABOUT", lambda d, _: _about(d), _about, 8, wide=True,
           style=lambda _d, _c: "cell--muted"),
    Column("check", "CHECK", lambda d, _: d.check, attrgetter("check"), longest("check"),
           limit=22, narrow=12),
    Column("message", "WHAT IS THE CASE", lambda d, _: d.message, attrgetter("message"),
           longest("message"), limit=120, narrow=110),
)  # fmt: skip
FINDINGS = Listing(
    "finding",
    COLUMNS,
    key=lambda d: f"{d.check} {d.message}",
    haystack=lambda d: f"{d.severity}\n{d.check}\n{d.message}\n{d.meaning}\n{_about(d)}",
)


class HealthView(ListView):
    """Daemons, settings, nodes, people: everything doctor looks at."""

    NAME = "health"
    ASK = Ask("health")
    EVERY = 30.0  # two dozen questions
    LISTING: ClassVar[Listing] = FINDINGS

    def rows_of(self, answer: Answer) -> Sequence[Diagnosis]:
        """See `ListView.rows_of`."""
        return sorted(answer.value.rows, key=_rank)

    def tally(self, rows: Sequence[Diagnosis], context: Context) -> Iterable[Part]:
        """See `ListView.tally`."""
        del context
        found = Counter(row.severity for row in rows)
        for severity in _ORDER:
            if found[severity]:
                style = {"error": "$error bold", "warning": "$warning"}.get(severity)
                many = found[severity] > 1 and severity in ("error", "warning", "note")
                words = f"{found[severity]} {severity}{'s' if many else ''}"
                yield (words, style) if style else words
