"""Widgets of one field: label, input, and message."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Paste
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Input, Static, TextArea

from slurmkit.formats.display import printable
from slurmkit_tui.jobform.draft import FormTexts
from slurmkit_tui.jobform.fields import FIELDS, FormField
from slurmkit_tui.submit.planned import FieldMessage
from slurmkit_tui.widgets.dialogs import ChoiceDialog, ChoiceOption

if TYPE_CHECKING:
    from slurmkit_tui.jobform.fields import FieldOffers

_INDENT = 15  # width of the labels
_LEAST_LINES = 2  # of an area, which says that there may be several
_MESSAGE_LINES = 3  # most lines of a message
_LONG = 20_000  # characters


def visible_text(text: str) -> str:
    """Replace each character that could move the cursor or hide text by `�`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" else "�" for char in text
    )


def _is_long(text: str) -> bool:
    return len(text) > _LONG


class LineInput(Input):
    """An input of one line; a paste of several lines is refused."""

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
    def _value(self) -> Text:  # the text as drawn, with the same number of characters
        return Text(visible_text(self.value), no_wrap=True, overflow="ignore", end="")

    def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        lines = event.text.splitlines()
        if len(lines) > 1:  # refused as a whole: nobody would notice the missing rest
            self.post_message(self.Several(len(lines)))
        elif lines:
            self.replace(lines[0], *self.selection)


class AreaInput(TextArea):
    """An input of several lines. Lines of a long text are not wrapped: that takes too long."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(
            text, compact=True, highlight_cursor_line=False, soft_wrap=not _is_long(text),
            placeholder=hint,
        )  # fmt: skip

    def load_text(self, text: str) -> None:
        self.soft_wrap = not _is_long(text)
        super().load_text(text)

    def get_line(self, line_index: int) -> Text:
        """Return a line in which characters unsafe for the terminal are replaced."""
        line = super().get_line(line_index)
        if line.plain.isprintable():
            return line
        safe = "\t".join(map(visible_text, line.plain.split("\t")))  # Textual draws tabs as blanks
        return Text(safe, end="", no_wrap=True)

    async def _on_paste(self, event: Paste) -> None:
        event.stop()  # else the field gets the paste a second time
        if _is_long(event.text):
            self.soft_wrap = False


class FieldRow(Widget):
    """A field of the form. Label and message are drawn, not widgets of their own."""

    class Typed(Message):
        """The text of a field has changed."""

    class Entered(Message):
        """A field got the focus."""

        def __init__(self, row: FieldRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, field: FormField, text: str) -> None:
        super().__init__(id=f"field-{field.name}")
        self.field = field
        self.offered: tuple[str, ...] = ()
        self._message: FieldMessage | None = None
        hint = f"e.g. {field.example}" if field.example else ""
        self._input: LineInput | AreaInput = (
            LineInput(text, hint, compact=True, select_on_focus=False)
            if field.lines == 1
            else AreaInput(text, hint)
        )
        self._make_room()

    def compose(self) -> ComposeResult:
        """Mount the input next to the label."""
        yield self._input

    def render(self) -> Content:
        """Draw the label, and the message below the input."""
        plain = "$primary bold" if self._input.has_focus else "$quiet"
        name = Content.styled(self.field.label, "$error bold" if self._is_wrong else plain)
        return Content("\n" * self._input_lines).join([name, *self._lines()])

    @property
    def _is_wrong(self) -> bool:
        return self._message is not None and self._message.severity == "error"

    def _lines(self) -> list[Content]:
        """Return the message, with its severity as a word and not only as a colour."""
        if self._message is None:
            return []
        severity, words = self._message
        width = max(20, self.size.width - _INDENT)
        wrapped = textwrap.wrap(f"{severity}: {printable(words)}", width)
        if len(wrapped) > _MESSAGE_LINES:
            wrapped[_MESSAGE_LINES - 1 :] = [f"{wrapped[_MESSAGE_LINES - 1][: width - 1]}…"]
        text = "\n".join(f"{' ' * _INDENT}{line}" for line in wrapped)
        return [Content.styled(text, "$error" if severity == "error" else "$warning")]

    @property
    def _input_lines(self) -> int:
        """Lines of the input; an area grows with its text."""
        if isinstance(self._input, LineInput):
            return 1
        return max(_LEAST_LINES, min(self.field.lines, self._input.wrapped_document.height))

    def _make_room(self) -> None:
        message = sum(line.plain.count("\n") + 1 for line in self._lines())
        self._input.styles.height = self._input_lines
        self.styles.height = self._input_lines + message

    def on_resize(self) -> None:
        """Fit the height to the text and the message at the new width, once the text is wrapped."""
        self.call_after_refresh(self._make_room)

    @property
    def text(self) -> str:
        """Text of the field."""
        return self._input.value if isinstance(self._input, LineInput) else self._input.text

    @text.setter
    def text(self, text: str) -> None:
        if isinstance(self._input, LineInput):
            self._input.value = text
        else:
            self._input.text = text

    def offer(self, values: Sequence[str]) -> None:
        """Set the values to complete with."""
        self.offered = tuple(values)
        if isinstance(self._input, LineInput):
            safe = [value for value in values if value.isprintable()]
            self._input.suggester = SuggestFromList(safe, case_sensitive=False)

    def choose(self) -> None:
        """Open a dialog with the values offered."""

        def chosen(value: str | None) -> None:
            if value is not None:
                self.text = value

        options = [ChoiceOption(value, printable(value), "") for value in self.offered]
        self.app.push_screen(ChoiceDialog(self.field.label, options), chosen)

    def say(self, message: FieldMessage | None) -> None:
        """Show a message below the field."""
        if message != self._message:
            self._message = message
            self._make_room()
            self.refresh()

    def enter(self) -> None:
        """Focus the field."""
        self._input.focus()

    @on(Input.Changed)
    @on(TextArea.Changed)
    def _typed(self, event: Input.Changed | TextArea.Changed) -> None:
        event.stop()
        self._make_room()
        self.post_message(self.Typed())

    @on(LineInput.Several)
    def _refuse(self, event: LineInput.Several) -> None:
        event.stop()
        words = f"{self.field.label} takes one line; the {event.count} pasted lines were ignored"
        self.notify(words, severity="warning", markup=False)

    @on(Input.Submitted)
    def _done(self, event: Input.Submitted) -> None:
        """Go on to the next field; Enter never submits."""
        event.stop()
        self.screen.focus_next()

    def on_descendant_focus(self) -> None:
        """Redraw, and post `Entered`."""
        self.refresh()
        self.post_message(self.Entered(self))

    def on_descendant_blur(self) -> None:
        """Redraw without focus."""
        self.refresh()


_RARE = "reservation"  # hidden until the cluster has one
_FIRST, _MORE = 4, 2  # number of fields mounted at first, and then at a time


class FieldList(VerticalScroll, can_focus=False):
    """All fields of the form; a field can be read and filled before it is mounted.

    Attributes:
        rows: the fields by name.
    """

    def __init__(self, texts: FormTexts) -> None:
        super().__init__(id="form")
        self.rows = {field.name: FieldRow(field, texts.get(field.name, "")) for field in FIELDS}
        self.rows[_RARE].display = _RARE in texts
        self._offers: FieldOffers | None = None

    def compose(self) -> ComposeResult:
        """Mount the draft's notes and the first fields."""
        yield Static("", id="form-notes", markup=False)
        yield from [*self.rows.values()][:_FIRST]

    def on_mount(self) -> None:
        """Start mounting the other fields."""
        self.call_after_refresh(self._mount_more, _FIRST)

    async def _mount_more(self, at: int) -> None:
        """Mount some more fields; all at once would stall the screen."""
        if at < len(self.rows):
            await self.mount(*[*self.rows.values()][at : at + _MORE])
            self.call_after_refresh(self._mount_more, at + _MORE)

    @property
    def texts(self) -> dict[str, str]:
        """Texts of the fields, without empty ones."""
        return {name: row.text for name, row in self.rows.items() if row.text.strip()}

    def fill(self, texts: FormTexts) -> None:
        """Set the texts of all fields."""
        for name, row in self.rows.items():
            row.text = texts.get(name, "")
            self._offer(row)

    def say(self, messages: Mapping[str, FieldMessage]) -> None:
        """Show the message of each field."""
        for name, row in self.rows.items():
            row.say(messages.get(name))

    def offer(self, offers: FieldOffers | None) -> None:
        """Set the values to complete with; None if they are unknown."""
        self._offers = offers
        if offers is None:
            self.rows[_RARE].display = True
        for row in self.rows.values():
            self._offer(row)

    def _offer(self, row: FieldRow) -> None:
        """Offer values in a field; hide an empty field that this cluster has no use for."""
        if self._offers is not None:
            name = row.field.name
            row.offer(self._offers.values.get(name, ()))
            row.display = name not in self._offers.absent or bool(row.text.strip())
