"""The queue: its table, and the line to filter it with."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Label

from slurmkit_tui.columns import COLUMNS
from slurmkit_tui.snapshot import Line, Snapshot
from slurmkit_tui.table import Table


class QueueView(Vertical):
    """Shows the rows of a snapshot that pass the filter."""

    class Changed(Message):
        """Other rows are shown."""

    def __init__(self, *, mine: bool) -> None:
        super().__init__()
        self._mine = mine
        self._needle = ""
        self._snapshot: Snapshot | None = None

    def compose(self) -> ComposeResult:
        """Stack the table and the filter."""
        yield Table(COLUMNS, "asking squeue…")
        with Horizontal(id="filter"):
            yield Label("filter ")
            yield Input(placeholder="text in any column; Enter keeps it, Esc clears", compact=True)

    def on_mount(self) -> None:
        """Start without a filter line."""
        self._show_filter(visible=False)

    @property
    def lines(self) -> Sequence[Line]:
        """The rows that pass the filter."""
        return self.query_one(Table).lines

    @property
    def selected(self) -> Line | None:
        """The row under the cursor."""
        return self.query_one(Table).selected

    @property
    def filters(self) -> list[str]:
        """What limits the rows, in words."""
        needle = [f'"{self._needle}"'] if self._needle else []
        return [*(["mine"] if self._mine else []), *needle]

    @property
    def filtering(self) -> bool:
        """Whether the filter line is there."""
        return self.query_one("#filter").display

    def take(self, snapshot: Snapshot) -> None:
        """Show a new snapshot."""
        self._snapshot = snapshot
        self._sift()

    def say(self, words: str) -> None:
        """Say something in place of rows."""
        self.query_one(Table).show((), (), words)

    def toggle_mine(self) -> None:
        """Show only my jobs, or everybody's again."""
        self._mine = not self._mine
        self._sift()

    def open_filter(self) -> None:
        """Let the person type, from the very next key on."""
        self._show_filter(visible=True)
        self.screen.set_focus(self.query_one(Input))

    def clear_filter(self) -> None:
        """Forget the text and go back to the table."""
        self.query_one(Input).value = ""
        self._close_filter()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._needle = event.value.lower()
        self._sift()

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self._close_filter()

    def _close_filter(self) -> None:
        self.screen.set_focus(self.query_one(Table))
        self._show_filter(visible=bool(self.query_one(Input).value))

    def _show_filter(self, *, visible: bool) -> None:
        self.query_one("#filter").display = visible
        self.query_one(Input).disabled = not visible  # Tab must not lead to what cannot be seen
        self.refresh_bindings()

    def _sift(self) -> None:
        if self._snapshot is None:
            return
        lines = sift(self._snapshot.lines, self._needle, mine=self._mine)
        self.query_one(Table).show(lines, self._snapshot.widths, self._empty())
        self.post_message(self.Changed())

    def _empty(self) -> str:
        if self._needle:
            return f"no job matches {' and '.join(self.filters)}; Esc clears"
        return "no job is mine; u shows all" if self._mine else "no jobs in the queue"


def sift(lines: Sequence[Line], needle: str, *, mine: bool) -> Sequence[Line]:
    """The lines that hold a text, given in lower case, and are mine if so wished."""
    if mine:
        lines = [line for line in lines if line.mine]
    return [line for line in lines if needle in line.text] if needle else lines
