"""The one border of the TUI: questions by name, answers as typed values.

What is behind it is a live cluster, or a recording of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from slurmkit.planner import Plan


class Ask(msgspec.Struct, frozen=True):
    """A question.

    Attributes:
        what: its name: `queue`, `nodes`, `job` …
        about: what it is about: a job's id.
    """

    what: str
    about: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """What was answered.

    Attributes:
        value: of the type that `kinds.KINDS` names for the question.
        source: the command or daemon it is from, in words.
        taken: epoch seconds at which it was asked.
        seconds: how long the answer took.
    """

    value: Any
    source: str
    taken: float
    seconds: float


class Feed(Protocol):
    """Answers questions and runs commands; both may block, and are called in threads.

    Attributes:
        name: what the cluster is called on the screen before it says so itself.
        me: login name of the person at the screen.
        writable: whether commands can be run at all.
    """

    name: str
    me: str
    writable: bool

    @property
    def calls(self) -> int:
        """Slurm commands run so far."""
        ...

    def fetch(self, ask: Ask) -> Answer:
        """Answer a question.

        Raises:
            SlurmkitError: when there is no answer.
        """
        ...

    def run(self, argv: Sequence[str]) -> str:
        """Run a command just as it was shown.

        Raises:
            SlurmkitError: in Slurm's words.
        """
        ...

    def attach(self, argv: Sequence[str]) -> int:
        """Lend the terminal to a command until it ends; returns its exit code.

        Raises:
            SlurmkitError: when it cannot be run.
        """
        ...

    def submit(self, plan: Plan) -> str:
        """Send a plan just as it was shown; returns the id of its job.

        Raises:
            SlurmkitError: when it has errors, or in Slurm's words.
        """
        ...


@runtime_checkable
class Recorded(Feed, Protocol):
    """A feed whose time can be stopped and changed."""

    def clock(self) -> float:
        """Epoch seconds in the recording."""
        ...

    def seek(self, at: float) -> None:
        """Go to another time in it."""
        ...

    def pause(self, *, paused: bool) -> None:
        """Let time stand still, or go on."""
        ...
