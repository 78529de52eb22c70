"""The views, in the order of their digits."""

from __future__ import annotations

from slurmkit_tui.view import View
from slurmkit_tui.views.fairshare import FairshareView
from slurmkit_tui.views.gpus import GpusView
from slurmkit_tui.views.health import HealthView
from slurmkit_tui.views.mine import MineView
from slurmkit_tui.views.nodes import NodesView
from slurmkit_tui.views.queue import QueueView
from slurmkit_tui.views.usage import UsageView
from slurmkit_tui.views.utilization import UtilizationView

VIEWS: tuple[type[View], ...] = (
    MineView, QueueView, GpusView, NodesView, UtilizationView, FairshareView, UsageView, HealthView,
)  # fmt: skip
