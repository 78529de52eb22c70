"""The views, in the order of their digits; each is imported when it is first looked at."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from slurmkit_tui.view import View


class Place(NamedTuple):
    """A view, not yet imported.

    Attributes:
        name: by which it is configured and asked for: `queue`; the module it is in.
        title: a word for the line above.
        key: the digit that switches to it.
        kind: name of its class.
    """

    name: str
    title: str
    key: str
    kind: str

    def load(self) -> type[View]:
        """Import it."""
        return cast("type[View]", getattr(import_module(f"{__name__}.{self.name}"), self.kind))


VIEWS = (
    Place("mine", "Mine", "1", "MineView"),
    Place("queue", "Queue", "2", "QueueView"),
    Place("gpus", "GPUs", "3", "GpusView"),
    Place("nodes", "Nodes", "4", "NodesView"),
    Place("utilization", "Utilization", "5", "UtilizationView"),
    Place("fairshare", "Fairshare", "6", "FairshareView"),
    Place("usage", "Usage", "7", "UsageView"),
    Place("health", "Health", "8", "HealthView"),
)


def load_all() -> None:
    """Import them all."""
    for place in VIEWS:
        place.load()
