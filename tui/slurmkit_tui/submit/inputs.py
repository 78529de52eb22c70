"""A field on the screen: its name, what stands in it, and what is said of that."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Paste
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Input, TextArea

from slurmkit.text import printable
from slurmkit_tui.dialogs import Choose, Option
from slurmkit_tui.submit.checked import Said
from slurmkit_tui.submit.fields import Field

_INDENT = 15  # columns of the names
_SAID = 3  # lines below a field
_LONG = 20_000  # characters


def shown(text: str) -> str:
    """A text with a sign for each character that could move the cursor or hide something."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" else "�" for char in text
    )


def _is_long(text: str) -> bool:
    return len(text) > _LONG


class Line(Input):
    """One line; of what is pasted with several, nothing is taken."""

    class Several(Message):
        """Several lines were pasted."""

        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]

    @property
    def _value(self) -> Text:  # the text as it is drawn, sign for sign
        return Text(shown(self.value), no_wrap=True, overflow="ignore", end="")

    def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        lines = event.text.splitlines()
        if len(lines) > 1:  # never in part: what was cut off would not be missed
            self.post_message(self.Several(len(lines)))
        elif lines:
            self.replace(lines[0], *self.selection)


class Area(TextArea):
    """Several lines; of a long text they are not wrapped, which would take too long."""

    def __init__(self, text: str) -> None:
        super().__init__(
            text, compact=True, highlight_cursor_line=False, soft_wrap=not _is_long(text)
        )

    def load_text(self, text: str) -> None:
        """See `TextArea.load_text`."""
        self.soft_wrap = not _is_long(text)
        super().load_text(text)

    def get_line(self, line_index: int) -> Text:
        """See `TextArea.get_line`; nothing in it reaches the terminal raw."""
        line = super().get_line(line_index)
        if line.plain.isprintable():
            return line
        safe = "\t".join(map(shown, line.plain.split("\t")))  # tabs are drawn as blanks
        return Text(safe, end="", no_wrap=True)

    async def _on_paste(self, event: Paste) -> None:
        event.stop()  # or it would be handed to the field a second time
        if _is_long(event.text):
            self.soft_wrap = False


class Row(Widget):
    """A field of the form; its name and what is said of it are drawn, not widgets of their own."""

    class Typed(Message):
        """Something else stands in a field."""

    class Entered(Message):
        """The person is in this field now."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    def __init__(self, field: Field, text: str) -> None:
        super().__init__(id=f"field-{field.name}")
        self.field = field
        self.offered: tuple[str, ...] = ()
        self._said: Said | None = None
        self._input: Line | Area = (
            Line(text, compact=True, select_on_focus=False) if field.lines == 1 else Area(text)
        )
        self._input.styles.height = field.lines
        self.styles.height = field.lines

    def compose(self) -> ComposeResult:
        """Put the text beside the name."""
        yield self._input

    def render(self) -> Content:
        """Draw the name, and what is said below the text."""
        plain = "$primary bold" if self._input.has_focus else "$quiet"
        name = Content.styled(self.field.label, "$error bold" if self._is_wrong else plain)
        return Content("\n" * self.field.lines).join([name, *self._lines()])

    @property
    def _is_wrong(self) -> bool:
        return self._said is not None and self._said.severity == "error"

    def _lines(self) -> list[Content]:
        """What is said, with its severity in words and not in colour alone."""
        if self._said is None:
            return []
        severity, words = self._said
        width = max(20, self.size.width - _INDENT)
        wrapped = textwrap.wrap(f"{severity}: {printable(words)}", width)
        if len(wrapped) > _SAID:
            wrapped[_SAID - 1 :] = [f"{wrapped[_SAID - 1][: width - 1]}…"]
        text = "\n".join(f"{' ' * _INDENT}{line}" for line in wrapped)
        return [Content.styled(text, "$error" if severity == "error" else "$warning")]

    def _make_room(self) -> None:
        said = sum(line.plain.count("\n") + 1 for line in self._lines())
        self.styles.height = self.field.lines + said

    def on_resize(self) -> None:
        """Have room for what is said at this width."""
        self._make_room()

    @property
    def text(self) -> str:
        """What stands in it."""
        return self._input.value if isinstance(self._input, Line) else self._input.text

    @text.setter
    def text(self, text: str) -> None:
        if isinstance(self._input, Line):
            self._input.value = text
        else:
            self._input.text = text

    def offer(self, values: Sequence[str]) -> None:
        """Complete what is typed by one of these."""
        self.offered = tuple(values)
        if isinstance(self._input, Line):
            safe = [value for value in values if value.isprintable()]
            self._input.suggester = SuggestFromList(safe, case_sensitive=False)

    def choose(self) -> None:
        """Let the person choose one of what is offered."""

        def chosen(value: str | None) -> None:
            if value is not None:
                self.text = value

        options = [Option(value, printable(value), "") for value in self.offered]
        self.app.push_screen(Choose(self.field.label, options), chosen)

    def say(self, said: Said | None) -> None:
        """Say below it what is wrong with it."""
        if said != self._said:
            self._said = said
            self._make_room()
            self.refresh()

    def enter(self) -> None:
        """Put the cursor into it."""
        self._input.focus()

    @on(Input.Changed)
    @on(TextArea.Changed)
    def _typed(self, event: Input.Changed | TextArea.Changed) -> None:
        event.stop()
        self.post_message(self.Typed())

    @on(Line.Several)
    def _refuse(self, event: Line.Several) -> None:
        event.stop()
        words = f"{self.field.label} takes one line; of the {event.count} pasted none was taken"
        self.notify(words, severity="warning", markup=False)

    @on(Input.Submitted)
    def _done(self, event: Input.Submitted) -> None:
        """Enter goes on to the next field; it never sends anything."""
        event.stop()
        self.screen.focus_next()

    def on_descendant_focus(self) -> None:
        """Tell that the person is here."""
        self.refresh()
        self.post_message(self.Entered(self))

    def on_descendant_blur(self) -> None:
        """The person has gone on."""
        self.refresh()
