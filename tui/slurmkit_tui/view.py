"""What every view is: a question, what is made of its answer, and a place on the screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual.containers import Vertical
from textual.message import Message

from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.session import Session

Part = str | tuple[str, str]
AT_ONCE = 5000  # rows that are filtered and sorted in the time of a frame; more go to a thread


class View(Vertical):
    """A view that the digits switch to; `views.VIEWS` names them.

    Attributes:
        NAME: by which it is configured and asked for: `queue`.
        ASK: what it shows the answer to.
        EVERY: how many times the interval lie between two answers.
        OF_JOBS: whether what Enter opens is a job.
        filters_rows: whether it can be filtered.
    """

    NAME: ClassVar[str]
    ASK: ClassVar[Ask]
    EVERY: ClassVar[float] = 1.0
    OF_JOBS: ClassVar[bool] = False
    filters_rows: ClassVar[bool] = False

    class Changed(Message):
        """Something else is shown; the line above is to be written anew."""

    class Asks(Message):
        """It wants to know something else now."""

    @property
    def ask(self) -> Ask:
        """What it wants to know now."""
        return self.ASK

    def make(self, answer: Answer, session: Session) -> Any:
        """Make an answer ready for the screen; runs in a thread and touches no widget."""
        raise NotImplementedError

    def take(self, prepared: Any) -> None:
        """Show what `make` made."""
        raise NotImplementedError

    def say(self, words: str) -> None:
        """Say why there is nothing to show."""
        raise NotImplementedError

    def summary(self) -> Iterable[Part]:
        """What is shown, counted, for the line above."""
        return ()

    @property
    def rows(self) -> Sequence[Any]:
        """What actions are about: the rows chosen, or the one under the cursor."""
        return ()

    @property
    def current(self) -> Any | None:
        """What Enter opens."""
        return self.rows[0] if self.rows else None

    @property
    def clearable(self) -> bool:
        """Whether there is a filter, or something chosen, that Esc clears."""
        return False

    def open_filter(self) -> None:
        """Let the person type a filter."""

    def clear(self) -> None:
        """Clear the filter, or else what was chosen."""

    def focus_main(self) -> None:
        """Put the keys where they belong in this view."""
        raise NotImplementedError
