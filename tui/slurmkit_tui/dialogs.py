"""What opens over the table: a job's facts, a question, the keys."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from slurmkit.errors import SlurmkitError
from slurmkit.jobs.info import JobInfo
from slurmkit.text import printable
from slurmkit_tui.actions import ACTIONS
from slurmkit_tui.facts import all_facts, facts
from slurmkit_tui.snapshot import Line

_CLOSE = Binding("escape,enter", "dismiss", "Close")
_PRETTY = {"slash": "/", "question_mark": "?", "pageup": "PgUp", "pagedown": "PgDn"}


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


class Help(Panel):
    """The keys, from the one list of actions."""

    def __init__(self) -> None:
        super().__init__("Keys", pairs([(keys(a.keys), a.help) for a in ACTIONS]))


class Detail(Panel):
    """A job's facts; those of the row at once, the rest when Slurm has answered."""

    def __init__(self, line: Line) -> None:
        asking = ("Source", "squeue; asking for more…")
        super().__init__(f"Job {line.row.job_id}", pairs([*facts(line), asking]))
        self._line = line

    @property
    def key(self) -> str:
        """Key of the job shown."""
        return self._line.key

    def show(self, found: JobInfo | SlurmkitError, at: float) -> None:
        """Add what Slurm said at `at`."""
        if isinstance(found, JobInfo):
            rows = all_facts(self._line, found, at)
        else:
            rows = [*facts(self._line), ("Problem", str(found))]
        self.query_one("#body", Static).update(pairs(rows))


class Confirm(ModalScreen[bool]):
    """Shows the exact command and asks whether to run it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str, argv: Sequence[str]) -> None:
        super().__init__()
        self._question = question
        self._argv = argv

    def compose(self) -> ComposeResult:
        """Show question, command and the two answers; Enter is on the harmless one."""
        with Vertical(classes="dialog") as frame:
            frame.border_title = "Please confirm"
            yield Static(printable(self._question), markup=False)
            yield Static(printable(shlex.join(self._argv)), id="command", markup=False)
            with Horizontal(id="answers"):
                yield Button("No (n)", id="no", compact=True)
                yield Button("Yes, run it (y)", id="yes", variant="error", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer by mouse."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001 - from the key binding
        """Answer by key."""
        self.dismiss(answer)


def keys(names: str) -> str:
    """Keys as they are called on the keyboard."""
    return " ".join(_PRETTY.get(n, n if len(n) == 1 else n.title()) for n in names.split(","))
