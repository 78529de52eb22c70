"""The line in which a filter is typed."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label

from slurmkit.text import printable

_HINT = "words, user:me gpu:a100 >8gpu -/regex/ …; Enter keeps it, Esc clears, F1 explains"


class FilterLine(Horizontal):
    """Hidden while there is no filter; what is wrong with one is said beside it."""

    class Typed(Message):
        """The text is another one."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Left(Message):
        """The person goes back to the rows."""

    def compose(self) -> ComposeResult:
        """Put the text between its name and what is wrong with it."""
        yield Label("filter ")
        yield Input(placeholder=_HINT, compact=True)
        yield Label("", classes="wrong")

    def on_mount(self) -> None:
        """Start hidden."""
        self._show(visible=False)

    @property
    def text(self) -> str:
        """What was typed."""
        return self.query_one(Input).value

    def open(self) -> None:
        """Let the person type, from the very next key on."""
        self._show(visible=True)
        self.screen.set_focus(self.query_one(Input))

    def clear(self) -> None:
        """Forget the text."""
        self.query_one(Input).value = ""
        self._leave()

    def object_to(self, wrong: str) -> None:
        """Say what is wrong; nothing when empty."""
        self.query_one(".wrong", Label).update(printable(wrong))

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Typed(event.value))

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self._leave()

    def _leave(self) -> None:
        self._show(visible=bool(self.text))
        self.post_message(self.Left())

    def _show(self, *, visible: bool) -> None:
        self.display = visible
        self.query_one(Input).disabled = not visible  # Tab must not lead to what cannot be seen
        self.refresh_bindings()
