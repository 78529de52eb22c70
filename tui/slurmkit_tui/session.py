"""State of one cluster on the screen: its feed, the last answers, and when to ask again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slurmkit_tui.feed import Feed, FeedAnswer, FeedQuestion
from slurmkit_tui.feed.history import HourlyGpus
from slurmkit_tui.feed.rights import NO_KNOWN_RIGHTS, Rights

if TYPE_CHECKING:
    from slurmkit.state.capabilities import SlurmConfig
    from slurmkit_tui.feed.knowledge import ClusterDataCache
    from slurmkit_tui.jobform.draft import Draft

SHORTEST_INTERVAL = 2.0  # seconds; shortest interval
WAITING_SHARE = 0.1  # largest share of the time spent waiting for answers
LONGEST_AFTER_SLOW = 60.0  # seconds; longest delay after a slow answer: the next one may be fast
LONGEST_AFTER_FAILURE = 120.0  # seconds; longest delay after failures
_WITH_GPUS = ("gpus", "nodes", "queue", "utilization")  # questions whose answers count GPUs


@dataclass(eq=False)  # each is one question, also while two look alike
class LastAnswer:
    """The last answer to a question.

    Attributes:
        pace: when the question is asked again.
        prepared: the answer as a view prepared it for the screen.
        prepared_for: name of that view; empty while it is not prepared.
        problem: why the last attempt got no answer; empty when it got one.
    """

    pace: PollSchedule
    answer: FeedAnswer | None = None
    prepared: Any = None
    prepared_for: str = ""
    problem: str = ""


@dataclass
class ClusterSession:
    """State of one cluster on the screen. Each cluster has its own session, so nothing mixes."""

    feed: Feed
    interval: float
    site: SlurmConfig | None = None
    rights: Rights = NO_KNOWN_RIGHTS
    last_answers: dict[FeedQuestion, LastAnswer] = field(default_factory=dict)
    draft: Draft | None = None  # of a job that was not submitted
    knowledge: ClusterDataCache | None = None  # for the form, once it has been opened
    history: HourlyGpus = field(default_factory=HourlyGpus)
    clock: Callable[[], float] = time.time  # of a recording, its own

    def last_answer(self, ask: FeedQuestion, every: float | None = None) -> LastAnswer:
        """Return the last answer to a question, or an empty `LastAnswer`.

        Args:
            ask: the question.
            every: time between two questions from now on, as a multiple of the interval; None
                leaves it as it is. Views that ask the same question may differ.
        """
        if ask not in self.last_answers:
            self.last_answers[ask] = LastAnswer(PollSchedule(self.interval))
        last = self.last_answers[ask]
        if every is not None:
            last.pace.interval = self.interval * every
        return last

    @property
    def cluster(self) -> str | None:
        """The cluster's name from Slurm, or else from the feed; None while unknown."""
        return (self.site and self.site.cluster_name) or self.feed.name or None

    def fetch(self, ask: FeedQuestion) -> FeedAnswer:
        """Fetch an answer, and add the GPUs that it counts to the history. Blocks.

        Raises:
            SlurmkitError: when there is no answer.
        """
        answer = self.feed.fetch(ask)
        if ask.what in _WITH_GPUS:
            from slurmkit_tui.feed.composed import add_to_history  # noqa: PLC0415 - after the first paint

            add_to_history(self.history, answer.value)
        return answer

    def look(
        self, ask: FeedQuestion, make: Callable[[FeedAnswer, ClusterSession], Any]
    ) -> tuple[FeedAnswer, Any]:
        """Fetch an answer and prepare it for the screen. Blocks.

        While the cluster's name is unknown, the site and the person's rights are fetched as well.

        Raises:
            SlurmkitError: when there is no answer.
        """
        answer = self.fetch(ask)
        if self.site is None or not self.site.cluster_name:
            self.site = self.feed.fetch(FeedQuestion("site")).value
            self.rights = self.feed.fetch(FeedQuestion("rights")).value
            self.history.open(self.cluster)
        return answer, make(answer, self)


@dataclass
class PollSchedule:
    """The schedule of one question.

    Attributes:
        interval: seconds between two questions, as configured.
        asking: whether an answer is awaited.
        failures: attempts that failed since the last answer.
        took: seconds the last attempt took.
        next_at: epoch seconds of the next attempt; None when none is planned.
    """

    interval: float
    asking: bool = False
    failures: int = 0
    took: float = 0.0
    next_at: float | None = None

    @property
    def delay(self) -> float:
        """Seconds from an answer or a failure to the next question.

        At most a tenth of the time is spent on answers, as long as that delays the next question by
        a minute at most. Each failure in a row doubles the delay, up to two minutes.
        """
        waited = max(self.interval, min(LONGEST_AFTER_SLOW, self.took * (1 / WAITING_SHARE - 1)))
        doubled: float = waited * 2 ** min(self.failures, 10)
        return min(doubled, max(LONGEST_AFTER_FAILURE, waited))

    def answered(self, took: float) -> None:
        """Record an answer that took `took` seconds."""
        self.asking, self.failures, self.took = False, 0, took

    def failed(self, took: float) -> None:
        """Record a failure after `took` seconds."""
        self.asking, self.took = False, took
        self.failures += 1
