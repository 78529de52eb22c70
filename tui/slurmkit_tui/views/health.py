"""Cluster health: what doctor finds, the worst first."""

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
_STYLES = {"error": "cell--bad", "warning": "cell--warn", "ok": "state--running"}

COLUMNS = (
    Column("severity", "SEVERITY", lambda d, _: d.severity, lambda d: _ORDER.index(d.severity),
           longest("severity"), match=attrgetter("severity"), short="SEV",
           style=lambda d, _: _STYLES.get(d.severity, "cell--muted")),
    Column("check", "CHECK", lambda d, _: d.check, attrgetter("check"), longest("check"),
           limit=22, narrow=12),
    Column("message", "WHAT IS THE CASE", lambda d, _: d.message, attrgetter("message"),
           longest("message"), limit=90, narrow=90),
)  # fmt: skip
FINDINGS = Listing(
    "finding",
    COLUMNS,
    key=lambda d: f"{d.check} {d.message}",
    haystack=lambda d: f"{d.severity}\n{d.check}\n{d.message}\n{d.meaning}",
)


class HealthView(ListView):
    """Daemons, settings, nodes, people: everything doctor looks at."""

    NAME = "health"
    ASK = Ask("health")
    EVERY = 30.0  # two dozen questions
    LISTING: ClassVar[Listing] = FINDINGS

    def rows_of(self, answer: Answer) -> Sequence[Diagnosis]:
        """See `ListView.rows_of`."""
        return sorted(answer.value.rows, key=lambda d: _ORDER.index(d.severity))

    def tally(self, rows: Sequence[Diagnosis], context: Context) -> Iterable[Part]:
        """See `ListView.tally`."""
        del context
        found = Counter(row.severity for row in rows)
        for severity in _ORDER:
            if found[severity]:
                style = {"error": "$error bold", "warning": "$warning"}.get(severity)
                words = f"{found[severity]} {severity}"
                yield (words, style) if style else words
