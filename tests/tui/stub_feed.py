"""A feed that answers what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fake_queue import NOW
from slurmkit_tui.app import Options, SlurmkitApp
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.feed.kinds import KINDS
from slurmkit_tui.rights import Rights

from slurmkit.errors import SlurmkitError
from slurmkit.site import Site


class StubFeed:
    """Values, or errors, by the name of the question."""

    name, me, writable, calls = "lab", "alice", True, 5

    def __init__(self, **values: Any) -> None:
        self.values = {
            "site": Site("lab", tracks_gpus=True),
            "rights": Rights("alice", "none"),
            **values,
        }

    def fetch(self, ask: Ask) -> Answer:
        value = self.values[ask.what]
        if isinstance(value, SlurmkitError):
            raise value
        return Answer(value, KINDS[ask.what].source, NOW, 0.0)

    def run(self, argv: Sequence[str]) -> str:
        raise AssertionError(argv)

    def app(self, view: str) -> SlurmkitApp:
        return SlurmkitApp(self, Options(view=view, clock=lambda: NOW + 3))
