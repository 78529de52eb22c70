"""A table with some lines below it that say what the rows mean together."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from slurmkit.text import printable
from slurmkit_tui.feed import Answer
from slurmkit_tui.listview import ListView
from slurmkit_tui.session import Session
from slurmkit_tui.sheet import Arranged


class NotedView(ListView):
    """See `ListView`; `notes` are worked out beside the rows."""

    def __init__(self, *, mine: bool = False) -> None:
        super().__init__(mine=mine)
        self._notes: Sequence[str] = ()

    def compose(self) -> ComposeResult:
        """Put the notes between table and filter."""
        table, line = super().compose()
        yield table
        yield Static("", classes="notes", markup=False)
        yield line

    def notes(self, answer: Answer, session: Session) -> Sequence[str]:
        """What the rows mean together; foreign text is escaped here."""
        raise NotImplementedError

    def make(self, answer: Answer, session: Session) -> Arranged:
        """See `View.make`."""
        self._notes = self.notes(answer, session)
        return super().make(answer, session)

    def take(self, prepared: Arranged) -> None:
        """See `View.take`."""
        super().take(prepared)
        lines = Content("\n".join(map(printable, self._notes)))
        self.query_one(".notes", Static).update(lines)
