"""The filter line above a table: an input that shows what is wrong with its text."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label

from slurmkit.formats.display import printable

_HINT = "words, user:me gpu:a100 >8gpu -/regex/ …; Enter keeps it, Esc clears, F1 explains"


class FilterLine(Horizontal):
    """The filter line, hidden while there is no filter. It shows what is wrong with the filter."""

    class FilterTyped(Message):
        """The text has changed."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Left(Message):
        """The person leaves the line and goes back to the rows."""

    def compose(self) -> ComposeResult:
        """Put label, input and error in one line."""
        yield Label("filter ", markup=False)
        yield Input(placeholder=_HINT, compact=True)
        yield Label("", classes="wrong", markup=False)

    def on_mount(self) -> None:
        """Start hidden."""
        self._show(visible=False)

    @property
    def text(self) -> str:
        """The typed text."""
        return self.query_one(Input).value

    def open(self) -> None:
        """Show the line and focus it at once, so that the next key goes there."""
        self._show(visible=True)
        self.screen.set_focus(self.query_one(Input))

    def clear(self) -> None:
        """Delete the text and leave the line."""
        self.query_one(Input).value = ""
        self._leave()

    def show_error(self, wrong: str) -> None:
        """Show what is wrong with the filter; an empty text for nothing."""
        self.query_one(".wrong", Label).update(printable(wrong))

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.FilterTyped(event.value))

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self._leave()

    def _leave(self) -> None:
        self._show(visible=bool(self.text))
        self.post_message(self.Left())

    def _show(self, *, visible: bool) -> None:
        self.display = visible
        self.query_one(Input).disabled = not visible  # Tab must not go to a hidden field
        self.refresh_bindings()
