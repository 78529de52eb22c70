"""The data source of the TUI: questions by name, answers as typed values.

A feed is a live cluster or a recording of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from slurmkit.planning.planner import Plan

SOURCE_NAMES = {
    "queue": "squeue",
    "mine": "squeue",
    "gpus": "scontrol",
    "nodes": "scontrol",
    "fairshare": "sshare",
    "utilization": "ledger",
    "usage": "ledger",
    "gpus-now": "ledger",
    "gpus-ended": "ledger",
    "health": "doctor",
}


class FeedQuestion(msgspec.Struct, frozen=True):
    """A question to a feed.

    Attributes:
        what: name of the question: `queue`, `nodes`, `job` …
        about: its arguments, for example a job id.
    """

    what: str
    about: tuple[str, ...] = ()


GPUS_NOW = FeedQuestion("gpus-now")


class FeedAnswer(msgspec.Struct, frozen=True):
    """An answer of a feed.

    Attributes:
        value: of the type that `kinds.KINDS` names for the question.
        source: name of the command or daemon that answered.
        taken: epoch seconds at which the question was asked.
        seconds: how long the answer took.
    """

    value: Any
    source: str
    taken: float
    seconds: float


class Feed(Protocol):
    """A source of answers that also runs commands. All methods may block; call them in threads.

    Attributes:
        name: cluster name on the screen until Slurm reports its own.
        me: login name of the person at the screen.
        writable: whether commands can be run at all.
    """

    name: str
    me: str
    writable: bool

    @property
    def calls(self) -> int:
        """Number of Slurm commands run so far."""
        ...

    def fetch(self, ask: FeedQuestion) -> FeedAnswer:
        """Answer a question.

        Raises:
            SlurmkitError: when there is no answer.
        """
        ...

    def run(self, argv: Sequence[str]) -> str:
        """Run a command exactly as shown and return its output.

        Raises:
            SlurmkitError: with Slurm's message.
        """
        ...

    def attach(self, argv: Sequence[str]) -> int:
        """Give the terminal to a command until it ends, and return its exit code.

        Raises:
            SlurmkitError: when it cannot be run.
        """
        ...

    def submit(self, plan: Plan) -> str:
        """Submit a plan exactly as shown and return the job id.

        Raises:
            SlurmkitError: when the plan has errors, or with Slurm's message.
        """
        ...


@runtime_checkable
class RecordedFeed(Feed, Protocol):
    """A feed whose time can be stopped and changed."""

    def clock(self) -> float:
        """Return the time in the recording, in epoch seconds."""
        ...

    def seek(self, at: float) -> None:
        """Jump to another time of the recording."""
        ...

    def pause(self, *, paused: bool) -> None:
        """Stop the recording's clock, or let it run."""
        ...
