"""The views in the order of their digits; each is imported when it is first opened."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from slurmkit_tui.views.base import View


class ViewEntry(NamedTuple):
    """Name and class of a view, which is imported on demand.

    Attributes:
        name: name in the configuration, and of its module: `queue`.
        title: title of its tab.
        key: the digit that switches to it.
        kind: name of its class.
    """

    name: str
    title: str
    key: str
    kind: str

    def load(self) -> type[View]:
        """Import the module and return the class."""
        return cast("type[View]", getattr(import_module(f"{__name__}.{self.name}"), self.kind))


VIEWS = (
    ViewEntry("home", "Home", "0", "HomeView"),
    ViewEntry("mine", "Mine", "1", "MineView"),
    ViewEntry("queue", "Queue", "2", "QueueView"),
    ViewEntry("gpus", "GPUs", "3", "GpusView"),
    ViewEntry("nodes", "Nodes", "4", "NodesView"),
    ViewEntry("utilization", "Utilization", "5", "UtilizationView"),
    ViewEntry("fairshare", "Fairshare", "6", "FairshareView"),
    ViewEntry("usage", "Usage", "7", "UsageView"),
    ViewEntry("health", "Health", "8", "HealthView"),
)


def load_all() -> None:
    """Import all views."""
    for place in VIEWS:
        place.load()
