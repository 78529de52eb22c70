"""A feed that answers what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fake_queue import NOW
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.feed.kinds import QUESTION_KINDS
from slurmkit_tui.feed.rights import Rights
from slurmkit_tui.jobform.gpu_use import GpusNow, GpusOfJob
from slurmkit_tui.options import AppOptions

from slurmkit.errors import SlurmkitError
from slurmkit.state.capabilities import SlurmConfig


class StubFeed:
    """Values, or errors, by the name of the question."""

    name, me, writable, calls = "lab", "alice", True, 5

    def __init__(self, **values: Any) -> None:
        self.values = {
            "site": SlurmConfig("lab", tracks_gpus=True),
            "rights": Rights("alice", "none"),
            "gpus-now": GpusNow((), NOW),
            "gpus-ended": GpusOfJob((), NOW),
            **values,
        }

    def fetch(self, ask: FeedQuestion) -> FeedAnswer:
        value = self.values[ask.what]
        if isinstance(value, SlurmkitError):
            raise value
        return FeedAnswer(value, QUESTION_KINDS[ask.what].source, NOW, 0.0)

    def run(self, argv: Sequence[str]) -> str:
        raise AssertionError(argv)

    def app(self, view: str) -> SlurmkitApp:
        return SlurmkitApp(self, AppOptions(view=view, clock=lambda: NOW + 3))
