"""What workers tell the app; the app's handlers own everything that changes."""

from __future__ import annotations

from typing import Any

from textual.message import Message

from slurmkit.errors import SlurmkitError
from slurmkit_tui.commands import Argv
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.session import Session


class Answered(Message):
    """A view's question was answered, and the answer made ready."""

    def __init__(self, session: Session, ask: Ask, answer: Answer, prepared: Any) -> None:
        super().__init__()
        self.session, self.ask, self.answer, self.prepared = session, ask, answer, prepared


class Unanswered(Message):
    """It was not, after `took` seconds."""

    def __init__(self, session: Session, ask: Ask, error: SlurmkitError, took: float) -> None:
        super().__init__()
        self.session, self.ask, self.error, self.took = session, ask, error, took


class Found(Message):
    """What a dialog asked for, or why there is nothing."""

    def __init__(self, ask: Ask, found: Answer | SlurmkitError) -> None:
        super().__init__()
        self.ask, self.found = ask, found


class CommandRun(Message):
    """A confirmed command has ended; `error` is why it failed, None when it did not."""

    def __init__(self, argv: Argv, error: SlurmkitError | None) -> None:
        super().__init__()
        self.argv, self.error = argv, error
