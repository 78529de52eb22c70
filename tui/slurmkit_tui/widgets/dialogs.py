"""Dialogs over a view: text, confirmation, value, choice of one or several."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import Button, Input, OptionList, SelectionList, Static
from textual.widgets.option_list import Option as Entry
from textual.widgets.selection_list import Selection

from slurmkit.errors import BadInput
from slurmkit.formats.display import printable
from slurmkit_tui.actions.commands import Argv, ValuePrompt
from slurmkit_tui.widgets.wrapped_text import TextLines, WrappedText

_CLOSE = Binding("escape,enter", "dismiss", "Close")
_PRETTY = {
    "slash": "/", "question_mark": "?", "pageup": "PgUp", "pagedown": "PgDn", "asterisk": "*",
    "less_than_sign": "<", "greater_than_sign": ">", "comma": ",", "full_stop": ".",
    "left_square_bracket": "[", "right_square_bracket": "]", "colon": ":", "super": "Cmd",
}  # fmt: skip
_MOST = 12  # commands shown of many
_LONGEST = 1200  # characters shown of all commands together


class TextDialog(ModalScreen[None]):
    """A dialog with a text that scrolls; Esc closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [_CLOSE]

    def __init__(self, title: str, lines: TextLines) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Show the text in a frame."""
        with VerticalScroll(classes="dialog") as frame:
            frame.border_title = Content(printable(self._title))
            frame.border_subtitle = "Esc closes"
            yield WrappedText(self._lines, id="body")


class ConfirmDialog(ModalScreen[bool]):
    """A dialog that shows the exact commands and asks whether to run them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str, commands: Sequence[Argv]) -> None:
        super().__init__()
        self._question = question
        self._commands = commands

    def compose(self) -> ComposeResult:
        """Show question, commands and two buttons; the harmless one has the focus."""
        with Vertical(classes="dialog") as frame:
            frame.border_title = "Please confirm"
            yield Static(printable(self._question), markup=False)
            yield Static(self._shown(), id="command", markup=False)
            with Horizontal(id="answers"):
                yield Button("No (n)", id="no", compact=True)
                yield Button("Yes, run it (y)", id="yes", variant="error", compact=True)

    def _shown(self) -> str:
        several = self._commands[:_MOST]
        lines = [_cut(shlex.join(argv), _LONGEST // len(several)) for argv in several]
        more = len(self._commands) - _MOST
        return "\n".join([*lines, *([f"… and {more} more like these"] if more > 0 else [])])

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer by mouse."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001 - from the key binding
        """Answer by key."""
        self.dismiss(answer)


def _cut(command: str, most: int) -> str:
    """Cut a command, so that the buttons below stay on the screen."""
    more = f" … and {len(command) - most:,} signs more" if len(command) > most else ""
    return printable(command[:most]) + more


class ValueDialog(ModalScreen[str | None]):
    """A dialog that asks for a value and shows what is wrong with it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close")]

    def __init__(self, wanted: ValuePrompt, start: str = "") -> None:
        super().__init__()
        self._wanted = wanted
        self._start = start

    def compose(self) -> ComposeResult:
        """Show the hint, the input, and the error."""
        with Vertical(classes="dialog") as frame:
            frame.border_title = self._wanted.label
            frame.border_subtitle = "Enter goes on, Esc leaves"
            yield Static(self._wanted.hint, markup=False)
            yield Input(printable(self._start), compact=True)
            yield Static("", id="wrong", markup=False)

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            value = self._wanted.check(event.value)
        except BadInput as error:
            self.query_one("#wrong", Static).update(printable(str(error)))
        else:
            self.dismiss(value)


class ChoiceOption(NamedTuple):
    """An option of `ChoiceDialog` or `MultiChoiceDialog`.

    Attributes:
        refusal: why it cannot be chosen; empty when it can.
    """

    name: str
    label: str
    help: str
    refusal: str = ""

    @property
    def content(self) -> Content:
        """The text of the option in the list."""
        remark = printable(f"not possible: {self.refusal}" if self.refusal else self.help)
        return Content.assemble(printable(self.label).ljust(12), "  ", (remark, "$quiet"))


class ChoiceDialog(ModalScreen[str | None]):
    """A dialog to choose one option."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close")]

    def __init__(self, title: str, options: Sequence[ChoiceOption]) -> None:
        super().__init__()
        self._title = title
        self._options = options

    def compose(self) -> ComposeResult:
        """List the options; a disabled one shows the reason."""
        entries = [Entry(o.content, id=o.name, disabled=bool(o.refusal)) for o in self._options]
        with Vertical(classes="dialog") as frame:
            frame.border_title = Content(printable(self._title))
            frame.border_subtitle = "Enter chooses, Esc leaves"
            yield ChoiceList(*entries, compact=True)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_id)


class MultiChoiceDialog(ModalScreen[list[str] | None]):
    """A dialog to choose any number of options."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
        Binding("enter", "done", "Done", priority=True),
    ]

    def __init__(
        self, title: str, options: Sequence[ChoiceOption], chosen: Collection[str]
    ) -> None:
        super().__init__()
        self._title = title
        self._options = options
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        """List the options; the chosen ones are marked."""
        entries = [Selection(o.label, o.name, o.name in self._chosen) for o in self._options]
        with Vertical(classes="dialog") as frame:
            frame.border_title = self._title
            frame.border_subtitle = "Space marks, Enter is done, Esc leaves"
            yield CheckList(*entries, compact=True)

    def action_done(self) -> None:
        """Return the marked options."""
        self.dismiss(list(self.query_one(CheckList).selected))


def key_names(names: str) -> str:
    """Return Textual's key names as on the keyboard: `ctrl+s,question_mark` as `Ctrl-S ?`."""
    return " ".join(map(_key_name, names.split(",")))


def _key_name(name: str) -> str:
    if name in _PRETTY or len(name) == 1:
        return _PRETTY.get(name, name)
    modifier, _, last = name.rpartition("+")
    return "-".join(_PRETTY.get(each, each.title()) for each in (modifier, last) if each)


_CURSOR = "▸"


class ChoiceList(OptionList):
    """A list to choose one item from; a mark stands before the item under the cursor."""

    def _get_left_gutter_width(self) -> int:
        return 2

    def render_line(self, y: int) -> Strip:
        """Put the mark, or blanks of the same width, before a line."""
        line = super().render_line(y)
        first = next(iter(line), None)
        style = (first and first.style) or Style()
        here = self.highlighted is not None and style.meta.get("option") == self.highlighted
        return Strip([Segment(f"{_CURSOR} " if here else "  ", style), *line])


class CheckList(SelectionList[str]):
    """A list to choose any number of items from; a box before each is marked if it is chosen."""

    def render_line(self, y: int) -> Strip:
        """Replace Textual's button, which looks the same chosen or not, by a box."""
        drawn = [*super().render_line(y)]
        at = self.scroll_offset.y + y
        if at >= self.option_count:
            return Strip(drawn)
        mark = "x" if self.get_option_at_index(at).value in self.selected else " "
        cursor = _CURSOR if at == self.highlighted else " "
        _, button, _, gap, *line = drawn
        style = (gap.style or Style()) + Style(meta=button.style.meta if button.style else None)
        return Strip([Segment(f"[{mark}]", style), Segment(cursor, gap.style), *line])
