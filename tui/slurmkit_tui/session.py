"""What is known of one cluster: its feed, its last answers, and when it is asked again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slurmkit_tui.feed import Answer, Ask, Feed
from slurmkit_tui.pace import Pace
from slurmkit_tui.rights import UNKNOWN_RIGHTS, Rights

if TYPE_CHECKING:
    from slurmkit.site import Site
    from slurmkit_tui.submit.draft import Draft
    from slurmkit_tui.submit.known import Knowledge


@dataclass
class Picture:
    """The last answer to a question.

    Attributes:
        prepared: what its view made of it, for the screen.
        problem: why there is no newer one; empty when there is.
    """

    pace: Pace
    answer: Answer | None = None
    prepared: Any = None
    problem: str = ""


@dataclass
class Session:
    """One cluster on the screen; another cluster has a session of its own, so nothing mixes."""

    feed: Feed
    interval: float
    site: Site | None = None
    rights: Rights = UNKNOWN_RIGHTS
    pictures: dict[Ask, Picture] = field(default_factory=dict)
    draft: Draft | None = None  # of a job that was not sent
    knowledge: Knowledge | None = None  # for the form, once it was opened

    def picture(self, ask: Ask, every: float = 1.0) -> Picture:
        """What is known about a question.

        Args:
            ask: the question.
            every: how many times the interval lie between two answers; some cost more.
        """
        if ask not in self.pictures:
            self.pictures[ask] = Picture(Pace(self.interval * every))
        return self.pictures[ask]

    @property
    def cluster(self) -> str | None:
        """The cluster's name, as it says itself or else as it was asked for."""
        return (self.site and self.site.cluster_name) or self.feed.name or None

    def look(self, ask: Ask, make: Callable[[Answer, Session], Any]) -> tuple[Answer, Any]:
        """Ask, and make the answer ready. Blocks.

        Until it is known, it is also asked what cluster this is, and what the person may do there.

        Raises:
            SlurmkitError: when there is no answer.
        """
        answer = self.feed.fetch(ask)
        if self.site is None or not self.site.cluster_name:  # it did not say so when it was asked
            self.site = self.feed.fetch(Ask("site")).value
            self.rights = self.feed.fetch(Ask("rights")).value
        return answer, make(answer, self)
