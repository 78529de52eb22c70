"""What opens over a view: facts, a question, a value, a choice, the keys."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option as Entry
from textual.widgets.selection_list import Selection

from slurmkit.errors import BadInput
from slurmkit.text import printable
from slurmkit_tui.choices import Boxes, Choices
from slurmkit_tui.commands import Argv, Wanted

_CLOSE = Binding("escape,enter", "dismiss", "Close")
_PRETTY = {
    "slash": "/", "question_mark": "?", "pageup": "PgUp", "pagedown": "PgDn", "asterisk": "*",
    "less_than_sign": "<", "greater_than_sign": ">", "comma": ",", "full_stop": ".",
    "left_square_bracket": "[", "right_square_bracket": "]",
}  # fmt: skip
_MOST = 12  # commands shown of many
_LONGEST = 1200  # signs shown of them together


def pairs(rows: Sequence[tuple[str, str]]) -> Content:
    """Names and values in two columns; values are foreign text, so nothing in them is markup."""
    size = max(len(name) for name, _ in rows)
    lines = (
        Content.assemble((name.ljust(size + 2), "$quiet"), printable(value)) for name, value in rows
    )
    return Content("\n").join(lines)


class Panel(ModalScreen[None]):
    """A framed text that scrolls, closed by Esc."""

    BINDINGS: ClassVar[list[BindingType]] = [_CLOSE]

    def __init__(self, title: str, content: Content) -> None:
        super().__init__()
        self._title = title
        self._content = content

    def compose(self) -> ComposeResult:
        """Frame the text."""
        with VerticalScroll(classes="dialog") as frame:
            frame.border_title = Content(printable(self._title))
            frame.border_subtitle = "Esc closes"
            yield Static(self._content, id="body", markup=False)


class Confirm(ModalScreen[bool]):
    """Shows the exact commands and asks whether to run them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str, commands: Sequence[Argv]) -> None:
        super().__init__()
        self._question = question
        self._commands = commands

    def compose(self) -> ComposeResult:
        """Show question, commands and the two answers; Enter is on the harmless one."""
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
    """A command as far as the answers below it stay on the screen."""
    more = f" … and {len(command) - most:,} signs more" if len(command) > most else ""
    return printable(command[:most]) + more


class Prompt(ModalScreen[str | None]):
    """Asks for a value and says at once what is wrong with it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close")]

    def __init__(self, wanted: Wanted, start: str = "") -> None:
        super().__init__()
        self._wanted = wanted
        self._start = start

    def compose(self) -> ComposeResult:
        """Show what is wanted, the line to type in, and what is wrong."""
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


class Option(NamedTuple):
    """One of several things to choose from.

    Attributes:
        refusal: why it cannot be chosen; empty when it can.
    """

    name: str
    label: str
    help: str
    refusal: str = ""

    @property
    def content(self) -> Content:
        """The option on its line."""
        said = printable(f"not now: {self.refusal}" if self.refusal else self.help)
        return Content.assemble(printable(self.label).ljust(12), "  ", (said, "$quiet"))


class Choose(ModalScreen[str | None]):
    """One of several options."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close")]

    def __init__(self, title: str, options: Sequence[Option]) -> None:
        super().__init__()
        self._title = title
        self._options = options

    def compose(self) -> ComposeResult:
        """List the options; those refused say why."""
        entries = [Entry(o.content, id=o.name, disabled=bool(o.refusal)) for o in self._options]
        with Vertical(classes="dialog") as frame:
            frame.border_title = Content(printable(self._title))
            frame.border_subtitle = "Enter chooses, Esc leaves"
            yield Choices(*entries, compact=True)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_id)


class Several(ModalScreen[list[str] | None]):
    """Any of several options."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
        Binding("enter", "done", "Done", priority=True),
    ]

    def __init__(self, title: str, options: Sequence[Option], chosen: Collection[str]) -> None:
        super().__init__()
        self._title = title
        self._options = options
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        """List the options with those chosen marked."""
        entries = [Selection(o.label, o.name, o.name in self._chosen) for o in self._options]
        with Vertical(classes="dialog") as frame:
            frame.border_title = self._title
            frame.border_subtitle = "Space marks, Enter is done, Esc leaves"
            yield Boxes(*entries, compact=True)

    def action_done(self) -> None:
        """Take what is marked."""
        self.dismiss(list(self.query_one(Boxes).selected))


def keys(names: str) -> str:
    """Keys as they are called on the keyboard."""
    return " ".join(map(_called, names.split(",")))


def _called(name: str) -> str:
    if name in _PRETTY or len(name) == 1:
        return _PRETTY.get(name, name)
    held, _, last = name.rpartition("+")
    return "-".join(_PRETTY.get(each, each.title()) for each in (held, last) if each)
