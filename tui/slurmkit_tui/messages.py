"""What workers tell the app; the app's handlers own everything that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from textual.message import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

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


@runtime_checkable
class AskingScreen(Protocol):
    """A screen over the views that asks by `ask_for`, and gets what was found."""

    def take(self, message: Found, at: float) -> None:
        """Show what was found at `at`, in epoch seconds."""
        ...


class Opened(Message):
    """What is under the cursor was opened, by Enter or a double click."""


class Ran(NamedTuple):
    """A command that has ended; `error` is why it failed, None when it did not."""

    argv: Argv
    error: SlurmkitError | None


class CommandsRun(Message):
    """Confirmed commands have ended."""

    def __init__(self, ran: Sequence[Ran]) -> None:
        super().__init__()
        self.ran = ran
