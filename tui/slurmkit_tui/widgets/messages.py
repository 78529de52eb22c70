"""Messages from workers to the app. Only the app's handlers change state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from textual.message import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slurmkit.errors import SlurmkitError
    from slurmkit_tui.actions.commands import Argv
    from slurmkit_tui.feed import FeedAnswer, FeedQuestion
    from slurmkit_tui.session import ClusterSession


class ViewAnswered(Message):
    """A view's question was answered, and the answer is prepared for that view.

    Attributes:
        also: when the further answers were taken that it was prepared with; None for none.
    """

    def __init__(
        self,
        session: ClusterSession,
        ask: FeedQuestion,
        answer: FeedAnswer,
        prepared: Any,
        view: str,
        also: Sequence[float | None] = (),
    ) -> None:
        super().__init__()
        self.session, self.ask, self.answer, self.prepared = session, ask, answer, prepared
        self.view, self.also = view, also


class ViewUnanswered(Message):
    """A view's question failed, after `took` seconds."""

    def __init__(
        self, session: ClusterSession, ask: FeedQuestion, error: SlurmkitError, took: float
    ) -> None:
        super().__init__()
        self.session, self.ask, self.error, self.took = session, ask, error, took


class ScreenAnswered(Message):
    """The answer that a screen over the view asked for, or the error."""

    def __init__(self, ask: FeedQuestion, found: FeedAnswer | SlurmkitError) -> None:
        super().__init__()
        self.ask, self.found = ask, found


@runtime_checkable
class AskingScreen(Protocol):
    """A screen over the views that asks with `ask_for`, and receives `ScreenAnswered`."""

    @property
    def job_id(self) -> str:
        """Id of the job on the screen."""

    @property
    def targets(self) -> Sequence[Any]:
        """The targets of actions: the job on the screen; empty until it is read."""

    def take(self, message: ScreenAnswered, at: float) -> None:
        """Show an answer that arrived at `at`, in epoch seconds."""
        ...


class PreviewOutdated(Message):
    """The row under the cursor, or the room for its preview, is another."""


class RowOpened(Message):
    """The row under the cursor was opened, by Enter or a double click."""


class CommandResult(NamedTuple):
    """A command that has ended; `error` is None on success."""

    argv: Argv
    error: SlurmkitError | None


class CommandsRun(Message):
    """Confirmed commands have ended."""

    def __init__(self, ran: Sequence[CommandResult]) -> None:
        super().__init__()
        self.ran = ran
