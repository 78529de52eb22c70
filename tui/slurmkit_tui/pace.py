"""When a question is asked next: gently when the answer is slow, patiently when there is none."""

from __future__ import annotations

from dataclasses import dataclass

FLOOR = 2.0
SHARE = 0.1  # of the time may be spent waiting for an answer
CALM = 60.0  # at most, for an answer's slowness: it may well have been the only slow one
LONGEST = 120.0  # after failures


@dataclass
class Pace:
    """The rhythm of one question.

    Attributes:
        interval: seconds between two questions as the person asked for it.
        asking: a question is on its way.
        failures: questions that failed since the last answer.
        took: seconds the last question took.
        next_at: epoch seconds of the next question, None when none is planned.
    """

    interval: float
    asking: bool = False
    failures: int = 0
    took: float = 0.0
    next_at: float | None = None

    @property
    def delay(self) -> float:
        """Seconds from an answer, or a failure, to the next question.

        Slurm's waiting share stays below a tenth, as long as that takes a minute at most, and every
        failure in a row doubles the wait, up to two minutes.
        """
        waited = max(self.interval, min(CALM, self.took * (1 / SHARE - 1)))
        doubled: float = waited * 2 ** min(self.failures, 10)
        return min(doubled, max(LONGEST, waited))

    def answered(self, took: float) -> None:
        """Note an answer."""
        self.asking, self.failures, self.took = False, 0, took

    def failed(self, took: float) -> None:
        """Note a question without an answer."""
        self.asking, self.took = False, took
        self.failures += 1
